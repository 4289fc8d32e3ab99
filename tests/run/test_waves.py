"""Which rows are written first, how many, and on which nights."""

import json

import numpy as np
import pytest

from dare_job.config.settings import JobConfig
from dare_job.embed import vectors
from dare_job.generate import loading, shard_plan, waves
from dare_job.generate.task import Task
from dare_job.generate.wave_index import unfinished_rows
from dare_job.generate.waves import wave_sizes
from dare_job.tables import chunk_files, published
from pools.index import Index

ROWS = ("entity string, entity_id string, prompt string, prompt_sha256 string, text_key string, "
        "error string, pool string, pool_kind string, own_ids array<int>, "
        "strict boolean, rank int")


@pytest.mark.parametrize(("sizes", "waiting", "texts", "rows"), [
    ([500], 100_000, 0, [500]), ([50, 500], 100_000, 0, [50, 450]), ([50, 500], 400, 0, [50, 175]),
    ([500], 400, 0, [50]), ([500], 64, 0, [8]), ([500], 63, 0, []), ([500, 5000], 0, 0, []),
    ([500], 1000, 100, [400]), ([500], 300, 100, [150]), ([500], 190, 100, []), ([500], 9000, 260, []),
    ([50, 500], 9000, 260, []), ([50, 500, 5000], 9000, 260, [4500])])
def test_a_wave_has_a_size_or_a_share_and_doubles_the_index(sizes, waiting, texts, rows):
    assert wave_sizes(sizes, waiting, texts) == rows


@pytest.fixture
def tonight(make_job, spark):
    """A job of 160 users in two pools, 10 more without vectors in a third, and two without a prompt."""
    job = make_job({"waves": {"sizes": [10, 40]}, "spark": {"rows_per_commit": 3, "shards": 4}})
    ids = [f"u{n:03d}" for n in range(160)]
    places = np.random.default_rng(0).normal(size=(160, 4)) + 9 * (np.arange(160) >= 40)[:, None]
    vectors.write_vectors(job.space.stage("embed") / "entity=user" / "part-0.parquet", ids, places)
    table = [("user", name, "prompt", "s", "k", None, f"collaborative-{int(n >= 40)}", "collaborative", None,
              False, 0)
             for n, name in enumerate(ids)]
    table += [("user", f"v{n}", "prompt", "s", "k", None, "global", "global", None, False, 0)
              for n in range(10)]
    table += [("user", f"w{n}", None, None, None, "no history", "global", "global", None, False, None)
              for n in range(2)]
    return job, spark.createDataFrame(table, ROWS), dict(zip(ids, places, strict=True))


@pytest.mark.spark
def test_first_come_medoids_of_every_pool_whatever_the_partitions(tonight):
    job, rows, places = tonight
    found = {}
    for partitions in (1, 5):
        placed, drafting, _ = waves.add_waves(job, rows.repartition(partitions, "prompt", "entity_id"), {})
        assert drafting == ["user", "item"]
        found[partitions] = {row["entity_id"]: row["wave"] for row in placed.collect()}
    assert found[1] == found[5] and len(found[1]) == 172
    by_wave = [{name for name, wave in found[1].items() if wave == number} for number in (1, 2, 3)]
    assert [len(names) for names in by_wave] == [10, 30, 132]
    few, many = list(places)[:40], list(places)[40:]
    centre = np.mean([places[name] for name in few], axis=0)
    assert min(few, key=lambda name: np.linalg.norm(places[name] - centre)) in by_wave[0]
    assert [len(by_wave[0] & set(names)) for names in (few, many)] == [2, 7]  # of 40, 120 and 10 rows
    assert len({name for name in by_wave[0] if name[0] == "v"}) == 1
    assert not any(name[0] == "w" for name in by_wave[0] | by_wave[1])


@pytest.mark.spark
def test_a_run_that_may_stop_early_writes_the_most_valuable_rows_first(make_job, spark):
    """In eight waves by rank instead of one; rows without a prompt cost nothing and come with the first."""
    ranks = [int(rank) for rank in np.random.default_rng(1).permutation(400)]
    table = [("user", f"u{rank:03d}", "prompt", "s", "k", None, "global", "global", None, False, rank)
             for rank in ranks]
    table.append(("user", "w", None, None, None, "no history", "global", "global", None, False, None))
    rows = spark.createDataFrame(table, ROWS)
    for limits, count in (({}, 1), ({"max_rows": 10}, 1), ({"deadline": "05:00 UTC"}, 8),
                          ({"max_worker_hours": 1.0}, 8)):
        job = make_job({"waves": {"when": "never"}, "refresh": limits})
        placed, *_ = waves.add_waves(job, rows.repartition(3), {})
        wave_of = {row["rank"]: row["wave"] for row in placed.collect()}
        assert wave_of.pop(None) == 1 and {*wave_of.values()} == {*range(1, count + 1)}
        in_order = [wave_of[rank] for rank in range(400)]
        assert in_order == sorted(in_order)
        assert all(abs(in_order.count(wave) - 400 / count) <= 2 for wave in range(1, count + 1))


def write(work, rows) -> None:
    """Stands for the workers: commits some rows of the cut, each chunk under its name."""
    for place in {(row.shard, row.chunk) for row in rows}:
        chunk_files.write(work.entities[0] / chunk_files.name(*place), [
            {"entity_id": row.entity_id, "text_key": "k", "run_id": "r", "tokens": 2, "token_ids": [1, 2]}
            for row in rows if (row.shard, row.chunk) == place])


@pytest.mark.slow
@pytest.mark.spark
def test_the_cut_keeps_waves_apart_and_other_settings_cut_anew_until_all_is_written(tonight, make_job):
    job, rows, _ = tonight
    work = shard_plan.load_or_create(job, "f", lambda limit: rows)
    assert [count for count, _ in work.waves] == [10, 30, 132] and work.rows == 172
    left = [{row["shard"] for row in shard_plan.remaining_rows(job, work, wave).collect()}
            for wave in (1, 2, 3)]
    assert [set(work.shards_of(wave)) for wave in (1, 2, 3)] == left
    assert sorted(shard for shards in left for shard in shards) == list(range(work.shards))
    write(work, shard_plan.remaining_rows(job, work, 1).collect()[:1])
    assert unfinished_rows(work, 1) == 9 and unfinished_rows(work, 2) == 30
    assert shard_plan.load_or_create(job, "f", lambda limit: rows) == work
    timed = make_job({"waves": {"sizes": [10, 40]}, "refresh": {"max_worker_hours": 1.0}})
    again = shard_plan.load_or_create(timed, "f", lambda limit: rows)
    assert len(again.waves) > 2 and sum(count for count, _ in again.waves) == 171 and again.kept == 1
    assert shard_plan.load_or_create(timed, "f", lambda limit: rows) == again
    never = make_job({"waves": {"when": "never"}, "spark": {"shards": 4}})
    again = shard_plan.load_or_create(never, "f", lambda limit: rows)
    assert ([count for count, _ in again.waves], again.kept, again.drafting) == ([171], 1, [])
    write(again, shard_plan.remaining_rows(never, again).collect())
    assert unfinished_rows(again, 1) == 0 and shard_plan.load_or_create(job, "f", lambda limit: rows) == again


def test_tonights_texts_are_looked_up_behind_the_own_and_before_the_old_ones(tmp_path):
    for folder in ("pools/entity=user/g1", "pools/entity=user/global", "waves/wave-2"):
        Index.build([[1, 2, 3]]).save(tmp_path / folder, {"tokenizer": "t", "name": folder})
    row = {"entity": "user", "pool": "g1", "own_ids": [1, 2]}

    def names(mode: str = "dare", entity: str = "user", **changes) -> list[str]:
        config = JobConfig.model_validate({"decode": {"mode": mode}})
        checksum = Index.open(tmp_path / "waves/wave-2").manifest["manifest_sha256"]
        task = Task(config, "m", "t", str(tmp_path), str(tmp_path / "pools"), "v", "cut", "d", "r", 1,
                    ((entity, str(tmp_path / "waves/wave-2"), checksum),))
        return [pool.manifest.get("name", "own").rpartition("/")[2]
                for pool in loading.open_row_pools(row | changes, task)]

    assert names() == ["own", "wave-2", "g1", "global"] and names("resd") == ["wave-2", "global"]
    assert names(entity="item") == ["own", "g1", "global"] and names("autoregressive") == []
    assert names(pool="global", own_ids=None) == names(pool="none", own_ids=None) == ["wave-2", "global"]


@pytest.mark.spark
def test_auto_asks_who_wrote_the_old_text(make_job, tmp_path):
    source = tmp_path / "input"

    def needed(mode: str = "dare", **settings) -> bool:
        job = make_job({"input": {"path": str(source)}, "decode": {"mode": mode}, "waves": settings})
        return waves.uses_waves(job, "user")

    assert needed() and needed("resd") and not needed("autoregressive") and not needed(when="never")
    old = source / "knowledge" / "entity=user"
    old.mkdir(parents=True)
    (old / "part-0.parquet").touch()
    assert not needed() and needed(when="always") and not needed("autoregressive", when="always")
    mine = published.writer_record(make_job())
    for change, expected in (
            ({}, False), ({"tokenizer": "other"}, True), ({"model": {"hash": "other"}}, True),
            ({"prompts": mine["prompts"] | {"user": "other"}}, True),
            ({"prompts": mine["prompts"] | {"item": "other"}}, False)):
        (old / "_manifest.json").write_text(json.dumps(mine | change))
        assert needed() is expected and not needed(when="never")
