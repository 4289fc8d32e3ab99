"""A table of the input: its files, and how their columns become those of the contract.

``Table.read`` runs in Spark's workers and, for previews, in one process. A batch has the contract's columns
and eight more: ``source`` and ``line`` (file name and line or row), ``part`` (number of the piece),
``problem`` (why the row is rejected, or null), ``raw`` (its text if it is rejected), and, for the first row
of a block, ``odd`` (how many of its lines are not of the encoding), ``repeated`` (how many repeat the header)
and ``met`` (bits: which values of ``where`` its rows have).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.config.tables import TableSettings
from dare_job.data.input import formats, times, values
from dare_job.data.input.attributes import attribute_maps, given_attributes
from dare_job.data.input.cleaning import clean_texts
from dare_job.data.input.formats import FileInfo
from dare_job.data.input.scan import RAW_CHARACTERS, Form, Piece, Raw
from dare_job.errors import DareJobError, DataError
from dare_job.schemas import INTERACTIONS, ITEMS, TEXTS, USERS
from dare_job.storage import paths

CONTRACT = {"interactions": INTERACTIONS, "users": USERS, "items": ITEMS}
OF_TEXTS = ("user_texts", "item_texts")
_SCHEMAS = CONTRACT | dict.fromkeys(OF_TEXTS, TEXTS)
COLUMNS = {"interactions": ("user_id", "item_id", "rating", "timestamp"), "users": ("user_id",),
           "items": ("item_id", "title"), **dict.fromkeys(OF_TEXTS, tuple(TEXTS.names))}
_ORDER = 1_000_000_000  # rows that have an order of their own where there are no times
MARKS = [pa.field("source", pa.string()), pa.field("part", pa.int32()), pa.field("line", pa.int64()),
         pa.field("problem", pa.string()), pa.field("raw", pa.string()),
         *[pa.field(count, pa.int64()) for count in ("odd", "repeated", "met")]]
_MAX_TRACKED = 62  # values of where, as bits of an int64
# columns that tools add to what somebody exported
_OF_TOOLS = ("__index_level_", "Unnamed: ", "_hoodie_", "__null_dask_index__", "_rescued_data", "_metadata")


def schema_of(name: str) -> pa.Schema:
    """The contract's columns and those that tell where a row stands and what is wrong with it."""
    return pa.schema([*(item.with_nullable(True) for item in _SCHEMAS[name]), *MARKS])


@dataclass(frozen=True)
class Part:
    """What one task reads: a piece of a file, its number among those of the table, and its form."""

    number: int
    piece: Piece
    form: Form
    source: str  # name of the file, after the folders that give columns
    before: int = 0  # rows of earlier files at most; where there are no times, for the order of the rows


@dataclass(frozen=True)
class Table:
    """One table of the input.

    Attributes
    ----------
    name
        interactions, users or items.
    settings
        Mapping of the columns.
    files
        In order; empty in Spark's workers, which read the parts that they are given.
    derive
        Makes the columns that ``settings`` names of those of the file. It may change the number of rows.
    """

    name: str
    settings: TableSettings
    files: tuple[FileInfo, ...]
    derive: Callable[[Raw], Raw] | None = None
    reads: tuple[str, ...] | None = None  # columns that derive needs; None: those that settings name

    @cached_property
    def key(self) -> str:
        """The setting that holds the mapping, for messages."""
        return f"input.tables.{self.name}"

    @cached_property
    def attributes_setting(self) -> list[str] | dict[str, str] | str | None:
        """The setting ``attributes``."""
        return self.settings.attributes if self.name in ("users", "items") else None

    @property
    def shows_all(self) -> bool:
        """Whether all columns but some become attributes."""
        return self.attributes_setting == "all"

    @cached_property
    def columns(self) -> dict[str, pa.DataType | None]:
        """Columns of all files, with the type of the first file that has each."""
        names = dict.fromkeys(name for file in self.files for name in file.columns)
        return names | {name: kind for file in reversed(self.files) for name, kind in file.columns.items()}

    @cached_property
    def may_lack_keys(self) -> bool:
        """Whether the first objects of a file, whose keys are known, need not have all keys."""
        return any(file.form.kind == "json" for file in self.files)

    def column(self, ours: str) -> str | None:
        """Name of a column in the files; None: they have none."""
        return self.settings.columns.get(ours, ours)

    def unused(self) -> list[str]:
        """Columns that nothing reads."""
        if not self.files or self.derive or self.shows_all:
            return []
        used = {*map(self.column, COLUMNS[self.name]), *self.attribute_names().values(),
                *self.settings.where,
                "attributes"}
        return [name for name in self.columns if name not in used]

    def needed(self) -> list[str]:
        """Columns that reading the table needs."""
        kept = {*map(self.column, COLUMNS[self.name]), *self.settings.where}
        return [name for name in self.columns
                if name in kept or name not in {*self.unused(), *self.left_out()}]

    def left_out(self) -> list[str]:
        """Columns of ``all_but``, and those that differ from them in case only."""
        if not self.shows_all:
            return []
        return list(dict.fromkeys([*self.settings.all_but, *sorted(self._all_but(self.columns))]))

    def _all_but(self, names: Iterable[str]) -> set[str]:
        """The names that ``all_but`` leaves out, in any case."""
        left_out = {name.lower() for name in self.settings.all_but}
        return {name for name in names if name.lower() in left_out}

    def shown(self, names: Iterable[str]) -> list[str]:
        """The columns that ``attributes: all`` shows."""
        others = {*map(self.column, COLUMNS[self.name]), *self._all_but(names)}
        return [name for name in names if name and name not in others and not name.startswith(_OF_TOOLS)]

    def only_filters(self) -> list[str]:
        """Columns of ``where`` that are no attributes."""
        attributes = self.attribute_names().values()
        return [name for name in self.settings.where if name not in attributes
                and (not self.shows_all or name in self.settings.all_but)]

    def given_attributes(self) -> bool:
        """Whether the attributes are those of a column ``attributes``."""
        shows = self.name in ("users", "items") and self.attributes_setting is None
        return shows and "attributes" in self.columns

    def attribute_names(self) -> dict[str, str]:
        """Names of attributes that the settings list, and their columns."""
        listed = self.attributes_setting
        if isinstance(listed, dict):
            return listed
        return {name: name for name in listed} if isinstance(listed, list) else {}

    def parts(self) -> list[Part]:
        """Parts of all files, in order."""
        step = _ORDER // max(1, len(self.files))
        pieces = [(piece, file.form, file.name, at * step) for at, file in enumerate(self.files)
                  for piece in file.pieces]
        return [Part(number, *piece) for number, piece in enumerate(pieces)]

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Batches of a part, with the columns of ``schema_of``.

        Raises
        ------
        DataError
            A file is damaged, or reading it fails for a reason that nobody foresaw.
        """
        try:
            yield from self._batches(part)
        except (DareJobError, OSError, MemoryError):
            raise
        except Exception as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise DataError(f"{part.piece.file} could not be read: {cause}") from error

    def _batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        piece, form = part.piece, part.form
        convert = {"interactions": self._interactions, "users": self._entities, "items": self._entities}.get(
            self.name, self._texts)
        counts: Counter[str] = Counter()
        ours = {self.column(ours): ours for ours in COLUMNS[self.name]}
        for raw in formats.read(piece, form, self._wanted(piece, form), counts, ours):
            if piece.partition:
                raw = replace(raw, columns={**raw.columns, **{
                    name: pa.repeat(pa.scalar(value, pa.string()), len(raw))
                    for name, value in piece.partition.items() if name not in raw.columns}})
            raw, counts["met"] = self._selected(self.derive(raw) if self.derive else raw, piece)
            if len(raw):
                columns, problems = convert(raw)
                if self.name == "interactions" and self.column("timestamp") is None:
                    columns[3] = pc.add(columns[3], part.before)
                yield self._marked(part, raw, columns, problems, counts)
                counts.clear()

    def _wanted(self, piece: Piece, form: Form) -> list[str] | None:
        if self.derive:
            return None if self.reads is None else list(self.reads)
        if self.shows_all:
            return None
        names = [name for name in map(self.column, COLUMNS[self.name]) if name is not None]
        others = [*self.attribute_names().values(), *self.settings.where, "attributes"]
        return list(dict.fromkeys([*names, *others]))

    def _selected(self, raw: Raw, piece: Piece) -> tuple[Raw, int]:
        """The rows of ``where``, and the bits of those of its values that they have.

        Rows with a problem stay, to be rejected.
        """
        where, tracked = self.settings.where, len(self.conditions) <= _MAX_TRACKED
        kept, places = pa.array(np.ones(len(raw), bool)), []
        for name, allowed in where.items():
            column = raw.columns.get(name, pa.nulls(len(raw), pa.string()))
            self._check_booleans(name, column, piece)
            places.append(values.places(column, allowed))
            kept = pc.and_(kept, pc.or_(places[-1].is_valid(), pc.is_valid(raw.problems)))
        if not places:
            return raw, 0
        bits, before = 0 if tracked else -1, 0
        for place, allowed in zip(places, where.values(), strict=True):
            for number in pc.unique(place.filter(kept)).drop_null().to_pylist() if tracked else ():
                bits |= 1 << before + number
            before += len(allowed)
        return chosen(raw, np.flatnonzero(kept.to_numpy(zero_copy_only=False))), bits

    @cached_property
    def conditions(self) -> list[tuple[str, str | bool | int | float]]:
        """Columns and values of ``where``, in the order of the bits of ``met``."""
        return [(name, value) for name, allowed in self.settings.where.items() for value in allowed]

    def _check_booleans(self, name: str, column: pa.Array, piece: Piece) -> None:
        """Refuse booleans that are compared with other text: YAML reads NO as false."""
        if other := values.beside_booleans(column, self.settings.where[name]):
            boolean = next(value for value in self.settings.where[name] if isinstance(value, bool))
            raise DataError(f"{piece.file}: column {name} has text, such as {other}, and "
                            f"{self.key}.where names {values.as_text(boolean)}; YAML reads NO, yes and on "
                            f"as booleans: write such words in quotes")

    def _column(self, raw: Raw, ours: str) -> pa.Array:
        name = self.column(ours)
        return raw.columns[name] if name in raw.columns else pa.nulls(len(raw), pa.string())

    def _ids(self, raw: Raw, ours: str) -> tuple[pa.Array, list[pa.Array]]:
        ids, problem = values.ids(self._column(raw, ours), ours)
        missing = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(ids), ""), True)
        problems = [problem, values.problem_where(missing, f"{ours} is missing")]
        if ours in self.settings.ids:
            translation = self.settings.ids[ours]
            theirs, others = _translation(translation.path, translation.column, translation.to)
            ids = others.take(pc.index_in(ids, theirs))
            file = paths.path(translation.path).name
            problems.append(values.problem_where(pc.is_null(ids), f"{ours} is not in {file}"))
        return ids, problems

    def _interactions(self, raw: Raw) -> tuple[list[pa.Array], list[pa.Array]]:
        (users, of_users), (items, of_items) = self._ids(raw, "user_id"), self._ids(raw, "item_id")
        rating, of_rating = self._ratings(raw)
        time, of_time = self._times(raw)
        return [users, items, rating, time], [*of_users, *of_items, *of_rating, *of_time]

    def _ratings(self, raw: Raw) -> tuple[pa.Array, list[pa.Array]]:
        settings = self.settings
        if settings.rating is not None:
            return pa.repeat(pa.scalar(settings.rating, pa.float32()), len(raw)), []
        rating, problem = values.numbers(self._column(raw, "rating"), "rating", settings.decimal)
        for value in settings.unrated:
            rating = pc.if_else(pc.equal(rating, value), pa.scalar(None, pa.float64()), rating)
        single = rating.cast(pa.float32(), safe=False)  # a large number becomes infinite
        finite = pc.fill_null(pc.is_finite(single), True)
        problems = [problem, values.problem_where(pc.invert(finite), "rating is not a finite number")]
        if settings.rating_range:
            low, high = settings.rating_range
            outside = pc.or_(pc.less(rating, low), pc.greater(rating, high))
            problems.append(values.problem_where(pc.fill_null(outside, False),
                                                 f"rating is outside {low:g} to {high:g}"))
        return single, problems

    def _times(self, raw: Raw) -> tuple[pa.Array, list[pa.Array]]:
        settings = self.settings
        if self.column("timestamp") is None:  # the order of the rows
            return pa.array(raw.lines, pa.int64()), []
        time, problem = times.seconds(self._column(raw, "timestamp"), "timestamp", settings.time,
                                       settings.time_zone)
        outside = pc.or_(pc.less(time, 0), pc.greater(time, times.LATEST_S))
        unit = {None: "in seconds ", "s": "in seconds ", "ms": "in milliseconds "}.get(settings.time, "")
        return time, [problem, values.problem_where(pc.is_null(time), "timestamp is missing"),
                      values.problem_where(pc.fill_null(outside, False),
                                           f"timestamp is not {unit}from 1970 to 2100")]

    def _entities(self, raw: Raw) -> tuple[list[pa.Array], list[pa.Array]]:
        ours, *others = COLUMNS[self.name]
        ids, problems = self._ids(raw, ours)
        columns = [ids]
        for name in others:
            text, problem = values.texts(self._column(raw, name), name)
            columns.append(clean_texts(values.without_missing(text)))
            problems.append(problem)
        return [*columns, self._attributes(raw)], problems

    def _texts(self, raw: Raw) -> tuple[list[pa.Array], list[pa.Array]]:
        ids, problems = self._ids(raw, "entity_id")
        text, problem = values.texts(self._column(raw, "knowledge"), "knowledge")
        return [ids, text], [*problems, problem]

    def _attributes(self, raw: Raw) -> pa.Array:
        if self.attributes_setting is None:
            return given_attributes(raw.columns.get("attributes"), len(raw))
        names = self.attribute_names()
        if self.shows_all:
            names = {name: name for name in self.shown(raw.columns)}
        return attribute_maps({ours: raw.columns[theirs] for ours, theirs in names.items()
                               if theirs in raw.columns}, len(raw))

    def _marked(self, part: Part, raw: Raw, columns: list[pa.Array], problems: list[pa.Array],
                counts: Counter) -> pa.RecordBatch:
        problem = pc.coalesce(raw.problems, *problems)
        texts = [None] * len(raw)
        for row in np.flatnonzero(problem.is_valid().to_numpy(zero_copy_only=False)):
            texts[row] = raw.raw(int(row))[:RAW_CHARACTERS].encode("utf-8", "replace").decode()
        source = pa.repeat(pa.scalar(part.source, pa.string()), len(raw))
        number = pa.repeat(pa.scalar(part.number, pa.int32()), len(raw))
        first = np.arange(len(raw)) == 0
        counted = [np.where(first, counts[name], 0) for name in ("odd", "repeated", "met")]
        marks = [source, number, pa.array(raw.lines, pa.int64()), problem, pa.array(texts, pa.string()),
                 *[pa.array(each, pa.int64()) for each in counted]]
        return pa.RecordBatch.from_arrays([*columns, *marks], schema=schema_of(self.name))


def chosen(raw: Raw, rows: np.ndarray) -> Raw:
    """Rows int64 (k,) of a batch, perhaps several times."""
    places, text = pa.array(rows, pa.int64()), raw.raw
    columns = {name: values.plain(column) for name, column in raw.columns.items()}  # not views: take fails
    return Raw({name: column.take(places) for name, column in columns.items()}, raw.lines[rows],
               lambda row: text(int(rows[row])), raw.problems.take(places))


@lru_cache(maxsize=4)
def _translation(path: str, column: str, to: str) -> tuple[pa.Array, pa.Array]:
    """Ids, and the ids that they stand for."""
    file = paths.path(path)
    form = formats.detect(file)
    info = formats.open_file(file, form, {})
    missing = [name for name in (column, to) if name not in info.types]
    if missing:
        raise DataError(f"{file} has no column {missing[0]} (columns found: {', '.join(info.types)})")
    pairs = [(values.ids(raw.columns[column], column)[0], values.ids(raw.columns[to], to)[0])
             for piece in info.pieces for raw in formats.read(piece, form, (column, to))]
    none = pa.nulls(0, pa.string())  # of a file without rows
    return tuple(pa.concat_arrays([none, *arrays]) for arrays in zip((none, none), *pairs, strict=True))
