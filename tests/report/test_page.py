"""Every kind of run gets a report, which is written atomically and never fails the run."""

import json
import os
import re

import published
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job import workspace
from dare_job.cli.snapshots import report as report_command
from dare_job.errors import DataError
from dare_job.publish import report
from dare_job.publish.report import page, show_text
from dare_job.publish.snapshots import history


def written(out) -> str:
    return report.write(out, published.DAY).read_text(encoding="utf-8")


def words(html: str) -> str:
    """What is seen, on one line."""
    return " ".join(re.sub(r"<[^>]+>", " ", html.partition("<body>")[2]).split())


def test_a_rich_night_escapes_all_text_of_the_data(tmp_path):
    html = written(published.rich(tmp_path))
    assert "<script" not in html and "<img" not in html and "<b>words" not in html
    assert "&lt;script&gt;" in html and "&#34;quoted&#34;" in html and "few &lt;b&gt;words" in html
    outside = re.search(r"(?:src|href)=\"(?!#|\.\./dt=|\.\./index\.html|data:,)", html)
    assert not outside, "something from outside"
    assert "url(" not in html and "@import" not in html


def test_the_first_screen_names_numbers_of_the_manifests(tmp_path):
    seen = words(written(published.rich(tmp_path)))
    before, heading, _ = seen.partition("Texts beside their prompts")
    assert heading and "109 rows" not in before
    assert "Rows 109 91 generated in this run, 9 carried over, 9 without text" in seen
    assert "Errors 9 8.3 % of the rows" in seen
    assert "2.50×" in seen and "short" in seen and "near the limit" in seen


def test_the_first_night_has_nothing_to_compare_with(tmp_path):
    published.publish(tmp_path, [published.text("a", kind="global")], [published.text("b", kind="global")])
    seen = words(written(tmp_path))
    assert "This is the first published date, so there is nothing to compare with." in seen
    assert "nothing unusual" in seen


def test_a_lossy_night_says_what_it_lost_and_whether_the_rest_is_strict(tmp_path):
    loss = {"rows": 500, "of": 2013, "level": 0.95, "encoder": "embedded", "differing": 0.25, "facts": None,
            "distance": {"mean": 0.0123, "bound": 0.0234}, "limits": {"distance": 0.03}, "strict": None}
    published.publish(tmp_path, [published.text("a")], [published.text("b")], loss=loss)
    seen = words(written(tmp_path))
    assert "500 rows, a random sample of 2,013, were also written strictly; 25" in seen
    assert "embedding distance 0.0123 0.0234 0.0300" in seen and "other facts – – –" in seen
    assert "nothing unusual" in seen and "of the sentence vectors of embedded" in seen
    choice = {"target": "cosine=0.98", "why": "kept", "curve_date": "2026-01-01",
              "auc": {"din": {"mean": 0.0004, "bound": None}}}
    published.publish(tmp_path / "a", [published.text("a")], [published.text("b")], loss=loss, choice=choice)
    assert "AUC loss of din, by the curve of 2026-01-01 0.0004 – –" in words(written(tmp_path / "a"))
    strict = loss | {"strict": "embedding distance 0.0123, limit 0.02"}
    published.publish(tmp_path / "b", [published.text("a")], [published.text("b")], loss=strict)
    seen = words(written(tmp_path / "b"))
    assert "Published with warnings" in seen
    assert "The rows after the sample were written strictly: embedding distance 0.0123, limit 0.02." in seen


def test_a_night_with_a_budget_says_what_it_left_and_what_an_hour_would_buy(tmp_path, capsys):
    curve = {"rows": [0, 2, 4], "cost": [0, 100, 300], "value": [0.0, 6.0, 8.0], "chosen_rows": 2,
             "chosen_cost": 100, "chosen_value": 6.0}
    record = {"chosen": 2, "copied": 1, "carried": {"budget": 3, "failed": 1}, "value": 6.0,
              "value_left": 2.0, "ages": {"no text": [2, 1], "1-2 days": [1, 3]}, "curve": curve,
              "stopped": None, "one_more_hour": 0.4, "oldest": published.day(3), "unseen_interactions": 5}
    left = published.text("b", dt=published.day(3), carried_reason="budget", stale_since=published.day(2),
                          unseen_interactions=2)
    published.publish(tmp_path, [published.text("a"), left], [], refresh=record)
    seen = words(written(tmp_path))
    assert "entity stale chosen" in seen and f"user 7 2 1 3 budget, 1 failed {published.day(3)} 5 25" in seen
    assert "Another hour of each worker would buy 40" in seen
    assert "1-2 days 2 6 no text 4 2" in seen  # of both entity types
    assert "carried over (budget)" in seen
    show_text.show_text(tmp_path, "user:b")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"stale since {published.day(2)}, carried over (budget), 2 unseen interactions"


def test_a_night_on_which_nothing_was_stale(tmp_path):
    for dt in (published.day(1), published.DAY):
        rows = [published.text("a", dt=published.day(1))]
        published.publish(tmp_path, rows, [], dt, baseline=None, tokens_per_s=0.0)
    seen = words(written(tmp_path))
    assert "This run generated no text; all rows are carried over" in seen
    assert "no text was generated" in seen and "Published, nothing unusual" in seen


def test_a_night_with_errors_only(tmp_path):
    rows = [published.failed(str(n), "out of memory") for n in range(5)]
    published.publish(tmp_path, rows, [], tokens_per_s=None, baseline=None)
    seen = words(written(tmp_path))
    assert "5 rows (100 %) have an error, most often: out of memory" in seen
    assert "This run generated no text" in seen


def test_a_night_without_rows(tmp_path):
    published.publish(tmp_path, [], [], tokens_per_s=None, baseline=None)
    assert "The snapshot has no rows." in words(written(tmp_path))


def test_autoregressive_decoding_has_no_draft_indexes(tmp_path):
    rows = [published.text(str(n), kind=None, accepted=0) for n in range(4)]
    published.publish(tmp_path, rows, [], mode="autoregressive")
    seen = words(written(tmp_path))
    assert "Autoregressive decoding: no pools and no drafts." in seen
    assert "users, no pool" in seen


def test_a_night_without_a_baseline_says_so(tmp_path):
    published.publish(tmp_path, [published.text("a")], [], baseline=None)
    seen = words(written(tmp_path))
    assert "no baseline was measured" in seen and "the cost of autoregressive decoding is unknown" in seen


def test_a_run_slower_than_autoregressive_decoding_says_so(tmp_path):
    published.publish(tmp_path, [published.text("a")], [], tokens_per_s=100.0)
    assert "Slower than autoregressive decoding: 0.50×." in words(written(tmp_path))


def test_manifests_of_older_versions_and_rows_without_newer_columns(tmp_path):
    row = {"entity_id": "a", "knowledge": "old words", "generated_dt": published.DAY, "run_id": "r"}
    for before in (1, 0):
        for entity in ("user", "item"):
            folder = tmp_path / "knowledge" / f"entity={entity}" / f"dt={published.day(before)}"
            folder.mkdir(parents=True)
            (folder / "_manifest.json").write_text(json.dumps({"run_id": "r"}))
            pq.write_table(pa.Table.from_pylist([row]), folder / "part-0.parquet")
    seen = words(written(tmp_path))
    assert "Rows 2 2 generated in this run" in seen and "Errors 0" in seen


def test_users_and_items_of_two_runs_are_a_fault(tmp_path):
    published.publish(tmp_path, [published.text("a")], [published.text("b")])
    path = tmp_path / "knowledge" / "entity=item" / f"dt={published.DAY}" / "_manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run_id": "other"}))
    assert "Published with faults" in words(written(tmp_path))


def test_a_text_whose_tokenizer_is_gone_is_shown_plain(tmp_path):
    published.publish(tmp_path, [published.text("a")], [], model={"path": str(tmp_path / "gone")})
    seen = words(written(tmp_path))
    assert published.WORDS in seen and "the steps are not shown" in seen


def test_a_report_that_fails_is_a_warning_and_leaves_the_older_one(tmp_path, monkeypatch, caplog):
    published.publish(tmp_path, [published.text("a")], [])
    before = written(tmp_path)
    monkeypatch.setattr("dare_job.publish.report._is_newest", lambda *_: False)
    monkeypatch.setattr("dare_job.publish.report._LOG.propagate", True)
    monkeypatch.setattr(page, "render", lambda *_: 1 / 0)
    report.write_or_warn(tmp_path, published.DAY)
    assert "the report of 2026-01-09 could not be written (ZeroDivisionError" in caplog.text
    monkeypatch.setattr(page, "render", lambda *_: "new")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    report.write_or_warn(tmp_path, published.DAY)
    assert "No space left on device" in caplog.text and "dare-job report --out" in caplog.text
    assert workspace.report_page(tmp_path, published.DAY).read_text(encoding="utf-8") == before


def test_a_report_newer_than_its_date_is_not_written_again(tmp_path):
    published.publish(tmp_path, [published.text("a")], [])
    report.write_or_warn(tmp_path, published.DAY)
    target = workspace.report_page(tmp_path, published.DAY)
    target.write_text("as it was")
    report.write_or_warn(tmp_path, published.DAY)
    assert target.read_text() == "as it was"
    later = target.stat().st_mtime + 1
    manifest = tmp_path / "knowledge" / "entity=item" / f"dt={published.DAY}" / "_manifest.json"
    os.utime(manifest, (later, later))
    report.write_or_warn(tmp_path, published.DAY)
    assert f"Knowledge of {published.DAY}" in words(target.read_text(encoding="utf-8"))


def test_the_command_takes_the_newest_date_and_names_those_there_are(tmp_path, capsys):
    for before in (2, 1):
        rows = [published.text("a", dt=published.day(before))]
        published.publish(tmp_path, rows, [], published.day(before))
    report_command(out=str(tmp_path))
    assert capsys.readouterr().out.strip() == str(workspace.report_page(tmp_path, published.day(1)))
    there = f"{published.day(2)}, {published.day(1)}"
    with pytest.raises(DataError, match=f"no published user text of {published.DAY}.*{there}"):
        report.write_again(tmp_path, published.DAY)
    with pytest.raises(DataError, match="no published date"):
        report.write_again(tmp_path / "empty", None)


@pytest.mark.parametrize(("batch", "rows", "of_run"), [
    ({}, 32, "4: 200"), ({"run_batch_size": 16}, 64, "4 with batches of 16: 200")])
def test_a_baseline_with_fewer_workers_or_smaller_batches_is_not_compared(tmp_path, batch, rows, of_run):
    measured = {"rows": 8, "workers": 1, "batch_size": 8, "run_workers": 4, "comparable": False, **batch,
                "tokens_per_s": 200.0, "method": "engine", "rates": {"engine": 200.0}}
    published.publish(tmp_path, [published.text("a")], [], baseline=measured)
    seen = words(written(tmp_path))
    assert f"The baseline had 1 worker with batches of 8 and the run {of_run}" in seen
    assert f"to at least {rows}." in seen
    assert "the baseline had too few rows" in seen and "no baseline" not in seen
    (line,) = history.history(tmp_path)
    assert (line["baseline_tokens_per_s"], line["ratio"]) == (None, None)
