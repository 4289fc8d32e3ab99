"""The sets of texts that are compared: read, encoded where they have no features, and checked as a whole."""

import logging

import numpy as np
import torch

from dare_job.config.settings import EncodeSettings
from dare_job.errors import DataError, ModelError
from dare_job.evaluate.ctr import knowledge
from dare_job.evaluate.ctr.features import Maker
from dare_job.evaluate.ctr.knowledge import Knowledge
from dare_job.evaluate.ctr.options import Options
from dare_job.observe import redact
from dare_job.publish.features import encoder_files
from dare_job.publish.features.encoder import Encoder
from dare_job.storage import paths

_LOG = logging.getLogger("dare_job")
_CLUSTERS = "cluster"  # a set whose name begins so is read as cluster ids


def read(options: Options) -> dict[str, list[Knowledge]]:
    """Texts by set.

    Warns where vectors are not all of one size and encoder. Raises DataError where sets are of several dates,
    or where a pair of ``equivalent`` differs in more than its texts.
    """
    encode = _Encode(options)
    found = {name: knowledge.read(paths.path(out, "--knowledge"), options.dt, list(options.entities),
                                  name.startswith(_CLUSTERS), encode)
             for name, out in options.knowledge.items()}
    dates = {name: tables[0].dt for name, tables in found.items()}
    if len(set(dates.values())) > 1:
        raise DataError("--knowledge: the sets are of different dates (" + ", ".join(
            f"{name} {day}" for name, day in dates.items()) + "); name one that all have with --date")
    for pair in options.equivalent:
        _require_alike(found, pair)
    _warn_of_unlike(found)
    return found


class _Encode:
    """Texts to vectors, each text once; the encoder is loaded for the first of them."""

    def __init__(self, options: Options):
        self._name = options.encoder
        self._vectors: dict[str, np.ndarray] = {}
        self._loaded: tuple[Encoder, Maker] | None = None

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, Maker | None]:
        if not texts:
            return np.empty((0, 0), np.float32), None
        encoder, maker = self._loaded = self._loaded or self._load()
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            _LOG.info("encoding %d texts with %s", len(new), maker.name)
            self._vectors.update(zip(new, encoder.encode(new).vectors, strict=True))
        return np.stack([self._vectors[text] for text in texts]), maker

    def _load(self) -> tuple[Encoder, Maker]:
        """Raises ConfigError where a package is missing, ModelError where there is no such encoder."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            folder = encoder_files.resolve(self._name, setting="--encoder")
            encoder = Encoder(folder, device, EncodeSettings().batch_size)
            return encoder, Maker(redact.values(self._name), encoder_files.fingerprint(folder))
        except ModelError as error:
            raise ModelError(f"--encoder {self._name}: {error}") from error


def _require_alike(found: dict[str, list[Knowledge]], pair: tuple[str, str]) -> None:
    """Sets compared for equivalence must differ in their texts alone."""
    one, other = (found.get(name) for name in pair)
    if not one or not other:
        return
    both, end = dict(zip(pair, (one, other), strict=True)), "so a difference would not be the texts'"
    whose = {name: " and ".join(table.entity for table in tables) for name, tables in both.items()}
    if len(set(whose.values())) > 1:
        raise DataError(f"--equivalent {','.join(pair)}: the sets have texts of others ("
                        f"{'; '.join(f'{name}: {part}' for name, part in whose.items())}), {end}; choose a "
                        "--date or --entities that both have")
    said = [{(table.entity, table.vectors is None, table.width, _key(table)) for table in tables}
            for tables in both.values()]
    if said[0] != said[1]:
        raise DataError(f"--equivalent {','.join(pair)}: the sets have vectors of another size or encoder "
                        f"({_described(both)}), {end}; encode both alike")


def _warn_of_unlike(found: dict[str, list[Knowledge]]) -> None:
    """Within a set or between sets; cluster ids may have other levels than vectors have numbers."""
    every = [table for tables in found.values() for table in tables]
    widths = {table.width for table in every if table.vectors is not None}
    if len(widths) > 1 or len(set(map(_key, every))) > 1:
        _LOG.warning("vectors are not all of one size and encoder (%s), so differences need not be the "
                     "texts'; encode users and items of all sets alike", _described(found))


def _key(table: Knowledge) -> tuple | None:
    return table.encoder and table.encoder.key


def _described(found: dict[str, list[Knowledge]]) -> str:
    return "; ".join(f"{name}: {_kind(tables)}" for name, tables in found.items())


def _kind(tables: list[Knowledge]) -> str:
    """Width and encoder of a set, of each entity type where they differ."""
    said = {table.entity: f"{table.width} {'levels' if table.vectors is None else 'numbers'} of "
                          f"{table.encoder or 'an encoder not named'}" for table in tables}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return ", ".join(f"{entity} {part}" for entity, part in said.items())
