"""Estimates a whole run before it starts: rows, tokens, seconds of each part, GPU hours and cost.

Decoding is estimated from the previous run's figures if model and text settings are the same; otherwise from
a few rows that are decoded without drafts in this process, which gives an upper bound. Other parts are
measured here, taken from the previous run, or on a first run computed roughly from the number of rows. A
part whose time is unknown is named and not included.
"""

import time
from contextlib import suppress
from dataclasses import asdict, dataclass

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dare_job.data.text_key import text_salt
from dare_job.errors import RowError
from dare_job.generate import loading
from dare_job.generate.baseline import sample_size
from dare_job.generate.row_assignment import task_slots
from dare_job.generate.task import Task
from dare_job.job import Job
from dare_job.observe import figures
from dare_job.observe.progress import counted, duration
from dare_job.refresh import stopping, words
from dare_job.schemas import ENTITIES
from dare_job.tables import plan_table, published, stage_inputs

PROBED = 4  # rows of each entity type that are decoded if no previous run has measured them
_BEFORE = ("embed", "group", "route", "pools")

# Seconds, and seconds per row, of a first run on two CPU cores. The fixed parts are those of `make demo` (700
# rows). The others are those of docs/lab-log.md ("Growth of the stages", "Cost of the quality gates"), and of
# LightGCN with 20 interactions per user (10,225 and 118,095 pairs). A first run indexes only the texts of its
# waves, whose number does not depend on the rows.
_ROUGH = {"embed": (3.0, 2.5e-3), "group": (4.0, 26e-6), "route": (1.0, 7e-6), "pools": (25.0, 0.0),
          "shard plan": (5.0, 7e-6), "gate": (5.0, 75e-6), "publish": (3.0, 15e-6)}


@dataclass(frozen=True)
class Part:
    """Estimated seconds of a part of the run; None: not known and not included."""

    name: str
    seconds: float | None
    basis: str


@dataclass(frozen=True)
class _Cost:
    """Cost of an entity type's rows: tokens of a row, seconds of one worker per token, and their basis.

    ``probed`` counts texts decoded here, ``previous`` those of the previous run, and ``cut_off`` those of
    either that reached decode.max_new_tokens; ``load_s`` is the time of loading the model for a probe.
    """

    row_tokens: float
    token_s: float
    basis: str
    probed: int = 0
    cut_off: int = 0
    previous: int = 0
    load_s: float = 0.0


def estimate_run(job: Job, plan_s: float = 0.0) -> dict:
    """Estimate a run. The stage plan must have finished.

    Parameters
    ----------
    plan_s
        Measured seconds from the start of Spark to the end of the stage plan.

    Returns
    -------
    users, items, tokens
        Rows to generate by entity type, and their tokens.
    seconds, workers, parts
        Time of the whole run, number of workers, and the times of which the run consists.
    basis
        How the time of decoding was estimated.
    probe, previous
        ``rows`` and ``cut_off`` of the texts that were decoded here, and of the previous run's.
    in_time
        Share of the decoding that ``refresh.deadline`` and ``refresh.max_worker_hours`` leave time for.
    texts_in_time, value_left
        Texts for which there is time, and the share of the expected value that is left for later runs; None
        without a budget.
    one_more_hour
        Share of the value left that another hour of each worker would buy; None without a budget.
    gpu_hours
        Of the stage generate, as in the report.
    cost
        None without ``cost.per_gpu_hour``.
    """
    workers, (rows, costs) = task_slots(job.spark), _costs(job)
    tokens = sum(rows[entity] * cost.row_tokens for entity, cost in costs.items())
    busy_s = sum(rows[entity] * cost.row_tokens * cost.token_s for entity, cost in costs.items())
    basis = " and ".join(dict.fromkeys(cost.basis for cost in costs.values())) or "there is nothing to write"
    plan = stage_inputs.require_stage(job, "plan")
    planning = Part("start of Spark, input and plan", plan_s, "measured now")
    planned = sum(plan_table.row_count(job, entity) for entity in ENTITIES)
    before = _stages(job, _BEFORE, planned) if stage_inputs.has_rows_to_write(plan) else []
    starting = _generate(job, sum(rows.values()), list(costs.values()), workers) if costs else []
    after = _stages(job, stopping.AFTER, sum(rows.values()))
    in_time = _share_in_time(job, busy_s, workers, _seconds([*before, *starting, *after]))
    generating = [*starting, Part("decoding", in_time * busy_s / workers, basis)] if costs else []
    parts = [planning, *before, *generating, *after]
    hours, price = workers * _seconds(generating) / 3600, job.config.cost.per_gpu_hour
    curve = plan["refresh"]["curve"]
    curve = curve and words.stopped(curve, in_time)
    return {
        "users": rows["user"], "items": rows["item"], "tokens": round(tokens),
        "seconds": round(_seconds(parts), 1), "workers": workers, "basis": basis,
        "in_time": round(in_time, 4), "texts_in_time": curve and curve["chosen_rows"],
        "value_left": curve and round(words.value_left(curve), 4),
        "one_more_hour": words.one_more_hour(curve, in_time * busy_s, workers),
        "parts": [asdict(part) | {"seconds": part.seconds and round(part.seconds, 1)} for part in parts],
        "probe": {"rows": sum(cost.probed for cost in costs.values()),
                  "cut_off": sum(cost.cut_off for cost in costs.values() if cost.probed)},
        "previous": {"rows": sum(cost.previous for cost in costs.values()),
                     "cut_off": sum(cost.cut_off for cost in costs.values() if cost.previous)},
        "gpu_hours": round(hours, 4), "cost": None if price is None else round(hours * price, 4)}


def _costs(job: Job) -> tuple[dict[str, int], dict[str, "_Cost"]]:
    """Rows to generate by entity type, and what one of them costs, if there are any."""
    rows, costs = {}, {}
    for entity in ENTITIES:
        stale = plan_table.rows_to_generate(job, entity, job.limit)
        rows[entity] = len(stale)
        if len(stale):
            costs[entity] = _previous_cost(job, entity) or _probe(job, entity, stale[:PROBED])
    return rows, costs


def _seconds(parts: list[Part]) -> float:
    return sum(part.seconds or 0.0 for part in parts)


def _share_in_time(job: Job, busy_s: float, workers: int, others_s: float) -> float:
    """Share of ``busy_s`` seconds of decoding that limits of time leave; the rest takes ``others_s``."""
    hours, left_s = job.config.refresh.max_worker_hours, stopping.seconds_left(job)
    limits = [None if hours is None else 3600 * hours,
              None if left_s is None else workers * (left_s - others_s)]
    shares = [max(0.0, limit / busy_s) for limit in limits if limit is not None and busy_s]
    return min([1.0, *shares])


def cut_off_warning(estimate: dict, limit: int, max_share: float | None) -> str | None:
    """What to change if more than ``max_share`` of the texts reach ``decode.max_new_tokens`` = ``limit``.

    The texts are those that were probed, or else those of the previous run with the same settings.
    ``max_share`` is ``gates.max_share.cut_off``; None: no limit, no warning.
    """
    for texts, name in (("probe", "probe texts"), ("previous", "texts of the previous run")):
        rows, cut_off = estimate[texts]["rows"], estimate[texts]["cut_off"]
        if max_share is not None and cut_off > max_share * rows:
            return (f"{cut_off} of {rows} {name} reach decode.max_new_tokens = {limit} and would be cut off: "
                    "raise it, or ask for shorter texts in the prompt; `dare-job preview` shows them")
    return None


def _stages(job: Job, stages: tuple[str, ...], rows: int) -> list[Part]:
    """Stages with their times in the previous run; those that it did not run at rough rates for ``rows``."""
    manifest = published.previous_manifest(job, ENTITIES[0])
    needed = [stage for stage in stages
              if stage not in figures.AFTER_PUBLISH or getattr(job.config, stage).model]
    seconds = figures.previous_seconds(job.space, manifest)
    known = [stage for stage in needed if stage in seconds]
    rough = [stage for stage in needed if stage not in known and stage in _ROUGH]
    unknown = [stage for stage in needed if stage not in known + rough]
    parts = []
    if known:
        parts.append(Part(", ".join(known), sum(seconds[stage] for stage in known),
                          f"run of {manifest['date']}"))
    if rough:
        parts.append(_rough(job, rough, rows))
    if unknown:
        parts.append(Part(", ".join(unknown), None, "not included: no earlier run has measured it"))
    return parts


def _rough(job: Job, stages: list[str], rows: int) -> Part:
    rates = _ROUGH | ({"embed": (1.0, 1e-6)} if job.config.embed.vectors else {})
    seconds = sum(rates[stage][0] + rates[stage][1] * rows for stage in stages)
    return Part(", ".join(stages), seconds, f"rough: {counted(rows, 'row')} on two CPU cores")


def _generate(job: Job, rows: int, costs: list[_Cost], workers: int) -> list[Part]:
    """What the stage generate does in addition to decoding the rows."""
    manifest = published.previous_manifest(job, ENTITIES[0])
    generate_s = manifest.get("seconds", {}).get("generate")
    busy_s = sum(((manifest.get("workers") or {}).get("busy_s") or {}).values())
    if not any(cost.probed for cost in costs) and generate_s and busy_s:
        busiest = busy_s / max(1, (manifest["workers"] or {}).get("workers") or 1)
        return [Part("loading the model, shard plan, baseline", max(0.0, generate_s - busiest),
                     f"run of {manifest['date']}")]
    load_s = max(cost.load_s for cost in costs)
    parts = [Part("loading the model, in all workers at the same time", load_s or None,
                  "measured now" if load_s else "not included: no earlier run has measured it"),
             _rough(job, ["shard plan"], rows)]
    if job.config.baseline.rows and rows:
        batch = job.config.decode.batch_size
        sample = sample_size(job.config.baseline.rows, rows, batch, min(workers, rows))
        row_s = sum(cost.row_tokens * cost.token_s for cost in costs) / len(costs)
        parts.append(Part("baseline", 2 * sample.rows * row_s / sample.workers,
                          f"{sample.rows} rows with two methods, at the rate of decoding"))
    return parts


def _previous_cost(job: Job, entity: str) -> _Cost | None:
    manifest = published.previous_manifest(job, entity)
    same = manifest.get("text_settings") == text_salt(job.config, job.model_hash, job.draft_hash, entity)
    if not (same and manifest.get("tokens_per_s") and manifest["counts"]["written"]):
        return None
    row_tokens = manifest["totals"]["tokens"] / manifest["counts"]["written"]
    gate = manifest.get("gates", {}).get("cut_off") or {}
    return _Cost(row_tokens, 1 / manifest["tokens_per_s"], f"rate of the run of {manifest['date']}",
                 cut_off=gate.get("rows") or 0, previous=gate.get("of") or 0)


def _probe(job: Job, entity: str, rows: pa.Table) -> _Cost:
    """Decode some rows without drafts in this process, with the threads of one worker."""
    task, began = Task.of(job), time.perf_counter()
    loading.load_task_model(task)
    load_s = time.perf_counter() - began
    requests = []
    for row in rows.to_pylist():
        with suppress(RowError):  # the run will record the row as failed
            requests.append(loading.make_request({"entity": entity, **row}, task, drafted=False))
    engine = loading.make_engine(task, mode="autoregressive")
    began = time.perf_counter()
    results = list(engine.run(requests))
    seconds = time.perf_counter() - began
    tokens = sum(len(result.token_ids) for result in results)
    cut_off = sum(result.finish_reason == "length" for result in results)
    return _Cost(tokens / max(1, len(requests)), seconds / max(1, tokens),
                 f"{counted(len(requests), f'{entity} text')} decoded without drafts", len(results), cut_off,
                 load_s=load_s)


def show(estimate: dict) -> None:
    """Print an estimate: its parts, and the total."""
    console = Console(highlight=False, markup=False)
    table = Table("part", "time", "basis", box=None, pad_edge=False)
    for part in estimate["parts"]:
        known = part["seconds"] is not None
        table.add_row(part["name"], duration(part["seconds"]) if known else "–", Text(part["basis"]))
    console.print(table)
    console.print(total(estimate), soft_wrap=True)
    if choice := words.of_choice(estimate["refresh"]):
        console.print(choice, soft_wrap=True)
    if estimate["one_more_hour"] is not None:
        console.print(words.hour(estimate["one_more_hour"]), soft_wrap=True)


def total(estimate: dict) -> str:
    """The total in one line."""
    line = (f"{counted(estimate['users'], 'user')} and {counted(estimate['items'], 'item')} need text: "
            f"about {counted(estimate['tokens'], 'token')}")
    if estimate["in_time"] < 1:
        line += (f"; the time that section refresh gives is enough for {estimate['in_time']:.0%} of them, "
                 f"about {counted(estimate['texts_in_time'] or 0, 'text')},")
    line += (f" in {duration(estimate['seconds'])} with {counted(estimate['workers'], 'worker')} "
             f"({estimate['basis']})")
    if estimate["cost"] is not None:
        line += (f"; {estimate['gpu_hours']:.3g} GPU hours (one GPU per worker, in the stage generate) cost "
                  f"{estimate['cost']:.2f}")
    if estimate["value_left"]:
        line += f"; {estimate['value_left']:.0%} of the expected value is left for later runs"
    missing = [part["name"] for part in estimate["parts"] if part["seconds"] is None]
    return line + (f"; not included: {', '.join(missing)}" if missing else "")
