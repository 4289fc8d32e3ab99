"""Time and memory of each stage on inputs of growing size, without the model.

The first date is planned and gets a snapshot of made-up texts. On the second date one user in fifty has a new
interaction and one item in fifty has no text. These rows are stale; their texts are written without a model,
and publish carries over all others. Each measured step is a process of its own. ``results.json`` in the
folder of each size keeps what was measured, so that a stopped run continues.
"""

import json
import math
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import yaml

from dare_job import pipeline
from dare_job.bench.cli import command, ints
from dare_job.config.options import option
from dare_job.config.settings import load
from dare_job.data.text_key import text_salt
from dare_job.errors import InfrastructureError
from dare_job.evaluate.measured import print_table
from dare_job.generate import shard_plan
from dare_job.job import Job
from dare_job.publish import report
from dare_job.schemas import ATTRIBUTES, ENTITIES, INTERACTIONS, ITEMS, KNOWLEDGE, USERS, VECTORS
from dare_job.stages import generate
from dare_job.tables import chunk_files, published
from dare_job.workspace import MANIFEST, Workspace, write_json

DATES = (date(2026, 1, 1), date(2026, 1, 2))
STALE_OF = 50  # one user and one item in so many are stale on the second date
USERS_PER_ITEM = 10
FIRST, SHARDS, REPORT = "plan of the first date", "shard plan", "report"
STEPS = (FIRST, "plan", "embed", "group", "route", "pools", SHARDS, "generate", "gate", "publish", REPORT)
_BLOCK_ROWS, _CENTRE_ROWS, _DAY_S = 200_000, 1000, 86_400
_SAMPLE_S = 0.25  # between two samples of memory, or 20 times as long as one takes if that is more
_TEXT_TOKENS, _STEP_TOKENS = 60, 4
_PLAN = ("entity_id", "prompt_sha256", "text_key")
_CHUNK = ("entity", "shard", "chunk", "position")


@dataclass(frozen=True)
class Options:
    """Options of ``bench growth``."""

    users: tuple[int, ...] = option("Numbers of users, for example 100000,1000000.", (10_000,), parse=ints)
    work: Path = option("Folder for inputs, outputs and results.", Path("out/growth"))
    master: str = option("Spark master.", "local[2]")
    driver_memory: str = option("Heap of the driver's JVM.", "4g")
    pools: bool = option("Measure the stage pools too.", False)
    max_share: float | None = option("Budget of the second date, as refresh.max_share.", None)


@command(Options)
def main(options: Options) -> dict:
    """Measure seconds, CPU seconds and memory of each stage, and their exponents of growth."""
    steps = [step for step in STEPS if options.pools or step != "pools"]
    costs = {count: measure(count, steps, options) for count in options.users}
    print_table("Costs of each stage", [{"step": step, "users": count, **costs[count][step]}
                                        for step in steps for count in sorted(costs)])
    return {"sizes": costs, "exponents": exponents(costs)}


def measure(users: int, steps: list[str], options: Options) -> dict[str, dict]:
    """Cost of each step for one size; steps in ``results.json`` are not measured again."""
    folder = options.work.resolve() / f"users-{users}"
    results, settings = folder / "results.json", folder / "settings.yaml"
    costs = json.loads(results.read_text()) if results.exists() else {}
    if not settings.exists():
        write_input(folder, users)
        settings.write_text(yaml.safe_dump({
            "out": str(folder / "out"), "input": {"path": str(folder / "input"), "format": "parquet"},
            "embed": {"vectors": {name: str(folder / "vectors" / f"entity={name}") for name in ENTITIES}},
            "spark": {"master": options.master, "rows_per_commit": 256,
                      "conf": {"spark.driver.memory": options.driver_memory}},
            "baseline": {"rows": 0}}))
    budget = [] if options.max_share is None else [f"refresh.max_share={options.max_share}"]
    for step in steps:
        if step not in costs:
            print(f"{users} users: {step}", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", __name__, step, str(settings)]
            costs[step] = _cost(command if step == FIRST else command + budget, folder / "steps.log")
            if step == FIRST:
                write_snapshot(_job(settings, DATES[0]))
            elif step == SHARDS:
                write_chunks(_job(settings, DATES[1], budget))
            results.write_text(json.dumps(costs, indent=1))
    for name in ("input", "vectors", "out"):
        shutil.rmtree(folder / name, ignore_errors=True)
    return costs


def run_step(step: str, settings: Path, overrides: list[str]) -> None:
    """The work of one measured process."""
    job = _job(settings, DATES[step != FIRST], overrides)
    if step == SHARDS:
        generate.load_shard_plan(job)
    elif step == REPORT:
        report.write(job.space.out, job.space.dt)
    else:
        pipeline.run_stage(job, "plan" if step == FIRST else step)


def exponents(costs: dict[int, dict]) -> dict[str, dict[str, dict[str, float]]]:
    """e of cost ~ users ** e between neighbouring sizes, by step."""
    sizes, growth = sorted(costs), {}
    for small, large in zip(sizes, sizes[1:], strict=False):
        for step in costs[small].keys() & costs[large].keys():
            before, after = costs[small][step], costs[large][step]
            growth.setdefault(step, {})[f"{small}-{large}"] = {
                name: round(math.log(after[name] / before[name]) / math.log(large / small), 2)
                for name in before}
    return growth


def _cost(command: list[str], log: Path) -> dict[str, float]:
    """Wall and CPU seconds, and peak memory (proportional set sizes), of a tree of processes."""
    began, cpu, peak = time.perf_counter(), {}, 1
    with open(log, "ab") as errors:
        process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        while process.poll() is None:
            sampled = time.perf_counter()
            with suppress(psutil.Error, OSError):
                memory = 0
                for member in [process, *process.children(recursive=True)]:
                    with suppress(psutil.Error, OSError):
                        cpu[member.pid] = max(sum(member.cpu_times()[:2]), cpu.get(member.pid, 0.01))
                        memory += member.memory_full_info().pss
                peak = max(peak, memory >> 20)
            with suppress(psutil.TimeoutExpired):
                process.wait(max(_SAMPLE_S, 20 * (time.perf_counter() - sampled)))
    if process.returncode:
        raise InfrastructureError(f"{' '.join(command[3:])} ended with {process.returncode}: see {log}")
    return {"seconds": round(time.perf_counter() - began, 2), "cpu_s": round(sum(cpu.values()), 2),
            "memory_mib": peak}


def _job(settings: Path, day: date, overrides: list[str] | None = None) -> Job:
    loaded = load(settings, overrides)
    return Job(loaded, Workspace(Path(loaded.out), day), f"growth-{day}")


def write_input(folder: Path, users: int) -> None:
    """Users, items, interactions (five per user, popular items more often) and vectors, in blocks of rows."""
    items, random = max(1, users // USERS_PER_ITEM), np.random.default_rng(0)
    tables = {"users": (USERS, users, lambda ids: [_names("user", ids), _attribute("age", ids % 7)]),
              "items": (ITEMS, items, lambda ids: [_names("item", ids), _names("item", ids),
                                                   _attribute("genre", ids % 20)]),
              "interactions": (INTERACTIONS, users, lambda ids: _events(ids, items, random))}
    (folder / "input").mkdir(parents=True)
    for name, (schema, count, columns) in tables.items():
        _write(folder / "input" / f"{name}.parquet", schema, count, columns)
    for entity, count in (("user", users), ("item", items)):
        centres = random.standard_normal((max(1, count // _CENTRE_ROWS), 32), dtype=np.float32)

        def vectors(ids, entity=entity, centres=centres):
            points = centres[random.integers(0, len(centres), len(ids))]
            points = points + 0.5 * random.standard_normal(points.shape, dtype=np.float32)
            offsets = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * points.shape[1])
            return [_names(entity, ids), pa.ListArray.from_arrays(offsets, pa.array(points.ravel()))]

        (folder / "vectors" / f"entity={entity}").mkdir(parents=True)
        _write(folder / "vectors" / f"entity={entity}" / "part-0.parquet", VECTORS, count, vectors)


def _write(path: Path, schema: pa.Schema, count: int, columns) -> None:
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for start in range(0, count, _BLOCK_ROWS):
            ids = np.arange(start, min(start + _BLOCK_ROWS, count))
            file.write_table(pa.table(columns(ids), schema=schema))


def _names(entity: str, ids: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(entity[0], pc.utf8_lpad(pa.array(ids).cast(pa.string()), 8, "0"), "")


def _attribute(name: str, values: np.ndarray) -> pa.Array:
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int32))
    keys = pa.repeat(pa.scalar(name), len(values))
    return pa.MapArray.from_arrays(offsets, keys, pa.array(values).cast(pa.string())).cast(ATTRIBUTES)


def _events(ids: np.ndarray, items: int, random: np.random.Generator) -> list:
    new = ids[ids % STALE_OF == 0]
    user = np.concatenate([np.repeat(ids, 1 + random.poisson(4, len(ids))), new])
    end = [int(datetime.combine(day, datetime.min.time(), UTC).timestamp()) + _DAY_S for day in DATES]
    at = end[0] - 1 - random.integers(0, 200 * _DAY_S, len(user))
    at[len(user) - len(new):] = end[1] - 1 - random.integers(0, _DAY_S, len(new))
    item = (items * random.random(len(user)) ** 2.5).astype(np.int64)
    rating = random.integers(1, 6, len(user)).astype(np.float32)
    return [_names("user", user), _names("item", item), pa.array(rating), pa.array(at)]


def texts(columns: dict[str, pa.Array], job: Job) -> pa.Table:
    """Rows of KNOWLEDGE with a made-up text for each of the rows in ``columns``."""
    count, steps = len(columns["entity_id"]), _TEXT_TOKENS // _STEP_TOKENS
    tokens = np.random.default_rng(count).integers(10, 2000, (count, _TEXT_TOKENS), np.int32)
    text = {"knowledge": pc.binary_join_element_wise(columns["entity_id"], " likes quiet films.", ""),
            "token_ids": pa.FixedSizeListArray.from_arrays(tokens.ravel(), _TEXT_TOKENS),
            "step_tokens": pa.FixedSizeListArray.from_arrays(
                np.full(count * steps, _STEP_TOKENS, np.int16), steps)}
    constant = {"tokens": _TEXT_TOKENS, "finish_reason": "eos", "generated_dt": job.space.dt,
                "run_id": job.run_id, "source_run_id": job.run_id, "target_steps": steps,
                "accepted_tokens": _TEXT_TOKENS - steps,
                "scored_tokens": 0, "relaxed_tokens": 0, "guarded_tokens": 0, "slot_steps": steps,
                "prompt_tokens": 100, "retrieval_ms": 1.0, "decode_ms": 20.0 * steps}
    columns = columns | text
    arrays = [columns.get(field.name, pa.repeat(pa.scalar(constant.get(field.name)), count)).cast(field.type)
              for field in KNOWLEDGE]
    return pa.table(arrays, schema=KNOWLEDGE)


def write_snapshot(job: Job) -> None:
    """Publish a text for every planned row but one item in ``STALE_OF``; remove the plan."""
    for entity in ENTITIES:
        folder, rows = job.space.knowledge(entity), 0
        folder.mkdir(parents=True)
        plan = ds.dataset(job.space.stage("plan") / f"entity={entity}")
        for number, batch in enumerate(plan.to_batches(columns=[*_PLAN, "interactions"],
                                                       batch_size=_BLOCK_ROWS)):
            ids = np.array([int(name[1:]) for name in batch["entity_id"].to_pylist()], np.int64)
            batch = batch.filter(pa.array((ids % STALE_OF != 0) | (entity == "user")))
            columns = {name: batch[name] for name in _PLAN} | {"text_interactions": batch["interactions"]}
            chunk_files.write(folder / f"part-{number:05d}.parquet", texts(columns, job))
            rows += len(batch)
        files = {path.name: {"bytes": path.stat().st_size} for path in folder.glob("*.parquet")}
        write_json(folder / MANIFEST, {
            "date": job.space.dt, "entity": entity, "run_id": job.run_id, "fingerprint": "bench.growth",
            **published.writer_record(job), "text_settings": text_salt(job.config, job.model_hash,
                                                                      job.draft_hash, entity),
            "counts": {"rows": rows, "written": rows}, "totals": {"tokens": rows * _TEXT_TOKENS},
            "files": files, "tokens_per_s": None, "baseline": None})
    shutil.rmtree(job.space.work)


def write_chunks(job: Job) -> None:
    """Write every chunk of the shard plan, as the workers of generate would."""
    plan = shard_plan.read_plan(job.space.stage("generate"))
    names = (*_CHUNK[3:], *_PLAN, "pool", "pool_kind")
    rows = ds.dataset(plan.folder / "cut").to_table(columns=[*_CHUNK[:3], *names]).to_pandas()
    chunks = rows.sort_values(list(_CHUNK)).groupby(list(_CHUNK[:3]), observed=True)
    for (entity, shard, chunk), part in chunks:
        columns = {name: pa.array(part[name], from_pandas=True) for name in names}
        chunk_files.write(plan.folder / f"entity={entity}" / chunk_files.name(shard, chunk),
                          texts(columns, job), len(part) / 10)


if __name__ == "__main__":
    run_step(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
