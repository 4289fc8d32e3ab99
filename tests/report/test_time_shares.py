"""What decoding time is spent on: shares that add up, from the columns of the texts."""

import dataclasses

import pyarrow as pa
import pytest

from dare_job.publish.report import cost
from dare_job.publish.report.collect import _COLUMNS, Collected
from dare_job.schemas import KNOWLEDGE


def test_shares_add_up_to_all_decoding_time():
    found = cost.time_shares(10.0, {"decode_ms": 8000.0, "retrieval_ms": 500.0, "prompt_ms": 2500.0})
    assert found == cost.TimeShares(0.25, 0.05, pytest.approx(0.5), 0.2)
    assert sum(dataclasses.astuple(found)) == pytest.approx(1.0)
    rounded = cost.time_shares(7.9, {"decode_ms": 8000.0, "prompt_ms": 8000.0})  # rows may add up to more
    assert rounded == cost.TimeShares(1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("times", [{}, {"decode_ms": 5.0, "retrieval_ms": 1.0}, {"prompt_ms": 0.0}])
def test_without_the_times_nothing_is_shown(times):
    assert cost.time_shares(10.0, times) is None
    assert cost.time_shares(None, {"decode_ms": 5.0, "prompt_ms": 1.0}) is None


def test_times_are_those_of_the_texts_of_the_date(tmp_path):
    rows = [{"entity_id": "a", "generated_dt": "2026-01-02", "decode_ms": 8.0, "prompt_ms": 3.0},
            {"entity_id": "b", "generated_dt": "2026-01-02", "decode_ms": 4.0, "prompt_ms": 1.0},
            {"entity_id": "c", "generated_dt": "2026-01-01", "decode_ms": 100.0, "prompt_ms": 100.0}]
    schema = pa.schema([KNOWLEDGE.field(name) for name in _COLUMNS])
    collected = Collected("user", tmp_path, "2026-01-02")
    collected.add(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert collected.times == {"decode_ms": 12.0, "prompt_ms": 4.0}
