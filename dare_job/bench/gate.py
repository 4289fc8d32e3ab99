"""How fast the stage gate looks at a night, and in how much memory.

    python -m dare_job.bench.gate [--rows 1000000] [--tokens 60] [--old] [--out FOLDER]

Writes a synthetic night, as the stage generate would leave it (every row with a text of its own, in files of
``spark.rows_per_commit`` rows), and with ``--old`` the snapshot before, with the same entities. Then the
command ``gate`` runs in a process of its own: seconds are the stage's, memory is the process's peak. The last
line is JSON. No Spark, no model.
"""

import json
import os
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.progress import track

from dare_job.config.settings import JobConfig
from dare_job.job import Job
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.tables import published
from dare_job.workspace import MANIFEST, Workspace, write_json

DATE, BEFORE = "2026-01-02", "2026-01-01"
_OLD_FILE_ROWS = 100_000  # as publish writes them


def main(
    rows: Annotated[int, typer.Option(min=1, help="Texts of users; there are no items.")] = 1_000_000,
    tokens: Annotated[int, typer.Option(min=1, help="Mean tokens of a text.")] = 60,
    file_rows: Annotated[int, typer.Option(min=1, help="Rows of a file (spark.rows_per_commit).")] = 256,
    old: Annotated[bool, typer.Option(help="Compare lengths with a snapshot before.")] = True,
    out: Annotated[Path | None, typer.Option(help="Where to write; a temporary folder if not given.")] = None,
) -> None:
    """Measure the stage gate on a synthetic night."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        job = _job(Path(folder))
        _write(job, rows, tokens, file_rows, old)
        record = _gate(Path(folder))
    rate = rows / record["seconds"]
    print(f"{rows} rows in {record['seconds']:.1f} s: {rate:.0f} rows/s; peak memory of the process "
          f"{record['peak_mib']:.0f} MiB, of an idle one {record['idle_mib']:.0f} MiB")
    print(json.dumps({"rows": rows, "tokens": tokens, "file_rows": file_rows, "old": old,
                      "rows_per_s": round(rate), **record}))


def _job(folder: Path) -> Job:
    config = JobConfig.model_validate({"out": str(folder)})
    return Job(config, Workspace(folder, date.fromisoformat(DATE)), "bench")


def _write(job: Job, rows: int, tokens: int, file_rows: int, old: bool) -> None:
    random = np.random.default_rng(0)
    for entity in ENTITIES:
        for folder, size in ((job.space.stage("generate") / f"entity={entity}", file_rows),
                             (job.space.knowledge(entity, BEFORE), _OLD_FILE_ROWS)):
            folder.mkdir(parents=True)
            wanted = rows if entity == "user" and (old or size == file_rows) else 0
            starts = range(0, wanted, size)
            for n, start in enumerate(track(starts, f"writing {folder.parent.name}", transient=True)):
                table = _texts(random, start, min(size, rows - start), tokens)
                pq.write_table(table, folder / f"part-{n:05d}-00000.parquet", compression="zstd")
        if old:
            write_json(job.space.knowledge(entity, BEFORE) / MANIFEST,
                       {"run_id": "before", **published.writer_record(job)})
    counts = {entity: {"rows": rows if entity == "user" else 0, "errors": 0} for entity in ENTITIES}
    job.space.stage("plan").mkdir()
    write_json(job.space.stage("plan") / "_done.json", {"fingerprint": "bench", **counts})
    write_json(job.space.stage("generate") / "_done.json", {"fingerprint": "bench", "rows": rows})


def _texts(random: np.random.Generator, start: int, rows: int, tokens: int) -> pa.Table:
    """Texts of five letters a token, of random lengths about the mean; some of each kind of bad row."""
    lengths = np.maximum(1, random.normal(tokens, tokens / 6, rows)).astype(np.int64)
    ids = random.integers(5, 4000, lengths.sum(), dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids[offsets[-2]:] = 7  # the last text of a file is a loop
    letters = random.integers(97, 123, 5 * len(ids), dtype=np.uint8)
    letters[::5] = 32
    text = pa.Array.from_buffers(pa.string(), rows, [
        None, pa.py_buffer((5 * offsets).astype(np.int32)), pa.py_buffer(letters)])
    columns = {
        "entity_id": pa.array([f"u{n:09d}" for n in range(start, start + rows)]), "knowledge": text,
        "token_ids": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids)),
        "tokens": pa.array(lengths, pa.int32()), "prompt_sha256": pa.array(["s" * 64] * rows),
        "finish_reason": pa.array(np.where(random.random(rows) < 0.1, "length", "eos")),
        "relaxed_tokens": pa.array(np.zeros(rows, np.int32)), "run_id": pa.array(["bench"] * rows)}
    arrays = [columns.get(field.name, pa.nulls(rows, field.type)) for field in KNOWLEDGE]
    return pa.Table.from_arrays(arrays, schema=KNOWLEDGE)


def _gate(folder: Path) -> dict:
    """The record of a ``dare-job gate`` in a process of its own, with its peak and an idle one's."""
    idle_mib = _peak_mib([sys.executable, "-c", "import dare_job.stages.gate"])
    (folder / "job.yaml").write_text(f"out: {json.dumps(str(folder))}\n", encoding="utf-8")
    peak_mib = _peak_mib([sys.executable, "-m", "dare_job", "gate", "--config", str(folder / "job.yaml"),
                          "--date", DATE])
    record = json.loads((_job(folder).space.stage("gate") / "_done.json").read_text(encoding="utf-8"))
    found = {check: finding["rows"] for check, finding in record["user"].items()}
    return {"seconds": record["seconds"], "peak_mib": peak_mib, "idle_mib": idle_mib,
            "compared": record["user"]["length_ratio"]["of"], "found": found}


def _peak_mib(command: list[str]) -> float:
    """Run a command to its end; the largest memory (RSS) it had."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed: {os.waitstatus_to_exitcode(status)}")
    return used.ru_maxrss / 1024


if __name__ == "__main__":
    typer.run(main)
