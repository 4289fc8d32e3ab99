"""A finished stage whose files are gone is not finished."""

from datetime import date

import pytest

from dare_job.config.settings import JobConfig
from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.tables import stage_inputs
from dare_job.workspace import DONE, Workspace, committing, is_done


@pytest.mark.parametrize("lose", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_stage_without_its_files_is_not_done_and_names_the_command(tmp_path, lose):
    job = Job(JobConfig(out=str(tmp_path)), Workspace(tmp_path, date(2026, 1, 2)), "run-1")
    folder = job.space.stage("plan")
    with committing(folder, "f", {"rows": 1}) as staging:
        (staging / "entity=user").mkdir()
        for name in ("part-0.parquet", "part-1.parquet", "_SUCCESS"):
            (staging / "entity=user" / name).write_text("rows")
    assert is_done(folder, "f") and not is_done(folder, "g")
    assert stage_inputs.stage_report(stage_inputs.require_stage(job, "plan")) == {"rows": 1}
    (folder / "entity=user" / "_SUCCESS").unlink()
    assert is_done(folder, "f")
    lose(folder / "entity=user" / "part-1.parquet")
    assert not is_done(folder, "f")
    with pytest.raises(DataError, match="lacks files of the stage plan: run `dare-job run --from plan"):
        stage_inputs.require_stage(job, "plan")
    (folder / DONE).unlink()
    with pytest.raises(DataError, match="has no finished plan"):
        stage_inputs.require_stage(job, "plan")
