"""The Spark task of the stage generate: decodes the rows of a shard and commits them in chunks.

Runs in Python workers. Workers import this module instead of receiving it by value, so that the model is
loaded once per worker and serves all its tasks.
"""

import logging
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

import pyarrow as pa

from dare_job.decode.request import Result
from dare_job.errors import DareJobError, DeviceError, InfrastructureError, RowError
from dare_job.generate import decoding, hangs, loading, shard_plan, worker_stats
from dare_job.generate.copied_words import copied_words
from dare_job.generate.decoding import decode_rows
from dare_job.generate.hangs import Watchdog
from dare_job.generate.live_progress import LiveProgress
from dare_job.generate.task import CHUNKS, Task
from dare_job.observe import log
from dare_job.refresh import acceptance, stopping
from dare_job.schemas import MODES_WITHOUT_POOLS
from dare_job.spark import workers
from dare_job.storage.paths import AnyPath, is_local, path
from dare_job.tables import chunk_files
from dare_job.tables.chunk_files import Totals

_LOG = logging.getLogger("dare_job")
_SHOWN = ("tokens", "target_steps", "scored_tokens", "accepted_tokens", "relaxed_tokens", "slot_steps")


class _Stopped(Exception):
    """Another worker recorded a failure, or a later run made a new shard plan."""


def write_shard(batches: Iterable[pa.RecordBatch], task: Task) -> Iterator[pa.RecordBatch]:
    """Decode a shard's rows in order of position and commit each chunk. Yields a row of CHUNKS each.

    A row that cannot be generated is committed with ``error``. An error that affects every row (a damaged
    pool, a model that does not load) stops all workers; ``shard_plan.raise_failure`` raises it on the driver.

    Raises
    ------
    InfrastructureError
        This host lacks something (the folder, its GPU, disk space, memory) or its device failed. Spark
        retries the task on another host, up to ``spark.task.maxFailures`` times.
    """
    folder = path(task.folder)
    if is_local(folder) and not folder.is_dir():
        raise InfrastructureError(f"{socket.gethostname()} does not see {task.folder}: out must be on a disk "
                                  "that every host has under the same path")
    rows = _missing((row for batch in batches for row in batch.to_pylist()), task)
    first = next(rows, None)
    if first is None or not shard_plan.is_active(folder, task.plan_token):
        return
    if not _has_time(task):  # ``Collector.watched`` asks again, since loading the model takes time
        _record_stop(task)
        return
    shard = first["shard"]
    loading.start_task_log(task, "generate", shard=shard)
    note = partial(hangs.record_hang, task, shard, _name())
    watchdog = Watchdog(task.config.decode.hang_timeout_s, note)
    began = time.perf_counter()
    try:
        task = task.here()
        loading.load_task_model(task)  # before the clock starts
        _LOG.info("the model is loaded", extra={
            "seconds": round(time.perf_counter() - began, 3), "gpu": workers.task_gpu(),
            "loads": loading.load_count()})
        collector = Collector(task)
        live = LiveProgress(folder, shard, task.plan_token, collector.uncommitted, watchdog)
        with watchdog.running(), live.running():
            for row, result in decode_rows(collector.watched(chain([first], rows)), task, watchdog,
                                           hangs.hang_reasons(task, shard)):
                for chunk in collector.add(row, knowledge_row(row, result, task),
                                           worker_stats.beam_totals(result)):
                    live.committed()
                    yield chunk
            yield from collector.finish()
        _LOG.info("the shard is finished", extra={"seconds": round(time.perf_counter() - began, 3)})
    except DareJobError as error:
        _LOG.error("the shard was not finished: %s", error, extra={"error": type(error).__name__})
        if isinstance(error, DeviceError):
            note(error.ids, str(error))
        if isinstance(error, InfrastructureError):
            raise
        if shard_plan.is_active(folder, task.plan_token):
            shard_plan.record_failure(folder, error)
    except _Stopped:
        return
    finally:
        log.flush()


def _missing(rows: Iterable[dict], task: Task) -> Iterator[dict]:
    """Rows whose chunk no earlier attempt at the shard has committed."""
    chunk, committed = None, False
    for row in rows:
        if row["chunk"] != chunk:
            chunk, committed = row["chunk"], _path(row, task).exists()
        if not committed:
            yield row


_row_s = 0.0  # time of a row in this process, in batches that are full; 0: not known


def _has_time(task: Task, waiting: int = 0) -> bool:
    """Whether ``waiting`` rows in decoding and another chunk would end before ``task.stop_at``.

    They are decoded at the same time, so rows that do not fill a batch take as long as a full one.
    """
    rows = max(waiting + task.config.spark.rows_per_commit, decoding.batch_size_of(task))
    return task.stop_at is None or time.time() + rows * (_row_s or task.row_s) <= task.stop_at


def _record_stop(task: Task) -> None:
    """Record that a chunk was not started, unless a later run goes on in the same folder."""
    if shard_plan.is_active(path(task.folder), task.plan_token):
        stopping.record_stop(path(task.folder), task.stop_why)


def _path(row: dict, task: Task) -> AnyPath:
    """The file of a row's chunk."""
    folder = path(task.folder) / task.chunks if task.chunks else path(task.folder)
    return folder / f"entity={row['entity']}" / chunk_files.name(row["shard"], row["chunk"])


def _name() -> str:
    """Name of this process in chunk files: hostname and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Collector:
    """Collects finished rows in any order and writes a chunk's file when its last row is finished."""

    def __init__(self, task: Task):
        self._task = task
        self._waiting: Counter[int] = Counter()  # chunk -> rows in decoding
        self._ready: dict[int, list[tuple[dict, dict]]] = defaultdict(list)
        self._beams: dict[int, Counter[str]] = defaultdict(Counter)
        self._totals: dict[int, Totals] = defaultdict(Totals)  # of ``_ready``
        self._newest = -1
        self._began = time.perf_counter()
        self._measured, self._finished = self._began, 0  # last measurement of ``_row_s``, rows since then

    def watched(self, rows: Iterable[dict]) -> Iterator[dict | None]:
        """Yield the rows of chunks for which there is time, and count the rows in decoding of each chunk.

        None after a batch whose time has to be measured: the next row follows when these are finished.
        """
        task = self._task
        for row in rows:
            if row["chunk"] != self._newest:
                self._newest = -1
                is_measured = task.stop_at is None or _row_s or task.row_s
                if not is_measured and self._waiting.total() >= decoding.batch_size_of(task):
                    yield None
                if not _has_time(task, self._waiting.total()):
                    _record_stop(task)
                    return
            self._newest = row["chunk"]
            self._waiting[self._newest] += 1
            yield row
        self._newest = -1

    def add(self, row: dict, finished: dict, beams: Counter[str]) -> Iterator[pa.RecordBatch]:
        """Add a finished row and commit complete chunks. The newest chunk can still receive rows."""
        self._waiting[row["chunk"]] -= 1
        self._finished += 1
        self._beams[row["chunk"]].update(beams)
        self._ready[row["chunk"]].append((row, finished))
        self._totals[row["chunk"]] += _totals_of(finished)
        for chunk in [chunk for chunk in self._ready if chunk != self._newest and not self._waiting[chunk]]:
            yield self._commit(chunk)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Commit the remaining chunks after all rows have been added."""
        for chunk in sorted(self._ready):
            yield self._commit(chunk)

    def uncommitted(self) -> Totals:
        """Totals of the finished rows that no chunk file has yet. Safe to call from another thread."""
        return sum(list(self._totals.values()), Totals(busy_s=time.perf_counter() - self._began))

    def _commit(self, chunk: int) -> pa.RecordBatch:
        busy_s = time.perf_counter() - self._began
        self._measure()
        entries = sorted(self._ready.pop(chunk), key=lambda entry: entry[0]["position"])
        first = entries[0][0]
        if not shard_plan.is_active(path(self._task.folder), self._task.plan_token):
            raise _Stopped
        file, beams = _path(first, self._task), self._beams.pop(chunk)
        chunk_files.write(file, _with_copied_words(entries, self._task), busy_s,
                          maker={"worker": _name(), "batch_size": decoding.batch_size_of(self._task),
                                 "ended": round(time.time(), 3)},
                          **{"beams": beams} if beams else {},
                          **{acceptance.KEY: pools} if (pools := worker_stats.pool_totals(entries)) else {})
        self._began = time.perf_counter()
        self._totals.pop(chunk)
        record = {"shard": first["shard"], "chunk": chunk, "rows": len(entries)}
        _LOG.info("committed %s", file.name, extra={
            "entity": first["entity"], **record, "busy_s": round(busy_s, 3)})
        return pa.RecordBatch.from_pylist([record], schema=CHUNKS)

    def _measure(self) -> None:
        """Update the time of a row. Less than a batch of rows says only that they take longer than known."""
        global _row_s
        now, batch_size = time.perf_counter(), decoding.batch_size_of(self._task)
        row_s = (now - self._measured) / max(self._finished, batch_size)
        if self._finished >= batch_size or row_s > _row_s:
            _row_s = max(row_s, (row_s + _row_s) / 2)  # quick to learn that rows take longer
            self._measured, self._finished = now, 0


def _totals_of(finished: dict) -> Totals:
    """Totals of a row of KNOWLEDGE, as far as progress shows them."""
    counted = {name: finished.get(name) or 0 for name in _SHOWN}
    return Totals(rows=1, errors=int(finished.get("error") is not None), **counted)


def _with_copied_words(entries: list[tuple[dict, dict]], task: Task) -> list[dict]:
    """The rows of KNOWLEDGE of (planned row, finished row), with ``copied_words`` for those with a text."""
    prompt_format = task.prompt_format(entries[0][0]["entity"])  # a chunk has one entity type
    counts = copied_words([prompt_format.with_examples(row["prompt"] or "") for row, _ in entries],
                          [finished.get("knowledge") for _, finished in entries])
    return [finished if finished.get("error") else finished | {"copied_words": count}
            for (_, finished), count in zip(entries, counts.tolist(), strict=True)]


def knowledge_row(row: dict, outcome: Result | str, task: Task) -> dict:
    """A row of KNOWLEDGE from a planned row and its result. A string is the reason of an error."""
    common = {"entity_id": row["entity_id"], "run_id": task.run_id, "prompt_sha256": row["prompt_sha256"]}
    if isinstance(outcome, str) or outcome.error is not None:
        reason = outcome if isinstance(outcome, str) else outcome.error
        return common | {"finish_reason": "error", "error": reason}
    try:
        text = loading.decode_text(outcome.token_ids, task)
    except RowError as error:
        return common | {"finish_reason": "error", "error": str(error)}
    drafted = task.config.decode.mode not in MODES_WITHOUT_POOLS
    return common | {
        "knowledge": text, "token_ids": outcome.token_ids,
        "tokens": len(outcome.token_ids), "finish_reason": outcome.finish_reason,
        "generated_dt": task.dt, "source_run_id": task.run_id, "text_key": row["text_key"],
        "pool": row["pool"] if drafted else None, "pool_kind": row["pool_kind"] if drafted else None,
        "prompt_tokens": outcome.prompt_tokens, "target_steps": outcome.target_steps,
        "scored_tokens": outcome.reused_tokens, "accepted_tokens": outcome.accepted_tokens,
        "relaxed_tokens": outcome.relaxed_tokens, "guarded_tokens": outcome.tokens_past_limit,
        "step_tokens": outcome.step_tokens, "retrieval_ms": outcome.retrieval_ms,
        "decode_ms": outcome.decode_ms, "prompt_ms": outcome.prompt_ms, "slot_steps": outcome.slot_steps,
    }
