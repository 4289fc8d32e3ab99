"""Cuts tonight's rows into shards that keep a pool together. Pure arithmetic: no Spark, no files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

PoolKey = tuple[str, str]  # (entity type, pool name)
_FULL = 16  # batches of a shard at whose end few slots stand empty, measured over all its steps


@dataclass(frozen=True)
class Placement:
    """Where the rows of one pool go, by their rank (0, 1, ...) within the pool.

    Rank r lies in piece ``r // piece_rows``; piece i is shard ``shards[i]``, and the row's position there
    is ``offset + r % piece_rows``. A pool in several pieces has its shards to itself (offset 0).
    """

    shards: tuple[int, ...]
    piece_rows: int
    offset: int


def target_rows(rows: int, slots: int, batch_size: int, shards: int | str) -> int:
    """Rows a shard should have: ``shards`` equal ones, or (auto) four a slot, none below two batches.

    An engine's slots run empty at the end of each shard. So a shard has 16 batches, if need be at the price
    of fewer shards, but not fewer than two a slot.
    """
    if shards != "auto":
        return max(1, -(-rows // shards))
    full = min(_FULL * batch_size, -(-rows // (2 * slots)))
    return max(2 * batch_size, full, -(-rows // (4 * slots)))


def place(counts: Mapping[PoolKey, int], target: int) -> dict[PoolKey, Placement]:
    """Assign every pool's rows to shards of about ``target`` rows, numbered from the largest down.

    A pool of more than 1.5 targets is split into equal pieces; smaller ones of the same entity type share
    a shard, in the order of their names. The same counts always give the same placement.
    """
    sizes: list[int] = []  # rows of each shard, in the order of making
    drafts: dict[PoolKey, Placement] = {}
    shared: dict[str, int] = {}  # entity type -> its shard that still takes pools
    for key in sorted(counts):
        rows, entity = counts[key], key[0]
        pieces = max(1, round(rows / target))
        if pieces > 1 or rows > target:
            piece_rows = -(-rows // pieces)
            numbers = range(len(sizes), len(sizes) + -(-rows // piece_rows))
            sizes += [min(piece_rows, rows - start) for start in range(0, rows, piece_rows)]
            drafts[key] = Placement(tuple(numbers), piece_rows, 0)
            continue
        if entity not in shared or sizes[shared[entity]] + rows > target:
            shared[entity] = len(sizes)
            sizes.append(0)
        shard = shared[entity]
        drafts[key] = Placement((shard,), max(1, rows), sizes[shard])
        sizes[shard] += rows
    order = sorted(range(len(sizes)), key=lambda shard: (-sizes[shard], shard))
    number = {shard: rank for rank, shard in enumerate(order)}
    return {key: Placement(tuple(number[shard] for shard in draft.shards), draft.piece_rows, draft.offset)
            for key, draft in drafts.items()}


def place_waves(counts: Mapping[tuple[int, str, str], int],
                target: Callable[[int], int]) -> tuple[list[tuple[int, int]], list[tuple]]:
    """Place the rows of each wave (1, 2, ...), in shards that follow on those of the wave before.

    counts  by (wave, entity type, pool); ``target(rows)`` is the size of a shard in a wave of so many rows
    Returns (rows, shards) of each wave, and (wave, entity, pool, shards, piece_rows, offset) of each count.
    """
    waves: list[tuple[int, int]] = []
    table = []
    for wave in range(1, 1 + max((key[0] for key in counts), default=0)):
        members = {key[1:]: rows for key, rows in counts.items() if key[0] == wave}
        rows, first = sum(members.values()), sum(shards for _, shards in waves)
        placements = place(members, target(rows))
        table += [(wave, *key, [first + shard for shard in where.shards], where.piece_rows, where.offset)
                  for key, where in placements.items()]
        waves.append((rows, len({shard for where in placements.values() for shard in where.shards})))
    return waves, table
