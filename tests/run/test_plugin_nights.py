"""A run with plug-ins: the drafter changes no strict text; the verifier is recorded and makes texts stale."""

import json
import sys
from pathlib import Path

import pytest
from run_helpers import NIGHT_2, settings, snapshot

from dare_job import pipeline
from dare_job.config.settings import JobConfig
from dare_job.data.text_key import text_salt
from dare_job.schemas import ENTITIES

pytestmark = pytest.mark.spark
DRAFTER, VERIFIER = "night_methods:Lookup", "night_methods:Close(gap=99.0)"


@pytest.fixture(scope="module")
def methods(spark, tmp_path_factory):
    """The page's module where the driver and, by --py-files, the executors find it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))
    import plugin_page

    folder = tmp_path_factory.mktemp("methods")
    path = plugin_page.save(folder, "night_methods")
    spark.sparkContext.addPyFile(str(path))  # as spark-submit --py-files
    sys.path.insert(0, str(folder))
    yield
    del sys.path[:2]


def manifest(out, entity: str) -> dict:
    folder = out / "knowledge" / f"entity={entity}" / f"dt={NIGHT_2}"
    return json.loads((folder / "_manifest.json").read_text())


def test_a_drafter_changes_no_strict_text(job_of, nights, methods, tmp_path):
    sections = {"input": {"path": str(nights.world), "knowledge": str(nights.out / "knowledge")}}
    sections["baseline"] = {"rows": 0}
    old, new = (pipeline.run(job_of(tmp_path / name, NIGHT_2, limit=8, **sections, **more))
                for name, more in (("old", {}), ("new", {"drafter": {"plugin": DRAFTER}})))
    assert old["written"] == new["written"] > 0
    for entity in ENTITIES:
        mine, theirs = (snapshot(tmp_path / name, entity, NIGHT_2) for name in ("new", "old"))
        assert {key: row["token_ids"] for key, row in mine.items()} == {
            key: row["token_ids"] for key, row in theirs.items()}
        assert {row["text_key"] for row in mine.values()} == {row["text_key"] for row in theirs.values()}
    recorded = manifest(tmp_path / "new", "user")["plugins"]
    assert list(recorded) == ["drafter.plugin"] and recorded["drafter.plugin"]["name"] == DRAFTER


def test_a_lossy_verifier_is_recorded_and_counts_for_staleness(job_of, world, methods, tmp_path):
    anything = dict.fromkeys(("copied", "relaxed", "loop", "cut_off", "same_text"))  # it accepts any draft
    more = {"verify": {"rule": VERIFIER}, "baseline": {"rows": 0}, "gates": {"max_share": anything}}
    job = job_of(tmp_path, NIGHT_2, limit=6, **more)
    done = pipeline.run(job)
    assert done["written"] > 0 and done["relaxed_tokens"] > 0
    recorded = manifest(tmp_path, "item")
    assert recorded["verify"] == VERIFIER
    plugin = recorded["plugins"]["verify.rule"]
    assert (plugin["name"], plugin["options"]) == ("night_methods:Close", {"gap": 99.0})
    assert len(plugin["sha256"]) == 64
    assert recorded["text_settings"] == text_salt(job.config, job.model_hash, None, "item")
    verify = {"rule": "night_methods:Close(gap=2.0)"}
    other = JobConfig.model_validate(settings(world, tmp_path, verify=verify))
    assert text_salt(other, job.model_hash, None, "item") != recorded["text_settings"]
