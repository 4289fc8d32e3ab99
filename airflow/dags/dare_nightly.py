"""The nightly DAG of dare-job for Airflow 3: wait for the input, run the stages as tasks, send a message.

Each task runs one command with spark-submit, writes its output atomically, and can be run again at any time.
A date starts after the previous date is published. See docs/how-to/airflow.md.
"""

import sys
from datetime import timedelta

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, DeadlineAlert, DeadlineReference, Param, SyncCallback, chain, task
from airflow.sdk.definitions.timetables.interval import CronDataIntervalTimetable
from dare_dags import notify, settings
from dare_dags.operators import CANDIDATES, FEATURES, KNOWLEDGE, InputSensor, StageOperator

PUBLISHED = {"publish": KNOWLEDGE, "encode": FEATURES, "recommend": CANDIDATES}
SITE = settings.load()
ZONE = SITE["timezone"]


def _params() -> dict[str, Param]:
    texts = {"type": "array", "items": {"type": "string"}}
    text, number = {"type": ["null", "string"]}, {"type": ["null", "integer"], "minimum": 0}
    described = {
        "config": (texts, "Configuration files, one per line; keys of later files override earlier ones."),
        "input": (text, "Folder, file or zip of the input; empty: from the configuration."),
        "out": (text, "Output folder; empty: from the configuration."),
        "model": (text, "Folder or hub name of the model; empty: from the configuration."),
        "set": (texts, "Settings as KEY=VALUE, one per line."),
        "limit": (number, "Only the first N stale rows of each entity type."),
        "wait_for": (texts, "Paths to wait for; {date} is replaced; empty: the input."),
        "tuned": (text, "Folder of the settings that the weekly tuning writes."),
    }
    day = Param(None, "Date to generate; empty: the logical date of the run, yesterday at the latest.",
                type=["null", "string"], format="date")
    return {"date": day} | {name: Param(SITE["params"][name], description, **schema)
                            for name, (schema, description) in described.items()}


def _deadline(hours: float | None) -> DeadlineAlert | None:
    is_test = sys.argv[1:3] == ["dags", "test"]  # fails for a run with a deadline: apache/airflow#73428
    if hours is None or is_test:
        return None
    callback = SyncCallback(notify.late, {"connection": SITE["notify"], "hours": hours})
    return DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(hours=hours), callback)


with DAG(
    "dare_job_nightly",
    description="Generate LLM texts for recommenders, with drafts from previous texts",
    doc_md=__doc__,
    schedule=CronDataIntervalTimetable(SITE["schedule"], timezone=ZONE) if SITE["schedule"] else None,
    start_date=settings.moment(SITE["start_date"], ZONE),
    end_date=settings.moment(SITE["end_date"], ZONE),
    catchup=False,
    max_active_runs=1,
    params=_params(),
    deadline=_deadline(SITE["late_h"]),
    tags=["dare-job"],
    default_args={
        "on_failure_callback": notify.on_failure(SITE["notify"]),
        "retry_delay": timedelta(seconds=SITE["retry_delay_s"]), "retry_exponential_backoff": 2,
        "max_retry_delay": timedelta(hours=1),
    },
):
    # Also waits until plan and publish, the direct successors of this task, have succeeded for the last date.
    inputs = InputSensor(
        task_id="inputs", timezone=ZONE, mode="reschedule", poke_interval=SITE["inputs"]["every_s"],
        timeout=timedelta(hours=SITE["inputs"]["timeout_h"]), retries=2,
        depends_on_past=True, wait_for_downstream=True)
    stages = {
        name: StageOperator(
            task_id=name, stage=name, settings=SITE, retries=stage["retries"],
            execution_timeout=timedelta(hours=stage["timeout_h"]),
            pool=SITE["gpu_pool"] if stage.get("gpu") else "default_pool",
            outlets=[PUBLISHED[name]] if name in PUBLISHED else [])
        for name, stage in SITE["stages"].items()}

    @task(task_id="notify", retries=2)
    def message(summary: dict) -> None:
        notify.send(notify.published(summary), SITE["notify"])

    recommend = stages.pop("recommend")
    chain(inputs, *stages.values())
    inputs >> stages["publish"] >> message(stages["publish"].output)
    # Recommendations depend only on the input. They run last, even if a stage of the texts failed, because
    # only one command at a time may work on a date.
    over = EmptyOperator(task_id="texts_over", trigger_rule="all_done")
    chain(stages["encode"], over, recommend)
    stages["plan"] >> recommend
    # The last tasks decide whether a run fails. Without this task, `recommend` would hide a failed `encode`.
    [stages["encode"], recommend] >> EmptyOperator(task_id="ended", trigger_rule="none_failed")
