"""Reads inputs without Spark, for tests."""

from dare_job.config.settings import InputSettings
from dare_job.data.input import sample
from dare_job.data.input.source import opened
from dare_job.data.input.table import CONTRACT


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
