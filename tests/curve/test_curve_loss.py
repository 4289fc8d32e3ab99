"""The curve's options of ``ctr``: the same encoder as for the curve's cosine."""

from datetime import date

import pytest

from dare_job.config.settings import JobConfig
from dare_job.evaluate.ctr.sets import TextEncoder
from dare_job.evaluate.curve import loss
from dare_job.job import Job
from dare_job.publish.features import encoder_files
from dare_job.workspace import Workspace

DAY = "2025-12-04"
CHECK = loss.Check("sample", ["dcnv2"], seeds=3)


@pytest.fixture
def options_of(tmp_path):
    """Factory: options of ``ctr`` for a job with settings of the stage encode."""
    def make(**encode):
        config = JobConfig.model_validate({"out": str(tmp_path / "out"), "encode": encode})
        job = Job(config, Workspace(tmp_path / "out", date.fromisoformat(DAY)), "run")
        return loss.ctr_options(job, {"strict": tmp_path / "set"}, CHECK)
    return make


def test_the_encoder_is_that_of_the_stage_encode(options_of, tmp_path):
    assert options_of().encoder == "embedded" and options_of(model="owner/encoder").encoder == "owner/encoder"
    options = options_of()
    assert options.knowledge == {"strict": str(tmp_path / "set")} and options.dt == DAY


def test_a_revision_is_requested_from_the_hub(options_of, monkeypatch):
    requests, folder = [], encoder_files.resolve("embedded")

    def download(name, revision, **_):
        requests.append((name, revision))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    TextEncoder(options_of(model="owner/encoder@v2").encoder)(["text"])
    assert set(requests) == {("owner/encoder", "v2")}
