"""Cuts tonight's rows into shards of like cost that keep a pool together: arithmetic, no Spark, no files.

The pools of an entity type are laid on a line, each as long as its rows cost, and the line is cut into equal
parts: a giant pool is split, tiny ones share a shard. A cut near a border between two pools moves to it.
Spark starts tasks in the order of their numbers, so shards are numbered from the costliest down, and the task
slot that is free first takes the next.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

PoolKey = tuple[str, str]  # (entity type, pool name)
_USUAL, _MOST = 4, 16  # shards a task slot
_FULL, _LONG = 16, 64  # batches that they have at least, of so many
_LEAST = 2  # batches of a shard
_NEAR = 1 / 8  # of a shard: a cut moves so far to leave a pool whole


@dataclass(frozen=True)
class Load:
    """Rows, and what they cost together (``costs``)."""

    rows: int
    cost: int


@dataclass(frozen=True)
class PoolAssignment:
    """Where the rows of one pool go, by their rank (0, 1, ...) in it and the cost of the pool's rows before.

    A row with ``before`` lies in part (start + before) * parts // length of its line, but not before
    ``first`` nor behind the last of the pool; part first + i is shard ``shards[i]``. The row's position in
    there is its rank and ``head`` in the first part, and ``tail`` in the last of several.
    """

    start: int
    length: int
    parts: int
    first: int
    shards: tuple[int, ...]
    head: int
    tail: int

    def place(self, rank: int, before: int) -> tuple[int, int]:
        """(shard, position) of a row."""
        part = (self.start + before) * self.parts // self.length - self.first
        part = min(max(part, 0), len(self.shards) - 1)
        offset = self.head if part == 0 else self.tail if part == len(self.shards) - 1 else 0
        return self.shards[part], offset + rank


def shard_count(rows: int, slots: int, batch_size: int, asked: int | str) -> int:
    """How many shards so many rows should have; ``asked`` is a number or "auto".

    An engine's slots run empty at the end of each shard, and what one task slot is late by is a share of a
    shard. So there are up to four a task slot of 16 batches or more, and more than four of 64; but at least
    two while those have two batches.
    """
    if asked != "auto":
        return min(asked, max(rows, 1))
    batches = rows // (batch_size * slots)
    a_slot = max(min(batches // _FULL, _USUAL), min(batches // _LONG, _MOST))
    if a_slot >= 2:
        return a_slot * slots
    least = rows // (_LEAST * batch_size)
    return 2 * slots if least >= 2 * slots else slots if least >= slots else max(1, least)


def assign_pools(pools: Mapping[PoolKey, Load], shards: int) -> tuple[dict[PoolKey, PoolAssignment], int]:
    """Assign every pool's rows to about so many shards; returns how many there are, too.

    No shard holds rows of two entity types. The same loads always give the same placement.
    """
    lines = {}
    for entity in {entity for entity, _ in pools}:
        lines[entity] = {key: pools[key] for key in sorted(pools) if key[0] == entity}
    placed: dict[PoolKey, tuple] = {}
    sizes: list[float] = []  # cost of each shard, in the order of making
    for entity, parts in _shards_per_entity({entity: sum(load.cost for load in line.values())
                                 for entity, line in lines.items()}, shards).items():
        line, found = _assign_line(lines[entity], parts)
        placed |= {key: (where, len(sizes)) for key, where in line.items()}
        sizes += found
    order = sorted(range(len(sizes)), key=lambda shard: (-sizes[shard], shard))
    rank = {shard: number for number, shard in enumerate(order)}
    return {key: PoolAssignment(*where[:4], tuple(rank[offset + part] for part in where[4]), *where[5:])
            for key, (where, offset) in placed.items()}, len(sizes)


def _shards_per_entity(costs: Mapping[str, int], shards: int) -> dict[str, int]:
    """Shards of each entity type, by name, chosen so that the costliest shard costs little."""
    left, behind, parts = shards, sum(costs.values()), {}
    for entity in sorted(costs, key=lambda entity: (costs[entity], entity)):
        cost = costs[entity]
        least = max(1, cost * left // behind)
        behind -= cost
        tries = [least, least + 1] if behind else [max(1, left)]
        parts[entity] = min(tries, key=lambda count: max(cost / count, behind / max(0.5, left - count)))
        left -= parts[entity]
    return dict(sorted(parts.items()))


def _assign_line(line: Mapping[PoolKey, Load], parts: int) -> tuple[dict[PoolKey, tuple], list[float]]:
    """Fields of ``Placement`` of one entity type's pools, with parts for shards; cost of each part."""
    *starts, length = accumulate((load.cost for load in line.values()), initial=0)
    cuts = _boundaries(starts, length, parts)
    spans = [(bisect_right(cuts, start), max(bisect_right(cuts, start), bisect_left(cuts, start + load.cost)))
             for start, load in zip(starts, line.values(), strict=True)]
    inside = [0] * parts  # rows of the pools that lie wholly in a part, which stand first in it
    heads = [0] * parts  # rows of the pool that begins in a part and goes on behind it; they stand next
    placed = {}
    for (key, load), start, (first, last) in zip(line.items(), starts, spans, strict=True):
        placed[key] = [start, length, parts, first, range(first, last + 1), inside[first], 0]
        if first == last:
            inside[first] += load.rows
        else:
            heads[first] = load.rows
    for key, (first, last) in zip(line, spans, strict=True):
        if first != last:
            placed[key][5:] = inside[first], inside[last] + heads[last]
    edges = [0, *cuts, length]
    return ({key: tuple(fields) for key, fields in placed.items()},
            [end - start for start, end in zip(edges, edges[1:], strict=False)])


def _boundaries(borders: list[int], length: int, parts: int) -> list[float]:
    """Where a line is cut, ascending: a cut with a border near it lies there."""
    cuts = []
    for part in range(1, parts):
        cut = part * length / parts
        place = bisect_left(borders, cut)
        nearest = min(borders[max(place - 1, 0) : place + 1], key=lambda border: abs(border - cut))
        cuts.append(nearest if abs(nearest - cut) <= _NEAR * length / parts else cut)
    return cuts


def assign_waves(loads: Mapping[tuple[int, str, str], Load],
                number: Callable[[int], int]) -> tuple[list[tuple[int, int]], list[tuple]]:
    """Place the rows of each wave (1, 2, ...), in shards that follow on those of the wave before.

    loads  by (wave, entity type, pool); ``number(rows)`` is how many shards a wave of so many rows has
    Returns (rows, shards) of each wave, and (wave, entity, pool, *Placement) of each load.
    """
    waves: list[tuple[int, int]] = []
    table = []
    for wave in range(1, 1 + max((key[0] for key in loads), default=0)):
        members = {key[1:]: load for key, load in loads.items() if key[0] == wave}
        rows, before = sum(load.rows for load in members.values()), sum(shards for _, shards in waves)
        placements, shards = assign_pools(members, number(rows))
        table += [(wave, *key, where.start, where.length, where.parts, where.first,
                   [before + shard for shard in where.shards], where.head, where.tail)
                  for key, where in placements.items()]
        waves.append((rows, shards))
    return waves, table
