"""The same rows written by each setting, in turns, on this machine's engine with tonight's pools and drafts.

Tonight's plan, groups, routes and pools are made by the job's stages, in a folder of their own, from the
same input and the same old text as the night's. Rows are those that would be written tonight under the strict
rule. Waves are not written: rows draft from old text alone.
"""

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import functions as F

from dare_job import pipeline
from dare_job.errors import DataError
from dare_job.generate import loading
from dare_job.generate.task import Task
from dare_job.job import Job
from dare_job.schemas import ENTITIES
from dare_job.stages import generate
from dare_job.workspace import Workspace

_LOG = logging.getLogger("dare_job")
_AT_ONCE = 4096  # rows whose requests are held
Setting = tuple[int, float] | None  # (k, p); None: the strict rule
Row = tuple[str, str]  # entity type and id


@dataclass
class Written:
    """What one setting wrote of the rows.

    texts       by row, without those that failed: text, and its tokens
    relaxed_in  of the same rows: tokens that were not the model's argmax token
    seconds     of the timed rows, one entry a turn; tokens: in each of them
    """

    texts: dict[Row, tuple[str, int]] = field(default_factory=dict)
    relaxed_in: dict[Row, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # of the rows that failed
    steps: int = 0
    accepted: int = 0
    relaxed: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Median of the turns."""
        return statistics.median(n / s for n, s in zip(self.tokens, self.seconds, strict=True))


def name(setting: Setting) -> str:
    return "strict" if setting is None else f"k={setting[0]} p={setting[1]:g}"


def prepared(job: Job, work: Path) -> Job:
    """Tonight's job up to its pools, in ``work``. Raises DataError where there is no old text to draft."""
    config = job.config
    verify = {"rule": "strict", "refresh_nights": 0, "target": None, "curve": None}
    old = job.space.previous(ENTITIES[0])
    source = {"knowledge": str(job.space.out / "knowledge")} if old else {}
    config = config.model_copy(update={
        "out": str(work), "verify": config.verify.model_copy(update=verify),
        "input": config.input.model_copy(update=source),
        "spark": config.spark.model_copy(update={"ship": "never"})})
    made = Job(config, Workspace(work, job.space.day), job.run_id)
    made.__dict__.update({key: value for key, value in vars(job).items() if key not in vars(made)})
    report = pipeline.run_stage(made, "pools", "plan")
    if not any(report[entity]["pools"] for entity in ENTITIES):
        raise DataError(f"there is no text from before {job.space.dt} to draft from, so nothing in which the "
                        "rules could differ: give the folder of one (input.knowledge), or a later --date")
    return made


def rows(job: Job, most: int | None, seed: int) -> list[dict]:
    """Rows to write tonight that have a prompt, in an order drawn by seed; the first ``most`` of them."""
    asked = generate.rows_to_write(job, None).where(F.col("prompt").isNotNull())
    order = F.xxhash64(F.lit(seed), "entity", "entity_id")
    asked = asked.orderBy(order, "entity", "entity_id")
    return [row.asDict() for row in (asked if most is None else asked.limit(most)).collect()]


def write(job: Job, settings: Sequence[Setting], sample: list[dict], timed: int, turns: int
          ) -> dict[Setting, Written]:
    """Every row by every setting: the first ``timed`` of them ``turns`` times, against the clock."""
    tasks = {setting: _task(job, setting) for setting in settings}
    found = {setting: Written() for setting in settings}
    for setting in settings:  # loads the model, measures what steps cost, compiles
        _write(tasks[setting], sample[:job.config.decode.batch_size])
    passes, timed = len(settings) * turns, min(timed, len(sample))
    for turn in range(turns):
        shift = turn % len(settings)
        for place, setting in enumerate([*settings[shift:], *settings[:shift]]):
            one = found[setting]
            _add(one, *_write(tasks[setting], sample[:timed]), tasks[setting], first=turn == 0)
            _LOG.info("%s, turn %d: %d rows, %.0f tokens/s (%d of %d)", name(setting), turn + 1, timed,
                      one.tokens[-1] / one.seconds[-1], turn * len(settings) + place + 1, passes)
    for setting in settings:
        for start in range(timed, len(sample), _AT_ONCE):
            part = sample[start:start + _AT_ONCE]
            results, _ = _write(tasks[setting], part)
            _keep(found[setting], results, tasks[setting])
            _LOG.info("%s: %d of %d rows", name(setting), start + len(part), len(sample))
    return found


def _task(job: Job, setting: Setting) -> Task:
    task = Task.of(job)
    if setting is None:
        return task
    verify = task.config.verify.model_copy(update={"rule": "relaxed", "k": setting[0], "p": setting[1]})
    return replace(task, config=task.config.model_copy(update={"verify": verify}))


def _write(task: Task, sample: list[dict]) -> tuple[list, float]:
    """Results, and the seconds of decoding, prompts and drafting included."""
    requests = [replace(loading.make_request(row, task), id=(row["entity"], row["entity_id"]))
                for row in sample]
    requests.sort(key=lambda request: len(request.prompt_ids))
    engine = loading.make_engine(task)
    began = time.perf_counter()
    results = list(engine.run(requests))
    return results, time.perf_counter() - began


def _add(one: Written, results: list, seconds: float, task: Task, first: bool) -> None:
    one.seconds.append(seconds)
    one.tokens.append(sum(len(result.token_ids) for result in results))
    if first:
        one.steps = sum(result.target_steps for result in results)
        one.accepted = sum(result.accepted_tokens for result in results)
        one.relaxed = sum(result.relaxed_tokens for result in results)
        _keep(one, results, task)


def _keep(one: Written, results: list, task: Task) -> None:
    one.texts |= {result.id: (loading.decode_text(result.token_ids, task), len(result.token_ids))
                  for result in results if result.error is None}
    one.relaxed_in |= {result.id: result.relaxed_tokens for result in results if result.error is None}
    one.errors += [f"{' '.join(result.id)}: {result.error}" for result in results if result.error is not None]
