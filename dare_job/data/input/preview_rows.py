"""Prompts of a few users and items of an input, byte for byte those of the stage plan."""

import logging
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.config.settings import JobConfig
from dare_job.data import render
from dare_job.data.history import end_of_day
from dare_job.data.input import sample
from dare_job.data.input.sample import Entity
from dare_job.data.input.source import InputSource, opened
from dare_job.errors import DataError
from dare_job.schemas import ENTITIES, ITEMS

_LOG = logging.getLogger("dare_job")
_SPARE = 4  # sampled users per user of the preview; some have no history
_MORE = 20  # as many times more are sampled if too few have one
_ATTRIBUTES = pa.map_(pa.string(), pa.string())
_USERS = pa.schema([("entity_id", pa.string()), ("interactions", pa.int32()), ("attributes", _ATTRIBUTES),
                    ("history", pa.list_(pa.struct([("item_id", pa.string()), ("rating", pa.float32())])))])
_ITEMS = pa.schema([("entity_id", pa.string()), ("interactions", pa.int32()), ("attributes", _ATTRIBUTES),
                    ("title", pa.string())])


@dataclass(frozen=True)
class Row:
    """A user or an item to preview.

    Attributes
    ----------
    prompt, error
        One of them is None.
    titles, values
        Titles and attribute values that are true of the row: of its history, or its own.
    """

    entity: str
    entity_id: str
    prompt: str | None
    error: str | None
    titles: tuple[str, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class Chosen:
    """The entities of a preview and what their prompts are made of."""

    users: dict[str, Entity]
    histories: dict[str, list[tuple[str, float | None]]]  # by user id
    items: dict[str, Entity]
    described: list[str]  # ids of the items to preview; the others are in histories


def choose(config: JobConfig, day: date, count: int, named: Sequence[tuple[str, str]] = ()) -> Chosen:
    """``count`` users with a history and ``count`` items with a title, by a seeded hash of their ids.

    Parameters
    ----------
    named
        Entity type and id of the rows to take instead.

    Raises
    ------
    DataError
        The input cannot be read, has no such rows, or lacks one in ``named``.
    """
    ids = {entity: [name for kind, name in named if kind == entity] for entity in ENTITIES}
    with opened_without_spark(config) as source:
        chosen = _choose(source, config, day, 0 if named else count, ids)
    for entity, known in (("user", chosen.histories), ("item", chosen.items)):
        missing = [name for name in ids[entity] if name not in known]
        if missing:
            raise DataError(f"input.path = {config.input.path} has no {entity} {', '.join(missing)} (--ids), "
                            f"or none before the end of {day}")
    if not chosen.histories and not chosen.described:
        raise DataError(f"input.path = {config.input.path} has neither a user with a history before the end "
                        f"of {day} (--date) nor an item with a title")
    return chosen


@contextmanager
def opened_without_spark(config: JobConfig) -> Iterator[InputSource]:
    """The input's tables, read in this process. Only queries start Spark, which a log line says."""
    settings = config.input
    queries = {name: table for name, table in settings.tables if table.query}
    with tempfile.TemporaryDirectory(prefix="dare-job-") as temporary:
        results = {name: Path(temporary) / f"{name}.parquet" for name in queries}
        if queries:
            from dare_job.data.input.prepare import write_query
            from dare_job.spark.session import session

            _LOG.info("starting Spark for the query of %s", ", ".join(queries))
            spark = session(config.spark)
            for name, table in queries.items():
                write_query(name, table, results[name], spark)
        with opened(settings, Path(temporary), results) as source:
            yield source


def _choose(source: InputSource, config: JobConfig, day: date, count: int, ids: dict) -> Chosen:
    seed, sampled = config.seed, _SPARE * count
    end = end_of_day(day, config.input.day_boundary)
    while True:
        past = sample.interactions(source, end, sampled, seed, ids["user"])
        needed = {item for events in past.events.values() for _, item, _ in events}
        items = sample.entities(source.tables.get("items"), count, seed, [*needed, *ids["item"]])
        titled = {name for name, item in items.items() if item.title and item.title.strip(" ")}
        histories = {user: sample.history(events, titled, config.history)
                     for user, events in past.events.items()}
        able = [user for user, history in histories.items() if history][:count]
        if len(able) == count or past.complete:
            break
        sampled *= _MORE
    _warn_of_broken_rows(past, config)
    users = list(dict.fromkeys([*able, *ids["user"]]))
    known = sample.entities(source.tables.get("users"), 0, seed, users)
    chosen_histories = {user: histories.get(user, []) for user in users if user in histories or user in known}
    described = list(dict.fromkeys([*[name for name in items if name in titled][:count], *ids["item"]]))
    return Chosen(known, chosen_histories, items, described)


def _warn_of_broken_rows(past: sample.Interactions, config: JobConfig) -> None:
    limit = config.input.max_reject_share
    if past.broken > limit * past.rows:
        _LOG.warning("%d of %d rows of interactions are unusable, more than input.max_reject_share = %g: a "
                     "run would stop; the preview leaves them out", past.broken, past.rows, limit)


def prompts(chosen: Chosen, config: JobConfig) -> list[Row]:
    """The rows of the preview, users first, with their prompts by the settings of ``prompts``."""
    with tempfile.TemporaryDirectory(prefix="dare-job-") as folder:
        items = str(Path(folder) / "items.parquet")
        pq.write_table(_item_table(chosen.items), items)
        users = pa.RecordBatch.from_pylist([
            {"entity_id": user, "interactions": len(history),
             "attributes": _attributes(chosen.users.get(user)),
             "history": [{"item_id": item, "rating": rating} for item, rating in history]}
            for user, history in chosen.histories.items()], _USERS)
        described = pa.RecordBatch.from_pylist([
            {"entity_id": name, "interactions": 0, "title": chosen.items[name].title,
             "attributes": _attributes(chosen.items[name])} for name in chosen.described], _ITEMS)
        of_users = render.render_users(config.prompt_set("user"), items, secrets.token_hex(8))
        of_items = render.render_items(config.prompt_set("item"))
        return [Row(entity, row["entity_id"], row["prompt"], row["error"], *_facts(chosen, entity, row))
                for entity, function, batch in (("user", of_users, users), ("item", of_items, described))
                if getattr(config.prompts, entity) is not None
                for rendered in function(iter([batch] if len(batch) else [])) for row in rendered.to_pylist()]


def _item_table(items: dict[str, Entity]) -> pa.Table:
    rows = [{"item_id": name, "title": item.title, "attributes": _attributes(item)}
            for name, item in items.items()]
    return pa.Table.from_pylist(rows, ITEMS)


def _attributes(entity: Entity | None) -> list[tuple[str, str]]:
    return list(entity.attributes.items()) if entity else []


def _facts(chosen: Chosen, entity: str, row: dict) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Titles and attribute values of a row's history, or of the item itself."""
    name = row["entity_id"]
    if entity == "item":
        entities = [chosen.items[name]]
    else:
        entities = [chosen.items[item] for item, _ in chosen.histories[name]]
    own = chosen.users.get(name) if entity == "user" else None
    values = [value for each in (*entities, own) if each for value in each.attributes.values()]
    return tuple(each.title for each in entities), tuple(dict.fromkeys(values))
