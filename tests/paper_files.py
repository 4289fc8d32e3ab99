"""Small MovieLens-10M and Amazon-Books files in their original formats, and `dare-job data prepare` on them.
"""

import contextlib
import gzip
import io
import json
import random
import sys
import zipfile
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest

from dare_job import cli

MOVIES = ["1::Toy Story (1995)::Animation|Children's|Comedy", "2::Misérables, Les (1995)::Drama",
          "3::Amélie: \"Poulain\" (2001)::Comedy|Romance", "4::Solaris (1972)::Drama|Sci-Fi",
          *[f"{number}::Film {number} (19{number})::Drama" for number in range(20, 32)]]


def ratings(users: int = 60, seed: int = 5) -> list[tuple[str, str, float, int]]:
    """(user, item, stars, second); many share a second, as when a page of films is rated at once."""
    draw = random.Random(seed)
    items = [line.split("::")[0] for line in MOVIES]
    return [(str(user), item, draw.randrange(1, 11) / 2, 1_000_000_000 + 1000 * draw.randrange(150))
            for user in range(1, users + 1) for item in draw.sample(items, draw.randrange(1, len(items) + 1))]


def ten_million(folder: Path, rows: list, more: list[str] = (), encoding: str = "utf-8") -> Path:
    """ml-10m.zip with its folder; whole stars have no decimal point, as in the original."""
    lines = [f"{user}::{item}::{rating:g}::{second}" for user, item, rating, second in rows]
    path = folder / "ml-10m.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ml-10M100K/ratings.dat", "\n".join([*lines, *more]) + "\n")
        archive.writestr("ml-10M100K/movies.dat", ("\n".join(MOVIES) + "\n").encode(encoding))
        archive.writestr("ml-10M100K/README.html", "<html>")
    return path


def text_file(path: Path, lines: list[str]) -> Path:
    """Write a file of these lines, gzipped if its name ends in .gz."""
    text = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def review(user: str, item: str, rating: float | None = 5.0, second: int = 1_400_000_000) -> str:
    """A line of the reviews of 2014 and 2018."""
    row = {"overall": rating, "verified": True, "reviewTime": "05 13, 2014", "reviewerID": user, "asin": item,
           "reviewText": "said \"it\", twice", "unixReviewTime": second}
    return json.dumps({name: value for name, value in row.items() if value is not None})


def product(item: str, title: str = "A title") -> str:
    """A line of the metadata of 2018."""
    return json.dumps({"asin": item, "title": title, "category": ["Books", "Travel"], "brand": "A. Writer"})


def prepare(*arguments) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``dare-job data prepare``."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    line = mock.patch.object(sys, "argv", ["dare-job", "data", "prepare", *map(str, arguments)])
    with line, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue(), err.getvalue()


def prepared(*arguments) -> dict:
    """The JSON in the last line of a command that must succeed."""
    code, out, err = prepare(*arguments)
    if code:
        pytest.fail(err)
    return json.loads(out.splitlines()[-1])


def table(folder: Path, name: str) -> list[dict]:
    return pq.read_table(folder / f"{name}.parquet").to_pylist()
