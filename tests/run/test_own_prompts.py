"""A night whose prompts are a user's own, and what plan says of a wording that does not suit the model."""

import pytest
from run_helpers import NIGHT_1, NIGHT_2, snapshot

from dare_job import knowledge, pipeline
from dare_job.files import dataset
from dare_job.model import embedded_path
from dare_job.stages import plan

pytestmark = pytest.mark.spark

TEMPLATE = """Last seen: {{ history[-1].title }}
{% if 'age' in attributes %}Age {{ attributes.age }}{% endif %}
Profile:
"""


def test_a_jinja_file_writes_the_prompts_of_one_side(job_of, tmp_path, job_log):
    """The other side keeps its set. A changed file makes its side's rows stale, and no others."""
    file, out = tmp_path / "own.jinja", tmp_path / "out"
    file.write_text(TEMPLATE)
    sections = {"prompts": {"user": str(file)}, "baseline": {"rows": 0}, "waves": {"when": "never"}}
    job = job_of(out, NIGHT_1, limit=3, **sections)
    summary = pipeline.run(job)
    assert summary["written"] == 6
    (line,) = [line for line in job_log if "wording" in line]
    assert f"prompts.user = {file}: the embedded model knows the wording of the set sample alone" in line
    planned = {entity: dataset(job.space.stage("plan") / f"entity={entity}").to_table().to_pylist()
               for entity in ("user", "item")}
    asked = [row["prompt"] for row in planned["user"] if row["prompt"]]
    assert asked and all(prompt.startswith("Last seen: ") and "\nAge " in prompt for prompt in asked)
    assert all(row["prompt"].startswith("Describe this film") for row in planned["item"])
    written = {entity: [row for row in snapshot(out, entity, NIGHT_1).values() if row["knowledge"]]
               for entity in ("user", "item")}
    assert all(len(rows) == 3 for rows in written.values())

    file.write_text(TEMPLATE + " ")
    changed = job_of(out, NIGHT_2, **sections)
    for entity in written:
        found = [what for what, *_ in knowledge.changes(changed, job.space.knowledge(entity), entity)]
        assert found == (["prompt"] if entity == "user" else [])
    plan.run(changed)
    for entity, rows in written.items():
        table = dataset(changed.space.stage("plan") / f"entity={entity}").to_table().to_pylist()
        stale = {row["entity_id"]: row["stale"] for row in table}
        assert {stale[row["entity_id"]] for row in rows} == {entity == "user"}


def test_plan_says_once_that_the_sample_wording_is_the_embedded_models(job_of, tmp_path, job_log):
    elsewhere = tmp_path / "model"
    elsewhere.symlink_to(embedded_path())
    job = job_of(tmp_path / "out", NIGHT_1, model={"name": str(elsewhere)}, prompts={"item": "once"})
    plan.run(job)
    (line,) = [line for line in job_log if "worded for" in line]
    assert line.startswith("prompts.user = sample: ") and f"not for {elsewhere}; choose one of kar, " in line
    job_log.clear()
    plan.run(job_of(tmp_path / "other", NIGHT_1))
    assert not job_log
