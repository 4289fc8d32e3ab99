"""Generates the same rows with each setting, in turns, with the pools and drafts that a run would use.

Plan, groups, routes and pools are made by the job's stages in a separate folder, from the run's input and
previous text. The rows are those that the run would generate with strict verification. Waves are not used:
all rows draft from previous text.
"""

import copy
import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import functions as F

from dare_job import pipeline
from dare_job.errors import DataError, RowError
from dare_job.evaluate.curve import table
from dare_job.generate import loading
from dare_job.generate.task import Task
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.schemas import ENTITIES
from dare_job.stages import generate
from dare_job.tables import stage_inputs
from dare_job.workspace import Workspace

_LOG = logging.getLogger("dare_job")
_AT_ONCE = 4096  # rows per call of the engine
Setting = tuple[int, float] | str | None  # (k, p); a verifier (``PlugIn``); None: the strict rule
Row = tuple[str, str]  # entity type and id


@dataclass
class Written:
    """Texts and statistics of one setting.

    Attributes
    ----------
    texts
        By row, without those that failed: text, and its number of tokens.
    relaxed_in
        By the same rows: tokens that were not the model's argmax token.
    seconds
        Of the timed rows in each round.
    tokens
        Of the timed rows in each round.
    errors
        Of the rows that failed.
    """

    texts: dict[Row, tuple[str, int]] = field(default_factory=dict)
    relaxed_in: dict[Row, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    steps: int = 0
    accepted: int = 0
    relaxed: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Median of the rounds."""
        return statistics.median(n / s for n, s in zip(self.tokens, self.seconds, strict=True))

    def add_timed(self, results: list, seconds: float) -> None:
        """Add the statistics of a round; steps and tokens are those of the first one."""
        self.seconds.append(seconds)
        self.tokens.append(sum(len(result.token_ids) for result in results))
        if len(self.seconds) == 1:
            self.steps = sum(result.target_steps for result in results)
            self.accepted = sum(result.accepted_tokens for result in results)
            self.relaxed = sum(result.relaxed_tokens for result in results)

    def add_texts(self, results: list, task: Task) -> None:
        for result in results:
            try:
                text = None if result.error else loading.decode_text(result.token_ids, task)
            except RowError as error:
                result = replace(result, error=str(error))
            if result.error is not None:
                self.errors.append(f"{' '.join(result.id)}: {result.error}")
                continue
            self.texts[result.id] = text, len(result.token_ids)
            self.relaxed_in[result.id] = result.relaxed_tokens


def name(setting: Setting) -> str:
    if setting is None or isinstance(setting, str):
        return table.plug_in_name(setting) if setting else "strict"
    return f"k={setting[0]} p={setting[1]:g}"


def prepared(job: Job, work: Path) -> Job:
    """The job after its stage pools, in ``work``.

    Raises
    ------
    DataError
        There is no previous text to draft from.
    """
    config = job.config
    verify = {"rule": "strict", "refresh_nights": 0, "target": None, "curve": None}
    previous = job.space.previous(ENTITIES[0])
    source = {"knowledge": str(job.space.out / "knowledge")} if previous else {}
    config = config.model_copy(update={
        "out": str(work), "verify": config.verify.model_copy(update=verify),
        "input": config.input.model_copy(update=source),
        "spark": config.spark.model_copy(update={"ship": "never"})})
    made = copy.copy(job)  # with its cached properties
    vars(made).update(config=config, space=Workspace(work, job.space.day), limit=None, choice=None)
    report = pipeline.run_stage(made, "pools", "plan")
    if "skipped" not in report and not any(report[entity]["pools"] for entity in ENTITIES):
        raise DataError(f"there is no text from before {job.space.dt} to draft from, so all rules would "
                        "generate the same text: set input.knowledge to a folder of texts, or choose a later "
                        "--date")
    return made


def rows(job: Job, count: int | None, seed: int) -> list[dict]:
    """Up to ``count`` stale rows that have a prompt, in seeded random order."""
    if not stage_inputs.has_rows_to_write(stage_inputs.require_stage(job, "plan")):
        return []
    stale = generate.rows_to_write(job, None).where(F.col("prompt").isNotNull())
    stale = stale.orderBy(F.xxhash64(F.lit(seed), "entity", "entity_id"), "entity", "entity_id")
    return [row.asDict() for row in (stale if count is None else stale.limit(count)).collect()]


def write(job: Job, settings: Sequence[Setting], sample: list[dict], timed: int, turns: int
          ) -> dict[Setting, Written]:
    """Generate every row with every setting, the first ``timed`` of them in ``turns`` timed rounds."""
    tasks = {setting: _task(job, setting) for setting in settings}
    written = {setting: Written() for setting in settings}
    for setting in settings:  # loads the model, measures step latency, compiles
        _write(tasks[setting], sample[:job.config.decode.batch_size])
    timed = min(timed, len(sample))
    for turn in range(turns):
        shift = turn % len(settings)
        for setting in [*settings[shift:], *settings[:shift]]:
            results, seconds = _write(tasks[setting], sample[:timed])
            written[setting].add_timed(results, seconds)
            if turn == 0:
                written[setting].add_texts(results, tasks[setting])
            _LOG.info("%s, round %d of %d: %d rows, %.0f tokens/s", name(setting), turn + 1, turns, timed,
                      written[setting].tokens[-1] / seconds)
    for setting in settings:
        with progress.counting(f"writing with {name(setting)}", len(sample) - timed) as counter:
            for start in range(timed, len(sample), _AT_ONCE):
                part = sample[start:start + _AT_ONCE]
                written[setting].add_texts(_write(tasks[setting], part)[0], tasks[setting])
                counter.advance(len(part))
    return written


def _task(job: Job, setting: Setting) -> Task:
    task = Task.of(job)
    if setting is None:
        return task
    rule = {"rule": setting} if isinstance(setting, str) else {
        "rule": "relaxed", "k": setting[0], "p": setting[1]}
    verify = task.config.verify.model_copy(update=rule)
    return replace(task, config=task.config.model_copy(update={"verify": verify}))


def _write(task: Task, sample: list[dict]) -> tuple[list, float]:
    """Results, and seconds of decoding including prompts and drafting."""
    requests = [replace(loading.make_request(row, task), id=(row["entity"], row["entity_id"]))
                for row in sample]
    requests.sort(key=lambda request: len(request.prompt_ids))
    engine = loading.make_engine(task)
    began = time.perf_counter()
    results = list(engine.run(requests))
    return results, time.perf_counter() - began
