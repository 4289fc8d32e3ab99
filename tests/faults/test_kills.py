"""SIGKILL of driver, executors and Python workers at random, and a second run of the same date.

The night ends as if nothing had been.
"""

import json
import random

import pyarrow.dataset as ds
import pytest
from cluster_runs import CLUSTER, Run, kill_now, play
from fault_nights import NIGHT, STAGES, configured, leftovers, published, texts

from dare_job.pipeline import STAGES as ALL_STAGES
from dare_job.schemas import ENTITIES

pytestmark = pytest.mark.spark

# Kind and stage. A run without a kill of its driver goes on by itself; a killed driver's is started again.
ONE_OF_EACH = ((("worker", "plan"), ("executor", "generate"), ("driver", "generate")),)
EVERY_STAGE = (
    (("executor", "plan"), ("driver", "plan")),
    (("worker", "plan"), ("driver", "embed")),
    (("driver", "group"),),
    (("executor", "route"), ("driver", "route")),
    (("worker", "pools"), ("driver", "pools")),
    (("executor", "pools"), ("worker", "generate"), ("driver", "generate")),
    (("executor", "generate"), ("driver", "gate")),
    (("worker", "publish"), ("executor", "publish"), ("driver", "publish")),
)
LONG = {"batch_size": 1, "nodes": 0}  # without drafts there is more time to kill
MOST_WORK = (EVERY_STAGE[0], *EVERY_STAGE[4:6], EVERY_STAGE[7])


def test_there_are_twenty_kills_of_all_kinds_over_all_stages():
    kills = sum(ONE_OF_EACH + EVERY_STAGE, ())
    assert len(kills) == 20 and len(ONE_OF_EACH[0]) == 3
    assert {stage for kind, stage in kills if kind == "driver"} == set(STAGES)
    assert (*STAGES, "encode") == tuple(ALL_STAGES)
    assert {kind for kind, _ in ONE_OF_EACH[0]} == {kind for kind, _ in kills} == {
        "driver", "executor", "worker"}


@pytest.mark.parametrize("runs", [
    pytest.param(ONE_OF_EACH, id="one-of-each", marks=pytest.mark.release),
    pytest.param(MOST_WORK, id="most-work", marks=pytest.mark.release),
    pytest.param(EVERY_STAGE, id="every-stage", marks=pytest.mark.release)])
def test_a_night_with_random_kills_ends_as_if_nothing_had_been(folders, night, tmp_path, dare_job, runs):
    _, out = night
    options = configured(tmp_path, folders.world, out, spark=CLUSTER, decode=LONG)
    manifest = folders.undisturbed / "knowledge" / "entity=user" / f"dt={NIGHT}" / "_manifest.json"
    seconds = json.loads(manifest.read_text())["seconds"]
    before, seed = published(out), random.randrange(1_000_000)
    done = play(options, out, folders.undisturbed, seed, seconds, dare_job, *runs)
    assert len(done) == sum(map(len, runs))
    assert published(out) == before


@pytest.mark.release
def test_an_executor_and_a_worker_killed_while_texts_are_encoded_cost_no_row(finished, folders, tmp_path):
    _, out = finished
    options = configured(tmp_path, folders.world, out, spark=CLUSTER, decode=LONG,
                         encode={"model": "embedded", "clusters": [4]})
    before, chance = published(out, NIGHT), random.Random()
    run = Run([*options, "--from", "encode"], out)
    for kind in ("worker", "executor"):
        run.wait_for((out / "_work" / f"dt={NIGHT}" / "encode").exists)
        kill_now(run, [kind], chance)
    code, said = run.ended()
    assert code == 0, said[-5000:]
    assert published(out, NIGHT) == before and leftovers(out) == []
    written = {key for key, (text, *_) in texts(out).items() if text}
    for entity in ENTITIES:
        folder = out / "features" / f"entity={entity}" / f"dt={NIGHT}"
        rows = ds.dataset(sorted(map(str, folder.glob("*.parquet")))).to_table().to_pylist()
        assert sorted(row["entity_id"] for row in rows) == sorted(
            name for kind, name in written if kind == entity)
        assert sorted(row["id"] for row in rows) == list(range(1, len(rows) + 1))
        assert all(row["vector"] for row in rows)
