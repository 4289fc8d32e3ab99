"""Stops a run whose input is empty, or far smaller than that of the newest earlier date.

The stage plan checks this before it accepts the input, so nothing of the date is written yet.
"""

from datetime import UTC, datetime

from dare_job.errors import DataError, ThresholdError
from dare_job.job import Job
from dare_job.schemas import ENTITIES
from dare_job.tables import published

_COUNTED = {"interactions": "up_to_date", "users": "users", "items": "items"}  # keys of the input's record


def compared_counts(record: dict) -> dict[str, int]:
    """The counts of an input's record that its date publishes and that later dates are compared with.

    Interactions are those up to the date.
    """
    return {name: record[key] for name, key in _COUNTED.items()}


def check(job: Job, record: dict, needs_titles: bool = True) -> None:
    """Check the record of ``prepare.prepare_input``.

    Parameters
    ----------
    needs_titles
        Items without a title are of no use to this run.

    Raises
    ------
    DataError
        There are no interactions, none up to the date, or no item with a title.
    ThresholdError
        There are fewer interactions, users or items than ``limits.min_input_share`` of those of the newest
        earlier date.
    """
    share, before = job.config.limits.min_input_share, job.space.previous(ENTITIES[0])
    counts = published.read_manifest(before).get("input") if before else None
    sizes = ", ".join(f"{count:,} {name}" for name, count in (counts or {}).items())
    earlier = f"; {before.name[3:]} had {sizes}" if sizes else ""
    _require_rows(job, record, needs_titles, earlier)
    if share is None or not counts:  # published by a version that did not record them
        return
    fewer = [f"{now:,} {name} (before: {counts[name]:,})" for name, now in compared_counts(record).items()
             if now < share * counts.get(name, 0)]
    if fewer:
        raise ThresholdError(
            f"the input of {job.space.dt} has only {' and '.join(fewer)}: less than limits.min_input_share "
            f"= {share:g} of the input of {before.name[3:]}. Nothing was written. If rows are missing, "
            "complete the input and run the same command again; if the input is right, run once with "
            "--set limits.min_input_share=null")


def _require_rows(job: Job, record: dict, needs_titles: bool, earlier: str) -> None:
    path = job.config.input.path
    named = f"the input {path}" if path else "the input"
    again = "Nothing was written: correct or wait for the input, and run the same command again"
    sizes = (f"{record['users']:,} users, {record['items']:,} items, {record['broken']:,} unusable "
             f"rows{earlier}")
    if not record["interactions"]:
        raise DataError(f"{named} has no interactions ({sizes}). {again}")
    if not record["up_to_date"]:
        raise DataError(
            f"{named} has no interactions up to {job.space.dt}: its {record['interactions']:,} interactions "
            f"are from {_time(record['first'])} to {_time(record['last'])}{earlier}. {again}; if the times "
            "are wrong, set their unit or format with input.tables.interactions.time; if the date is, use "
            "another one")
    if needs_titles and not record["titled"]:
        raise DataError(f"{named} has no item with a title ({sizes}); texts about items and histories "
                        f"of users both need titles. {again}; if titles are in another column, set "
                        "input.tables.items.columns={title: COLUMN}")


def _time(seconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):  # milliseconds that were read as seconds
        return f"{seconds} seconds after 1970"
