"""Measures the speed of autoregressive decoding on a seeded sample of the rows, and estimates run time.

Rates are new tokens per second of *one worker's* decoding time (prompts, retrieval and steps, without
loading and writing files), summed over workers. The baseline runs in Spark tasks like the run's own: same
threads, same batch size, and as many concurrent workers as the run had, each with a full batch, and with up
to four if the run has many: the slots of a last batch become empty one after the other, and the run has few
last batches. If the sample has no full batch for each worker, the rates are not comparable, except
that workers with a GPU of their own may be fewer. The baseline is the faster of transformers' ``generate``
(left-padded batches, sorted by length) and the engine without drafts; both include the prompts. In mode
sample both sample with the same settings.

The baseline is measured after all texts are generated, so a failure loses only the baseline.
"""

import logging
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial, reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from dare_job.decode.engine.grammar_masks import GrammarProcessor
from dare_job.decode.engine.stop_strings import length_until_stop
from dare_job.errors import DareJobError, InfrastructureError
from dare_job.generate import hangs, loading
from dare_job.generate.row_assignment import task_slots
from dare_job.generate.task import Task
from dare_job.inference.engines import sampling
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.schemas import ENTITIES
from dare_job.spark import executors
from dare_job.spark import workers as spark_workers
from dare_job.spark.session import failure_cause
from dare_job.spark.tables import read_parquet
from dare_job.storage.paths import path
from dare_job.tables import stage_inputs
from dare_job.tables.chunk_files import Totals
from dare_job.workspace import committing, digest, done_record, is_done

_LOG = logging.getLogger("dare_job")
ENGINE, GENERATE = "engine", "generate"  # the two methods
GREEDY = {"do_sample": False, "num_beams": 1}
_ACTIVITY = "all rows are generated; measuring autoregressive decoding on some of them for comparison"
_USUAL_ROWS = 32
_USUAL_BATCHES, _USUAL_PART = 4, 16  # batches of each worker; if several, at most this part of the run
_STATS = pa.schema([("method", pa.string()), ("tokens", pa.int64()), ("seconds", pa.float64())])


@dataclass(frozen=True)
class Sample:
    """Rows, and the workers that decode them at the same time in batches of ``batch_size``."""

    rows: int
    workers: int
    batch_size: int


def measure_baseline(job: Job, plan, texts: int, run_workers: int | None = None) -> dict:
    """Rates by method and ``tokens_per_s`` of the faster one. Measured once per shard plan and settings.

    Parameters
    ----------
    texts
        Number of the plan's rows that have a text. The others, such as those without a prompt, are not in the
        sample and take no slot of a batch, except for the few whose decoding failed.
    run_workers
        Number of the run's workers; None: one for each task slot.

    Returns
    -------
    measured
        None if there are no rows or the measurement failed; a warning gives the reason of a failure. Else

        - ``rows, workers, batch_size`` of the sample
        - ``run_workers, run_batch_size, comparable``: concurrent workers of the run, rows that each decoded
          at the same time, and whether its rate may be divided by this one
        - ``rates, method, tokens_per_s`` of each method, the faster method, its rate
    span
        Start and end, in seconds since 1970.
    """
    folder, fingerprint = job.space.stage("baseline"), _fingerprint(job, plan)
    if not is_done(folder, fingerprint):
        slots, began = task_slots(job.spark), time.time()
        run_workers = min(slots, run_workers or slots)
        measured = _try_measure(job, plan, texts, run_workers) if job.config.baseline.rows and texts else None
        span = [round(began, 3), round(time.time(), 3)]
        with committing(folder, fingerprint, {"measured": measured, "span": span}):
            pass
    record = done_record(folder)
    return {"measured": record["measured"], "span": record.get("span")}  # versions before had no span


def is_measured(job: Job, plan) -> bool:
    """Whether an earlier start of the run has measured the baseline."""
    return is_done(job.space.stage("baseline"), _fingerprint(job, plan))


def _fingerprint(job: Job, plan) -> str:
    return digest([plan.fingerprint, plan.rows, job.config.baseline.model_dump(), job.config.seed,
                   job.config.decode.batch_size])


def expected_seconds(job: Job, totals: Totals, run_workers: int | None = None) -> float:
    """How long measuring takes, judging by the run's own rows; 0 if nothing is measured.

    A row without drafts takes as many times as long as a decoding step of the run yields tokens.
    """
    if not (totals.texts and totals.target_steps):
        return 0.0
    row_s = totals.busy_s / totals.texts * max(1.0, totals.tokens / totals.target_steps)
    return 2 * rows_per_worker(job, totals.texts, run_workers) * row_s  # of two methods


def rows_per_worker(job: Job, texts: int, run_workers: int | None = None) -> float:
    """Baseline rows of each worker, for a run that wrote so many ``texts``."""
    if not (texts and job.config.baseline.rows):
        return 0.0
    slots = task_slots(job.spark)
    size = sample_size(job.config.baseline.rows, texts, job.config.decode.batch_size,
                       min(slots, run_workers or slots))
    return size.rows / size.workers


def _try_measure(job: Job, plan, texts: int, run_workers: int) -> dict | None:
    try:
        with executors.one_line_errors(), progress.doing(_ACTIVITY):
            return _measure(job, plan, texts, run_workers)
    except Exception as error:
        expected = isinstance(error, DareJobError)
        _LOG.warning("autoregressive decoding could not be measured, so this run has no baseline (its texts "
                     "are complete). Cause: %s", error if expected else failure_cause(error),
                     exc_info=None if expected else error)
        return None


def _measure(job: Job, plan, texts: int, run_workers: int) -> dict | None:
    # with a token of its own, so that hangs on the baseline do not count as hangs of the run's rows
    task = Task.of(job, plan_token=f"baseline-{secrets.token_hex(4)}")
    size = sample_size(job.config.baseline.rows, texts, job.config.decode.batch_size, run_workers)
    order = F.xxhash64(F.lit(job.config.seed), "entity", "entity_id")
    sample = _generated(job, plan).orderBy(order, "entity_id").limit(size.rows)

    def decode(batches):
        yield from decode_baseline(batches, task)

    stats = spark_workers.map_in_dedicated_workers(sample.repartition(size.workers), decode,
                                                   from_arrow_schema(_STATS)).collect()
    tokens, seconds = Counter(), Counter()
    for row in stats:
        tokens[row.method] += row.tokens
        seconds[row.method] += row.seconds
    rates = {method: tokens[method] / seconds[method] for method in seconds}
    if not rates:
        return None
    own_device = float(job.spark.conf.get("spark.task.resource.gpu.amount", "0")) >= 1
    run = Sample(texts, run_workers, run_batch_size(texts, job.config.decode.batch_size, run_workers))
    return {**asdict(size), "run_workers": run_workers, "run_batch_size": run.batch_size,
            "comparable": is_comparable(size, run, own_device), "rates": rates,
            "method": max(rates, key=rates.get), "tokens_per_s": max(rates.values())}


def is_comparable(sample: Sample, run: Sample, own_device: bool) -> bool:
    """Whether the rate of the run may be divided by that of the sample: its batches are as large, and it had
    as many workers, unless each has a device of its own.
    """
    return sample.batch_size == run.batch_size and (own_device or sample.workers == run.workers)


def run_batch_size(rows: int, batch: int, run_workers: int) -> int:
    """Slots of a worker: ``batch``, or fewer if it has too few rows. Lack of memory may have halved them."""
    return min(batch, -(-rows // run_workers))


def sample_size(requested: int | str, rows: int, batch: int, run_workers: int) -> Sample:
    """A quarter of the run's ``rows`` or a full batch for each worker, but at most ``requested`` rows.

    A batch that is not full would make autoregressive decoding look slower than it is. A run with fewer rows
    than batch slots has smaller batches, and so has its sample. If the requested rows do not fill the batches
    of all workers, fewer workers decode them. "auto": 32 rows, or if that is more one batch for each worker,
    and up to four within a 16th of the run.
    """
    batch = run_batch_size(rows, batch, run_workers)
    full = min(rows, run_workers * batch)
    batches = max(1, min(_USUAL_BATCHES, rows // _USUAL_PART // max(1, full)))
    usual = max(_USUAL_ROWS, batches * full)
    size = min(usual if requested == "auto" else requested, max(rows // 4, full))
    workers = run_workers if size >= full else max(1, size // batch)
    return Sample(size, workers, min(batch, -(-size // workers)))


def _generated(job: Job, plan):
    """``entity, entity_id, prompt`` of the rows of a shard plan that have a text."""
    frames = []
    for entity, folder in zip(ENTITIES, plan.entities, strict=True):
        planned = stage_inputs.stage_table(job, "plan", entity).where(F.col("prompt").isNotNull())
        if any(folder.glob("*.parquet")):
            done = read_parquet(job.spark, folder, columns=["entity_id", "error"])
            done = done.where(F.col("error").isNull()).select("entity_id")
            frames.append(planned.join(done, "entity_id", "left_semi").select(
                F.lit(entity).alias("entity"), "entity_id", "prompt"))
    return reduce(DataFrame.unionByName, frames)


def decode_baseline(batches: Iterable[pa.RecordBatch], task: Task) -> Iterator[pa.RecordBatch]:
    """Measure both methods in a Spark task. Yields one row per method: method, tokens, seconds.

    Raises
    ------
    InfrastructureError
        A worker has already hung on the baseline.
    """
    rows = [row for batch in batches for row in batch.to_pylist()]
    if not rows:
        return
    loading.start_task_log(task, "generate")
    limit_s = task.config.decode.hang_timeout_s
    if hangs.hang_count(path(task.folder), task.plan_token):
        raise InfrastructureError(f"no forward pass finished within {limit_s:g} s (decode.hang_timeout_s)")
    watchdog = hangs.Watchdog(limit_s, partial(hangs.record_hang, task, 0, socket.gethostname()))
    task = task.here()
    context = loading.load_task_model(task).target.traits.context or np.inf  # longer prompts are skipped
    requests = [loading.make_request(row, task, drafted=False) for row in rows]
    requests = [request for request in requests if 0 < len(request.prompt_ids) <= context]
    requests.sort(key=lambda request: len(request.prompt_ids))
    stats = []
    with watchdog.running():
        for method, count_tokens in ((ENGINE, _by_engine), (GENERATE, _by_generate)):
            began = time.perf_counter()
            try:
                tokens = count_tokens(requests, task, watchdog)
            except Exception as error:  # loses only this rate
                _LOG.warning("autoregressive decoding with %s could not be measured: %s", method, error)
                continue
            stats.append({"method": method, "tokens": tokens, "seconds": time.perf_counter() - began})
    yield pa.RecordBatch.from_pylist(stats, _STATS)


def _by_engine(requests, task: Task, watchdog) -> int:
    engine = loading.make_engine(task, mode="autoregressive")
    return sum(len(result.token_ids) for result in watchdog.watch(engine, engine.run(requests)))


def _by_generate(requests, task: Task, watchdog) -> int:
    clock = _Clock()
    count = (count_generated_tokens(batch, task, stopping_criteria=[clock]) for batch in [requests])
    return next(watchdog.watch(clock, count))


class _Clock:
    """Stopping criterion that never stops. ``generate`` calls it for each token, which advances the clock."""

    clock_s = 0.0

    def active_ids(self) -> list:
        return []

    def __call__(self, ids, scores, **options):
        import torch

        self.clock_s = time.monotonic()
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


def count_generated_tokens(requests, task: Task, **options) -> int:
    """Number of new tokens of ``generate`` with a task's settings: greedy, or sampled in mode ``sample``."""
    decode = task.config.decode
    method = _sampling_arguments(sampling(task.config)) if decode.mode == "sample" else GREEDY
    if decode.repetition_penalty is not None:
        method = method | {"repetition_penalty": decode.repetition_penalty}
    loaded, stop = loading.load_task_model(task), loading.load_stop_strings(task)
    if decode.stop:
        options |= {"stop_strings": decode.stop, "tokenizer": loaded.tokenizer}
    texts = generate_texts(loaded.target, requests, decode.batch_size, decode.max_new_tokens,
                           min_new_tokens=decode.min_new_tokens or None, **method, **options)
    return sum(length_until_stop(request.prompt_ids, text, stop)
               for request, text in zip(requests, texts, strict=True))


def _sampling_arguments(sampling) -> dict:
    """Arguments of ``generate`` for a ``Sampling``. Without a repetition penalty, the model's own applies."""
    arguments = sampling.warp.generate_arguments()
    if sampling.warp.repetition_penalty == 1.0:
        del arguments["repetition_penalty"]
    return arguments


def generate_greedy(target, requests, batch_size: int, max_new_tokens: int, **options) -> list[np.ndarray]:
    """``generate_texts`` with greedy decoding."""
    return generate_texts(target, requests, batch_size, max_new_tokens, **GREEDY, **options)


def generate_texts(target, requests, batch_size: int, max_new_tokens: int, **options) -> list[np.ndarray]:
    """Run transformers' ``generate`` on left-padded batches. Returns the new tokens of each request.

    Parameters
    ----------
    options
        Further arguments of ``generate``, such as do_sample and stopping_criteria.

    Returns
    -------
    texts : list of int32 (new tokens,)
        Up to and including the end-of-text token.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    pad_left = partial(pad_sequence, batch_first=True, padding_side="left")
    ends = target.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else ends or []
    pad = ends[0] if ends else 0
    texts = []
    with target.as_transformers(), torch.inference_mode():
        for start in range(0, len(requests), batch_size):
            prompts = [torch.from_numpy(np.asarray(request.prompt_ids, np.int64))
                       for request in requests[start:start + batch_size]]
            ids = pad_left(prompts, padding_value=pad)
            mask = pad_left([torch.ones_like(prompt) for prompt in prompts])
            longest = ids.shape[1]
            grammars = [request.grammar for request in requests[start:start + batch_size]]
            processors = [GrammarProcessor(grammars, longest)] if any(grammars) else None
            capacity = max_new_tokens
            if target.traits.max_length is not None:
                capacity = min(capacity, target.traits.max_length - longest)
            output = target.model.generate(
                ids.to(target.device), attention_mask=mask.to(target.device),
                max_new_tokens=capacity, pad_token_id=pad, logits_processor=processors, **options)
            texts += [_text(row, ends) for row in output[:, longest:].cpu().numpy()]
    return texts


def _text(row: np.ndarray, ends: list[int]) -> np.ndarray:
    """A row up to and including its first end-of-text token."""
    places = np.flatnonzero(np.isin(row, ends))
    return row[: places[0] + 1 if len(places) else len(row)].astype(np.int32)
