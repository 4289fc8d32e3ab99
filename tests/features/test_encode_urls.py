"""Features at s3://: the same tables, and nothing left of the publication before."""

import pytest
from encoders import tiny_bert
from small_texts import manifest, publish, rows

from dare_job.publish.snapshots.clean import clean
from dare_job.stages import encode
from dare_job.storage import paths
from dare_job.workspace import Workspace

pytestmark = [pytest.mark.spark, pytest.mark.release]
DAY, NEXT, LAST = "2026-01-02", "2026-01-03", "2026-01-04"


@pytest.fixture
def job_of(store, make_job, tmp_path, monkeypatch):
    """Factory: a job of a date with its output, and its encoder, at a URL."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths.upload(tiny_bert(tmp_path / "bert"), paths.path(f"{store}/encoder"))

    def make(day: str, **settings):
        job = make_job({"encode": {"model": f"{store}/encoder", "clusters": [3], **settings}}, day)
        space = Workspace(paths.path(f"{store}/features-night"), job.space.day)
        object.__setattr__(job, "space", space)
        return job
    return make


def test_features_at_a_url_are_those_of_a_disk(job_of):
    users = {f"u{number}": f"likes {'war' if number % 2 else 'love'} films {number}" for number in range(9)}
    night, after = job_of(DAY), job_of(NEXT)
    for day, more in ((DAY, {}), (NEXT, {"u3": "never quiet"}), (LAST, {})):
        publish(night.space.out, day, users | more)
    encode.run(night)
    found = encode.run(after)["user"]
    assert found["encoding"]["texts"] == 1
    old, new = rows(night), rows(after)
    assert all(old[name] == new[name] for name in old if name != "u3") and len(old) == len(new) == 9
    again = encode.run(job_of(NEXT, clusters=[2]))["user"]
    assert again["encoding"]["texts"] == 0 and again["new_clusters"] == "encode.clusters changed"
    named = {*again["files"], again["codebook"]["file"], "_manifest.json"}
    assert set(paths.listing(after.space.features("user"))) == named
    assert manifest(after) == again
    assert [entry["date"] for entry in clean(night.space.out, 1)["removed"]] == [DAY]
    assert not paths.listing(night.space.features("user"))
    assert [name for name in paths.listing(night.space.out / "features" / "ids") if "_lock" not in name] == [
        "entity=item/ids.parquet", "entity=user/ids.parquet"]
