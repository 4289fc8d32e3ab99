"""Writes a synthetic data set as an input data set: interactions, users, items and previous texts."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dare_job import prompts, schemas
from dare_job.data.sample_world.simulate import DAYS, Example, World, item_examples, simulate, user_examples
from dare_job.errors import ConfigError

_PREVIOUS_TEXT = pa.schema([schemas.KNOWLEDGE.field(name)
                            for name in ("entity_id", "knowledge", "generated_dt")])


@dataclass(frozen=True)
class WorldSummary:
    """Sizes of a synthetic data set. The last interactions are on ``date``."""

    out: Path
    date: datetime.date
    users: int
    items: int
    interactions: int
    previous_user_texts: int
    previous_item_texts: int


def write_world(out: Path, users: int = 400, items: int = 300, seed: int = 0,
                date: datetime.date = datetime.date(2026, 1, 2),
                text_date: datetime.date | None = None) -> WorldSummary:
    """Write a synthetic data set to ``out``. Equal arguments give equal bytes.

    The files are ``interactions.parquet``, ``users.parquet``, ``items.parquet`` and previous texts in
    ``knowledge/entity=user|item/dt=<text_date>/part-00000.parquet``. The default ``text_date`` is the day
    before ``date``. These texts come from the grammar that the embedded model was trained to imitate, applied
    to the world at the end of that day, not from a model.

    Interactions cover ``DAYS`` days and end on ``date``.

    Raises
    ------
    ConfigError
        ``users`` or ``items`` is out of range, or ``text_date`` is not one of these days.
    """
    out = Path(out)
    written = text_date or date - datetime.timedelta(days=1)
    days = DAYS - (date - written).days
    if not 0 < days <= DAYS:
        raise ConfigError(f"text_date {written} is not one of the {DAYS} days that end on {date}")
    world = simulate(users, items, seed)
    first_midnight = datetime.datetime.combine(
        date - datetime.timedelta(days=DAYS - 1), datetime.time(), datetime.UTC)
    user_ids, item_ids = _ids("u", users), _ids("i", items)
    events, order = world.events, np.argsort(world.events.second, kind="stable")
    _write(out / "interactions.parquet", schemas.INTERACTIONS,
           user_id=[user_ids[u] for u in events.user[order]],
           item_id=[item_ids[i] for i in events.item[order]], rating=events.rating[order],
           timestamp=events.second[order] + int(first_midnight.timestamp()))
    _write(out / "users.parquet", schemas.USERS, user_id=user_ids,
           attributes=[sorted(row.items()) for row in world.users.attributes])
    _write(out / "items.parquet", schemas.ITEMS, item_id=item_ids, title=list(world.catalogue.titles),
           attributes=[sorted(row.items()) for row in world.catalogue.attributes])
    counts = _write_previous_text(out, world, {"user": user_ids, "item": item_ids}, written, days)
    return WorldSummary(out, date, users, items, len(order), counts["user"], counts["item"])


def _write_previous_text(out: Path, world: World, ids: dict[str, list[str]], written: datetime.date,
                         days: int) -> dict[str, int]:
    """Write the grammar's texts of the date ``written``, ``days`` days after the world's first midnight."""
    prompt_set = prompts.load(prompts.SAMPLE)
    dt = written.isoformat()
    writers = {"user": user_examples, "item": item_examples}
    counts = {}
    for entity, examples_of in writers.items():
        examples: list[Example] = list(examples_of(world, prompt_set, days))
        counts[entity] = len(examples)
        _write(out / "knowledge" / f"entity={entity}" / f"dt={dt}" / "part-00000.parquet", _PREVIOUS_TEXT,
               entity_id=[ids[entity][example.row] for example in examples],
               knowledge=[example.text for example in examples], generated_dt=[dt] * len(examples))
    return counts


def _ids(letter: str, count: int) -> list[str]:
    return [f"{letter}{number:06d}" for number in range(count)]


def _write(path: Path, schema: pa.Schema, **columns: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, schema=schema), path)
