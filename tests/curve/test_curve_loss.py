"""What the curve asks of the CTR check: the same encoder as its own."""

from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.config.settings import JobConfig
from dare_job.evaluate.ctr import sets
from dare_job.evaluate.curve import loss
from dare_job.evaluate.curve.command import _Encoder
from dare_job.job import Job
from dare_job.publish.features import encoder_files
from dare_job.workspace import Workspace

DAY = "2025-12-04"
CHECK = loss.Check("sample", ["dcnv2"], seeds=3)


@pytest.fixture
def job_of(tmp_path):
    def make(**encode) -> Job:
        config = JobConfig.model_validate({"out": str(tmp_path / "out"), "encode": encode})
        return Job(config, Workspace(tmp_path / "out", date.fromisoformat(DAY)), "run")
    return make


def test_auc_is_of_the_vectors_that_cosine_is_of(job_of, tmp_path):
    """With the packaged encoder."""
    texts = ["quiet films about the sea and the people who live by it, year after year, in the north",
             "fast films"]
    folder = tmp_path / f"set/knowledge/entity=user/dt={DAY}"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"entity_id": ["u1", "u2"], "knowledge": texts, "generated_dt": [DAY, DAY]}),
                   folder / "part-0.parquet")
    job = job_of()
    (table,) = sets.read(loss.asked(job, {"strict": tmp_path / "set"}, CHECK))["strict"]
    assert np.array_equal(table.vectors, _Encoder(job)(texts))


def test_a_revision_is_asked_of_the_hub_by_both(job_of, tmp_path, monkeypatch):
    asked, here = [], encoder_files.resolve("embedded")

    def download(name, revision, **_):
        asked.append((name, revision))
        return str(here)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    job = job_of(model="owner/encoder@v2")
    _Encoder(job)
    assert set(asked) == {("owner/encoder", "v2")}
    asked.clear()
    sets._Encode(loss.asked(job, {}, CHECK))(["text"])
    assert set(asked) == {("owner/encoder", "v2")}
