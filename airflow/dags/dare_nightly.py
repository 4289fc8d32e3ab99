"""The nightly DAG of dare-job: wait for the input, the stages as tasks, then a message. Airflow 3.

Each task is a spark-submit of one command, leaves its complete output or none, and can be run again at any
time. A date starts once the date before is published. How to set it up and run it:
docs/how-to/airflow.md.
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
        "config": (texts, "YAML settings of the job, one a line; later files win key by key."),
        "input": (text, "Folder, file or zip of the input; empty: as the settings say."),
        "out": (text, "Output folder; empty: as the settings say."),
        "model": (text, "Model by folder or hub name; empty: as the settings say."),
        "set": (texts, "Settings as KEY=VALUE, one a line."),
        "limit": (number, "Only the first N stale rows of each entity type."),
        "wait_for": (texts, "Paths to wait for, with {date}; empty: the input above."),
        "tuned": (text, "Folder of the weekly tuning."),
    }
    day = Param(None, "The date to write; empty: that of the run, yesterday at the latest.",
                type=["null", "string"], format="date")
    return {"date": day} | {name: Param(SITE["params"][name], words, **schema)
                            for name, (schema, words) in described.items()}


def _deadline(hours: float | None) -> DeadlineAlert | None:
    tested = sys.argv[1:3] == ["dags", "test"]  # ends runs with a deadline by an error: apache/airflow#73428
    if hours is None or tested:
        return None
    told = SyncCallback(notify.late, {"connection": SITE["notify"], "hours": hours})
    return DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(hours=hours), told)


with DAG(
    "dare_job_nightly",
    description="LLM knowledge for recommenders, drafted from yesterday's",
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
    # Waits for the date before too: until its own direct successors, plan and publish, are done.
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
        notify.tell(notify.published(summary), SITE["notify"])

    lists = stages.pop("recommend")
    chain(inputs, *stages.values())
    inputs >> stages["publish"] >> message(stages["publish"].output)
    # Lists hang on the input alone, and a date has one writer at a time: they come last, whatever became of
    # the texts.
    over = EmptyOperator(task_id="texts_over", trigger_rule="all_done")
    chain(stages["encode"], over, lists)
    stages["plan"] >> lists
    # A run fails by its last tasks: without this one lists would hide that `encode` has failed.
    [stages["encode"], lists] >> EmptyOperator(task_id="ended", trigger_rule="none_failed")
