"""The command ``curve``: rows written by each setting, their distances from strict text, their speed."""

import logging
import platform
import statistics
from collections import Counter
from datetime import UTC, datetime

import numpy as np

from dare_job.errors import DataError
from dare_job.evaluate.curve import distance, loss, table, written
from dare_job.evaluate.curve.distance import Distances, least_mean
from dare_job.evaluate.curve.options import Options
from dare_job.evaluate.curve.table import Distance, Entry, QualityCurve
from dare_job.evaluate.curve.written import Setting, Written
from dare_job.generate import preflight
from dare_job.job import Job
from dare_job.models.files import EMBEDDED
from dare_job.observe import redact
from dare_job.publish.features import encoder_files
from dare_job.publish.features.encoder import Encoder
from dare_job.publish.report.plot import Dot, Panel, decades, document, from_zero, linear
from dare_job.workspace import write_json

_LOG = logging.getLogger("dare_job")


def run(job: Job, options: Options) -> QualityCurve:
    """Measure, write ``curve.json`` and ``curve.svg`` in ``options.work``, and return the curve.

    Raises DataError where there is nothing to write or to draft from.
    """
    preflight.check_drafting(job)
    encoder = _Encoder(job)
    made = written.prepared(job, options.work / "job")
    with_auc = options.check.data is not None
    sample = written.rows(made, None if with_auc else options.rows, options.seed)
    if not sample:
        raise DataError(f"no row would be written on {job.space.dt}: all text is of this model and prompt; "
                        "choose a later --date, or old text of an earlier one (input.knowledge)")
    _LOG.info("%d rows by strict and by %d settings, %d of them %d times", len(sample),
              len(options.settings), min(options.rows, len(sample)), options.turns)
    settings: list[Setting] = [None, *options.settings]
    found = written.write(made, settings, sample, options.rows, options.turns)
    _require_texts(found)
    alpha = (1 - options.level) / len(options.settings)
    losses, carried = {}, 0
    compared = {setting: _distances(found[None], found[setting], encoder) for setting in options.settings}
    if with_auc:
        losses, carried = loss.measure(made, sample, found, options.check, options.work / "texts", alpha)
    entries = [_entry(setting, found, compared.get(setting), alpha, losses.get(setting, {}))
               for setting in settings]
    curve = QualityCurve(
        schema_version=table.VERSION, date=job.space.dt,
        made=datetime.now(UTC).isoformat(timespec="seconds"), identity=table.identity(made),
        settings=redact.values({section: getattr(job.config, section).model_dump(mode="json")
                                for section in ("model", "prompts", "decode", "drafter", "verify", "pools")}),
        level=options.level, rows=len(found[None].texts), timed=min(options.rows, len(sample)),
        turns=options.turns, seeds=options.check.seeds if with_auc else 0, carried=carried,
        entities=dict(Counter(row["entity"] for row in sample)), encoder=encoder.name,
        machine=f"{platform.machine()}, {platform.node()}", command=options.command, entries=entries)
    write_json(options.work / "curve.json", curve.model_dump(mode="json"))
    (options.work / "curve.svg").write_text(_drawn(curve), encoding="utf-8")
    return curve


class _Encoder:
    """The encoder of the stage encode, or the embedded one; loaded where texts differ."""

    def __init__(self, job: Job):
        """Raises ConfigError where a package is missing, ModelError where there is no such encoder."""
        self._settings = settings = job.config.encode
        self.name = settings.model or EMBEDDED
        self._folder, self._loaded = encoder_files.resolve(self.name), None

    def __call__(self, texts: list[str]) -> np.ndarray:
        if self._loaded is None:
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"
            self._loaded = Encoder(self._folder, device, self._settings.batch_size)
        return self._loaded.encode(texts).vectors


def _require_texts(found: dict[Setting, Written]) -> None:
    for setting, one in found.items():
        if not one.texts:
            raise DataError(f"{written.name(setting)}: no row could be written, such as {one.errors[0]}")
        if one.errors:
            _LOG.warning("%s: %d rows could not be written, and are not compared, such as %s",
                         written.name(setting), len(one.errors), one.errors[0])


def _distances(strict: Written, other: Written, encode) -> Distances:
    """Of the rows that both wrote."""
    both = [row for row in strict.texts if row in other.texts]
    pairs = [(strict.texts[row][0], other.texts[row][0]) for row in both]
    tokens = np.array([(strict.texts[row][1], other.texts[row][1]) for row in both]).reshape(-1, 2)
    return distance.measure(pairs, tokens, encode)


def _entry(setting: Setting, found: dict[Setting, Written], seen: Distances | None, alpha: float,
           losses: dict[str, table.Loss]) -> Entry:
    one, strict = found[setting], found[None]
    ratios = [s / o for s, o in zip(strict.seconds, one.seconds, strict=True)]
    k, p = setting or (None, None)
    distances = {}
    if seen is not None:
        written_by = [part.texts for part in (one, strict)]
        lengths = [sum(texts[row][1] for row in strict.texts if row in one.texts) for texts in written_by]
        distances = {**_means(seen, alpha), "differing": round(float((~seen.same).mean()), 6),
                     "lengthened": round(lengths[0] / max(lengths[1], 1), 6)}
    return Entry(
        k=k, p=p, tokens_per_s=round(one.tokens_per_s, 1),
        accepted_per_step=round(one.accepted / one.steps, 4) if one.steps else None,
        relaxed_share=round(one.relaxed / max(one.tokens[0], 1), 6),
        speed=tuple(round(value, 4) for value in (statistics.median(ratios), min(ratios), max(ratios))),
        **distances, auc=losses)


def _means(seen: Distances, alpha: float) -> dict[str, Distance]:
    """Means with their bounds at level 1 - ``alpha``, each on the side of more distance."""
    least = least_mean((1 + seen.cosine) / 2, alpha)
    found = {"cosine": (seen.cosine, 2 * least - 1),
             "rouge_l": (seen.rouge_l, least_mean(seen.rouge_l, alpha)),
             "length": (seen.length, 1 - least_mean(1 - seen.length, alpha))}
    return {name: Distance(mean=float(values.mean()), bound=bound) for name, (values, bound) in found.items()}


def _drawn(curve: QualityCurve) -> str:
    """Distance and AUC loss of each setting against its speed, with bounds, as an SVG document."""
    relaxed = [entry for entry in curve.entries if entry.k is not None]
    strict = (1.0, "strict")
    panels = [Panel(f"1 - cosine similarity to strict text: mean and bound at {curve.level:.0%} "
                    f"({curve.rows} rows)",
                    dots=[_dot(entry, 1 - entry.cosine.mean, 1 - entry.cosine.bound) for entry in relaxed],
                    x=linear, y=decades, reference=strict)]
    panels += [Panel(f"AUC loss against strict text, {model}: mean and bound at {curve.level:.0%} "
                     f"({curve.seeds} seeds)",
                     dots=[_dot(entry, entry.auc[model].mean, entry.auc[model].bound) for entry in relaxed],
                     x=linear, y=from_zero, reference=strict) for model in relaxed[0].auc]
    return document(f"Quality against speed of {len(relaxed)} settings of relaxed verification", panels,
                    f"rows per second relative to strict verification (median of {curve.turns} turns; bar: "
                    "minimum and maximum)")


def _dot(entry: Entry, value: float, bound: float | None) -> Dot:
    speed, slowest, fastest = entry.speed
    return Dot(entry.name, speed, value, x_range=(slowest, fastest), bound=bound)
