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

    Warns if vectors differ in size or encoder.

    Raises
    ------
    DataError
        As ``knowledge.read``, or the sets are of several dates, or a pair of ``equivalent`` differs in more
        than its texts.
    ConfigError, ModelError
        The encoder cannot be used.
    """
    encode = TextEncoder(options.encoder)
    sets = {name: knowledge.read(paths.path(out, "--knowledge"), options.dt, list(options.entities),
                                 name.startswith(_CLUSTERS), encode)
            for name, out in options.knowledge.items()}
    dates = {name: tables[0].dt for name, tables in sets.items()}
    if len(set(dates.values())) > 1:
        raise DataError("--knowledge: the sets are of different dates (" + ", ".join(
            f"{name} {day}" for name, day in dates.items()) + "); choose one that all have with --date")
    for pair in options.equivalent:
        _require_same_kinds({name: sets[name] for name in pair if name in sets})
    every = [table for tables in sets.values() for table in tables]
    widths = {table.width for table in every if table.vectors is not None}
    if len(widths) > 1 or len(set(map(_key, every))) > 1:
        _LOG.warning("vectors are not all of one size and encoder (%s), so differences may come from the "
                     "encoder; encode users and items of all sets with one encoder", _described(sets))
    return sets


class TextEncoder:
    """Encodes each text once; the encoder is loaded for the first of them."""

    def __init__(self, name: str):
        self._name = name
        self._vectors: dict[str, np.ndarray] = {}
        self._loaded: tuple[Encoder, Maker] | None = None

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, Maker | None]:
        """Vectors float32 (n, d) of n texts, and what made them; (0, 0) and None without texts.

        Raises ConfigError if a package is missing, ModelError if there is no such encoder.
        """
        if not texts:
            return np.empty((0, 0), np.float32), None
        encoder, maker = self._loaded = self._loaded or self._load()
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            _LOG.info("encoding %d texts with %s", len(new), maker.name)
            self._vectors.update(zip(new, encoder.encode(new).vectors, strict=True))
        return np.stack([self._vectors[text] for text in texts]), maker

    def _load(self) -> tuple[Encoder, Maker]:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            folder = encoder_files.resolve(self._name, setting="--encoder")
            encoder = Encoder(folder, device, EncodeSettings().batch_size)
            return encoder, Maker(redact.values(self._name), encoder_files.fingerprint(folder))
        except ModelError as error:
            raise ModelError(f"--encoder {self._name}: {error}") from error


def _require_same_kinds(pair: dict[str, list[Knowledge]]) -> None:
    """Raise DataError if two sets of texts differ in entity types, sizes or encoders."""
    kinds = [{(table.entity, table.vectors is None, table.width, _key(table)) for table in tables}
             for tables in pair.values()]
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        raise DataError(f"--equivalent {','.join(pair)}: the sets differ in more than their texts "
                        f"({_described(pair)}); encode both with one encoder, and choose a --date or "
                        "--entities that both have")


def _key(table: Knowledge) -> str | None:
    return table.encoder and table.encoder.key


def _described(sets: dict[str, list[Knowledge]]) -> str:
    """Size and encoder of each set and entity type."""
    return "; ".join(f"{name}: " + ", ".join(
        f"{table.entity} {table.width} {'levels' if table.vectors is None else 'numbers'} of "
        f"{table.encoder or 'an unknown encoder'}" for table in tables) for name, tables in sets.items())
