"""The weekly tuning DAG of dare-job for Airflow 3: replays published texts and writes draft settings.

For later dates, the nightly DAG reads ``tuned/YYYY-MM-DD.yaml`` as its last configuration file
(``params.tuned`` and ``tune.params.tuned`` of dare.yaml). Delete the file to undo a tuning.
"""

from datetime import timedelta
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.definitions.timetables.trigger import CronTriggerTimetable
from dare_dags import notify, settings

SITE = settings.load()
TUNE = SITE["tune"]

with DAG(
    "dare_job_tune",
    description="Tune draft settings on published texts",
    doc_md=__doc__,
    schedule=CronTriggerTimetable(TUNE["schedule"], timezone=SITE["timezone"]) if TUNE["schedule"] else None,
    start_date=settings.moment(SITE["start_date"], SITE["timezone"]),
    catchup=False,
    max_active_runs=1,
    params={name: Param(value, type="array", items={"type": "string"}) if name == "options"
            else Param(value, type=["null", "string"]) for name, value in TUNE["params"].items()},
    tags=["dare-job"],
    default_args={"on_failure_callback": notify.on_failure(SITE["notify"])},
):
    @task(retries=TUNE["retries"], retry_delay=timedelta(minutes=10), pool=TUNE["pool"],
          execution_timeout=timedelta(hours=TUNE["timeout_h"]))
    def tune() -> str:
        """Search settings on this worker; returns the path of the written file."""
        from dare_dags.tuning import run

        context = get_current_context()
        day = context["dag_run"].run_after.astimezone(ZoneInfo(SITE["timezone"])).date()
        return run(context["params"], day.isoformat(), SITE["spark"])

    tune()
