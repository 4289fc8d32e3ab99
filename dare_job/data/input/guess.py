"""Which files and columns are probably which of ours, by their names and first values."""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import filter as matching
from glob import escape

import pyarrow as pa
import pyarrow.compute as pc

from dare_job.config.tables import EntitySettings, InputTables, InteractionSettings
from dare_job.data.input import files, formats, lakes, times, values
from dare_job.data.input.attributes import holds_attributes
from dare_job.data.input.formats import FileInfo
from dare_job.errors import ConfigError, DataError
from dare_job.storage.paths import AnyPath

_LOG = logging.getLogger("dare_job")
_NAMES = {
    "user_id": ("user_id", "user", "uid", "customer_id", "customer", "reviewer_id", "member_id", "visitor_id",
                "account_id", "person_id", "client_id", "profile_id", "username", "steam_id", "cust_id",
                "cust", "client", "consumer_id", "listener_id", "viewer_id", "session_id"),
    "item_id": ("item_id", "item", "iid", "movie_id", "product_id", "book_id", "article_id", "video_id",
                "song_id",
                "track_id", "news_id", "business_id", "artist_id", "app_id", "game_id", "parent_asin", "asin",
                "isbn", "content_id", "sku", "listing_id", "recipe_id", "post_id", "doc_id", "film_id",
                "sku_id", "show_id", "id"),
    "rating": ("rating", "stars", "score", "overall", "book_rating", "review_score", "star_rating", "label",
               "watch_ratio",
               "rate", "playtime", "playtime_forever", "play_hours", "weight"),
    "timestamp": ("timestamp", "time", "event_time", "datetime", "date", "created_at", "ts",
                  "unix_review_time",
                  "t_dat", "date_added", "created", "event_timestamp", "review_date", "event_date",
                  "occurred_at"),
    "title": ("title", "name", "item_name", "movie_title", "book_title", "product_name", "prod_name",
              "film_title",
              "product_title", "movie_name", "track_name", "song_name", "app_name", "caption",
              "original_title",
              "headline", "label"),
}
_DATES = ("%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%m-%d-%Y", "%d-%m-%Y",
          "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%Y/%m/%d")
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", ", %H:%M:%S", ", %I:%M:%S %p")
_TIME_FORMATS = (*(date + clock for date in _DATES for clock in _CLOCKS), "%a %b %d %H:%M:%S %z %Y",
                 "%d/%b/%Y:%H:%M:%S %z", "%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S GMT")
_DAYS = ("%Y%m%d", "%Y%m%d%H")
_DIGITS = ("%Y%m%d%H%M%S", "%Y%m%d%H%M")  # longer than seconds and shorter than milliseconds of today
_OF_EVENT = {"event", "eventtype", "eventname", "action", "actiontype", "behavior", "behaviour",
             "behaviortype"}
_MAX_EVENTS = 20
_HAS = {"interactions": "users and items", "items": "ids and titles", "users": "ids"}  # by table
_NUMBER_AT_END, _NUMBER_AT_START = re.compile(r"[0-9][0-9_.-]*$"), re.compile(r"^[0-9_.-]*[0-9]")
_TEXTS = 300  # that are tried with each format of time
_OF_TIME = re.compile(r"(_at|_on|_ts|time|date|when)$", re.IGNORECASE)
EARLY_S = 631_152_000  # 1990: older interactions have times of another unit
_UNITS = ((10**17, "ns"), (10**14, "us"), (10**11, "ms"))  # smallest number of today's times in a unit
_ATTRIBUTE_CHARACTERS = 60  # mean length of values that may be attributes
_NO_ATTRIBUTE = re.compile(r"url|image|img|link|poster|email|phone|address|password|hash|token|deleted|"
                           r"created|updated|(^|_)id$|(?-i:[a-z]Id$)", re.IGNORECASE)


def column_for(ours: str, columns: Iterable[str]) -> str | None:
    """The column that is probably ours; None if none is."""
    plain: dict[str, str] = {}
    for name in columns:
        plain.setdefault(_plain(name), name)
    return next((plain[key] for alias in _NAMES[ours] if (key := _plain(alias)) in plain), None)


def _plain(name: str) -> str:
    """Lower case letters and digits, without the type of RecBole's columns."""
    return re.sub(r"[\W_]+", "", name.partition(":")[0].lower())


@dataclass(frozen=True)
class Proposal:
    """Tables, and what their reader should check about them."""

    tables: InputTables
    notes: list[str]


def propose(root: AnyPath) -> Proposal | None:
    """Tables of a folder or file by the names of their columns; None if none has users and items."""
    folder = files.single_subfolder(root)
    above = str(folder)[len(str(root)):].strip("/")  # a folder that is all that there is
    candidates = {"/".join(filter(None, [above if (folder / name).exists() else escape(above), name])): info
                  for name, info in _candidates(folder)}
    titled = [name for name, info in candidates.items() if column_for("title", info.types)]
    events = {name: ids for name, info in candidates.items()
              if (ids := _ids(info.types, [other for other in titled if other != name]))}
    if not events:
        return None
    name = max(events, key=lambda each: (column_for("timestamp", candidates[each].types) is not None,
                                         column_for("rating", candidates[each].types) is not None,
                                         sum(piece.size for piece in candidates[each].pieces)))
    user, item = events[name]
    rest = {other: info for other, info in candidates.items() if other not in events}
    interactions = _interactions(None if folder.is_file() else name, candidates[name], user, item)
    tables: dict = {"interactions": interactions}
    unread = {"interactions": [other for other in events if other != name]}
    for table, key, theirs in (("items", "item_id", item), ("users", "user_id", user)):
        if sources := _describing(rest, key, theirs):
            tables[table], unread[table] = _entities(sources[0], rest[sources[0]], key, theirs), sources[1:]
    others = [f"{table}: {other} has {_HAS[table]}, too, and is not read" for table, names in unread.items()
              for other in names]
    for note in others:
        _LOG.warning("%s", note)
    return Proposal(InputTables(**tables), [*_notes(interactions, candidates[name]), *others])


def _notes(settings: InteractionSettings, info: FileInfo) -> Iterable[str]:
    """What a proposal for interactions cannot know."""
    if doubt := doubt_of_times(settings, info):
        yield f"interactions: {doubt}"
    for name in info.types:
        if _plain(name) in _OF_EVENT:
            kinds = sorted(set(values.texts(first_values(info, name)[name], "")[0].drop_null().to_pylist()))
            if 1 < len(kinds) <= _MAX_EVENTS:
                yield f"interactions: all rows are read; where: {{{name}: [...]}} reads only some of " \
                    f"{', '.join(kinds)}"


def doubt_of_times(settings: InteractionSettings, info: FileInfo) -> str | None:
    """Why times may be others than they are read as, by the first ones of a file; None: they are not."""
    time = settings.columns.get("timestamp", "timestamp")
    if time is None:
        return "no column has times: the order of the rows counts as that of the times"
    other = time in info.types and _other_order(settings.time, first_values(info, time)[time])
    return f"the first times fit {other} as well as {settings.time}: which comes first, the day or the " \
        "month?" if other else None


def candidate_columns(root: AnyPath) -> tuple[dict[str, list[str]], list[str]]:
    """Columns of each file and folder that could be a table, and why others cannot be read."""
    unread: list[str] = []
    candidates = _candidates(files.single_subfolder(root), unread)
    return {name: list(info.types) for name, info in candidates}, unread


def _candidates(folder: AnyPath, unread: list[str] | None = None) -> Iterable[tuple[str, FileInfo]]:
    """Path and first file of each table that a folder may have: a file, a folder, or files with equal
    columns. ``unread`` gets what is wrong with others."""
    if folder.is_dir() and files.lake_format(folder):
        yield from _lake(".", folder)
        return
    entries = [folder] if folder.is_file() else sorted(folder.iterdir(), key=lambda entry: entry.name)
    alike: dict[tuple, list[tuple[str, FileInfo]]] = {}
    for entry in entries:
        if files.hidden(entry.name):
            continue
        if files.lake_format(entry):
            yield from _lake(entry.name, entry)
            continue
        try:
            file = files.find(entry, None, "input.path")[0][0]
            info = formats.open_file(file, formats.detect(file), {})
        except DataError as error:
            if unread is not None:
                unread.append(str(error))
            continue
        alike.setdefault((entry.is_dir(), info.form.kind, *info.types), []).append(
            (entry.name, info))
    for group in alike.values():
        yield from _one_table(group, [entry.name for entry in entries])


def _one_table(group: list[tuple[str, FileInfo]], beside: list[str]) -> Iterable[tuple[str, FileInfo]]:
    """Files or folders with equal columns, by a pattern if it names no other."""
    names = [name for name, _ in group]
    others: list[str] = []
    for pattern in names if len(names) == 1 else _patterns(names):
        others = [name for name in matching(beside, pattern) if name not in names and not files.hidden(name)]
        if len(names) == 1 or not others:
            yield pattern, group[0][1]
            return
    _LOG.warning("%s have the same columns, but the pattern %s names %s, too: only one of them is proposed. "
                 "To read them all, move them to a folder of their own and name it in the path",
                 ", ".join(names), pattern, ", ".join(others))
    yield from group


def _lake(name: str, folder: AnyPath) -> Iterable[tuple[str, FileInfo]]:
    """A table of Delta; others have no file whose columns are those of the table."""
    kind = files.lake_format(folder)
    if kind == "delta":
        with suppress(DataError, ConfigError):
            yield name, lakes.lake_files("", folder, kind, None, lambda info: list(info.types))[-1]


def _patterns(names: list[str]) -> list[str]:
    """Patterns of names that begin and end alike, such as part-*.csv; any name if they do not.

    The first one takes any numbers where the numbers differ: after dt=2026-01-01 comes dt=2027-01-01.
    """
    begin = os.path.commonprefix(names)
    end = os.path.commonprefix([name[len(begin):][::-1] for name in names])[::-1]
    numbered = any(name[len(begin):len(begin) + 1].isdigit() for name in names)
    word = _NUMBER_AT_END.sub("", begin) if numbered else begin
    number = "[0-9]" if word != begin else ""
    return [f"{escape(word)}{number}*{escape(_NUMBER_AT_START.sub('', end))}",
            f"{escape(begin)}*{escape(end)}"]


def _ids(columns: Iterable[str], described: Iterable[str]) -> tuple[str, str] | None:
    """Columns of users and items; of items also the only one such as anime_id, beside a table anime.csv.

    A column id is the number of the row itself.

    Parameters
    ----------
    described
        Names of other tables with titles.
    """
    names = list(columns)
    user = column_for("user_id", names)
    rest = [name for name in names if name != user and _plain(name) != "id"]
    named = [name for name in rest if any(_named_after(table, name) for table in described)]
    item = column_for("item_id", rest) or (named[0] if len(named) == 1 else None)
    return (user, item) if user and item else None


def _named_after(table: str, column: str) -> bool:
    """Whether a table has the name of what a column has ids of, such as stories_2024.csv of story_id."""
    thing = _plain(column).removesuffix("id")
    named = _plain(table.rpartition("/")[2].partition(".")[0]).rstrip("0123456789")
    return len(thing) > 1 and named in (thing, f"{thing}s", f"{thing[:-1]}ies")


def _interactions(path: str | None, info: FileInfo, user: str, item: str) -> InteractionSettings:
    time = column_for("timestamp", info.types) or next(
        (name for name in filter(_OF_TIME.search, info.types) if _is_recent(info, name)), None)
    columns = _renamed({"user_id": user, "item_id": item, "rating": column_for("rating", info.types),
                        "timestamp": time})
    unit = time_format(first_values(info, time)[time]) if time else None
    rating = columns.get("rating", "rating")
    decimal = _decimal(first_values(info, rating)[rating]) if rating in info.types else "point"
    return InteractionSettings(path=path, columns=columns, time=unit, decimal=decimal)


def _is_recent(info: FileInfo, name: str) -> bool:
    """Whether a column has times that may be of interactions, not numbers as small as a duration."""
    column = first_values(info, name)[name]
    latest = pc.max(times.seconds(column, "timestamp", time_format(column), "UTC")[0]).as_py()
    return latest is None or latest >= EARLY_S


def _decimal(column: pa.Array) -> str:
    """The decimal mark of most numbers of a column."""
    valid = {mark: values.numbers(column, "rating", mark)[1].null_count for mark in ("point", "comma")}
    return max(valid, key=valid.get)


def _describing(candidates: Mapping[str, FileInfo], key: str, theirs: str) -> list[str]:
    """The tables that may describe users or items, all as probably: they have ids, and of items titles.

    Those that name the ids as the interactions do come first, then those that are named after the ids.
    """
    ranks: dict[tuple, list[str]] = {}
    for name, info in candidates.items():
        columns = _described(info, key, theirs)
        if None not in columns.values():
            rank = columns[key] != theirs, not _named_after(name, theirs)
            ranks.setdefault(rank, []).append(name)
    return ranks[min(ranks)] if ranks else []


def _described(info: FileInfo, key: str, theirs: str) -> dict[str, str | None]:
    """Columns of the ids and, of items, of the titles."""
    ids = theirs if theirs in info.types else column_for(key, info.types)
    title = {"title": column_for("title", [name for name in info.types if name != ids])}
    return {key: ids} | (title if key == "item_id" else {})


def _entities(name: str, info: FileInfo, key: str, theirs: str) -> EntitySettings:
    columns = _described(info, key, theirs)
    has_attributes = "attributes" in info.types and holds_attributes(info.types["attributes"])
    listed = attribute_columns(info, columns.values()) if key == "item_id" and not has_attributes else None
    return EntitySettings(path=name, columns=_renamed(columns), attributes=listed or None)


def _renamed(columns: Mapping[str, str | None]) -> dict[str, str | None]:
    """Without names that are ours already."""
    return {ours: theirs for ours, theirs in columns.items() if ours != theirs}


def first_values(info: FileInfo, *columns: str) -> dict[str, pa.Array]:
    """The first thousand values of columns."""
    raw = next(formats.read(info.pieces[0], info.form, list(columns)), None) if info.pieces else None
    return {name: raw.columns[name].slice(0, 1000) if raw else pa.nulls(0, pa.string()) for name in columns}


def attribute_columns(info: FileInfo, others: Iterable[str]) -> list[str]:
    """Columns of short plain values that are no ids, addresses or links."""
    names = [name for name in info.types if name not in others and not _NO_ATTRIBUTE.search(name)]
    texts = {name: values.texts(column, name)[0] for name, column in first_values(info, *names).items()
             if not pa.types.is_map(column.type)}
    return [name for name, column in texts.items()
            if (pc.mean(pc.utf8_length(column)).as_py() or _ATTRIBUTE_CHARACTERS) < _ATTRIBUTE_CHARACTERS]


def time_format(column: pa.Array) -> str | None:
    """The setting ``time`` that reads most of a column of times: None if it needs none, or none does."""
    column = values.plain(column)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return None
    dates = times.seconds(column, "timestamp", None, "UTC")[1]
    short = (pc.sum(pc.match_substring(dates, "is a date such as")).as_py() or 0) > len(column) / 2
    for form in _DAYS if short else _DIGITS:
        if 2 * times.seconds(column, "timestamp", form, "UTC")[0].null_count < len(column):
            return form
    number, problem = values.numbers(column, "timestamp")
    if 2 * problem.null_count > len(problem):
        largest = pc.max(number).as_py() or 0
        return next((unit for threshold, unit in _UNITS if largest >= threshold), None)
    texts = _texts(column)
    fits = {form: sum(_parses(text, form) for text in texts) for form in (None, *_TIME_FORMATS)}
    best = max(fits, key=fits.get)
    return best if 2 * fits[best] > len(texts) else None


def _other_order(form: str | None, column: pa.Array) -> str | None:
    """The format with day and month exchanged, if it reads all these times as well."""
    other = "%m".join(part.replace("%m", "%d") for part in (form or "").split("%d"))
    texts = [text for text in _texts(column) if _parses(text, form)] if other in _TIME_FORMATS else []
    return other if texts and other != form and all(_parses(text, other) for text in texts) else None


def _texts(column: pa.Array) -> list[str]:
    """Some different texts of a column."""
    texts = map(str.strip, values.texts(column, "")[0].drop_null().to_pylist())
    return list(dict.fromkeys(filter(None, texts)))[:_TEXTS]


def _parses(text: str, form: str | None) -> bool:
    try:
        times.iso_time(text) if form is None else datetime.strptime(text, form)
        return True
    except ValueError:
        return False
