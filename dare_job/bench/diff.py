"""What `dare-job diff` costs on large snapshots: ``python -m dare_job.bench.diff --rows 1000000,10000000``.

Two snapshots a size, on disk, of texts of some 60 words; a tenth of them changed, a hundredth of the ids came
and went. Time and peak memory are those of a process of its own that does what the command does.
The last line is JSON.
"""

import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer

from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.workspace import write_json

BEFORE, AFTER = "2026-01-01", "2026-01-02"
_ROWS_A_FILE = 100_000  # as publish cuts them
_WORDS = ["likes", "long", "quiet", "films", "about", "the", "sea", "and", "old", "cities", "rarely"]


def main(
    rows: Annotated[str, typer.Option(help="Users in a snapshot; items are a tenth.")] = "100000,1000000",
) -> None:
    """Measure time and memory of `dare-job diff` on snapshots made for it."""
    results = []
    for users in map(int, rows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            for day, first in ((BEFORE, 0), (AFTER, users // 100)):
                for entity, count in zip(ENTITIES, (users, users // 10), strict=True):
                    _write(out, entity, day, first, count)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                results.append({"users": users, **pool.apply(_measure, (out,))})
        print(f"{users:>10,} users: {results[-1]['seconds']:.1f} s, {results[-1]['peak_mb']:,.0f} MB "
              f"({results[-1]['imported_mb']:,.0f} MB before)", flush=True)
    print(json.dumps({"sizes": results}))


def _write(out: Path, entity: str, day: str, first: int, rows: int) -> None:
    folder = out / "knowledge" / f"entity={entity}" / f"dt={day}"
    folder.mkdir(parents=True)
    for n, start in enumerate(range(first, first + rows, _ROWS_A_FILE)):
        pq.write_table(_table(start, min(_ROWS_A_FILE, first + rows - start), day),
                       folder / f"part-{n:05d}.parquet", compression="zstd")
    write_json(folder / "_manifest.json", {"date": day, "run_id": day, "counts": {"rows": rows}})


def _table(start: int, rows: int, day: str) -> pa.Table:
    """Rows whose text depends on the id alone, but for a tenth that the day changes."""
    numbers = np.arange(start, start + rows)
    seeds = numbers * 31 + np.where(numbers % 10 == 0, int(day[-1]), 0)
    words = pa.array(_WORDS)
    text = pc.binary_join_element_wise(*(words.take(pa.array((seeds >> (k % 20)) * (k + 7) % len(_WORDS)))
                                         for k in range(60)), " ")
    columns = {"entity_id": pc.cast(pa.array(numbers), pa.string()), "knowledge": text,
               "tokens": pa.array(60 + seeds % 20, pa.int32()), "generated_dt": pa.array([day] * rows),
               "run_id": pa.array([day] * rows)}
    return pa.table([columns.get(field.name, pa.nulls(rows, field.type)) for field in KNOWLEDGE],
                    schema=KNOWLEDGE)


def _measure(out: Path) -> dict:
    from dare_job.publish.snapshots.diff import diff

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    found = diff(out, BEFORE, AFTER)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": round(seconds, 2), "peak_mb": round(peak / 1024), "imported_mb": round(before / 1024),
            "changed": found["user"]["counts"]["changed"], "added": found["user"]["counts"]["added"]}


if __name__ == "__main__":
    typer.run(main)
