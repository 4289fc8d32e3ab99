"""What the report of a large snapshot costs: rows a second and memory, on rows drawn by a seed.

    python -m dare_job.bench.report [--rows 100000,1000000] [--work FOLDER]

Each size is written (not timed) and its report made in a fresh process, so that its peak is its own. Texts
are repeated, so the files are smaller than real ones; of the text columns a report reads few rows anyhow.
The last line is JSON.
"""

import json
import multiprocessing
import platform
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from dare_job.cli import options
from dare_job.models.files import resolve, tokenizer_hash
from dare_job.publish import report
from dare_job.publish.report import collect, nights
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.workspace import MANIFEST, write_json

DATE = date(2026, 1, 9)
_FILE_ROWS, _TEXTS, _POOLS = 100_000, 64, 500
_ITEMS = 0.1  # share of the rows that are items'
_KINDS = ("collaborative", "attribute", "global")


def main(
    rows: Annotated[str, typer.Option(help="Rows of the snapshot, users and items; several sizes.")]
    = "100000,1000000",
    work: Annotated[Path | None, typer.Option(help="Folder for the snapshots, else a temporary one.")] = None,
    seed: Annotated[int, typer.Option(help="Of the rows.")] = 0,
) -> None:
    """Measure the report on synthetic snapshots with seven dates before them."""
    found = []
    with tempfile.TemporaryDirectory(dir=work) as folder:
        for size in options.numbers("--rows", rows):
            out = Path(folder) / str(size)
            _write(out, size, seed)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found.append({"rows": size, **pool.apply(measure, (out,))})
            print("  ".join(f"{key} {value}" for key, value in found[-1].items()), flush=True)
    print(json.dumps({"sizes": found, "machine": platform.machine()}))


def measure(out: Path) -> dict:
    """One report in this process: seconds and peak memory of the pass alone, then of the page."""
    dt, rows, before = DATE.isoformat(), 0, _peak_mib()
    began = time.perf_counter()
    for entity in ENTITIES:
        rows += collect.collect(nights.folder(out, entity, dt), entity, dt).rows
    passed, peak = time.perf_counter() - began, _peak_mib()
    _load_tokenizer()
    loaded, began = _peak_mib(), time.perf_counter()
    page = report.write(out, dt)
    return {"pass_s": round(passed, 2), "rows_per_s": round(rows / passed), "started_mib": before,
            "pass_mib": peak, "libraries_mib": loaded, "report_s": round(time.perf_counter() - began, 2),
            "report_mib": _peak_mib(), "page_kib": page.stat().st_size // 1024}


def _load_tokenizer() -> None:
    """Its libraries load once a process, and take more memory than a report."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(resolve("embedded"))


def _peak_mib() -> int:
    """The most memory that this process has had so far (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def _write(out: Path, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = _texts(rng)
    for entity in ENTITIES:
        size = int(rows * _ITEMS) if entity == "item" else rows - int(rows * _ITEMS)
        folder = out / "knowledge" / f"entity={entity}" / f"dt={DATE}"
        folder.mkdir(parents=True)
        totals = np.zeros(5)
        for part, start in enumerate(range(0, size, _FILE_ROWS)):
            table, sums = _rows(rng, entity, start, min(_FILE_ROWS, size - start), vocabulary)
            pq.write_table(table, folder / f"part-{part:05d}.parquet", compression="zstd")
            totals += sums
        for night in range(nights.BEFORE + 1):
            day = DATE - timedelta(days=night)
            target = folder.with_name(f"dt={day}")
            target.mkdir(exist_ok=True)
            write_json(target / MANIFEST, _manifest(day, size, totals * (1 + 0.02 * rng.standard_normal())))


def _texts(rng: np.random.Generator) -> tuple[pa.Array, list[np.ndarray]]:
    words = [f"word{n}" for n in range(400)]
    ids = [rng.integers(300, 2000, rng.integers(80, 300)).astype(np.int32) for _ in range(_TEXTS)]
    return pa.array([" ".join(rng.choice(words, len(row))) for row in ids]), ids


def _rows(rng, entity: str, start: int, size: int, vocabulary) -> tuple[pa.Table, np.ndarray]:
    """Rows of KNOWLEDGE, nine in ten written tonight; sums of what a manifest counts."""
    words, ids = vocabulary
    which, kind = rng.integers(0, _TEXTS, size), rng.choice(3, size, p=(0.8, 0.15, 0.05))
    tokens = np.array([len(row) for row in ids])[which]
    means = np.array((4.0, 2.5, 1.5))[kind]
    steps = np.maximum(1, (tokens / (means + 1) * rng.uniform(0.7, 1.3, size)).astype(np.int64))
    lists = np.minimum(rng.poisson(np.repeat(means, steps + 1)), 31) + 1
    ends = np.cumsum(steps + 1)
    accepted = np.add.reduceat(lists - 1, ends - steps - 1)
    fresh, failed = rng.random(size) < 0.9, rng.random(size) < 0.002
    names = pa.array([f"{name}-{n:04d}" for name in _KINDS for n in range(_POOLS)])
    values = {
        "entity_id": pa.array([f"{entity}{n:09d}" for n in range(start, start + size)]),
        "knowledge": words.take(which), "tokens": tokens, "target_steps": steps, "accepted_tokens": accepted,
        "token_ids": _lists(np.cumsum(tokens), np.concatenate([ids[n] for n in which])),
        "step_tokens": _lists(ends, lists.astype(np.int16)),
        "error": pa.array(np.where(failed, "prompt of 2051 tokens, the model takes 2048", ""), mask=~failed),
        "generated_dt": np.where(fresh, DATE.isoformat(), (DATE - timedelta(days=1)).isoformat()),
        "finish_reason": np.where(rng.random(size) < 0.97, "eos", "length"),
        "pool_kind": np.array(_KINDS)[kind],
        "pool": names.take(kind * _POOLS + rng.integers(0, _POOLS, size)),
        "scored_tokens": np.zeros(size), "relaxed_tokens": np.zeros(size),
        "decode_ms": rng.lognormal(0, 0.4, size) * tokens * 2, "retrieval_ms": steps * 0.05,
        "slot_steps": steps * 1.1, "run_id": np.full(size, "bench"),
    }
    columns = [pa.array(values[field.name]).cast(field.type, safe=False) if field.name in values
               else pa.nulls(size, field.type) for field in KNOWLEDGE]
    of_tonight = [column[fresh].sum() for column in (tokens, steps, accepted)]
    sums = np.array([fresh.sum(), failed.sum(), *of_tonight])
    return pa.Table.from_arrays(columns, schema=KNOWLEDGE), sums


def _lists(ends: np.ndarray, values: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(np.concatenate(([0], ends)).astype(np.int32), values)


def _manifest(day: date, rows: int, sums: np.ndarray) -> dict:
    model = resolve("embedded")
    written, errors, tokens, steps, accepted = (int(value) for value in sums)
    return {
        "date": str(day), "run_id": "bench", "mode": "dare", "verify": "strict",
        "tokenizer": tokenizer_hash(model), "model": {"name": "embedded", "path": str(model)},
        "pool_kinds": {"collaborative": written}, "files": {},
        "counts": {"rows": rows, "written": written, "errors": errors, "carried": rows - written},
        "totals": {"tokens": tokens, "target_steps": steps, "accepted_tokens": accepted, "scored_tokens": 0,
                   "relaxed_tokens": 0, "slot_steps": 1.1 * steps},
        "tokens_per_s": 2600.0, "baseline": {"tokens_per_s": 1000.0, "rows": 32, "method": "engine"},
    }


if __name__ == "__main__":
    typer.run(main)
