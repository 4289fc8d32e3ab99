"""The gate in whole nights: nothing is published above a limit, and a higher limit regenerates nothing."""

import json
import shutil

import pytest
from run_helpers import NIGHT_1, NIGHT_2, files, snapshot

from dare_job import errors, pipeline
from dare_job.publish.gate import scan
from dare_job.publish.gate.findings import CHECKS
from dare_job.schemas import ENTITIES

pytestmark = pytest.mark.spark


def generated(out) -> dict:
    return {name: file for name, file in files(out / "_work" / f"dt={NIGHT_2}" / "generate").items()
            if name.startswith("entity=")}


def test_a_failed_gate_publishes_nothing_and_a_higher_limit_what_is_written(nights, job_of, tmp_path,
                                                                           monkeypatch):
    monkeypatch.setattr(scan, "MIN_FAILING_ROWS", 1)
    out = tmp_path / "out"
    shutil.copytree(nights.out, out)
    for entity in ENTITIES:  # as if the second night had not been published yet
        shutil.rmtree(out / "knowledge" / f"entity={entity}" / f"dt={NIGHT_2}")
    before, texts = files(out / "knowledge"), generated(out)
    shut = job_of(out, NIGHT_2, gates={"max_share": {"cut_off": 0.0}})
    for command in (pipeline.run, lambda job: pipeline.run_stage(job, "gate"),
                    lambda job: pipeline.run_stage(job, "publish")):
        with pytest.raises(errors.ThresholdError, match="texts are cut off .*gates.max_share.cut_off = 0.0"):
            command(shut)
        assert files(out / "knowledge") == before
    assert {shut.space.previous(entity).name for entity in ENTITIES} == {f"dt={NIGHT_1}"}

    with pytest.raises(errors.DataError, match="run `dare-job run --from gate --date "):
        pipeline.run_stage(job_of(out, NIGHT_2), "publish")
    summary = pipeline.run(job_of(out, NIGHT_2))
    assert generated(out) == texts
    assert summary == nights.second | {"out": str(out)}
    for entity in ENTITIES:
        assert snapshot(out, entity, NIGHT_2).keys() == snapshot(nights.out, entity, NIGHT_2).keys()


def test_what_the_gate_found_is_told(nights):
    """In the summary, in the manifests, with lengths compared where the first night's writer was the same."""
    assert list(nights.second["gates"]) == list(CHECKS)
    assert nights.first["gates"]["errors"] == pytest.approx(1 / 25)  # the endless title, of the items
    manifest = json.loads(
        (nights.out / "knowledge" / "entity=user" / f"dt={NIGHT_2}" / "_manifest.json").read_text())
    assert list(manifest["gates"]) == sorted(CHECKS)
    assert manifest["gates"]["cut_off"]["of"] == manifest["counts"]["written"]
    assert "fewer than 50" in manifest["gates"]["length_ratio"]["why"]


def test_the_last_screen_names_the_gates(nights, job_of, fresh_loggers, capsys):
    pipeline.run(job_of(nights.out, NIGHT_2, run_id="again", log={"format": "text"}))
    shown = capsys.readouterr()
    assert "Quality gate passed: " in shown.out and "cut off" in shown.out
    assert "gate " in shown.err and "texts passed the quality gate: " in shown.err
