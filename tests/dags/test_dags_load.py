"""The DAG files load without the job's libraries, and ask of Airflow what the job needs."""

import re
import subprocess
import sys
import textwrap
from datetime import timedelta
from types import SimpleNamespace

import pytest
import yaml
from airflow_home import DAGS, NIGHTLY, ROOT, STAGES, TASKS, load_dags

from dare_job import pipeline

LOAD = """
import sys
sys.modules.update(dare_job=None, pyspark=None, torch=None)  # as on a scheduler without them
from pathlib import Path
from airflow.dag_processing.dagbag import BundleDagBag
folder = Path(sys.argv[1])
bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")
print("IDS", *sorted(bag.dags))
print("ERRORS", bag.import_errors)
"""


def test_all_dags_load_where_neither_the_job_nor_spark_is_installed():
    command = [sys.executable, "-c", LOAD, str(DAGS)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "IDS dare_job_ctr_example dare_job_nightly dare_job_tune" in said
    assert "ERRORS {}" in said


def test_an_unknown_setting_of_the_site_is_named_with_its_file(monkeypatch, tmp_path):
    file = tmp_path / "dare.yaml"
    file.write_text("stages: {generate: {retry: 3}}")
    monkeypatch.setenv("DARE_DAGS_SETTINGS", str(file))
    known = "retries, timeout_h, conf, gpu"
    assert any(f"{file}: unknown setting stages.generate.retry; known settings: {known}" in said
               for said in load_dags().import_errors.values())


def test_the_settings_that_the_document_shows_exist_and_a_stage_has_its_own_of_spark(monkeypatch, tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/how-to/airflow.md").read_text(), re.DOTALL)
    shown = yaml.safe_load("".join(map(textwrap.dedent, blocks)))
    assert shown["spark"]["conf"] and shown["stages"]["generate"]["conf"]
    file = tmp_path / "dare.yaml"
    file.write_text(yaml.safe_dump(shown, sort_keys=False))
    monkeypatch.setenv("DARE_DAGS_SETTINGS", str(file))
    bag = load_dags()
    assert not bag.import_errors
    plan, generate = (bag.dags[NIGHTLY].get_task(name) for name in ("plan", "generate"))
    assert plan.conf == shown["spark"]["conf"]
    assert generate.conf == shown["spark"]["conf"] | shown["stages"]["generate"]["conf"]


def test_each_stage_of_the_job_is_a_task_in_its_order(bag):
    assert not bag.import_errors
    dag = bag.dags[NIGHTLY]
    wanted = ["inputs", *STAGES]
    assert sorted(dag.task_ids) == sorted(TASKS), \
        "airflow_home.STAGES and `stages` in airflow/dags/dare_dags/defaults.yaml have to name the same"
    assert tuple(name for task in STAGES for name in task.split("_and_")) == (
        *pipeline.STAGES, *pipeline.ALONE)
    for task, after in zip(wanted[:-1], wanted[1:-1], strict=False):
        assert after in dag.get_task(task).downstream_task_ids
    assert dag.get_task("publish").downstream_task_ids == {"encode", "notify"}  # encoding may fail
    assert all(dag.get_task(name).stage == name for name in STAGES)


def test_recommendations_depend_on_the_input_alone_and_hide_no_failed_task(bag):
    dag = bag.dags[NIGHTLY]
    over, recommend, ended = map(dag.get_task, ("texts_over", "recommend", "ended"))
    assert over.upstream_task_ids == {"encode"} and over.trigger_rule == "all_done"
    assert recommend.upstream_task_ids == {"plan", "texts_over"}
    assert ended.upstream_task_ids == {"encode", "recommend"} and ended.trigger_rule == "none_failed"
    assert {task.task_id for task in dag.tasks if not task.downstream_task_ids} == {"notify", "ended"}
    assert all(dag.get_task(name).trigger_rule == "all_success" for name in STAGES)


def test_retries_timeouts_and_pools_are_those_of_the_settings(bag):
    settings = yaml.safe_load((DAGS / "dare_dags" / "defaults.yaml").read_text())["stages"]
    dag = bag.dags[NIGHTLY]
    for name in STAGES:
        task = dag.get_task(name)
        assert task.retries == settings[name]["retries"] > 0
        assert task.execution_timeout == timedelta(hours=settings[name]["timeout_h"])
        assert task.pool == ("gpu" if name == "generate" else "default_pool")
        assert task.retry_delay and task.retry_exponential_backoff and task.on_failure_callback
    assert dag.get_task("generate").retries > dag.get_task("plan").retries  # it continues


def test_a_date_waits_until_the_one_before_is_published(bag):
    dag = bag.dags[NIGHTLY]
    inputs = dag.get_task("inputs")
    assert inputs.depends_on_past and inputs.wait_for_downstream
    assert inputs.downstream_task_ids == {"plan", "publish"}  # what wait_for_downstream looks at
    assert dag.max_active_runs == 1 and not dag.catchup
    assert dag.deadline[0].interval == timedelta(hours=12)


def test_airflow_dags_test_runs_the_dag_without_its_deadline(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/airflow", "dags", "test", NIGHTLY])
    assert not load_dags().dags[NIGHTLY].deadline


def test_publishing_is_the_event_that_training_is_scheduled_on(bag):
    published = [task for task in bag.dags[NIGHTLY].tasks if task.outlets]
    assert [task.task_id for task in published] == ["publish", "encode", "recommend"]
    consumer = bag.dags["dare_job_ctr_example"]
    awaited = consumer.timetable.asset_condition.objects
    assert list(awaited) == published[0].outlets
    assert [asset.name for asset in awaited] == ["dare_job_knowledge"]
    assert [[asset.name for asset in task.outlets] for task in published[1:]] == [
        ["dare_job_features"], ["dare_job_candidates"]]


@pytest.mark.parametrize("stage", ["encode", "recommend"])
def test_a_stage_that_the_settings_switch_off_is_skipped_and_makes_no_event(bag, stage):
    from airflow.sdk.exceptions import AirflowSkipException

    task = bag.dags[NIGHTLY].get_task(stage)
    list(task._outcome.listen(["{}"]))  # the last line of `dare-job run --from encode` without encode.model
    with pytest.raises(AirflowSkipException, match=f"{stage}.model"):
        task._published({}, None)


@pytest.mark.parametrize("stage", ["encode", "recommend"])
def test_a_stage_that_is_off_makes_no_event_if_its_driver_ran_in_the_cluster(
        bag, stage, tmp_path):
    from airflow.sdk.exceptions import AirflowSkipException
    from dare_dags.night import Night
    from dare_dags.outcome import Outcome

    file = tmp_path / "a.yaml"
    file.write_text("out: /out\n")
    task, event = bag.dags[NIGHTLY].get_task(stage), SimpleNamespace(extra=None)
    task._outcome = Outcome()
    params = {"config": [str(file)], "set": [], "out": None, "tuned": None}
    with pytest.raises(AirflowSkipException, match=f"{stage}.model"):
        task._published({}, Night("2026-01-02", params))
    asked = Night("2026-01-02", {**params, "set": [f"{stage}.model=/m"]})
    assert task._published({"outlet_events": {task.outlets[0]: event}}, asked)["counts"] == {}
    assert event.extra["out"] == "/out"


def test_parameters_are_checked_when_a_run_is_triggered(bag):
    from airflow.sdk.exceptions import ParamValidationError

    params = bag.dags[NIGHTLY].params
    params.validate()
    for name, right, wrong in (("date", "2026-01-02", "tomorrow"), ("config", ["a.yaml"], "a.yaml"),
                               ("limit", 5, -1), ("set", ["decode.batch_size=4"], [4])):
        assert params.get_param(name).resolve(right) == right
        with pytest.raises(ParamValidationError):
            params.get_param(name).resolve(wrong)
