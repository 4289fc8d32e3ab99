"""Runs the stages in order, says one line about each, and ends with a screen on what came out."""

import difflib
import importlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow.compute as pc
from rich.console import Console

from dare_job.errors import ConfigError
from dare_job.generate import preflight
from dare_job.job import Job
from dare_job.observe import log, progress, times
from dare_job.observe.metrics import Metrics
from dare_job.publish.gate import findings
from dare_job.publish.report import texts as report_texts
from dare_job.schemas import ENTITIES
from dare_job.storage import atomic, lock
from dare_job.tables import published

STAGES = ("plan", "embed", "group", "route", "pools", "generate", "gate", "publish", "encode")
ALONE = ("recommend",)  # needs only the input; part of a run if recommend.model is set
_UNEVEN, _WAITED_S = 1.2, 60.0  # imbalance of the workers, and what it cost, of which the last screen tells
_LOG = logging.getLogger("dare_job")


def run(job: Job, first: str | None = None, last: str | None = None) -> dict:
    """Run the stages from ``first`` to ``last``, all by default.

    Returns the run's summary, after printing it, if the run includes the stage publish and goes to the end;
    else the report of the last stage. Raises ConfigError if there is no such range of stages.
    """
    wanted = stages(job, first, last)
    with _writing(job):
        if first is None:
            _name_unpublished(job)
        reports = {stage: _run_stage(job, stage) for stage in wanted}
    if last is not None or "publish" not in reports:
        return reports[wanted[-1]]
    manifests = reports["publish"]
    summary = summarise(job, manifests) | {"features": _features(reports["encode"])}
    if recommended := reports.get("recommend"):
        summary["candidates"] = recommended["counts"]
    _last_screen(job, manifests, summary)
    return summary


def stages(job: Job, first: str | None = None, last: str | None = None) -> tuple[str, ...]:
    """The stages from ``first`` to ``last`` in their order. Raises ConfigError if there is no such range."""
    order = (*STAGES, *ALONE)
    for option, stage in (("--from", first), ("--to", last)):
        if stage is not None and stage not in order:
            near = difflib.get_close_matches(stage, order, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"{option} {stage}: no such stage{hint}; the stages are {', '.join(order)}")
    end = last or ("recommend" if job.config.recommend.model or first in ALONE else "encode")
    begin = first or STAGES[0]
    if order.index(begin) > order.index(end):
        raise ConfigError(f"--from {begin} --to {end}: {begin} comes after {end}; the order of the stages is "
                          f"{', '.join(order)}")
    return order[order.index(begin):order.index(end) + 1]


def run_stage(job: Job, stage: str, first: str | None = None) -> dict:
    """Run one stage, or all from ``first`` to it; returns the report of the last one."""
    return run(job, first or stage, stage)


@contextmanager
def _writing(job: Job) -> Iterator[None]:
    """Hold the date's lock, after tidying up what killed commands left.

    Raises ConfigError or ModelError before that, where the settings' drafts cannot be.
    """
    preflight.check_drafting(job)
    atomic.recover(job.space.out)
    with lock.held(job.space.work):
        lock.wait_until_free(job.space.work.parent)  # `dare-job clean` may be moving dates away
        job.space.settle()
        job.space.note_reads()
        yield


def _run_stage(job: Job, stage: str) -> dict:
    settings = job.config.log
    log.to_stderr(settings.format)
    lock.require_held()
    if stage == STAGES[0] and job.choice:
        level = logging.WARNING if job.choice["rule"] == "strict" else logging.INFO
        _LOG.log(level, "verify.target = %s: %s", job.choice["target"], job.choice["why"])
    began = time.perf_counter()
    with (log.bound(run_id=job.run_id, date=job.space.dt, stage=stage),
          times.counted(job.space, stage) as beat,
          progress.reporting(settings.every_s, [lambda _: beat(), partial(Metrics(job).running, stage)])):
        report = importlib.import_module(f"dare_job.stages.{stage}").run(job)
        _LOG.info("%s", _DESCRIBE[stage](report), extra={
            "ended": True, "seconds": round(time.perf_counter() - began, 1)})
    return report


def dry_run(job: Job) -> dict:
    """Plan only: rows, tokens and time of tonight; publishes nothing."""
    from dare_job.generate.baseline import estimate_run

    with _writing(job):
        _name_unpublished(job)
        _run_stage(job, "plan")
    found = estimate_run(job)
    print(f"{found['users']} users and {found['items']} items would be written: about {found['tokens']} "
          f"tokens in {_duration(found['seconds'])} ({found['basis']})")
    return {"date": job.space.dt, "out": str(job.space.out), "dry_run": True, **found}


def _name_unpublished(job: Job) -> None:
    """Say which earlier dates were begun, and are seen by no later date because their run was cut off."""
    log.to_stderr(job.config.log.format)
    for dt in job.space.unpublished():
        _LOG.warning("texts of %s were begun and are not (all) published, %s starts from older ones: run "
                     "`dare-job run --date %s` with the same options first", dt, job.space.dt, dt)


def summarise(job: Job, manifests: dict) -> dict:
    """The run's JSON object, from the manifests of both entity types."""
    def total(group: str, name: str) -> int:
        return sum(manifests[entity][group][name] for entity in ENTITIES)

    steps = total("totals", "target_steps")
    slots = sum(manifests[entity]["totals"].get("slot_steps", 0) for entity in ENTITIES)  # older ones lack it
    baseline = manifests["user"]["baseline"]
    return {
        "date": job.space.dt, "out": str(job.space.out), "written": total("counts", "written"),
        "errors": total("counts", "errors"), "skipped_fresh": total("counts", "skipped_fresh"),
        "accepted_per_step": _rounded(total("totals", "accepted_tokens") / steps if steps else None, 4),
        "busy_slots": _rounded(steps / slots if slots else None, 4),
        "scored_tokens": total("totals", "scored_tokens"),
        "relaxed_tokens": total("totals", "relaxed_tokens"), "guarded_rows": total("counts", "guarded"),
        "tokens_per_s": _rounded(manifests["user"]["tokens_per_s"]),
        "baseline_tokens_per_s": _rounded(baseline["tokens_per_s"] if baseline else None),
        "gates": findings.worst({entity: manifests[entity].get("gates", {}) for entity in ENTITIES}),
        "choice": manifests["user"].get("choice"),
    }


def _features(manifests: dict) -> dict | None:
    """What the run's JSON says of features, by entity type; None where there are none."""
    return {entity: {**found["counts"], "texts_per_s": found["encoding"]["texts_per_s"],
                     "drift": _rounded(found["drift"] and found["drift"]["ratio"], 4)}
            for entity, found in manifests.items()} or None


def _last_screen(job: Job, manifests: dict, summary: dict) -> None:
    console = Console(highlight=False)
    row = _example(job)
    if row:
        console.print()
        report_texts.print_row(job.space.out, "user", row, job.space.dt, console)
    console.print()
    for entity in ENTITIES:
        counts = manifests[entity]["counts"]
        console.print(f"{entity}s: {counts['rows']} rows, {counts['written']} written tonight, "
                      f"{counts['carried']} carried over, {counts['errors']} errors "
                      f"-> {job.space.knowledge(entity)}", markup=False, soft_wrap=True)
    if line := _uneven(manifests["user"].get("workers")):
        console.print(line, soft_wrap=True)
    rate, plain = summary["tokens_per_s"], summary["baseline_tokens_per_s"]
    if summary["accepted_per_step"] is not None:
        console.print(f"{summary['accepted_per_step']:.2f} draft tokens accepted a step")
    if summary["busy_slots"] is not None:
        console.print(f"{summary['busy_slots']:.0%} of the slots of those steps were busy")
    tokens = sum(manifests[entity]["totals"]["tokens"] for entity in ENTITIES)
    if summary["scored_tokens"]:
        console.print(f"{summary['scored_tokens'] / tokens:.0%} of the tokens are old text that the prompt's "
                      "forward accepted", soft_wrap=True)
    if summary["relaxed_tokens"] or summary["guarded_rows"]:
        console.print(f"{summary['relaxed_tokens'] / tokens:.2%} of the tokens are not the model's first "
                      f"choice; {summary['guarded_rows']} rows went on behind their length guard",
                      soft_wrap=True)
    if summary["choice"]:
        console.print(f"{summary['choice']['target']}: {summary['choice']['why']}", markup=False,
                      soft_wrap=True)
    console.print(f"quality gates passed: {_gates_words(summary['gates'])}", soft_wrap=True)
    if rate and plain:
        method = manifests["user"]["baseline"]["method"]
        console.print(f"{rate:.0f} tokens/s a worker, {rate / plain:.2f} times plain decoding in this run "
                      f"({plain:.0f} tokens/s, the faster of two: {method})", soft_wrap=True)


def _uneven(workers: dict | None) -> str | None:
    """A line on workers that waited for the busiest, where that cost some time; older manifests lack them."""
    if not workers or (workers["imbalance"] or 1) <= _UNEVEN or workers["waited_s"] < _WAITED_S:
        return None
    return (f"the busiest of {workers['workers']} workers wrote {workers['imbalance']:.2f} times as long as "
            f"they did on average: the others waited {_duration(workers['waited_s'])} (more, smaller shards: "
            "spark.shards)")


def _example(job: Job) -> dict | None:
    """A user's row that was written tonight: the one of median acceptance."""
    wanted = (pc.field("generated_dt") == job.space.dt) & (pc.field("target_steps") > 0)
    rows = published.dataset(job.space.knowledge("user")).head(
        1000, filter=wanted, batch_size=10_000, batch_readahead=1, fragment_readahead=1).to_pylist()
    rows.sort(key=lambda row: row["accepted_tokens"] / row["target_steps"])
    return rows[len(rows) // 2] if rows else None


def _plan_words(report: dict) -> str:
    return ", ".join(f"{report[entity]['rows']} {entity}s ({report[entity]['stale']} to write, "
                     f"{report[entity]['errors']} without a prompt)" for entity in ENTITIES)


def _pools_words(report: dict) -> str:
    if not any(report[entity]["pools"] for entity in ENTITIES):
        return "no old text: drafts come from the prompt and the text itself"
    return ", ".join(f"{report[entity]['pools']} {entity} pools of {report[entity]['texts']} texts"
                     for entity in ENTITIES)


def _generate_words(report: dict) -> str:
    rate = report["tokens_per_s"]
    words = f"{report['written_now']} of {report['rows']} rows written now, {report['errors']} errors"
    words += f", {rate:.0f} tokens/s a worker" if rate else ""
    return words + _waves_words(report["waves"])


def _waves_words(waves: dict[str, list[dict]]) -> str:
    """Rows and acceptance of each wave, both entity types together; nothing where there was one."""
    found = []
    for parts in zip(*waves.values(), strict=True):
        steps, accepted = (sum(part[name] for part in parts) for name in ("target_steps", "accepted_tokens"))
        rate = f" ({accepted / steps:.2f} accepted a step)" if steps else ""
        found.append(f"{sum(part['rows'] for part in parts)} rows{rate}")
    return f"; in waves of {', '.join(found)}" if found else ""


def _gate_words(report: dict) -> str:
    found = {entity: report[entity] for entity in ENTITIES}
    texts = sum(checks["empty"]["of"] for checks in found.values())
    return f"{texts} texts passed: {_gates_words(findings.worst(found))}"


def _gates_words(worst: dict[str, float | None]) -> str:
    """The checks with something to say: shares above 0, and lengths where they were compared."""
    shares = [f"{check.replace('_', ' ')} {value:.2%}" for check, value in worst.items()
              if value and check not in findings.OF_LENGTHS]
    ratio = worst["length_ratio"]
    return ", ".join(shares + ([f"lengths {ratio:.2f} times those before"] if ratio else [])) or "no bad row"


def _publish_words(report: dict) -> str:
    return ", ".join(f"{report[entity]['counts']['rows']} {entity}s" for entity in ENTITIES)


def _encode_words(report: dict) -> str:
    words = []
    for entity, found in report.items():
        counts, encoding, drift = found["counts"], found["encoding"], found["drift"]
        said = f"features of {counts['rows']} {entity}s ({counts['encoded']} encoded"
        said += f", {encoding['texts_per_s']:.0f} texts/s a worker" if encoding["texts_per_s"] else ""
        said += f", {counts['without_text']} without a text" if counts["without_text"] else ""
        said += f", drift {drift['ratio']:.2f}" if drift and drift["ratio"] else ""
        words.append(f"{said})")
    return "; ".join(words) or "no features (encode.model is not set)"


def _recommend_words(report: dict) -> str:
    if not report:
        return "no lists (recommend.model is not set)"
    counts = report["counts"]
    words = f"lists of {counts['users']} users"
    words += f" ({counts['popular']} by popularity)" if counts["popular"] else ""
    words += f", {counts['errors']} errors" if counts["errors"] else ""
    forwards = report["forwards_a_user"]
    return words if forwards is None else f"{words}, {forwards:.2f} target forwards a user"


def _embed_words(report: dict) -> str:
    words = f"vectors of {report['user']} users and {report['item']} items ({report['source']})"
    recall = report.get("recall_at_20")
    return words if recall is None else f"{words}, recall@20 {recall:.3f}"


def _group_words(report: dict) -> str:
    return "; ".join(f"{entity}s: {report[entity]['collaborative_groups']} groups by vectors, "
                     f"{report[entity]['attribute_groups']} by attributes" for entity in ENTITIES)


def _route_words(report: dict) -> str:
    kinds = ("collaborative", "attribute", "global")
    return "; ".join(f"{entity}s: " + ", ".join(f"{report[entity].get(kind, 0)} {kind}" for kind in kinds)
                     for entity in ENTITIES)


_DESCRIBE = {"plan": _plan_words, "embed": _embed_words, "group": _group_words, "route": _route_words,
             "pools": _pools_words, "generate": _generate_words, "gate": _gate_words,
             "publish": _publish_words, "encode": _encode_words, "recommend": _recommend_words}


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
