"""An example of CTR training that starts when a date is published. Airflow 3.

Copy it, or delete it. It counts the rows that training would join; put your own training in its place.
"""

from airflow.sdk import DAG, Asset, task

KNOWLEDGE = Asset("dare_job_knowledge")  # by its name: nothing of dare-job is imported here

with DAG("dare_job_ctr_example", schedule=[KNOWLEDGE], catchup=False, doc_md=__doc__,
         tags=["dare-job", "example"]):

    @task
    def train(triggering_asset_events) -> dict[str, int]:
        """Rows with a text by date, users and items together; several dates where the DAG was paused."""
        import pyarrow.dataset as ds

        found = {}
        for event in triggering_asset_events[KNOWLEDGE]:
            date, out = event.extra["date"], event.extra["out"]
            found[date] = sum(
                ds.dataset(f"{out}/knowledge/entity={entity}/dt={date}", format="parquet").count_rows(
                    filter=ds.field("knowledge").is_valid()) for entity in ("user", "item"))
        return found

    train()
