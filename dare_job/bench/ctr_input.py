"""Input of the job from files split for CTR.

DIR holds train, valid and test.csv.gz as ``dare-job ctr`` reads them. The job gets all items, by title and
year, and the interactions of the train part alone, so that no text of a user can know a later label. Prints
the last day of the train part, which is the date to run.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.bench.cli import command
from dare_job.config.options import option
from dare_job.errors import ConfigError
from dare_job.evaluate.ctr import source
from dare_job.schemas import INTERACTIONS, ITEMS, USERS
from dare_job.workspace import committing


@dataclass(frozen=True)
class Options:
    """Options of ``bench ctr-input``."""

    data: Path = option("Folder with train, valid and test.csv.gz.")
    save: Path = option("Folder to write; it must not exist yet.")


@command(Options)
def main(options: Options) -> dict:
    """Write interactions, users and items; print the date."""
    if options.save.exists():
        raise ConfigError(f"--save {options.save} exists already; name another folder")
    ctr = source.load(str(options.data), 4.0)
    rows = ctr.interactions[ctr.interactions["split"] == "train"].assign(rating=None)
    titles = ctr.items["title"].fillna("")
    items = ctr.items.assign(title=titles, attributes=[_year(title) for title in titles])
    with committing(options.save, "", {"data": options.data.name}) as staging:
        for name, schema, frame in (("interactions", INTERACTIONS, rows), ("users", USERS, ctr.users),
                                    ("items", ITEMS, items)):
            table = pa.Table.from_pandas(frame[schema.names], schema, preserve_index=False)
            pq.write_table(table, staging / f"{name}.parquet")
    return {"date": str(datetime.fromtimestamp(int(rows["timestamp"].max()), UTC).date())}


def _year(title: str) -> list[tuple[str, str]]:
    year = re.search(r" \((\d{4})\)$", title)
    return [("year", year[1])] if year else []
