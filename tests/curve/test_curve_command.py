"""`dare-job curve` from end to end on small synthetic data, and a night that takes its setting from it."""

import xml.etree.ElementTree as ET
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from curves import write
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from dare_job import pipeline
from dare_job.cli import app
from dare_job.config.settings import JobConfig
from dare_job.data.sample_world.write import write_world
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.ctr.knowledge import read
from dare_job.evaluate.curve import table, written
from dare_job.evaluate.curve.choose import chosen
from dare_job.evaluate.curve.options import Check, Options
from dare_job.evaluate.curve.quality_curve import run
from dare_job.job import Job
from dare_job.publish.features import encoder_files
from dare_job.publish.loss import distance
from dare_job.stages import plan
from dare_job.tables import published
from dare_job.workspace import Workspace

DAY = "2025-12-04"
TIGHT, LOOSE = (2, 0.1), (64, 0.0)  # the latter takes whatever is drafted, but an end of text


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, users=40, items=24, seed=5, text_date=date(2025, 12, 3))
    return folder


@pytest.fixture(scope="module")
def job_of(spark, world):
    """Factory: the job on the world of a date in a folder, settings by section."""
    def make(out: Path, day: str = DAY, **sections) -> Job:
        config = JobConfig.model_validate({
            "out": str(out), "input": {"path": str(world)}, "baseline": {"rows": 0},
            "decode": {"max_new_tokens": 16, "batch_size": 8, "nodes": 12, "score": "always"},
            "embed": {"epochs": 2, "dim": 8}, "group": {"target_size": 20}, "waves": {"when": "never"},
            "spark": {"shards": 2}, "gates": {"max_share": dict.fromkeys(
                ("empty", "short", "cut_off", "loop", "unprintable", "same_text", "relaxed"))},
            **sections})
        job = Job(config, Workspace(out, date.fromisoformat(day)), f"run-{day}")
        job.__dict__["spark"] = spark
        return job
    return make


@pytest.fixture(scope="module")
def measured(job_of, world, tmp_path_factory):
    """A curve with AUC, and the folder that it was measured in."""
    folder = tmp_path_factory.mktemp("curve")
    job = job_of(folder / "out")
    check = Check(str(world), ["dcnv2"], seeds=2, epochs=1, device="cpu")
    return run(job, Options(folder / "work", [TIGHT, LOOSE], rows=8, turns=2, check=check)), folder


@pytest.mark.spark
@pytest.mark.release
def test_the_curve_says_what_each_setting_costs(measured):
    curve, folder = measured
    strict, tight, loose = curve.entries
    assert (strict.k, strict.speed, strict.cosine, strict.relaxed_share) == (None, (1.0, 1.0, 1.0), None, 0)
    assert [(entry.k, entry.p) for entry in (tight, loose)] == [TIGHT, LOOSE]
    for entry in (tight, loose):
        median, least, most = entry.speed
        assert 0 < least <= median <= most and entry.tokens_per_s > 0
        seeds = entry.auc["dcnv2"]
        reach = abs(np.subtract(*seeds.by_seed)) / 2 * 12.7062  # t(0.975, 1): a half of 5 % for each setting
        assert seeds.mean == pytest.approx(np.mean(seeds.by_seed), abs=1e-6)
        assert entry.length.mean == 0  # all texts are cut off
        assert entry.length.bound == pytest.approx(
            1 - distance.mean_lower_bound(np.ones(curve.rows), 0.05 / 2)
        )
        assert (seeds.bound or 0) == pytest.approx(reach and seeds.mean + reach, abs=1e-4)
    assert loose.relaxed_share > tight.relaxed_share and loose.differing > tight.differing
    assert loose.cosine.mean < tight.cosine.mean and loose.rouge_l.mean < tight.rouge_l.mean
    assert loose.auc["dcnv2"].bound is not None
    assert sum(curve.entities.values()) == curve.rows and curve.timed == 8
    assert not (folder / "out").exists()


@pytest.mark.spark
@pytest.mark.release
def test_figures_are_those_of_the_texts(measured, world):
    curve, folder = measured
    texts = {name: {row["entity_id"]: row["knowledge"] for entity in ("user", "item") for row in
                    published.dataset(folder / "work/texts" / name / f"knowledge/entity={entity}/dt={DAY}")
                    .to_table(columns=["entity_id", "knowledge"]).to_pylist()}
             for name in ("strict", "k64-p0")}
    strict, loose, entry = texts["strict"], texts["k64-p0"], curve.entries[2]
    assert strict.keys() == loose.keys() and len(strict) == curve.rows
    assert entry.differing == pytest.approx(np.mean([strict[row] != loose[row] for row in strict]))
    rouge = np.array([distance.rouge_l(strict[row], loose[row]) for row in strict])
    model = SentenceTransformer(str(encoder_files.resolve("embedded")), device="cpu")
    one, other = (model.encode([part[row] for row in strict], normalize_embeddings=True)
                  for part in (strict, loose))
    cosine = (one * other).sum(1)
    assert entry.rouge_l.mean == pytest.approx(rouge.mean())
    assert entry.cosine.mean == pytest.approx(cosine.mean(), abs=1e-4)
    alpha = 0.05 / 2  # for each setting
    assert entry.rouge_l.bound == pytest.approx(distance.mean_lower_bound(rouge, alpha), abs=1e-4)
    assert entry.cosine.bound == pytest.approx(
        2 * distance.mean_lower_bound((1 + cosine) / 2, alpha) - 1, abs=1e-3
    )


@pytest.mark.spark
@pytest.mark.release
def test_the_sets_say_which_texts_old_text_drafted(measured):
    """The leak guard goes by it: what a prompt alone proves is strict text."""
    curve, folder = measured
    for name, entry in (("strict", curve.entries[0]), ("k64-p0", curve.entries[2])):
        (table,) = read(folder / "work/texts" / name, DAY, ["user"], False,
                        lambda texts: (np.ones((len(texts), 2), np.float32), None))
        assert table.prompts.keys() == set(table.ids)
        assert bool(table.drafted) == bool(entry.relaxed_share) and table.drafted < set(table.ids)


@pytest.mark.spark
@pytest.mark.release
def test_the_file_is_read_back_and_the_plot_names_each_setting(measured, job_of):
    curve, folder = measured
    assert table.read(folder / "work/curve.json", job_of(folder / "out")) == curve
    plot = ET.parse(folder / "work/curve.svg").getroot()
    shown = " ".join(plot.itertext())
    assert plot.tag.endswith("svg") and all(part in shown for part in ("k=2 p=0.1", "k=64 p=0", "dcnv2"))
    inside = [float(dot.get("cy")) for dot in plot.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(inside) == 4 and all(0 < y < float(plot.get("height")) for y in inside)


@pytest.mark.release
@pytest.mark.spark
def test_a_night_takes_the_setting_and_says_why(measured, job_of, tmp_path):
    curve, _ = measured
    fast = [entry.model_copy(update={"speed": (2.0, 1.5, 2.5)}) if entry.k == 64 else entry
            for entry in curve.entries]
    path = write(tmp_path, curve.model_copy(update={"entries": fast}))
    verify = {"target": "cosine=0.01", "curve": str(path)}

    def night() -> dict:
        return pipeline.run(chosen(job_of(tmp_path / "out", verify=verify)))

    summary = night()
    assert summary["choice"]["k"] == 64 and summary["relaxed_tokens"] > 0
    found = published.read_manifest(tmp_path / f"out/knowledge/entity=user/dt={DAY}")
    assert found["verify"] == "relaxed" and found["choice"]["target"] == "cosine=0.01"
    assert (found["settings"]["verify"]["k"], found["settings"]["verify"]["p"]) == LOOSE
    page = (tmp_path / f"out/reports/dt={DAY}/index.html").read_text(encoding="utf-8")
    assert "Verification target" in page and "k=64 p=0 keeps it" in page
    before = found["published"]
    assert night() == summary  # nothing is written twice
    assert published.read_manifest(tmp_path / f"out/knowledge/entity=user/dt={DAY}")["published"] == before


@pytest.mark.spark
@pytest.mark.release
def test_a_target_that_nothing_keeps_leaves_text_strict(measured, job_of, tmp_path, job_log, monkeypatch):
    curve, _ = measured
    path = write(tmp_path, curve)
    job = chosen(job_of(tmp_path / "out", verify={"target": "cosine=0.9999", "curve": str(path)}))

    def interrupted(job):
        raise InterruptedError

    monkeypatch.setattr(plan, "run", interrupted)  # the reason is logged before
    with pytest.raises(InterruptedError):
        pipeline.run_stage(job, "plan")
    assert job.config.verify.rule == "strict"
    assert [line for line in job_log if "verify.target = cosine=0.9999: text stays strict" in line]


@pytest.mark.release
@pytest.mark.spark
def test_without_old_text_there_is_nothing_to_measure(job_of, world, tmp_path):
    bare = tmp_path / "world"
    bare.mkdir()
    for name in ("interactions", "users", "items"):
        (bare / f"{name}.parquet").symlink_to(world / f"{name}.parquet")
    with pytest.raises(DataError, match="no text from before 2025-12-04 to draft from"):
        written.prepared(job_of(tmp_path / "out", input={"path": str(bare)}), tmp_path / "work")


def test_settings_of_the_command_line():
    for words, said in (("2", "write K:P"), ("0:0.1", "from 1 to 64"), ("2:1", "below 1"), ("", "is empty"),
                        ("2:0.1,2:0.1", "given twice")):
        done = CliRunner().invoke(app, ["curve", "--config", "x.yaml", "--date", DAY, "--settings", words])
        assert isinstance(done.exception, ConfigError) and said in str(done.exception)
    done = CliRunner().invoke(app, ["curve", "--config", "x.yaml", "--date", DAY, "--data", "sample",
                                    "--ctr-model", "fm"])
    assert isinstance(done.exception, ConfigError) and "--ctr-model" in str(done.exception)
