"""Input of the job from files split for CTR.

DIR holds train, valid and test.csv.gz as ``dare-job ctr`` reads them. The job gets all items, by title and
year, and the interactions of the train part alone, so that no text of a user can know a later label. Prints
the last day of the train part, which is the date to run.
"""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from dare_job.errors import ConfigError
from dare_job.evaluate.ctr import source
from dare_job.schemas import INTERACTIONS, ITEMS, USERS
from dare_job.workspace import committing


def main(
    data: Annotated[Path, typer.Option(help="Folder with train, valid and test.csv.gz.")],
    save: Annotated[Path, typer.Option("--save", help="Folder to write; it must not exist yet.")],
) -> None:
    """Write interactions, users and items; print the date."""
    if save.exists():
        raise ConfigError(f"--save {save} exists already; name another folder")
    ctr = source.load(str(data), 4.0)
    rows = ctr.interactions[ctr.interactions["split"] == "train"].assign(rating=None)
    titles = ctr.items["title"].fillna("")
    items = ctr.items.assign(title=titles, attributes=[_year(title) for title in titles])
    with committing(save, "", {"data": data.name}) as staging:
        for name, schema, frame in (("interactions", INTERACTIONS, rows), ("users", USERS, ctr.users),
                                    ("items", ITEMS, items)):
            table = pa.Table.from_pandas(frame[schema.names], schema, preserve_index=False)
            pq.write_table(table, staging / f"{name}.parquet")
    print(datetime.fromtimestamp(int(rows["timestamp"].max()), UTC).date(), flush=True)


def _year(title: str) -> list[tuple[str, str]]:
    year = re.search(r" \((\d{4})\)$", title)
    return [("year", year[1])] if year else []
