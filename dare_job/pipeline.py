"""Runs the stages in their order, logs one line about each, and prints the result of a whole run."""

import difflib
import importlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from dare_job.errors import ConfigError, DataError
from dare_job.generate import preflight
from dare_job.job import Job
from dare_job.observe import figures, log, progress
from dare_job.observe.metrics import Metrics
from dare_job.observe.progress import counted
from dare_job.publish.gate import findings
from dare_job.publish.loss import limits
from dare_job.publish.report import screen
from dare_job.refresh import stopping
from dare_job.refresh import words as refresh_words
from dare_job.schemas import ENTITIES
from dare_job.spark import session
from dare_job.storage import atomic_folder, lock
from dare_job.tables import published, stage_inputs
from dare_job.workspace import done_record

STAGES = ("plan", "embed", "group", "route", "pools", "generate", "gate", "publish", "encode")
ALONE = ("recommend",)  # needs only the input; part of a run if recommend.model is set
_FOR_GENERATING = ("embed", "group", "route", "pools")  # a run without stale rows skips them
_UP_TO_GENERATE = STAGES[:STAGES.index("generate") + 1]
_ENDING = {"publish", "encode"}  # with one of these, a run of the date has ended
_DOING = {  # for the progress line, where a stage says nothing more exact
    "plan": "comparing prompts with those of the previous texts", "embed": "preparing vectors",
    "group": "grouping users and items", "route": "choosing pools", "pools": "preparing indexes",
    "generate": "assigning rows to workers", "gate": "checking texts", "publish": "preparing the snapshots",
    "encode": "preparing features", "recommend": "preparing recommendations"}
_LOG = logging.getLogger("dare_job")


def run(job: Job, first: str | None = None, last: str | None = None) -> dict:
    """Run the stages from ``first`` to ``last``, all by default.

    Returns the run's summary, after printing it, if the run includes the stage publish and goes to the end;
    else the report of the last stage.

    Raises
    ------
    ConfigError
        As ``stages``, or ``refresh.deadline`` is over.
    DareJobError
        A stage fails, drafting cannot work with the settings, or another command writes the same date.
    """
    wanted = stages(job, first, last)
    with _writing(job):
        if wanted[0] == STAGES[0]:
            stopping.require_future(job)
        if wanted[0] in _UP_TO_GENERATE:
            stopping.fix_deadline(job)
        if first is None:
            _name_unpublished(job)
        reports = {stage: _run_stage(job, stage) for stage in wanted}
        if _ENDING & {*wanted}:
            stopping.forget_deadline(job)
    if last is not None or "publish" not in reports:
        return reports[wanted[-1]]
    manifests = reports["publish"]
    summary = summarise(job, manifests) | {"features": _features(reports["encode"])}
    if recommended := reports.get("recommend"):
        summary["candidates"] = recommended["counts"]
    if log.shows_text(job.config.log.format):
        screen.show(job.space, manifests, summary)
    return summary


def stages(job: Job, first: str | None = None, last: str | None = None) -> tuple[str, ...]:
    """The stages from ``first`` to ``last`` in their order.

    Raises
    ------
    ConfigError
        A stage is unknown, or ``first`` comes after ``last``.
    """
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
    """Hold the date's lock, and clean up what killed commands left.

    Raises ConfigError, ModelError or InfrastructureError, before that, if drafting cannot work with these
    settings, or Spark in this environment.
    """
    preflight.check_drafting(job)
    session.check_environment(job.config.spark)
    atomic_folder.recover(job.space.out)
    with lock.held(job.space.work):
        lock.wait_until_free(job.space.work.parent)  # `dare-job clean` may be moving dates away
        job.space.clean_up()
        job.space.record_read_dates()
        yield


def _run_stage(job: Job, stage: str, details: bool = True) -> dict:
    """Run a stage and log what it did; with details, the stage plan has a second line."""
    settings = job.config.log
    log.to_stderr(settings.format)
    lock.require_held()
    if stage == STAGES[0] and job.choice:
        level = logging.WARNING if job.choice["rule"] == "strict" else logging.INFO
        _LOG.log(level, "verify.target = %s: %s", job.choice["target"], job.choice["why"])
    began = time.perf_counter()
    with (log.bound(run_id=job.run_id, date=job.space.dt, stage=stage),
          figures.count_seconds(job.space, stage) as beat,
          progress.reporting(_DOING[stage],
                             listeners=[lambda _: beat(), partial(Metrics(job).running, stage)])):
        if stage in _FOR_GENERATING and _has_nothing_to_generate(job):
            _LOG.info("not needed: there is nothing to write", extra={"ended": True, "seconds": 0.0})
            return {"skipped": "there is nothing to write"}
        with progress.doing("loading libraries"):
            module = importlib.import_module(f"dare_job.stages.{stage}")
        report = module.run(job)
        _LOG.info("%s", _DESCRIBE[stage](report), extra={
            "ended": True, "seconds": round(time.perf_counter() - began, 1)})
        if details and stage == STAGES[0] and (words := _choice_words(job, report)):
            _LOG.info("%s", words)
    return report


def _has_nothing_to_generate(job: Job) -> bool:
    try:
        return not stage_inputs.has_rows_to_write(stage_inputs.require_stage(job, "plan"))
    except DataError:  # the stage says what to run first
        return False


def dry_run(job: Job) -> dict:
    """Run only the stage plan, print an estimate of tokens, time and cost, and return it as JSON values."""
    from dare_job.generate.estimate import cut_off_warning, estimate_run, show

    began = time.perf_counter()
    with _writing(job):
        stopping.require_future(job)
        _name_unpublished(job)
        _run_stage(job, "plan", details=False)  # ``show`` has them
        choice = done_record(job.space.stage("plan")).get("refresh")
    estimate = estimate_run(job, time.perf_counter() - began) | {"refresh": choice}
    if log.shows_text(job.config.log.format):
        show(estimate)
    if warning := cut_off_warning(estimate, job.config.decode.max_new_tokens,
                                     job.config.gates.limit("cut_off")):
        _LOG.warning("%s", warning)
    return {"date": job.space.dt, "out": str(job.space.out), "dry_run": True, **estimate}


def _name_unpublished(job: Job) -> None:
    """Warn about earlier dates whose run was interrupted: later dates do not use their texts."""
    log.to_stderr(job.config.log.format)
    for dt in job.space.interrupted_dates():
        _LOG.warning("the run of %s is not finished, and the run of %s does not use its texts; to use them, "
                     "run `dare-job run --date %s` with the same options first", dt, job.space.dt, dt)


def summarise(job: Job, manifests: dict) -> dict:
    """The run's JSON object, made of the manifests of both entity types."""
    def total(group: str, name: str) -> int:
        return sum(manifests[entity][group][name] for entity in ENTITIES)

    steps = total("totals", "target_steps")
    slots = total("totals", "slot_steps")
    return {
        "date": job.space.dt, "out": str(job.space.out), "written": total("counts", "written"),
        "errors": total("counts", "errors"), "skipped_fresh": total("counts", "skipped_fresh"),
        "accepted_per_step": _rounded(total("totals", "accepted_tokens") / steps if steps else None, 4),
        "busy_slots": _rounded(steps / slots if slots else None, 4),
        "scored_tokens": total("totals", "scored_tokens"),
        "relaxed_tokens": total("totals", "relaxed_tokens"), "guarded_rows": total("counts", "guarded"),
        "tokens_per_s": _rounded(manifests["user"]["tokens_per_s"]),
        "baseline_tokens_per_s": _rounded(published.baseline_rate(manifests["user"])),
        "gates": findings.worst({entity: manifests[entity]["gates"] for entity in ENTITIES}),
        "choice": manifests["user"]["choice"], "copied": total("counts", "copied"),
        "backlog": sum(sum(manifests[entity]["refresh"]["carried"].values()) for entity in ENTITIES),
        "stopped": manifests["user"]["refresh"]["stopped"], "loss": manifests["user"].get("loss"),
    }


def _features(manifests: dict) -> dict | None:
    """The part of the run's JSON about features, by entity type; None if there are no features."""
    return {entity: {**manifest["counts"], "texts_per_s": manifest["encoding"]["texts_per_s"],
                     "drift": _rounded(manifest["drift"] and manifest["drift"]["ratio"], 4)}
            for entity, manifest in manifests.items()} or None


def _plan_words(report: dict) -> str:
    def words(entity: str, counts: dict) -> str:
        choice = (report.get("refresh") or {}).get(entity)
        to_write = choice["chosen"] if choice else counts["stale"]
        generated = to_write - (counts["errors"] - counts["errors_before"])
        return (f"{counted(counts['rows'], entity)} ({counts['stale']:,} stale, {generated:,} to generate, "
                f"{counts['errors']:,} without a prompt)")

    parts = [", ".join(words(entity, report[entity]) for entity in ENTITIES), refresh_words.of_plan(report)]
    return "; ".join(filter(None, parts))


def _choice_words(job: Job, report: dict) -> str:
    """The plan's second line: ages, and what another hour would buy; empty if every stale row is written."""
    from dare_job.refresh import chosen  # loads Spark, as the stage plan did

    choice = report.get("refresh")
    if not choice or not (ages := refresh_words.of_choice(choice)):
        return ""
    hour = chosen.hour_at_previous_rate(job, choice["curve"])
    return ages if hour is None else f"{ages}. {refresh_words.hour(hour)}"


def _pools_words(report: dict) -> str:
    if not any(report[entity]["pools"] for entity in ENTITIES):
        return "no previous texts: drafts come only from the prompt and the text so far"
    return ", ".join(f"{report[entity]['pools']} {entity} indexes of {report[entity]['texts']} texts"
                     for entity in ENTITIES)


def _generate_words(report: dict) -> str:
    rate = report["tokens_per_s"]
    finished_before = report["rows"] - report["written_now"]
    words = f"{report['rows'] - report['errors']} texts generated"
    words += f", {counted(report['errors'], 'row')} without text" if report["errors"] else ""
    words += (f", stopped by {report['stopped']}: {counted(report['not_reached'], 'row')} carried over"
              if report.get("stopped") else "")
    words += f" ({finished_before} of {report['rows']} rows were already there)" if finished_before else ""
    words += f", {rate:.0f} tokens/s per worker" if rate else ""
    words += _waves_words(report["waves"])
    return f"{words}; {limits.summary(report['loss'])}" if report.get("loss") else words


def _waves_words(waves: dict[str, list[dict]]) -> str:
    """Rows and acceptance of each wave, both entity types together; empty if there was only one."""
    words = []
    for parts in zip(*waves.values(), strict=True):
        steps, accepted = (sum(part[name] for part in parts) for name in ("target_steps", "accepted_tokens"))
        rate = f" ({accepted / steps:.2f} draft tokens accepted per step)" if steps else ""
        rows = sum(part["rows"] for part in parts)
        words += [f"{rows} rows{rate}"] if rows else []  # a run that stops early does not reach all waves
    return f"; in waves of {', '.join(words)}" if words else ""


def _gate_words(report: dict) -> str:
    gates = {entity: report[entity] for entity in ENTITIES}
    texts = sum(checks["empty"]["of"] for checks in gates.values())
    return f"{texts} texts passed the quality gate: {screen.gate_words(findings.worst(gates))}"


def _publish_words(report: dict) -> str:
    return ", ".join(f"{report[entity]['counts']['rows']} {entity}s" for entity in ENTITIES)


def _encode_words(report: dict) -> str:
    words = []
    for entity, manifest in report.items():
        counts, encoding, drift = manifest["counts"], manifest["encoding"], manifest["drift"]
        line = f"features of {counts['rows']} {entity}s ({counts['encoded']} encoded"
        line += f", {encoding['texts_per_s']:.0f} texts/s per worker" if encoding["texts_per_s"] else ""
        line += f", {counts['without_text']} without text" if counts["without_text"] else ""
        line += f", drift {drift['ratio']:.2f}" if drift and drift["ratio"] else ""
        words.append(f"{line})")
    return "; ".join(words) or "no features (encode.model is not set)"


def _recommend_words(report: dict) -> str:
    if not report:
        return "no recommendations (recommend.model is not set)"
    counts = report["counts"]
    words = f"recommendations for {counts['users']} users"
    words += f" ({counts['popular']} of them by popularity)" if counts["popular"] else ""
    words += f", {counted(counts['errors'], 'error')}" if counts["errors"] else ""
    forwards = report["forwards_per_user"]
    return words if forwards is None else f"{words}, {forwards:.2f} forward passes per user"


def _embed_words(report: dict) -> str:
    words = f"vectors of {report['user']} users and {report['item']} items ({report['source']})"
    recall = report.get("recall_at_20")
    return words if recall is None else f"{words}, recall@20 {recall:.3f}"


def _group_words(report: dict) -> str:
    return "; ".join(f"{entity}s: {counted(report[entity]['collaborative_groups'], 'group')} by vectors, "
                     f"{report[entity]['attribute_groups']:,} by attributes" for entity in ENTITIES)


def _route_words(report: dict) -> str:
    kinds = ("collaborative", "attribute", "global")
    return "; ".join(f"{entity}s: " + ", ".join(f"{report[entity].get(kind, 0)} {kind}" for kind in kinds)
                     for entity in ENTITIES)


_DESCRIBE = {"plan": _plan_words, "embed": _embed_words, "group": _group_words, "route": _route_words,
             "pools": _pools_words, "generate": _generate_words, "gate": _gate_words,
             "publish": _publish_words, "encode": _encode_words, "recommend": _recommend_words}


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)
