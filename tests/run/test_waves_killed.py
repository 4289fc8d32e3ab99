"""A first night in waves, verified relaxed: the text depends on the drafts, so on every wave's pool."""

import json
import shutil
from itertools import islice

import pyarrow.dataset as ds
import pytest
import yaml
from kill_points import killed
from run_helpers import NIGHT_1, leftovers, settings, snapshot
from test_run_killed import WORKER, command, quiet

from dare_job import pipeline
from dare_job.data.sample_world.write import write_world
from dare_job.errors import InfrastructureError
from dare_job.generate import worker
from dare_job.schemas import ENTITIES
from dare_job.stages import generate
from pools.index import Index

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SECTIONS = {"verify": {"rule": "relaxed", "k": 8, "p": 0.0, "reproducible": True, "sample": 0},
            "waves": {"sizes": [8, 24]}, "decode": {"max_new_tokens": 20}, "baseline": {"rows": 0},
            "spark": {"rows_per_commit": 2, "shards": 3}}


@pytest.fixture(scope="module")
def first_night(job_of, tmp_path_factory):
    """Folder with a world of 66 users and 64 items, and the stages before; factory of jobs on it."""
    folder = tmp_path_factory.mktemp("waves")
    write_world(folder / "world", users=66, items=64, seed=3)
    shutil.rmtree(folder / "world" / "knowledge")

    def job(out, limit=None):
        return job_of(out, NIGHT_1, limit, "run", input={"path": str(folder / "world")}, **SECTIONS)

    for stage in pipeline.STAGES[:pipeline.STAGES.index("generate")]:
        pipeline.run_stage(job(folder / "before"), stage)
    return folder, job


@pytest.fixture(scope="module")
def undisturbed(first_night):
    """Rows and the published manifests of a run that nothing disturbed."""
    folder, job = first_night
    out = shutil.copytree(folder / "before", folder / "undisturbed")
    pipeline.run_stage(job(out), "generate")
    pipeline.run_stage(job(out), "gate")
    return rows(out), pipeline.run_stage(job(out), "publish"), out


def rows(out) -> dict:
    """Text and steps by id, which depend on the pools; fails where an id is there twice."""
    names = ("token_ids", "step_tokens", "relaxed_tokens", "error", "knowledge")
    found = {}
    for entity in ENTITIES:
        folder = out / "_work" / f"dt={NIGHT_1}" / "generate" / f"entity={entity}"
        for row in ds.dataset(folder, format="parquet").to_table().to_pylist():
            assert (entity, row["entity_id"]) not in found
            found[entity, row["entity_id"]] = [row[name] for name in names]
    return found


def test_each_wave_drafts_from_all_texts_before_it(undisturbed):
    found, manifests, out = undisturbed
    assert len(found) == 130 and sum(row[2] for row in found.values() if row[2]) > 5  # relaxed tokens
    for entity in ENTITIES:
        waves = manifests[entity]["waves"]
        assert [wave["rows"] for wave in waves] == [8, 16, len(snapshot(out, entity, NIGHT_1)) - 24]
        first, second, third = (wave["accepted_per_step"] for wave in waves)
        assert second > 2 * first and third > second
        pools = out / "_work" / f"dt={NIGHT_1}" / "generate" / "waves" / f"entity={entity}"
        assert {path.name: Index.open(path).texts for path in pools.iterdir()} == {"wave-2": 8, "wave-3": 24}


@pytest.mark.release
def test_a_run_killed_between_waves_and_within_one_ends_as_if_it_had_not_been(
        first_night, undisturbed, spark, tmp_path, caplog):
    """Each time it goes on a bit further; then the disk has lost a part of what the wave drafts from."""
    folder, job = first_night
    out = shutil.copytree(folder / "before", tmp_path / "out")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings(folder / "world", out, **SECTIONS)))
    java = spark.sparkContext._gateway.gateway_parameters
    arguments = (command, (str(java.port), java.auth_token),
                 ["run", "--from", "generate", "--to", "generate",
                  "--config", str(tmp_path / "job.yaml"), "--date", NIGHT_1])
    committed = {}
    for at in (r"mkdir .*/waves/entity=user/\.wave-2-", r"rename .*entity=item/\.wave-2-.* -> ", WORKER):
        if at == WORKER:
            killed("never", out, *arguments, 2)
            quiet(spark)
        else:
            killed(at, out, *arguments)
        before, committed = committed, rows(out)
        assert before.items() <= committed.items() < undisturbed[0].items()
        assert (len(committed) > 16) is (at == WORKER)
    pool = next((out / "_work").glob("*/generate/waves/entity=user/wave-2/suffixes.npy"))
    pool.write_bytes(pool.read_bytes()[:-8])
    pipeline.run_stage(job(out), "generate")
    assert rows(out) == undisturbed[0] and leftovers(out) == []
    assert "rebuilding the index" in caplog.text


def test_a_wave_starts_only_when_the_one_before_is_whole(first_night, tmp_path, monkeypatch):
    folder, job = first_night
    out = shutil.copytree(folder / "before", tmp_path / "out")

    def some(batches, task):
        yield from islice(worker.write_shard(batches, task), 1)

    monkeypatch.setattr(generate, "write_shard", some)
    with pytest.raises(InfrastructureError, match=r"lacks \d+ of the 16 rows of wave 1 of 3.*run it again"):
        pipeline.run_stage(job(out), "generate")
    assert not list(out.glob("_work/*/generate/waves/*"))


@pytest.mark.release
def test_kept_rows_are_texts_of_the_first_wave(first_night, tmp_path):
    folder, job = first_night
    out = shutil.copytree(folder / "before", tmp_path / "out")
    assert pipeline.run_stage(job(out, limit=10), "generate")["waves"] == {"user": [], "item": []}
    limited = rows(out)
    report = pipeline.run_stage(job(out, limit=40), "generate")
    assert [wave["rows"] for wave in report["waves"]["user"]] == [14, 16] and report["errors"] < 3
    assert limited.items() < rows(out).items() and len(rows(out)) == 80
    cut = json.loads((out / "_work" / f"dt={NIGHT_1}" / "generate" / "_cut.json").read_text())
    assert cut["kept"] == 20
    pools = out / "_work" / f"dt={NIGHT_1}" / "generate" / "waves" / "entity=user"
    assert {path.name: Index.open(path).texts for path in pools.iterdir()} == {"wave-1": 10, "wave-2": 24}
