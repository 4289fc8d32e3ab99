"""The weekly tuning of dare-job: replays published texts, writes draft settings for later nights. Airflow 3.

``tuned/YYYY-MM-DD.yaml`` is taken by the nightly DAG as its last configuration file for dates after that day
(``params.tuned`` in both parts of dare.yaml). To go back, delete the file.
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
    description="Draft settings from published text",
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
        """Search the settings on this worker; the path of the file that was written."""
        from dare_dags.tuning import run

        context = get_current_context()
        day = context["dag_run"].run_after.astimezone(ZoneInfo(SITE["timezone"])).date()
        return run(context["params"], day.isoformat(), SITE["spark"])

    tune()
