"""`dare-job pools corrections`: what it learns from the texts of successive dates."""

import json
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dare_job.cli import app
from dare_job.errors import DataError
from dare_job.evaluate import corrections
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.verifiers.corrections import MAX_CONTEXT
from dare_job.workspace import MANIFEST, write_json

DATES = ("2026-01-01", "2026-01-02", "2026-01-03")
OLD = [*range(20, 40)]
NEW = [*OLD[:10], 9, *OLD[11:]]


def publish(out, dt: str, users: dict[str, dict], tokenizer: str = "t") -> None:
    """Write a date with these users; a row is its columns beside the usual ones."""
    for entity in ENTITIES:
        folder = out / "knowledge" / f"entity={entity}" / f"dt={dt}"
        folder.mkdir(parents=True)
        rows = [{"entity_id": name, "knowledge": "text", "generated_dt": dt, "run_id": "r",
                 "relaxed_tokens": 0, **row} for name, row in (users.items() if entity == "user" else ())]
        pq.write_table(pa.Table.from_pylist(rows, schema=KNOWLEDGE), folder / "part-0.parquet")
        write_json(folder / MANIFEST, {"tokenizer": tokenizer, "files": {}})


@pytest.fixture
def out(tmp_path):
    """Three dates; of most of the new texts on the last one something speaks against learning from them."""
    publish(tmp_path, DATES[0], {"a": {"token_ids": OLD}, "b": {"token_ids": OLD}})
    publish(tmp_path, DATES[1], {"a": {"token_ids": NEW}, **{name: {"token_ids": OLD} for name in "bcdefgh"}})
    publish(tmp_path, DATES[2], {
        "a": {"token_ids": NEW, "generated_dt": DATES[1]}, "b": {"token_ids": NEW},
        "c": {"token_ids": NEW, "relaxed_tokens": 1}, "d": {"token_ids": NEW, "copied": True},
        "e": {"token_ids": NEW, "error": "failed"}, "f": {"token_ids": None}, "g": {"token_ids": NEW},
        "new": {"token_ids": NEW}, "h": {"token_ids": NEW, "relaxed_tokens": None}})
    return tmp_path


def learned(file) -> dict:
    with np.load(file) as arrays:
        return {tuple(key): tuple(counts) for key, counts in
                zip(arrays["corrections"].tolist(), arrays["counts"].tolist(), strict=True)}


def test_new_strict_texts_are_compared_with_those_of_the_date_before(out, tmp_path):
    key = (*OLD[2:10], 9, 30)
    found = corrections.run(str(out), tmp_path / "m.npz")
    assert learned(tmp_path / "m.npz") == {key: (4, 4)} and len(key) == MAX_CONTEXT + 2  # a; then b, g, h
    assert found == {"memory": str(tmp_path / "m.npz"), "dates": [*DATES], "texts": 5, "corrections": 1,
                     "without_consequence": 1, "recurring": 1}
    corrections.run(str(out), tmp_path / "m.npz", nights=1)
    assert learned(tmp_path / "m.npz") == {key: (3, 3)}
    corrections.run(str(out), tmp_path / "m.npz", date.fromisoformat(DATES[1]))
    assert learned(tmp_path / "m.npz") == {key: (1, 1)}
    assert corrections.run(str(out), tmp_path / "m.npz", rows=3)["texts"] < 5
    assert corrections.run(str(out), tmp_path / "m.npz", same=10)["without_consequence"] == 0


def test_the_command_writes_the_memory(out, tmp_path):
    done = CliRunner().invoke(app, ["pools", "corrections", "--out", str(out), "--save",
                                    str(tmp_path / "m.npz"), "--date", DATES[1], "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout.splitlines()[-1])["texts"] == 2


def test_dates_of_other_tokenizers_tell_nothing(out, tmp_path):
    with pytest.raises(DataError, match="has 1 published dates up to 2026-01-01"):
        corrections.run(str(out), tmp_path / "m.npz", date.fromisoformat(DATES[0]))
    publish(out, "2026-01-04", {"a": {"token_ids": NEW}}, "other")
    with pytest.raises(DataError, match="no strict text of 2026-01-04 has one of the date before"):
        corrections.run(str(out), tmp_path / "m.npz", nights=1)
