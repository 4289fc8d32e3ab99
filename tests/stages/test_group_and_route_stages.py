"""Embed, group and route on a small world of two tastes."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job import schemas
from dare_job.errors import ConfigError, DataError
from dare_job.stages import embed, group, plan, route

JAN_2 = 1_767_312_000
TASTES = ("comedy", "horror")
CHAIN = (plan, embed, group, route)


@pytest.fixture(scope="module")
def world(write_tables, tmp_path_factory):
    """40 users in two tastes (each sees ten of its twelve titles), one with two events, one with none.

    Their impressions, which are different numbers, make no group.
    """
    users = [(f"u{n:02d}", [("taste", TASTES[n % 2]), ("age", str(n % 4)), ("traffic", str(n))])
             for n in range(40)]
    items = [(f"{taste}{n:02d}", f"{taste.title()} {n}", [("genre", taste)])
             for taste in TASTES for n in range(12)]
    events = [(user, items[(n % 2) * 12 + (n + step) % 12][0], 4.0, JAN_2 - step)
              for n, (user, _) in enumerate(users) for step in range(10)]
    events += [("few", "comedy00", 5.0, JAN_2 - 2), ("few", "comedy01", 5.0, JAN_2 - 1),
               ("late", "horror00", 5.0, JAN_2 + 86_400)]
    users += [("few", [("taste", "comedy"), ("age", "1")]), ("late", None)]
    return {"input": {"path": str(write_tables(tmp_path_factory.mktemp("world"), events, users, items))},
            "embed": {"dim": 8, "epochs": 30},
            "group": {"target_size": 4, "clusters": 2}}


@pytest.fixture(scope="module")
def chain(job_in, world, tmp_path_factory):
    """A job whose stages up to route are there, and what they returned."""
    job = job_in(tmp_path_factory.mktemp("chain") / "out", world)
    return job, [stage.run(job) for stage in CHAIN]


@pytest.fixture
def copied(chain, make_job):
    """Factory: jobs in a copy of that job's folder, from their settings."""
    shutil.copytree(chain[0].space.out, make_job().space.out)
    return make_job


def table(job, stage, entity="user"):
    rows = pq.read_table(job.space.stage(stage) / f"entity={entity}").to_pylist()
    return {row["entity_id"]: row for row in rows}


def test_the_chain(chain):
    job, (_, embedded, grouped, routed) = chain
    assert embedded["user"] == 41 and embedded["item"] == 24 and embedded["recall_at_20"] > 0.9
    vectors, groups, routes = (table(job, stage) for stage in ("embed", "group", "route"))
    assert "late" not in vectors and {len(row["vector"]) for row in vectors.values()} == {8}
    assert groups["late"] == {"entity_id": "late", "collaborative_group": None, "attribute_group": None}

    clusters = [{groups[f"u{n:02d}"]["collaborative_group"] for n in range(taste, 40, 2)} for taste in (0, 1)]
    assert clusters[0] | clusters[1] == {"0000", "0001"} and len(clusters[0]) == len(clusters[1]) == 1

    by_attribute = {}
    for id_, row in groups.items():
        by_attribute.setdefault(row["attribute_group"], set()).add(id_)
    # a taste has 20 users: its group is subdivided
    assert max(len(members) for name, members in by_attribute.items() if name) <= 15
    assert grouped["user"]["largest_attribute_group"] <= 15
    assert grouped["user"]["attribute_order"][0] == "taste"

    assert routes["u00"]["pool"] == f"collaborative-{min(clusters[0])}"
    assert routes["few"]["pool_kind"] == "attribute" and "fewer than 5" in routes["few"]["reason"]
    assert (routes["late"]["pool"], routes["late"]["pool_kind"]) == ("global", "global")
    kinds = ("collaborative", "attribute", "global")
    assert [routed["user"][kind] for kind in kinds] == [40, 1, 1]
    assert sum(routed["item"].get(kind, 0) for kind in kinds) == 24
    for stage, schema in (("embed", schemas.VECTORS), ("group", schemas.GROUPS), ("route", schemas.ROUTES)):
        assert pq.read_table(job.space.stage(stage) / "entity=user").cast(schema).schema.equals(schema)
    leftovers = [path.name for path in job.space.stage("group").iterdir()]
    assert sorted(leftovers) == ["_done.json", "entity=item", "entity=user"]


def test_settings_run_only_what_depends_on_them(copied, world):
    job = copied({**world, "router": {"user": "global", "item": "attribute"}})
    names = ("plan", "embed", "group", "route")
    before = {stage: job.space.stage(stage).stat().st_ino for stage in names}
    *_, routed = (stage.run(job) for stage in CHAIN)
    after = {stage: job.space.stage(stage).stat().st_ino for stage in names}
    assert [stage for stage in names if before[stage] != after[stage]] == ["route"]
    assert routed["user"] == {**routed["user"], "global": 42, "pools": 1}
    assert routed["item"]["attribute"] == 24


def test_attributes_are_taken_in_a_given_order_and_one_that_nobody_has_is_named(copied, world):
    job = copied({**world, "group": {**world["group"], "user_attributes": ["age", "nope"]}})
    with pytest.raises(ConfigError, match="group.user_attributes: no row has an attribute nope; valid "
                                          "choices: age, taste, or"):
        group.run(job)
    job = copied({**world, "group": {**world["group"], "user_attributes": ["age"], "target_size": 2}})
    assert group.run(job)["user"]["attribute_order"] == ["age"]
    assert table(job, "group")["u01"]["attribute_group"] == "age=1"


def test_ready_made_vectors(copied, world, tmp_path):
    rows = {"entity_id": [f"u{n:02d}" for n in range(40)], "vector": [[float(n % 2), 1.0] for n in range(40)]}
    pq.write_table(pa.table(rows), tmp_path / "users.parquet")
    job = copied({**world, "embed": {"vectors": {"user": str(tmp_path / "users.parquet")}}})
    *_, routed = (stage.run(job) for stage in CHAIN)
    groups = table(job, "group")
    assert groups["u00"]["collaborative_group"] != groups["u01"]["collaborative_group"]
    assert groups["few"]["collaborative_group"] is None
    assert routed["item"].get("collaborative", 0) == 0  # no vectors of items were given
    with pytest.raises(DataError, match="no such file of vectors"):
        embed.run(copied({**world, "embed": {"vectors": {"item": "absent.parquet"}}}))


def test_each_stage_says_which_command_to_run_first(copied, world, job_in, tmp_path):
    empty = job_in(tmp_path / "empty", world)
    for stage, command in ((embed, "plan"), (group, "plan"), (route, "plan")):
        with pytest.raises(DataError, match=f"run `dare-job run --from {command} --date "):
            stage.run(empty)
    job = copied(world)
    shutil.rmtree(job.space.stage("embed"))
    with pytest.raises(DataError, match="run `dare-job run --from embed --date "):
        group.run(job)
