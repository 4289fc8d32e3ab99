"""Tables of MovieLens in its published formats, and ML-1M as sequences of items without ratings.

| files | set | notes |
| --- | --- | --- |
| ratings.dat movies.dat [users.dat] | 1M, 10M | fields between `::`, Latin-1 or UTF-8 |
| u.data u.item [u.user] | 100K | tabs and bars, Latin-1 |
| ratings.csv movies.csv | 20M, 25M, 32M, latest | quoted csv |
| rating.csv movie.csv | 20M on Kaggle | quoted csv, times as text |
| sequences_full.txt[.gz] item_list.txt user_list.txt | 1M | one line per user, items in time order |

The last one has neither ratings nor times: the timestamp is the position in the user's line. It is used only
if there is movies.dat but no ratings.dat.
"""

import re
from collections.abc import Iterable
from functools import partial

import numpy as np
import pyarrow as pa

from dare_job.config.tables import EntitySettings, InteractionSettings
from dare_job.data.input.delimited import header
from dare_job.data.input.derive import with_columns
from dare_job.data.input.formats import open_file
from dare_job.data.input.scan import Form, Piece, Raw, line_blocks
from dare_job.data.input.table import Table
from dare_job.data.titles import natural_order
from dare_job.errors import DataError
from dare_job.storage.paths import AnyPath

_RATINGS = ("ratings.dat", "u.data", "ratings.csv", "rating.csv")
_ITEMS = ("movies.dat", "u.item", "movies.csv", "movie.csv")
SEQUENCES = ("sequences_full.txt", "sequences_full.txt.gz")
MARKS = (*_RATINGS, *_ITEMS, *SEQUENCES)  # a folder with one of these is MovieLens
RATING_FIELDS = ("user_id", "item_id", "rating", "timestamp")
RANGE = [0.5, 5.0]
_CSV = {"columns": {"user_id": "userId", "item_id": "movieId"}}
_LINE = Form("delimited", "\0", ("line",), "none")  # whole lines

AGES = {"1": "under 18", "18": "18-24", "25": "25-34", "35": "35-44", "45": "45-49", "50": "50-55",
        "56": "56 and over"}
OCCUPATIONS = {str(code): name for code, name in enumerate((
    "other", "academic or educator", "artist", "clerical or admin", "college or graduate student",
    "customer service", "doctor or health care", "executive or managerial", "farmer", "homemaker",
    "K-12 student", "lawyer", "programmer", "retired", "sales or marketing", "scientist", "self-employed",
    "technician or engineer", "tradesman or craftsman", "unemployed", "writer"))}
GENDERS = {"F": "female", "M": "male"}
GENRES_100K = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western")
_OF_MOVIES = {"attributes": ["genre", "other_genres", "year"]}
_OF_USERS = {"attributes": ["gender", "age", "occupation"]}


def is_movielens(folder: AnyPath) -> bool:
    """Whether a folder has a file of MovieLens; other sets have a ratings.csv or movies.csv, too."""
    marks = [mark for mark in MARKS if (folder / mark).exists()]
    if any(not mark.endswith(".csv") for mark in marks):
        return True
    return any(({"movieId"} if mark in _ITEMS else {"userId", "movieId"})
               <= {*header(folder / mark, Form("delimited"))} for mark in marks)


def tables(folder: AnyPath) -> dict[str, Table]:
    """Tables of a MovieLens folder.

    Raises
    ------
    DataError
        Files or columns are missing.
    """
    for ratings, movies in (("ratings.csv", "movies.csv"), ("rating.csv", "movie.csv")):
        if (folder / ratings).exists() or (folder / movies).exists():
            _require(folder, ratings, movies)
            return {"interactions": _table("interactions", folder / ratings, Form("delimited"),
                                           rating_range=RANGE, **_CSV), "items": _movies_csv(folder / movies)}
    if (folder / "u.data").exists() or (folder / "u.item").exists():
        return _tables_100k(_require(folder, "u.data", "u.item"))
    _require(folder, "movies.dat")
    contents = {"interactions": _interactions_1m(folder), "items": _table(
        "items", folder / "movies.dat", _fields("::", "item_id", "title", "genres"), _movies, **_OF_MOVIES)}
    if (folder / "users.dat").exists():
        fields = _fields("::", "user_id", "gender", "age", "occupation", "zip")
        contents["users"] = _table("users", folder / "users.dat", fields, _users_1m, **_OF_USERS)
    return contents


def _fields(separator: str, *names: str) -> Form:
    return Form("delimited", separator, names, "none")


def _table(name: str, file: AnyPath, form: Form, derive=None, **settings) -> Table:
    kind = InteractionSettings if name == "interactions" else EntitySettings
    return Table(name, kind(**settings), (open_file(file, form, {}),), derive)


def _movies_csv(file: AnyPath) -> Table:
    table = _table("items", file, Form("delimited"), _movies, columns={"item_id": "movieId"}, **_OF_MOVIES)
    types = table.files[0].types
    for name in ("movieId", "title", "genres"):
        if name not in types:
            raise DataError(f"{file} has no column {name} (columns found: {', '.join(types)})")
    return table


def _require(folder: AnyPath, *names: str) -> AnyPath:
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        present = ", ".join(sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")))
        raise DataError(f"{folder} is not a complete MovieLens set: {', '.join(missing)} is missing "
                        f"(found {present}). Other tables: `dare-job data inspect` proposes a mapping")
    return folder


def _tables_100k(folder: AnyPath) -> dict[str, Table]:
    items = _fields("|", "item_id", "title", "released", "video", "url", *GENRES_100K)
    contents = {"interactions": _table("interactions", folder / "u.data", _fields("\t", *RATING_FIELDS),
                                      rating_range=RANGE),
               "items": _table("items", folder / "u.item", items, _movies_100k, **_OF_MOVIES)}
    if (folder / "u.user").exists():
        fields = _fields("|", "user_id", "age", "gender", "occupation", "zip")
        contents["users"] = _table("users", folder / "u.user", fields, _users_100k, **_OF_USERS)
    return contents


def _movies(raw: Raw) -> Raw:
    """Titles in natural order; the first genre (for groups), the other genres, and the year."""
    titles = raw.columns["title"].to_pylist()
    listed = [[] if text in (None, "(no genres listed)") else text.split("|")
              for text in raw.columns["genres"].to_pylist()]
    years = [(title and re.search(r"\((\d{4})\)\s*$", title, re.ASCII)) for title in titles]
    return with_columns(
        raw, title=[title and natural_order(title) for title in titles],
        genre=[genres[0] if genres else None for genres in listed],
        other_genres=[", ".join(genres[1:]) or None for genres in listed],
        year=[year and year[1] for year in years])


def _movies_100k(raw: Raw) -> Raw:
    flags = zip(*[raw.columns[name].to_pylist() for name in GENRES_100K], strict=True)
    genres = ["|".join(name for name, flag in zip(GENRES_100K, row, strict=True) if flag == "1") or None
              for row in flags]
    return _movies(with_columns(raw, genres=genres))


def _users_1m(raw: Raw) -> Raw:
    return with_columns(raw, gender=_names(raw, "gender", GENDERS), age=_names(raw, "age", AGES),
                        occupation=_names(raw, "occupation", OCCUPATIONS))


def _users_100k(raw: Raw) -> Raw:
    return with_columns(raw, gender=_names(raw, "gender", GENDERS),
                        age=map(_age_bracket, raw.columns["age"].to_pylist()))


def _names(raw: Raw, column: str, names: dict[str, str]) -> Iterable[str | None]:
    return map(names.get, raw.columns[column].to_pylist())


def _age_bracket(years: str | None) -> str | None:
    """The age bracket of the 1M set for an age in years."""
    if years is None or not re.fullmatch(r"\d{1,3}", years, re.ASCII):
        return None
    return next((name for low, name in reversed(AGES.items()) if int(years) >= int(low) > 1), AGES["1"])


def _interactions_1m(folder: AnyPath) -> Table:
    if (folder / "ratings.dat").exists():
        return _table("interactions", folder / "ratings.dat", _fields("::", *RATING_FIELDS),
                      rating_range=RANGE)
    for name in SEQUENCES:
        if (folder / name).exists():
            _require(folder, "item_list.txt", "user_list.txt")
            users, items = (_originals(folder / file) for file in ("user_list.txt", "item_list.txt"))
            return _table("interactions", folder / name, _LINE, partial(_sequences, users=users, items=items))
    raise DataError(f"{folder} has movies.dat but no interactions: it needs ratings.dat or {SEQUENCES[0]} "
                    "(or .gz)")


def _originals(path: AnyPath) -> dict[str, str]:
    """Original ids by number."""
    rows = [line.split(" ") for _, lines in line_blocks(Piece(str(path)), None) for line in lines]
    return {row[1]: row[0] for row in rows[1:] if len(row) > 1}


def _sequences(raw: Raw, users: dict[str, str], items: dict[str, str]) -> Raw:
    """One row per item of a user's line, with the original ids instead of numbers."""
    lines = [line.split() for line in raw.columns["line"].to_pylist()]
    rows = [row for row, (_, *numbers) in enumerate(lines) for _ in numbers]
    pairs = [(user, number) for user, *numbers in lines for number in numbers]
    places = [place for _, *numbers in lines for place in range(len(numbers))]
    return Raw({"user_id": pa.array([users.get(user) for user, _ in pairs], pa.string()),
                "item_id": pa.array([items.get(item) for _, item in pairs], pa.string()),
                "timestamp": pa.array(places, pa.int64())},
               raw.lines[np.array(rows, np.int64)], lambda row: " ".join(pairs[row]),
               pa.nulls(len(rows), pa.string()))
