"""``dare-job curve``: generates rows with each setting, and measures distances from strict text and speed."""

import logging
import platform
import statistics
from collections import Counter
from datetime import UTC, datetime

import numpy as np

from dare_job.errors import DataError
from dare_job.evaluate.ctr.sets import TextEncoder
from dare_job.evaluate.curve import distance, loss, table, written
from dare_job.evaluate.curve.distance import Distances, mean_lower_bound
from dare_job.evaluate.curve.options import Options
from dare_job.evaluate.curve.table import Distance, Entry, QualityCurve
from dare_job.evaluate.curve.written import Setting, Written
from dare_job.generate import preflight
from dare_job.job import Job
from dare_job.models.files import EMBEDDED
from dare_job.observe import redact
from dare_job.publish.features import encoder_files
from dare_job.publish.report.plot import Dot, Panel, decades, document, from_zero, linear
from dare_job.workspace import write_json

_LOG = logging.getLogger("dare_job")


def run(job: Job, options: Options) -> QualityCurve:
    """Measure, write ``curve.json`` and ``curve.svg`` in ``options.work``, and return the curve.

    Raises DataError if there is nothing to generate or to draft from.
    """
    preflight.check_drafting(job)
    encoder = job.config.encode.model or EMBEDDED
    encoder_files.resolve(encoder)  # raises an error before anything is generated
    made = written.prepared(job, options.work / "job")
    with_auc = options.check.data is not None
    sample = written.rows(made, None if with_auc else options.rows, options.seed)
    if not sample:
        raise DataError(f"no row would be generated on {job.space.dt}: all text is of this model and prompt; "
                        "choose a later --date, or previous text of an earlier date (input.knowledge)")
    _LOG.info("%d rows by strict and by %d settings, %d of them timed in %d rounds", len(sample),
              len(options.settings), min(options.rows, len(sample)), options.turns)
    settings: list[Setting] = [None, *options.settings]
    results = written.write(made, settings, sample, options.rows, options.turns)
    _require_texts(results)
    alpha = (1 - options.level) / len(options.settings)
    encode = TextEncoder(encoder)
    distances = {setting: _distances(results[None], results[setting], encode) for setting in options.settings}
    losses, carried = {}, 0
    if with_auc:
        losses, carried = loss.measure(made, sample, results, options.check, options.work / "texts", alpha)
    entries = [_entry(setting, results, distances.get(setting), alpha, losses.get(setting, {}))
               for setting in settings]
    curve = QualityCurve(
        schema_version=table.VERSION, date=job.space.dt,
        made=datetime.now(UTC).isoformat(timespec="seconds"), identity=table.identity(made),
        settings=redact.values({section: getattr(job.config, section).model_dump(mode="json")
                                for section in ("model", "prompts", "decode", "drafter", "verify", "pools")}),
        level=options.level, rows=len(results[None].texts), timed=min(options.rows, len(sample)),
        turns=options.turns, seeds=options.check.seeds if with_auc else 0, carried=carried,
        entities=dict(Counter(row["entity"] for row in sample)), encoder=encoder,
        machine=f"{platform.machine()}, {platform.node()}", command=options.command, entries=entries)
    write_json(options.work / "curve.json", curve.model_dump(mode="json"))
    (options.work / "curve.svg").write_text(_drawn(curve), encoding="utf-8")
    return curve


def _require_texts(results: dict[Setting, Written]) -> None:
    for setting, result in results.items():
        if not result.texts:
            raise DataError(f"{written.name(setting)}: all rows failed, such as {result.errors[0]}")
        if result.errors:
            _LOG.warning("%s: %d rows failed and are not compared, such as %s", written.name(setting),
                         len(result.errors), result.errors[0])


def _distances(strict: Written, other: Written, encode: TextEncoder) -> Distances:
    """Distances of the rows that neither setting failed."""
    both = [row for row in strict.texts if row in other.texts]
    pairs = [(strict.texts[row][0], other.texts[row][0]) for row in both]
    tokens = np.array([(strict.texts[row][1], other.texts[row][1]) for row in both]).reshape(-1, 2)
    return distance.measure(pairs, tokens, lambda texts: encode(texts)[0])


def _entry(setting: Setting, results: dict[Setting, Written], distances: Distances | None, alpha: float,
           losses: dict[str, table.Loss]) -> Entry:
    result, strict = results[setting], results[None]
    ratios = [s / o for s, o in zip(strict.seconds, result.seconds, strict=True)]
    k, p = setting or (None, None)
    quality = {}
    if distances is not None:
        tokens, strict_tokens = (sum(texts[row][1] for row in strict.texts if row in result.texts)
                                 for texts in (result.texts, strict.texts))
        quality = {**_means(distances, alpha), "differing": round(float((~distances.equal).mean()), 6),
                   "lengthened": round(tokens / max(strict_tokens, 1), 6)}
    return Entry(
        k=k, p=p, tokens_per_s=round(result.tokens_per_s, 1),
        accepted_per_step=round(result.accepted / result.steps, 4) if result.steps else None,
        relaxed_share=round(result.relaxed / max(result.tokens[0], 1), 6),
        speed=tuple(round(value, 4) for value in (statistics.median(ratios), min(ratios), max(ratios))),
        **quality, auc=losses)


def _means(distances: Distances, alpha: float) -> dict[str, Distance]:
    """Means with their bounds at level 1 - ``alpha``, each on the side of more distance."""
    bounds = {"cosine": 2 * mean_lower_bound((1 + distances.cosine) / 2, alpha) - 1,
              "rouge_l": mean_lower_bound(distances.rouge_l, alpha),
              "length": 1 - mean_lower_bound(1 - distances.length, alpha)}
    return {name: Distance(mean=float(getattr(distances, name).mean()), bound=bound)
            for name, bound in bounds.items()}


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
                    f"rows per second relative to strict verification (median of {curve.turns} rounds; bar: "
                    "minimum and maximum)")


def _dot(entry: Entry, value: float, bound: float | None) -> Dot:
    speed, slowest, fastest = entry.speed
    return Dot(entry.name, speed, value, x_range=(slowest, fastest), bound=bound)
