"""Finished texts without a model: yesterday's snapshot, and the chunks that the stage generate would leave.

A text is two to six sentences of a bank, some 60 tokens, with the token ids that the model's own
tokenizer gives them. Rows are made by columns, a file at a time, and written by the job's own writer.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dare_job.bench.scale.world import STALE_OF
from dare_job.data.sample_world.catalogue import ADJECTIVES, NOUNS
from dare_job.data.text_key import text_salt
from dare_job.generate.shard_plan import ShardPlan
from dare_job.job import Job
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.tables import chunk_files, published
from dare_job.workspace import MANIFEST, write_json

_SENTENCES = 2000
_ROWS_A_FILE = 100_000
_STEP_TOKENS = 4  # that a forward emits
_PLANNED = ["entity_id", "prompt_sha256", "text_key"]
_CUT = ["entity", "shard", "chunk", "position", "entity_id", "prompt_sha256", "text_key", "pool", "pool_kind"]


class Bank:
    """Sentences and their token ids; ``rows`` makes texts of them."""

    def __init__(self, model: Path, seed: int = 0):
        from transformers import AutoTokenizer

        random = np.random.default_rng([seed, 4])
        words = np.array([word.lower() for group in (*ADJECTIVES.values(), *NOUNS.values())
                          for word in group])
        picked = (len(words) * random.random((_SENTENCES, 10)) ** 2).astype(int)
        lengths = random.integers(4, 9, _SENTENCES)
        sentences = [" ".join(words[row[:length]]).capitalize() + "."
                     for row, length in zip(picked, lengths, strict=True)]
        tokenizer = AutoTokenizer.from_pretrained(model)
        ids = tokenizer([f"{sentence} " for sentence in sentences], add_special_tokens=False)["input_ids"]
        self._random = random
        self._sentences = pa.array(sentences)
        self._ids = np.concatenate([np.asarray(row, np.int32) for row in ids])
        self._ends = np.cumsum([len(row) for row in ids])

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.diff(self._ends, prepend=0)

    def rows(self, given: dict[str, pa.Array], run_id: str, dt: str) -> pa.Table:
        """Rows of KNOWLEDGE with new texts for the columns ``given`` (entity_id among them)."""
        count = len(given["entity_id"])
        each = self._random.integers(2, 7, count)
        border = np.concatenate([[0], np.cumsum(each)]).astype(np.int32)
        picked = self._random.integers(0, _SENTENCES, border[-1])
        text = pc.binary_join(pa.ListArray.from_arrays(pa.array(border), self._sentences.take(picked)), " ")
        lengths = self._lengths[picked]
        ids = self._ids[_ranges(self._ends[picked] - lengths, lengths)]
        ends = np.concatenate([[0], np.cumsum(lengths)])[border].astype(np.int32)
        tokens = np.diff(ends)
        steps = -(-tokens // _STEP_TOKENS)
        step_ends = np.concatenate([[0], np.cumsum(steps)]).astype(np.int32)
        emitted = pa.array(np.full(step_ends[-1], _STEP_TOKENS, np.int16))
        columns = {
            "knowledge": text, "token_ids": pa.ListArray.from_arrays(pa.array(ends), pa.array(ids)),
            "tokens": tokens, "finish_reason": _same("eos", count), "generated_dt": _same(dt, count),
            "source_run_id": _same(run_id, count), "run_id": _same(run_id, count),
            "target_steps": steps, "accepted_tokens": tokens - steps, "scored_tokens": np.zeros(count),
            "relaxed_tokens": np.zeros(count), "guarded_tokens": np.zeros(count), "slot_steps": steps,
            "prompt_tokens": np.full(count, 100), "retrieval_ms": np.ones(count), "decode_ms": steps * 20.0,
            "step_tokens": pa.ListArray.from_arrays(pa.array(step_ends), emitted), **given}
        arrays = [_column(columns.get(field.name), field.type, count) for field in KNOWLEDGE]
        return pa.table(arrays, schema=KNOWLEDGE)


def _column(values, kind: pa.DataType, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, kind)
    return (values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)).cast(kind)


def _same(value: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), count)


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """starts[0], starts[0] + 1, ... for each range, one behind the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


def snapshot(job: Job, bank: Bank) -> dict[str, int]:
    """Publish a text for every row of the date's plan but one item in ``STALE_OF``: new tomorrow."""
    written = {}
    for entity in ENTITIES:
        folder = job.space.knowledge(entity)
        folder.mkdir(parents=True)
        plan = ds.dataset(job.space.stage("plan") / f"entity={entity}")
        rows = tokens = number = 0
        for batch in plan.to_batches(columns=_PLANNED, batch_size=_ROWS_A_FILE):
            if entity == "item":
                place = pc.utf8_slice_codeunits(batch["entity_id"], 1).cast(pa.int64())
                batch = batch.filter(pc.not_equal(pc.subtract(place, pc.multiply(
                    pc.divide(place, STALE_OF), STALE_OF)), 0))
            if batch.num_rows:
                table = bank.rows({name: batch[name] for name in _PLANNED}, job.run_id, job.space.dt)
                chunk_files.write(folder / f"part-{number:05d}.parquet", table)
                rows, number = rows + len(table), number + 1
                tokens += pc.sum(table["tokens"]).as_py()
        files = {path.name: {"bytes": path.stat().st_size} for path in folder.glob("*.parquet")}
        write_json(folder / MANIFEST, {
            "date": job.space.dt, "entity": entity, "run_id": job.run_id, "fingerprint": "bench.scale",
            **published.writer_record(job),
            "text_settings": text_salt(job.config, job.model_hash, job.draft_hash),
            "counts": {"rows": rows, "written": rows}, "totals": {"tokens": tokens}, "files": files,
            "tokens_per_s": None, "baseline": None})
        written[entity] = rows
    return written


def finish(work: ShardPlan, bank: Bank, job: Job) -> dict[str, int]:
    """Write every chunk of a cut, as workers would, each with the rows of its place."""
    rows = ds.dataset(work.folder / "cut").to_table(columns=_CUT)
    rows = rows.sort_by([(name, "ascending") for name in _CUT[:4]]).combine_chunks()
    codes = np.stack([rows["entity"].combine_chunks().dictionary_encode().indices.to_numpy(),
                      rows["shard"].to_numpy(), rows["chunk"].to_numpy()])
    border = [0, *(1 + np.flatnonzero((np.diff(codes) != 0).any(axis=0))).tolist(), len(rows)]
    for start, end in zip(border[:-1], border[1:], strict=True):
        part = rows.slice(start, end - start)
        entity, shard, chunk = (part[name][0].as_py() for name in _CUT[:3])
        given = {name: part[name] for name in _CUT[4:]}
        table = bank.rows(given, job.run_id, job.space.dt)
        busy_s = pc.sum(table["decode_ms"]).as_py() / 1e3
        chunk_files.write(work.folder / f"entity={entity}" / chunk_files.name(shard, chunk), table, busy_s)
    return {"rows": len(rows), "chunks": len(border) - 1}
