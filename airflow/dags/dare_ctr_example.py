"""An example of CTR training that starts when a date is published. Airflow 3.

Copy or delete it. It counts the rows that training would join; replace that with your own training.
"""

from airflow.sdk import DAG, Asset, ObjectStoragePath, task

KNOWLEDGE = Asset("dare_job_knowledge")  # by name, so that dare-job need not be installed

with DAG("dare_job_ctr_example", schedule=[KNOWLEDGE], catchup=False, doc_md=__doc__,
         tags=["dare-job", "example"]):

    @task(retries=3)
    def train(triggering_asset_events) -> dict[str, int]:
        """Number of texts by date, users and items together; several dates if the DAG was paused."""
        return {event.extra["date"]: rows(event.extra["out"], event.extra["date"])
                for event in triggering_asset_events[KNOWLEDGE]}

    train()


def rows(out: str | None, date: str) -> int:
    """Number of texts of a published date.

    Reads only the files in the manifests: others may exist while the date is published again. During
    that time users and items can be from different runs: the task fails, and succeeds when it is retried.

    Parameters
    ----------
    out
        A folder, or a URL of a store that Airflow supports.
    """
    import json

    import pyarrow.parquet as pq

    if out is None:
        raise ValueError("the event names no output folder, because the configuration of the driver is not "
                         "on this machine: set params.out in dare.yaml")
    count, runs = 0, set()
    for entity in ("user", "item"):
        folder = ObjectStoragePath(f"{out}/knowledge/entity={entity}/dt={date}")
        manifest = json.loads((folder / "_manifest.json").read_text())
        runs.add(manifest["run_id"])
        for name in manifest["files"]:
            with (folder / name).open("rb") as file:
                texts = pq.read_table(file, columns=["knowledge"])["knowledge"]
                count += len(texts) - texts.null_count
    if len(runs) > 1:
        raise RuntimeError(f"users and items of {date} are from different runs: the date is being published")
    return count
