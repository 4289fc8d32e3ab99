"""A synthetic input of any size, written block by block: users, items, interactions, vectors.

Popular items have most of the interactions, attributes are skewed, vectors lie in clouds of some thousand,
and one user in fifty has an interaction on the second night, which makes the user's text stale.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.data.sample_world.catalogue import ADJECTIVES, NOUNS, PLACES
from dare_job.schemas import ATTRIBUTES, INTERACTIONS, ITEMS, USERS, VECTORS

NIGHTS = (date(2026, 1, 1), date(2026, 1, 2))
STALE_OF = 50  # one user in so many has an event of the second night, one item in so many has no text yet
USERS_AN_ITEM = 10
_BLOCK = 200_000
_DAY_S = 86_400
_CLOUD = 1000  # entities around one centre
_SKEW = 2.5  # item = items * u ** skew: the first of a million has some 0.4 % of all interactions
_WORDS = [[word for group in words.values() for word in group] for words in (ADJECTIVES, NOUNS)]
_USER = {"age": [f"{low}-{low + 9}" for low in range(10, 80, 10)], "country": list(PLACES),
         "gender": ["female", "male"], "occupation": [f"occupation {n}" for n in range(21)]}
_ITEM = {"genre": list(NOUNS), "language": [f"language {n}" for n in range(12)],
         "year": [str(year) for year in range(1960, 2020)]}


def write(folder: Path, users: int, dim: int, seed: int = 0) -> dict:
    """Write ``input/{users,items,interactions}.parquet`` and ``vectors/entity=E``; returns counts."""
    items = items_of(users)
    events = 0
    with _files(folder, {"users": USERS, "interactions": INTERACTIONS}) as files:
        for place, start, count in _blocks(users):
            random = np.random.default_rng([seed, 0, place])
            ids = names("user", np.arange(start, start + count))
            files["users"].write_table(pa.table([ids, _attributes(_USER, count, random)], schema=USERS))
            block = _events(start, count, items, random)
            events += len(block)
            files["interactions"].write_table(block)
    with _files(folder, {"items": ITEMS}) as files:
        for place, start, count in _blocks(items):
            random = np.random.default_rng([seed, 1, place])
            columns = [names("item", np.arange(start, start + count)), _titles(count, random),
                       _attributes(_ITEM, count, random)]
            files["items"].write_table(pa.table(columns, schema=ITEMS))
    for entity, count in (("user", users), ("item", items)):
        _vectors(folder / "vectors" / f"entity={entity}", entity, count, dim, seed)
    return {"users": users, "items": items, "interactions": events}


def items_of(users: int) -> int:
    return max(1, users // USERS_AN_ITEM)


def names(entity: str, numbers: np.ndarray) -> pa.Array:
    """Ids of entities by number, for example u00000007."""
    padded = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(entity[0], padded, "")


def _blocks(count: int) -> Iterator[tuple[int, int, int]]:
    """(number, first, rows) of each block."""
    for place, start in enumerate(range(0, count, _BLOCK)):
        yield place, start, min(_BLOCK, count - start)


class _files(dict):
    """Parquet writers of some tables of the input, closed together."""

    def __init__(self, folder: Path, schemas: dict[str, pa.Schema]):
        super().__init__()
        for name, schema in schemas.items():
            (folder / "input").mkdir(parents=True, exist_ok=True)
            self[name] = pq.ParquetWriter(folder / "input" / f"{name}.parquet", schema, compression="zstd")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for writer in self.values():
            writer.close()


def _attributes(choices: dict[str, list[str]], count: int, random: np.random.Generator) -> pa.Array:
    """A map of every attribute for each row; values at the front of a list are the commoner ones."""
    keys = pa.array(list(choices)).take(pa.array(np.tile(np.arange(len(choices)), count)))
    values = pa.array([value for options in choices.values() for value in options])
    shift = np.cumsum([0, *[len(options) for options in choices.values()]][:-1])
    picked = [(len(options) * random.random(count) ** 1.5).astype(np.int64) for options in choices.values()]
    places = (np.stack(picked, axis=1) + shift).ravel()
    offsets = np.arange(count + 1, dtype=np.int32) * len(choices)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, values.take(pa.array(places))).cast(ATTRIBUTES)


def _titles(count: int, random: np.random.Generator) -> pa.Array:
    """Titles such as Silent Harbor of Lisbon 417."""
    words = [pa.array(options).take(pa.array(random.integers(0, len(options), count)))
             for options in (*_WORDS, list(PLACES))]
    number = pa.array(random.integers(1, 1000, count)).cast(pa.string())
    return pc.binary_join_element_wise(words[0], words[1], "of", words[2], number, " ")


def _events(start: int, count: int, items: int, random: np.random.Generator) -> pa.Table:
    """Five interactions a user on average, one at least, and one more on the second night for some."""
    numbers = np.arange(start, start + count)
    each = 1 + random.poisson(4, count)
    user = np.repeat(numbers, each)
    second = numbers[numbers % STALE_OF == 0]
    end = [int(datetime.combine(night, datetime.min.time(), UTC).timestamp()) + _DAY_S for night in NIGHTS]
    time = np.concatenate([end[0] - 1 - random.integers(0, 200 * _DAY_S, len(user)),
                           end[1] - 1 - random.integers(0, _DAY_S, len(second))])
    user = np.concatenate([user, second])
    popular = (items * random.random(len(user)) ** _SKEW).astype(np.int64)
    item = popular * _coprime(items) % items  # popularity is not in the order of ids
    rating = random.integers(1, 6, len(user)).astype(np.float32)
    order = np.argsort(user, kind="stable")
    return pa.table([names("user", user[order]), names("item", item[order]), rating[order], time[order]],
                    schema=INTERACTIONS)


def _coprime(count: int) -> int:
    """A number that turns 0 ... count - 1 into an order of the same."""
    return next(step for step in range(7919, 7919 + count) if np.gcd(step, count) == 1)


def _vectors(folder: Path, entity: str, count: int, dim: int, seed: int) -> None:
    """Clouds of some thousand points; a coordinate has deviation 1 between centres and 0.5 within a cloud."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = ("user", "item").index(entity)
    centres = np.random.default_rng([seed, 2, kind]).standard_normal(
        (max(1, count // _CLOUD), dim), dtype=np.float32)
    with pq.ParquetWriter(folder / "part-0.parquet", VECTORS, compression="zstd") as file:
        for place, start, rows in _blocks(count):
            random = np.random.default_rng([seed, 3, kind, place])
            points = centres[random.integers(0, len(centres), rows)]
            points += 0.5 * random.standard_normal(points.shape, dtype=np.float32)
            offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * dim)
            lists = pa.ListArray.from_arrays(offsets, pa.array(points.ravel()))
            ids = names(entity, np.arange(start, start + rows))
            file.write_table(pa.table([ids, lists], schema=VECTORS))
