"""An example of CTR training that starts when a date is published. Airflow 3.

Copy it, or delete it. It counts the rows that training would join; put your own training in its place.
"""

from airflow.sdk import DAG, Asset, ObjectStoragePath, task

KNOWLEDGE = Asset("dare_job_knowledge")  # by its name: nothing of dare-job is imported here

with DAG("dare_job_ctr_example", schedule=[KNOWLEDGE], catchup=False, doc_md=__doc__,
         tags=["dare-job", "example"]):

    @task(retries=3)
    def train(triggering_asset_events) -> dict[str, int]:
        """Rows with a text by date, users and items together; several dates where the DAG was paused."""
        return {event.extra["date"]: rows(event.extra["out"], event.extra["date"])
                for event in triggering_asset_events[KNOWLEDGE]}

    train()


def rows(out: str | None, date: str) -> int:
    """Rows of a published date that hold a text. ``out``: a folder, or a URL that Airflow has a store for.

    Files are those that the manifests name; others may be there while the date is published again. Users and
    items of two runs are there together for a moment only: trying again ends it.
    """
    import json

    import pyarrow.parquet as pq

    if out is None:
        raise ValueError("the event names no output folder: set params.out in dare.yaml, since the driver's "
                         "configuration is not on this machine")
    found, runs = 0, set()
    for entity in ("user", "item"):
        folder = ObjectStoragePath(f"{out}/knowledge/entity={entity}/dt={date}")
        manifest = json.loads((folder / "_manifest.json").read_text())
        runs.add(manifest["run_id"])
        for name in manifest["files"]:
            with (folder / name).open("rb") as file:
                texts = pq.read_table(file, columns=["knowledge"])["knowledge"]
                found += len(texts) - texts.null_count
    if len(runs) > 1:
        raise RuntimeError(f"users and items of {date} are of two runs: it is being published")
    return found
