"""Looks at an input without Spark: what was found, what each column is taken for, and what is wrong."""

import logging
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from dare_job.config.settings import InputSettings, JobConfig
from dare_job.data.input import doubts, guess, preview_rows, source
from dare_job.data.input.archive import unpack
from dare_job.data.input.checks import hint
from dare_job.data.input.cleaning import clean
from dare_job.data.input.source import InputSource
from dare_job.data.input.table import COLUMNS, MARKS, Table
from dare_job.errors import DataError
from dare_job.observe import progress
from dare_job.observe.redact import printable

_LOG = logging.getLogger("dare_job")
ROWS = 500_000  # that are read of a table
_MAX_COLUMNS = 20  # of a table in a message
SHOWN = 5  # rows and values of a kind
_DOUBTFUL = (("title", "None"), ("user_id", "NA"), ("item_id", "NA"))  # may stand for a missing value
_MANY = {"user_id": "users", "item_id": "items", "entity_id": "entities"}


@dataclass
class TableFacts:
    """What is known of a table.

    Attributes
    ----------
    columns
        What each column of the files is taken for, by name: ``name: (type, use)``.
    whole
        All rows were read.
    rejected
        Rows by reason.
    examples
        The first rejected rows of each reason: file, line and text.
    duplicates
        Rows of users or items that repeat an id, or interactions that repeat user, item and time.
    events
        Hashes of the interactions.
    ids
        Different ids by column.
    valued
        Attributes that a row has.
    untitled
        Items without a title, which get no texts.
    odd, repeated
        Lines that are not of the encoding, and those that repeat the header, by file.
    met
        Bits of the values of ``where`` that a row has.
    doubtful
        Rows by column and a word in it that may stand for a missing value.
    ratings
        Different ratings.
    """

    name: str
    files: int
    columns: dict[str, tuple[str, str]]
    rows: int = 0
    whole: bool = True
    rejected: Counter = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    duplicates: int = 0
    events: set[int] = field(default_factory=set)
    sample: list[dict] = field(default_factory=list)
    ids: dict[str, set[str]] = field(default_factory=dict)
    valued: set[str] = field(default_factory=set)
    untitled: int = 0
    odd: Counter = field(default_factory=Counter)
    repeated: Counter = field(default_factory=Counter)
    met: int = 0
    doubtful: Counter = field(default_factory=Counter)
    ratings: set[float] = field(default_factory=set)
    first: int | None = None
    last: int | None = None

    def as_dict(self) -> dict:
        return {"files": self.files, "rows": self.rows, "all_rows_read": self.whole,
                "columns": {name: {"type": kind, "use": use} for name, (kind, use) in self.columns.items()},
                "rejected": {reason: {"rows": rows, "examples": self.examples[reason],
                                      "hint": hint(self.name, reason)}
                             for reason, rows in self.rejected.most_common()},
                "untitled": self.untitled, "lines_of_another_encoding": dict(self.odd),
                "duplicates": self.duplicates,
                **{_MANY[name]: len(ids) for name, ids in self.ids.items()},
                "ratings": [min(self.ratings), max(self.ratings)] if self.ratings else None,
                "first": _moment(self.first), "last": _moment(self.last), "sample": self.sample}


def inspect(config: JobConfig, day: date | None = None) -> dict:
    """Facts of an input: format, tables, orphans, prompts, and a proposed mapping if it is not recognized.

    ``error`` is why the proposed mapping cannot be read; then there are no tables.

    Parameters
    ----------
    day
        Date of the prompts. None: that of the last interaction.
    """
    settings = config.input
    with tempfile.TemporaryDirectory(prefix="dare-job-") as temporary:
        proposal = None
        try:
            facts = _facts(config)
        except DataError as error:
            proposal = _proposal(settings, Path(temporary))
            if proposal is None:
                raise _without_proposal(settings, Path(temporary), error) from error
            _LOG.warning("%s", error)
            config = config.model_copy(update={"input": settings.model_copy(
                update={"format": "auto", "tables": proposal.tables})})
            try:
                facts = _facts(config)
            except DataError as error:
                return {"path": settings.path, "format": None, "tables": {}, "orphans": {}, "unused": {},
                        "prompts": [], "proposal": as_yaml(proposal), "error": str(error)}
        facts |= {"proposal": as_yaml(proposal) if proposal else None, "error": None}
        facts["prompts"] = _prompts(config, day or _last_day(facts, settings.day_boundary))
        return facts


def _proposal(settings: InputSettings, temporary: Path) -> guess.Proposal | None:
    root = source.input_root(settings)
    if settings.tables.set_tables() or root is None:
        return None
    folder = unpack(root, temporary / "archive", source.detected)
    return guess.propose(folder)


def _without_proposal(settings: InputSettings, temporary: Path, error: DataError) -> DataError:
    """What the files have, where their names say nothing; else the error itself."""
    root = source.input_root(settings)
    if settings.tables.set_tables() or root is None or source.detected(root) is not None:
        return error
    candidates, unread = guess.candidate_columns(unpack(root, temporary / "columns", source.detected))
    others = "".join(f". {reason}" for reason in unread[:SHOWN])
    if not candidates:
        return DataError(f"{error}{others}")
    tables = "; ".join(f"{name}: {', '.join(columns[:_MAX_COLUMNS])}"
                       f"{' and others' if len(columns) > _MAX_COLUMNS else ''}"
                       for name, columns in list(candidates.items())[:SHOWN])
    table = next(iter(candidates)) if len(candidates) == 1 and not unread else "FILE"
    return DataError(
        f"input.path = {settings.path}: no table has columns that are known as ids of users and items "
        f"(columns found: {tables}){others}. Name them in a file for --config, as "
        f"docs/how-to/input-tables.md says: input: {{tables: {{interactions: {{path: {table}, columns: "
        f"{{user_id: COLUMN, item_id: COLUMN, timestamp: COLUMN}}}}}}}}; files whose first line is no header "
        f"also need header: [NAME, ...]")


def as_yaml(proposal: guess.Proposal) -> str:
    """``input.tables`` as a settings file, which also has precedence over a fixed ``input.format``."""
    settings = proposal.tables.model_dump(exclude_defaults=True, exclude_none=True)
    notes = "".join(f"# {printable(note)}\n" for note in proposal.notes)
    return notes + yaml.safe_dump({"input": {"format": "auto", "tables": settings}}, sort_keys=False,
                                  allow_unicode=True)


def _facts(config: JobConfig) -> dict:
    with progress.doing("reading the input"), preview_rows.opened_without_spark(config) as opened:
        tables = {name: _table_facts(table) for name, table in opened.tables.items()}
        return {"path": config.input.path, "format": opened.form,
                "tables": {name: table.as_dict() for name, table in tables.items()},
                "orphans": _orphans(tables), "unused": _unused(opened)}


def _unused(opened: InputSource) -> dict[str, list[str]]:
    return {name: unused for name, table in opened.tables.items() if (unused := table.unused())}


def _table_facts(table: Table) -> TableFacts:
    facts = TableFacts(table.name, len(table.files), _uses(table))
    key = COLUMNS[table.name][0]
    for batch in _rows(table, facts):
        problems = batch["problem"]
        for row in batch.filter(problems.is_valid()).to_pylist():
            facts.rejected[row["problem"]] += 1
            examples = facts.examples.setdefault(row["problem"], [])
            if len(examples) < SHOWN:
                examples.append(f"{row['source']}:{row['line']}: {row['raw']}")
        file = batch["source"][0].as_py()
        facts.odd += {file: batch["odd"][0].as_py()}
        facts.repeated += {file: batch["repeated"][0].as_py()}
        facts.met |= batch["met"][0].as_py()
        valid = batch.filter(pc.is_null(problems))
        if len(facts.sample) < SHOWN:
            facts.sample += [{name: row[name] for name in valid.schema.names[:-len(MARKS)]}
                             for row in valid.slice(0, SHOWN - len(facts.sample)).to_pylist()]
        if "title" in valid.schema.names:
            facts.untitled += valid["title"].null_count
        for column, word in _DOUBTFUL:
            if column in valid.schema.names:
                facts.doubtful[column, word] += pc.sum(pc.equal(valid[column], word)).as_py() or 0
        if table.name != "interactions":
            known = facts.ids.setdefault(key, set())
            new = valid[key].to_pylist()
            facts.duplicates += len(new) - len(set(new) - known)
            known.update(new)
            if "attributes" in valid.schema.names:
                facts.valued.update(pc.unique(valid["attributes"].keys).to_pylist())
        else:
            _count_events(facts, valid, table.column("timestamp") is not None)
    if facts.rows > sum(facts.rejected.values()):
        for name in sorted(set(table.attribute_names()) - facts.valued):
            _LOG.warning("%s: no row has a value of the attribute %s that a prompt can show; of an object "
                         "only its name, title or description counts", table.name, name)
        if table.given_attributes() and not facts.valued:
            _LOG.warning("%s: no row of the column attributes has a name and a value, as a map or JSON "
                         "object has; to read other columns: %s.attributes=[NAME, ...]", table.name,
                         table.key)
    for (column, word), rows in facts.doubtful.items():
        if rows > 1:
            _LOG.warning("%s: %d rows have the %s %s, which may stand for a missing value; if it does, leave "
                         "it empty", table.name, rows, column, word)
    if table.shows_all and table.may_lack_keys:
        known = {clean(name) for name in facts.columns}
        facts.columns |= {name: ("text", "attribute") for name in sorted(facts.valued - known)}
    if table.name == "interactions" and table.files and not table.derive and (
            doubt := guess.doubt_of_times(table.settings, table.files[0])):
        _LOG.warning("interactions: %s", doubt)
    doubts.warn_of_mapping(table, facts.rows, facts.first, facts.last, facts.met)
    doubts.warn_of_ratings(table, facts.ratings)
    doubts.warn_of_headers(table, sum(facts.repeated.values()), next(iter(facts.repeated), None))
    doubts.warn_of_encoding(table, sum(facts.odd.values()), next(iter(facts.odd), None))
    return facts


def _rows(table: Table, facts: TableFacts) -> Iterator[pa.RecordBatch]:
    for part in table.parts():
        for batch in table.read(part):
            facts.rows += len(batch)
            yield batch
            if facts.rows >= ROWS:
                facts.whole = False
                return


def _count_events(facts: TableFacts, valid: pa.RecordBatch, timed: bool) -> None:
    for name in ("user_id", "item_id"):
        facts.ids.setdefault(name, set()).update(pc.unique(valid[name]).to_pylist())
    facts.ratings.update(pc.unique(valid["rating"].drop_null()).to_pylist())
    events = list(map(hash, zip(valid["user_id"].to_pylist(), valid["item_id"].to_pylist(),
                                valid["timestamp"].to_pylist(), strict=True)))
    facts.duplicates += len(events) - len(set(events) - facts.events)
    facts.events.update(events)
    if timed and len(valid):
        times = pc.min_max(valid["timestamp"]).as_py()
        facts.first = times["min"] if facts.first is None else min(facts.first, times["min"])
        facts.last = times["max"] if facts.last is None else max(facts.last, times["max"])


def _uses(table: Table) -> dict[str, tuple[str, str]]:
    """Type of each column, and what it is taken for."""
    uses = dict.fromkeys(table.only_filters(), "which rows are read") | {
        table.column(ours): ours for ours in COLUMNS[table.name]}
    unused = set(table.columns).difference(table.shown(table.columns)) if table.shows_all else table.unused()
    kept = "not read" if table.derive is None else "source of other columns"
    return {name: ("text" if kind is None else str(kind),
                   uses.get(name) or (kept if name in unused or table.derive else "attribute"))
            for name, kind in table.columns.items()}


def _orphans(tables: dict[str, TableFacts]) -> dict[str, dict]:
    """Items and users of interactions that the other tables lack."""
    events, orphans = tables["interactions"], {}
    for name, key in (("items", "item_id"), ("users", "user_id")):
        if name in tables and tables[name].whole:
            known = tables[name].ids.get(key, set())
            unknown = sorted(events.ids.get(key, set()) - known)
            orphans[name] = {"unknown": len(unknown), "of": len(events.ids.get(key, set())),
                             "examples": unknown[:SHOWN], "alike": _alike(unknown, known)}
    return orphans


def _alike(unknown: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Some unknown ids, and known ones that differ in leading zeros, case, spaces or composition only."""
    plain = {_plain_id(name): name for name in known}
    pairs = ((name, plain[_plain_id(name)]) for name in unknown if _plain_id(name) in plain)
    return dict(islice(pairs, SHOWN))


def _plain_id(name: str) -> str:
    return unicodedata.normalize("NFC", name).strip().lower().lstrip("0")


def _last_day(facts: dict, zone: str) -> date:
    last = facts["tables"]["interactions"]["last"]
    moment = datetime.fromisoformat(last).replace(tzinfo=UTC) if last else datetime.now(UTC)
    return (moment if zone == "UTC" else moment.astimezone(ZoneInfo(zone))).date()


def _moment(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _prompts(config: JobConfig, day: date) -> list[dict]:
    """Prompts of three users and three items, as the model gets them."""
    try:
        chosen = preview_rows.choose(config, day, 3)
    except DataError as error:
        _LOG.warning("no prompts: %s", error)
        return []
    return [{"entity": row.entity, "id": row.entity_id, "prompt": row.prompt, "error": row.error}
            for row in preview_rows.prompts(chosen, config)]

