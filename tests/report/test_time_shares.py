"""What decoding time is spent on: shares that add up, from the columns of the texts."""

import dataclasses
import json

import published
import pyarrow as pa
import pytest

from dare_job.config.settings import load
from dare_job.evaluate.replay import run_shares
from dare_job.publish.report import cost, page
from dare_job.publish.report.collect import _COLUMNS, Collected
from dare_job.schemas import KNOWLEDGE
from dare_job.workspace import MANIFEST


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


def timed(name, dt=published.DAY, **columns):
    times = {"decode_ms": 100.0, "prompt_ms": 30.0, "retrieval_ms": 5.0}
    return published.text(name, dt=dt, **{**times, **columns})


@pytest.fixture
def out(tmp_path):
    """Two dates of which the newer one wrote nothing, and one row whose text is that of another one."""
    rows = [timed("a"), timed("b", decode_ms=60.0), timed("c", copied=True, prompt_ms=70.0)]
    published.publish(tmp_path / "out", rows, [timed("i", prompt_ms=10.0)], tokens_per_s=100.0,
                      **published.times())
    later, nothing = published.day(-1), {"totals": dict.fromkeys(published.SUMS, 0), "tokens_per_s": None}
    published.publish(tmp_path / "out", rows, [timed("i")], later, **nothing)
    return tmp_path / "out"


def test_tune_names_the_shares_of_the_run_that_the_report_shows(out):
    """The texts' own date, and as the newer date wrote no text, the date before for its texts too."""
    texts = {dt: out / "knowledge" / "entity=user" / f"dt={dt}" for dt in (published.DAY, published.day(-1))}
    found = [run_shares.find([name], load([])).record() for name in (
        *texts.values(), texts[published.DAY] / "part-1.parquet")]
    assert found[0] == found[1] == found[2]
    assert (found[0]["date"], found[0]["run_id"]) == (published.DAY, f"run-{published.DAY}")
    whole = 4 * timed("a")["tokens"] / 100.0  # the manifest made here counts the copy's tokens, too
    assert whole > 0.26
    assert found[0]["prompts"] == pytest.approx(0.07 / whole, abs=1e-4)
    assert found[0]["drafting"] == pytest.approx(0.015 / whole, abs=1e-4)
    assert found[0]["forward_passes"] == pytest.approx((0.26 - 0.085) / whole, abs=1e-4)
    assert found[0]["everything_else"] == pytest.approx(1 - 0.26 / whole, abs=1e-4)
    shown, said = page.render(out, published.DAY), run_shares.words(found[0])
    for part, word in (("prompts", "reading prompts took"), ("drafting", "drafting"),
                       ("everything_else", "and everything else")):
        share = cost.format.share(found[0][part])
        assert f"{word} {share}" in shown and share in said
    assert f"run of {published.DAY}" in said


def test_other_texts_have_the_shares_of_the_newest_run_of_the_configuration_or_none(out, tmp_path):
    (tmp_path / "texts.csv").write_text("text\nwords\n")
    (tmp_path / "job.yaml").write_text(f"out: {out}\n")
    given = [tmp_path / "texts.csv"], load([tmp_path / "job.yaml"])
    assert run_shares.find(*given).date == published.DAY
    (tmp_path / "job.yaml").write_text("decode: {batch_size: 2}\n")  # the default of out names no run
    assert run_shares.find(given[0], load([tmp_path / "job.yaml"])) is None
    assert "no run has measured them" in run_shares.words(None)


def test_a_run_whose_times_are_not_known_gives_no_shares(out, tmp_path, caplog):
    """Its rows are of a version without the time of prompts; or its manifest is damaged."""
    old = tmp_path / "old"
    published.publish(old, [published.text("a")], [published.text("i")])
    user = old / "knowledge" / "entity=user" / f"dt={published.DAY}"
    assert run_shares.find([user], load([])) is None
    manifest = out / "knowledge" / "entity=item" / f"dt={published.DAY}" / MANIFEST
    manifest.write_text(json.dumps({})[:-1])
    assert run_shares.find([out / "knowledge" / "entity=user" / f"dt={published.DAY}"], load([])) is None
    assert "the times of a run cannot be read" in caplog.text and "is damaged" in caplog.text
