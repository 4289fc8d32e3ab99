"""A night with lossy verification measures its loss on a sample; if it is too large, the rest is strict."""

import json
import os
import re
import shutil

import pyarrow.parquet as pq
import pytest
import yaml
from kill_points import killed, undisturbed
from run_helpers import NIGHT_1, NIGHT_2, leftovers, settings, snapshot
from test_run_killed import command, dying, quiet

from dare_job import pipeline
from dare_job.generate import shard_plan, strict_sample, strict_twins
from dare_job.publish.loss import certificate
from dare_job.publish.loss.certificate import Twin
from dare_job.publish.report import page
from dare_job.schemas import ENTITIES
from dare_job.storage import atomic_folder
from dare_job.workspace import MANIFEST

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SAMPLE = 12
LOSSY = {"baseline": {"rows": 0}, "verify": {
    "rule": "top_k", "k": 64, "length_quantile": None, "reproducible": True, "sample": SAMPLE}}


def sections(**verify) -> dict:
    return LOSSY | {"verify": LOSSY["verify"] | verify}


@pytest.fixture(scope="module")
def shortened(relaxed_night, tmp_path_factory):
    """Folder with the first night's texts, cut off, as drafts of another second night."""
    out = tmp_path_factory.mktemp("lossy") / "first"
    for entity in ENTITIES:
        folder = f"knowledge/entity={entity}/dt={NIGHT_1}"
        shutil.copytree(relaxed_night[0] / folder, out / folder)
    return out


@pytest.fixture(scope="module")
def strict(nights):
    """Strict text of tonight's prompts: rows by entity type."""
    return {entity: snapshot(nights.out, entity, NIGHT_2) for entity in ENTITIES}


@pytest.fixture(scope="module")
def measured(job_of, shortened, tmp_path_factory):
    """A lossy second night without a limit: folder, summary."""
    out = shutil.copytree(shortened, tmp_path_factory.mktemp("measured") / "out")
    return out, pipeline.run(job_of(out, NIGHT_2, **LOSSY))


def planned(out) -> tuple:
    """The shard plan, and its rows by entity type and id."""
    work = shard_plan.read_plan(atomic_folder.current(out / "_work" / f"dt={NIGHT_2}" / "generate"))
    rows = pq.read_table(work.folder / "cut").to_pylist()
    return work, {(row["entity"], row["entity_id"]): row for row in rows}


def texts(out) -> dict:
    return {(entity, name): (row["token_ids"], row["relaxed_tokens"])
            for entity in ENTITIES for name, row in snapshot(out, entity, NIGHT_2).items()}


def test_a_seeded_sample_comes_first_and_is_also_written_strictly(measured, strict, job_of):
    out, _ = measured
    work, rows = planned(out)
    first = {key for key, row in rows.items() if row["wave"] == 1}
    assert work.sample_wave == 1 and len(first) == SAMPLE and {row["wave"] for row in rows.values()} == {1, 2}
    lossy = snapshot(out, "user", NIGHT_2), snapshot(out, "item", NIGHT_2)
    found, different = [*strict_twins.twins(work)], 0
    failed = {key for key in first if lossy[ENTITIES.index(key[0])][key[1]]["error"]}
    assert len(found) == SAMPLE - len(failed) == strict_twins.lossy_texts(work) >= SAMPLE - 1
    by_prompt = {row["prompt"]: key for key, row in rows.items()}
    assert {by_prompt[twin["prompt"]] for twin in found} == first - failed
    for twin in found:
        entity, name = by_prompt[twin["prompt"]]
        expected, published = strict[entity][name], lossy[ENTITIES.index(entity)][name]
        assert (twin["strict"], twin["tokens"][0]) == (expected["knowledge"], expected["tokens"])
        assert (twin["text"], twin["tokens"][1]) == (published["knowledge"], published["tokens"])
        different += twin["text"] != twin["strict"]
    assert different > 3
    assert strict_twins.represented(work) == sum(row["prompt"] is not None for row in rows.values())


def test_manifests_summary_report_and_log_have_the_loss(measured, job_of):
    out, summary = measured
    work, _ = planned(out)
    job = job_of(out, NIGHT_2, **LOSSY)
    expected = certificate.certify(job, [Twin(**twin) for twin in strict_twins.twins(work)],
                                   strict_twins.represented(work))
    assert summary["loss"] == expected | {"limits": {}, "strict": None}
    assert expected["distance"]["mean"] > 0.01 and expected["rows"] == strict_twins.lossy_texts(work)
    for entity in ENTITIES:
        manifest = json.loads((out / f"knowledge/entity={entity}/dt={NIGHT_2}" / MANIFEST).read_text())
        assert manifest["loss"] == summary["loss"]
    shown = page.render(out, NIGHT_2)
    assert 'id="loss"' in shown and f"{expected['distance']['bound']:.4f}" in shown
    assert "written strictly:" not in shown


def test_a_night_without_a_sample_or_with_a_strict_rule_measures_nothing(nights, relaxed_night):
    assert nights.second["loss"] is relaxed_night[1]["loss"] is None
    assert 'id="loss"' not in page.render(nights.out, NIGHT_2)


@pytest.fixture(scope="module")
def fallen(job_of, shortened, tmp_path_factory):
    """The same night with a limit that the rule does not keep."""
    out = shutil.copytree(shortened, tmp_path_factory.mktemp("fallen") / "out")
    return out, pipeline.run(job_of(out, NIGHT_2, **sections(max_loss={"distance": 0.01})))


def test_above_the_limit_the_rows_after_the_sample_are_strict(fallen, measured, strict):
    out, summary = fallen
    _, rows = planned(out)
    lossy, found, relaxed = texts(measured[0]), texts(out), 0
    for key, row in rows.items():
        if row["wave"] == 1:
            assert found[key] == lossy[key]
            relaxed += found[key][1] or 0
        else:
            expected = strict[key[0]][key[1]]
            assert found[key][0] == expected["token_ids"] and not found[key][1]
    assert relaxed == summary["relaxed_tokens"] > 0
    assert re.search(r"embedding distance .* at most .* limit 0\.01", summary["loss"]["strict"])
    shown = page.render(out, NIGHT_2)
    assert "Published with warnings" in shown and "were written strictly: embedding distance" in shown


def test_a_night_within_its_limits_stays_lossy(measured, job_of, shortened, tmp_path):
    out = shutil.copytree(shortened, tmp_path / "out")
    summary = pipeline.run(job_of(out, NIGHT_2, **sections(max_loss={"distance": 0.999, "facts": 0.999})))
    assert texts(out) == texts(measured[0]) and summary["loss"]["strict"] is None


def dying_strictly(gateway: tuple[str, str], arguments: list[str]) -> None:
    """The command, which is killed when a worker writes the second chunk of strict texts."""
    from dare_job.stages import generate

    ends = dying(os.getpid())

    def write_shard(batches, task):
        from dare_job.generate import worker

        yield from ends(batches, task) if task.chunks else worker.write_shard(batches, task)

    generate.write_shard = write_shard
    command(gateway, arguments)


@pytest.mark.release
@pytest.mark.parametrize("at", [r"mkdir .*/generate/strict/", "never", r"open .*_loss\.json"])
def test_a_night_killed_around_its_sample_ends_as_if_it_had_not_been(at, fallen, shortened, spark, tmp_path,
                                                                     world):
    out = shutil.copytree(shortened, tmp_path / "out")
    values = settings(world, out, **sections(max_loss={"distance": 0.01}), spark={"rows_per_commit": 1})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(values))
    java = spark.sparkContext._gateway.gateway_parameters
    given = (str(java.port), java.auth_token), ["run", "--config", str(tmp_path / "job.yaml"),
                                                "--date", NIGHT_2]
    killed(at, out, dying_strictly if at == "never" else command, *given)
    quiet(spark)
    work, rows = planned(out)
    assert strict_twins.lossy_texts(work) == fallen[1]["loss"]["rows"]
    assert strict_twins.read_loss(work) is None
    undisturbed(out, command, *given)
    assert texts(out) == texts(fallen[0]) and leftovers(out) == []
    loss = json.loads((out / f"knowledge/entity=user/dt={NIGHT_2}" / MANIFEST).read_text())["loss"]
    assert loss == fallen[1]["loss"]


@pytest.mark.parametrize("requested, rows, size", [
    ("auto", 3, 0), ("auto", 40, 10), ("auto", 1999, 499), ("auto", 2000, 500), ("auto", 10_000, 500),
    ("auto", 20_000, 1000), ("auto", 10**6, 2000), (50, 1000, 50), (50, 60, 30), (50, 1, 0)])
def test_the_size_of_a_sample(requested, rows, size):
    assert strict_sample.size(requested, rows) == size
