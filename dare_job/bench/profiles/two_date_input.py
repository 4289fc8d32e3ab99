"""Input of the job for two dates: the users that a writer never saw, with and without their latest films."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.bench.cli import command
from dare_job.bench.profiles import data
from dare_job.bench.profiles.data import LATER, Film, Profile
from dare_job.config.options import day, option
from dare_job.errors import ConfigError
from dare_job.schemas import INTERACTIONS, ITEMS
from dare_job.workspace import committing


@dataclass(frozen=True)
class Options:
    """Options of ``bench two-date-input``."""

    data: Path = option("Folder with knowledge/ml1m_users_llama3chatqa.jsonl.gz and ml-1m.",
                        envvar="DARE_DATA")
    save: Path = option("Folder to write; it must not exist yet.")
    date: str = option("The later date.", "2026-01-02", metavar="YYYY-MM-DD")
    held_out: float = option("Share of the users, by the hash of their ids, as in bench writer-texts.", 1 / 3)

    def __post_init__(self):
        if self.save.exists():
            raise ConfigError(f"--save {self.save} exists already; name another folder")


@command(Options)
def main(options: Options) -> dict:
    """Write interactions and items of MovieLens 1M users for two dates in a row.

    The data has the order of each user's films, and no dates: the last three count as watched on the later
    date, the others before.
    """
    later = datetime.combine(day("--date", options.date), time(), UTC)
    profiles = data.load(options.data)
    _, users = data.split(profiles, round(options.held_out * len(profiles)))
    films = {film.id: film for profile in users for film in profile.films}
    with committing(options.save, "", {"users": len(users)}) as staging:
        pq.write_table(pa.Table.from_pylist(list(_interactions(users, later)), INTERACTIONS),
                       staging / "interactions.parquet")
        pq.write_table(pa.Table.from_pylist([_item(film) for film in films.values()], ITEMS),
                       staging / "items.parquet")
    return {"users": len(users), "items": len(films), "later": options.date, "new_of_each_user": LATER,
            "earlier": (later - timedelta(days=1)).date().isoformat()}


def _interactions(users: Sequence[Profile], later: datetime) -> Iterator[dict]:
    for profile in users:
        for back, film in enumerate(reversed(profile.films)):
            when = later + timedelta(hours=LATER - back - (back >= LATER))
            yield {"user_id": profile.user, "item_id": film.id, "rating": None,
                   "timestamp": int(when.timestamp())}


def _item(film: Film) -> dict:
    genre, *others = film.genres
    values = {"genre": genre, "other_genres": ", ".join(others), "year": film.year}
    return {"item_id": film.id, "title": f"{film.title} ({film.year})" if film.year else film.title,
            "attributes": [(name, value) for name, value in values.items() if value]}
