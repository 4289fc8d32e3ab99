"""Writes inputs and reads them without Spark, for tests."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.config.settings import InputSettings, JobConfig
from dare_job.data.input import sample
from dare_job.data.input.source import opened
from dare_job.data.input.table import CONTRACT

NOON = 1_699_963_200  # 2023-11-14 12:00:00 UTC
EVENT = {"user_id": ["u"], "item_id": ["a"], "timestamp": [NOON]}


def read(folder, temporary, **settings):
    """Valid rows of each table by name, and (line, problem) of the others."""
    found = {}
    with opened(InputSettings(path=str(folder), **settings), temporary / "unpacked") as source:
        for name, table in source.tables.items():
            rows = [row for batch in sample.batches(table) for row in batch.to_pylist()]
            found[name] = [{key: _plain(row[key]) for key in CONTRACT[name].names}
                           for row in rows if row["problem"] is None]
            found[f"bad {name}"] = [(row["line"], row["problem"]) for row in rows if row["problem"]]
    return found


def _plain(value):
    return dict(value) if isinstance(value, list) else value


def put(folder, name, **columns):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return folder


def text(folder, name, *lines, encoding="utf-8"):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode(encoding)
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def events(tmp_path, column, **settings):
    """Timestamps that are read, and problems, of one column of times."""
    rows = len(column)
    folder = put(tmp_path / "in", "interactions.parquet", user_id=["u"] * rows, item_id=["a"] * rows,
                 timestamp=column)
    found = read(folder, tmp_path, tables={"interactions": settings})
    return [row["timestamp"] for row in found["interactions"]], [problem for _,
                                                                 problem in found["bad interactions"]]


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name.replace("_csv", ".csv").replace("_jsonl",
                                                       ".jsonl")).write_text("\n".join(lines) + "\n")
    return folder


def config(folder, **settings):
    return JobConfig(input=InputSettings(path=str(folder), max_reject_share=1.0), **settings)
