"""Raw rows of MovieLens files. See ``dare_job/data/readers/movielens.py``."""

import re
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from dare_job.data.readers import movielens as names
from dare_job.data.titles import natural_order
from dare_job.data.without_spark import text, values
from dare_job.data.without_spark.source import Entities, InputTables
from dare_job.errors import DataError
from dare_job.storage.paths import AnyPath

_MOVIE = ["item_id", "title", "genres"]
_Attributes = Callable[[dict], dict[str, str]]


def read(folder: AnyPath) -> InputTables:
    """Raw tables of a MovieLens folder. Raises DataError if files are missing."""
    if (folder / "u.data").exists() or (folder / "u.item").exists():
        return _read_100k(names.require_files(folder, "u.data", "u.item"))
    if (folder / "ratings.csv").exists() or (folder / "movies.csv").exists():
        return _read_latest(names.require_files(folder, "ratings.csv", "movies.csv"))
    names.require_files(folder, "movies.dat")
    file = folder / "users.dat"

    def users() -> Iterator[Entities]:
        fields = ["user_id", "gender", "age", "occupation", "zip"]
        return _entities(_fields(file, "::", fields), "user_id", _user_1m)

    def movies() -> Iterator[Entities]:
        return _entities(_fields(folder / "movies.dat", "::", _MOVIE), "item_id", _movie)

    return InputTables(_interactions_1m(folder), users if file.exists() else None, movies, names.RANGE)


def _fields(path: AnyPath, separator: str, fields: list[str]) -> Iterator[pa.RecordBatch]:
    return (text.split_fields(batch, separator, fields) for batch in text.lines(path))


def _entities(batches: Iterator[pa.RecordBatch], key: str, attributes: _Attributes) -> Iterator[Entities]:
    for batch in batches:
        titles = _natural_titles(batch["title"]) if "title" in batch.schema.names else None
        yield Entities(batch[key], titles, pa.array(np.zeros(len(batch), bool)), batch, attributes)


def _natural_titles(titles: pa.Array) -> pa.Array:
    return pa.array([title and natural_order(title) for title in titles.to_pylist()], pa.string())


def _movie(row: dict) -> dict[str, str]:
    """The first genre (for groups), the other genres, and the year."""
    genres = None if row["genres"] == "(no genres listed)" else row["genres"]
    first, *others = (genres or "").split("|")
    year = re.search(r"\((\d{4})\)\s*$", row["title"] or "", re.ASCII)
    return values.attribute_map([
        ("genre", first or None), ("other_genres", ", ".join(others) or None), ("year", year and year[1])])


def _user_1m(row: dict) -> dict[str, str]:
    return values.attribute_map([
        ("gender", _gender(row["gender"])), ("age", names.AGES.get(row["age"])),
        ("occupation", names.OCCUPATIONS.get(row["occupation"]))])


def _gender(code: str | None) -> str | None:
    return {"F": "female", "M": "male"}.get(code)


def _read_latest(folder: AnyPath) -> InputTables:
    def interactions() -> Iterator[pa.RecordBatch]:
        for batch in _csv(folder / "ratings.csv", ["userId", "movieId", "rating", "timestamp"]):
            yield batch.rename_columns(names.RATING_FIELDS)

    def items() -> Iterator[Entities]:
        movies = _csv(folder / "movies.csv", ["movieId", "title", "genres"])
        return _entities((batch.rename_columns(_MOVIE) for batch in movies),
                         "item_id", _movie)

    return InputTables(interactions, None, items, names.RANGE)


def _csv(path: AnyPath, needed: list[str]) -> Iterator[pa.RecordBatch]:
    found = text.header(path)
    missing = [name for name in needed if name not in found]
    if missing:
        raise DataError(f"{path}: its header line has no column {', '.join(missing)}")
    for batch in text.lines(path, skipped=1):
        yield text.split_csv(batch, found).select(needed)


def _read_100k(folder: AnyPath) -> InputTables:
    fields = ["item_id", "title", "released", "video", "url", *names.GENRES_100K]

    def movie(row: dict) -> dict[str, str]:
        genres = "|".join(name for name in names.GENRES_100K if row[name] == "1")
        return _movie({"title": row["title"], "genres": genres})

    def user(row: dict) -> dict[str, str]:
        return values.attribute_map([("gender", _gender(row["gender"])), ("age", _age_bracket(row["age"])),
                                     ("occupation", row["occupation"])])

    def users() -> Iterator[Entities]:
        rows = _fields(folder / "u.user", "|", ["user_id", "age", "gender", "occupation", "zip"])
        return _entities(rows, "user_id", user)

    def items() -> Iterator[Entities]:
        return _entities(_fields(folder / "u.item", "|", fields), "item_id", movie)

    return InputTables(lambda: _fields(folder / "u.data", "\t", names.RATING_FIELDS),
                        users if (folder / "u.user").exists() else None, items, names.RANGE)


def _age_bracket(years: str | None) -> str | None:
    if years is None or not re.fullmatch(r"[+-]?\d{1,19}", years, re.ASCII):
        return None
    return next((name for low, name in reversed(names.AGES.items()) if int(years) >= int(low) > 1),
                names.AGES["1"])


def _interactions_1m(folder: AnyPath) -> Callable[[], Iterator[pa.RecordBatch]]:
    if (folder / "ratings.dat").exists():
        return lambda: _fields(folder / "ratings.dat", "::", names.RATING_FIELDS)
    for name in names.SEQUENCES:
        if (folder / name).exists():
            names.require_files(folder, "item_list.txt", "user_list.txt")
            return lambda: _sequences(folder, name)
    raise DataError(f"{folder} has movies.dat but no interactions: it needs ratings.dat or "
                    f"{names.SEQUENCES[0]} (or .gz)")


def _sequences(folder: AnyPath, name: str) -> Iterator[pa.RecordBatch]:
    """One row per item of a user's line, with the original ids instead of numbers."""
    users, items = (_originals(folder / file) for file in ("user_list.txt", "item_list.txt"))
    for batch in text.lines(folder / name):
        rows = (line.strip(" ").split() for line in batch.to_pylist())
        yield pa.concat_batches(_sequence(users.get(number), map(items.get, numbers), len(numbers))
                                for number, *numbers in rows)


def _sequence(user: str | None, items: Iterator[str | None], count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([
        pa.array([user] * count, pa.string()), pa.array(list(items), pa.string()),
        pa.nulls(count, pa.float32()), pa.array(np.arange(count), pa.int64())], names=names.RATING_FIELDS)


def _originals(path: AnyPath) -> dict[str, str]:
    """Original ids by number."""
    rows = (line.split(" ") for batch in text.lines(path, skipped=1) for line in batch.to_pylist())
    return {row[1]: row[0] for row in rows if len(row) > 1}
