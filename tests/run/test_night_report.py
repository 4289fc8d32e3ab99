"""Publishing leaves a report of what the run really wrote."""

import html
import re
import shutil

import pytest
from run_helpers import NIGHT_1, NIGHT_2, snapshot

from dare_job import pipeline, workspace
from dare_job.schemas import ENTITIES

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def pages(nights):
    return {dt: workspace.report_page(nights.out, dt).read_text(encoding="utf-8")
            for dt in (NIGHT_1, NIGHT_2)}


def words(page: str) -> str:
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", page.partition("<body>")[2]).split()))


def test_both_nights_have_a_report_with_the_numbers_of_their_runs(nights, pages):
    for dt, summary in ((NIGHT_1, nights.first), (NIGHT_2, nights.second)):
        seen = words(pages[dt])
        assert f"{summary['written']} generated in this run" in seen
        assert f"Errors {summary['errors']} " in seen and "empty history" in seen
        assert f"Accepted per step {summary['accepted_per_step']:.2f}" in seen
        ratio = summary["tokens_per_s"] / summary["baseline_tokens_per_s"]
        shown = re.search(r"Speed-up ([\d.]+)×", seen)
        assert float(shown[1]) == pytest.approx(ratio, abs=0.02)
    assert f"../dt={NIGHT_1}/index.html" in pages[NIGHT_2]


def test_coloured_texts_are_the_texts_of_the_snapshot(nights, pages):
    known = {f"{entity}:{name}": row["knowledge"] for entity in ENTITIES
             for name, row in snapshot(nights.out, entity, NIGHT_2).items()}
    shown = re.findall(r"<h3>.*?<bdi class=\"id\">(.*?)</bdi>.*?</h3>\s*<p class=\"text\"[^>]*>(.*?)</p>",
                       pages[NIGHT_2], re.DOTALL)
    assert len(shown) >= 2 and "<mark class=\"draft\">" in "".join(text for _, text in shown)
    for name, text in shown:
        assert html.unescape(re.sub(r"<[^>]+>", "", text)).strip() == known[name].strip()


def test_a_place_that_cannot_be_written_costs_the_run_nothing(nights, job_of, tmp_path, monkeypatch, caplog):
    out = tmp_path / "out"
    shutil.copytree(nights.out, out)
    shutil.rmtree(out / "reports")
    (out / "reports").write_text("a file where a folder should be")
    monkeypatch.setattr("dare_job.publish.report._LOG.propagate", True)
    assert pipeline.run_stage(job_of(out, NIGHT_2), "publish")["user"]["counts"]["rows"] > 0
    assert f"the report of {NIGHT_2} could not be written" in caplog.text
