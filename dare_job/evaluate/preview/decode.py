"""Generates the texts of a preview: the first row alone, so that its text appears soon, then batches."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from dare_job.data.input.preview_rows import Row
from dare_job.decode.request import Request, Result
from dare_job.errors import DataError, RowError
from dare_job.evaluate.preview import drafts
from dare_job.generate import loading
from dare_job.generate.task import Task, prompt_format
from dare_job.job import Job
from dare_job.models import files
from dare_job.observe import progress
from dare_job.schemas import ENTITIES, MODES_WITHOUT_POOLS

GENEROUS = 2  # the preview decodes up to this many times decode.max_new_tokens, to see where texts end
Name = tuple[str, str]  # entity type and id


@dataclass(frozen=True)
class Rate:
    """Speed of the same rows with or without drafts."""

    rows: int
    tokens: int
    steps: int
    accepted: int
    seconds: float

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.seconds if self.seconds and self.tokens else None


@dataclass(frozen=True)
class Written:
    """Texts of a preview.

    Attributes
    ----------
    prompts
        Prompts as the model reads them, with special tokens, by row.
    failed
        Errors of the rows whose prompt cannot be tokenized.
    numbers : bool (V,)
        The model's tokens that are numbers.
    results
        Of decoding without drafts up to the generous limit, by row.
    limited
        Texts up to ``decode.max_new_tokens``, by row; without rows that have an error there.
    plain, drafted
        Speeds without and with drafts, of all rows but the first; drafted is None if there are no other rows
        or the mode or the model uses no drafts.
    equal
        Number of rows whose text is the same with drafts.
    drafts_from
        Where drafts came from, in words; None as ``drafted``.
    loading_s, first_text_s
        Seconds until the model was loaded, and until the first text was generated.
    """

    prompts: dict[Name, str]
    failed: dict[Name, str]
    numbers: np.ndarray
    results: dict[Name, Result]
    limited: dict[Name, str]
    plain: Rate
    drafted: Rate | None
    equal: int
    drafts_from: str | None
    loading_s: float
    first_text_s: float


def make_task(job: Job) -> Task:
    """A task for this process with the generous limit; it starts no Spark."""
    decode = job.config.decode
    limit = {"max_new_tokens": GENEROUS * decode.max_new_tokens}
    config = job.config.model_copy(update={"decode": decode.model_copy(update=limit)})
    model = job.model_path.absolute()
    draft = str(job.draft_path.absolute()) if job.draft_path else ""
    formats = tuple((entity, prompt_format(job.config, entity, job.space.dt)) for entity in ENTITIES)
    return Task(config, str(model), files.tokenizer_hash(model), "", "", "", "preview", job.space.dt,
                job.run_id, torch.get_num_threads(), draft=draft, prompt_formats=formats)


def write(job: Job, rows: Sequence[Row], show: Callable[[Row, str, Result, str], None]) -> Written:
    """Generate the texts of rows with a prompt, first without drafts, then with them.

    Parameters
    ----------
    show
        Called with each row, its prompt, its result and its text as soon as it is generated.

    Raises
    ------
    DataError
        No prompt can be tokenized.
    """
    began, task = time.perf_counter(), make_task(job)
    with progress.doing(f"loading {job.config.model.name}"):
        loaded_model = loading.load_task_model(task)
    tokenizer = loaded_model.tokenizer
    loaded = time.perf_counter()
    named = {(row.entity, row.entity_id): row for row in rows}
    requests, failed = {}, {}
    for name, row in named.items():
        try:
            requests[name] = make_request(row, task)
        except RowError as error:
            failed[name] = str(error)
    if not requests:
        raise DataError(f"no prompt can be tokenized: {next(iter(failed.values()))}")
    prompts = {name: tokenizer.decode(request.prompt_ids) for name, request in requests.items()}
    results: dict[Name, Result] = {}
    limited: dict[Name, str] = {}

    def take(result: Result) -> None:
        text = ""
        try:
            text = loading.decode_text(result.token_ids, task) if result.error is None else ""
        except RowError as error:
            result = replace(result, finish_reason="error", error=str(error))
        results[result.id] = result
        with suppress(RowError):
            if result.error is None:
                ids = result.token_ids[:job.config.decode.max_new_tokens]
                limited[result.id] = loading.decode_text(ids, task)
        show(named[result.id], prompts[result.id], result, text)

    first, *others = requests.values()
    _decode([first], task, "autoregressive", take, batch_size=1)
    first_text = time.perf_counter()
    plain = _decode(others, task, "autoregressive", take)
    texts = {name: result.token_ids for name, result in results.items() if not result.error}
    drafted, again, drafts_from = None, {}, None
    with_drafts = job.config.decode.mode not in MODES_WITHOUT_POOLS or job.draft_path
    if others and with_drafts and loaded_model.target.drafts != "none":
        previous = drafts.read_previous(job, task, rows)
        drafts_from = drafts.origin(previous, job)
        make = [_drafted(request, named[request.id], previous, texts) for request in others]
        with progress.doing("measuring the latency of forward passes, once per model and machine"):
            loading.make_engine(task)
        drafted = _decode(make, task, None, lambda result: again.update({result.id: result.token_ids}))
    equal = sum(np.array_equal(ids, results[name].token_ids) for name, ids in again.items())
    return Written(prompts, failed, loaded_model.numbers, results, limited, plain, drafted,
                   equal, drafts_from, loaded - began, first_text - began)


def make_request(row: Row, task: Task) -> Request:
    """The request of a previewed row, without drafts; its id is the entity type and the row's id."""
    values = {"entity": row.entity, "entity_id": row.entity_id, "prompt": row.prompt}
    return replace(loading.make_request(values, task, drafted=False), id=(row.entity, row.entity_id))


def _drafted(request: Request, row: Row, previous: dict, texts: dict[Name, np.ndarray]) -> Request:
    if row.entity in previous:
        pools, own = drafts.previous_pools(previous[row.entity], row)
        return replace(request, pools=pools, previous_ids=own)
    return replace(request, pools=drafts.pool_of_others(texts, row))


def _decode(requests: Sequence[Request], task: Task, mode: str | None, take: Callable[[Result], None],
            batch_size: int | None = None) -> Rate:
    tokens = steps = accepted = 0
    words = "generating texts without drafts" if mode else "generating the same texts with drafts"
    engine = loading.make_engine(task, mode, batch_size)
    began = time.perf_counter()
    with progress.counting(words, len(requests), unit="texts") as counter:
        for result in engine.run(requests):
            take(result)
            counter.advance()
            tokens, steps = tokens + len(result.token_ids), steps + result.target_steps
            accepted += result.accepted_tokens
    return Rate(len(requests), tokens, steps, accepted, time.perf_counter() - began)
