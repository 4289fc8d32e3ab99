"""A real night with an encoder: the run's summary, features of its texts, and a low-volume run after it."""

import shutil

import pyarrow.dataset as ds
import pytest
from run_helpers import LOST_USER, NIGHT_2, NIGHT_3, snapshot

from dare_job import pipeline
from dare_job.schemas import ENTITIES

pytestmark = pytest.mark.spark
ENCODE = {"model": "embedded", "clusters": [8, 4]}


def features(out, entity: str, day: str) -> dict[str, dict]:
    files = sorted((out / "features" / f"entity={entity}" / f"dt={day}").glob("*.parquet"))
    return {row["entity_id"]: row for row in ds.dataset(files).to_table().to_pylist()}


@pytest.mark.slow
def test_a_night_leaves_features_of_its_texts_and_a_quiet_one_keeps_them(nights, job_of, tmp_path):
    out = shutil.copytree(nights.out, tmp_path / "out")
    summary = pipeline.run(job_of(out, NIGHT_2, encode=ENCODE))
    assert nights.second["features"] is None
    for entity in ENTITIES:
        texts = {name for name, row in snapshot(out, entity, NIGHT_2).items() if row["knowledge"]}
        found, said = features(out, entity, NIGHT_2), summary["features"][entity]
        assert found.keys() == texts and said["rows"] == said["encoded"] == len(texts) > 20
        assert said["texts_per_s"] > 0 and said["drift"] == 1
    assert LOST_USER not in features(out, "user", NIGHT_2)
    assert summary["features"]["user"]["without_text"] == 1
    quiet = pipeline.run(job_of(out, NIGHT_3, encode=ENCODE))
    # Neither the user without a history nor the endless title can hold up a run with nothing new.
    assert (quiet["written"], quiet["errors"]) == (0, 2)
    for entity in ENTITIES:
        before, now = (features(out, entity, day) for day in (NIGHT_2, NIGHT_3))
        assert quiet["features"][entity]["encoded"] == 0 and now == before
