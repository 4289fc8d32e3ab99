"""Partitions pools into shards of similar cost. Pure arithmetic, without Spark or files.

The pools of an entity type are concatenated, each with the cost of its rows as length, and divided into
parts of equal length: large pools are split, small ones share a shard. A boundary close to the border
between two pools moves there. Spark starts tasks in the order of their numbers, so shards are numbered in
descending order of cost, and each free task slot takes the next one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

PoolKey = tuple[str, str]  # (entity type, pool name)
_USUAL_PER_SLOT, _MAX_PER_SLOT = 4, 16  # shards per task slot
_USUAL_BATCHES, _LONG_BATCHES = 16, 64  # minimum batches per shard, up to 4 and up to 16 shards per slot
_MIN_BATCHES = 2  # batches per shard
_NEAR = 1 / 8  # share of a shard by which a boundary may move to keep a pool together


@dataclass(frozen=True)
class Load:
    """Number of rows and their total cost (``row_assignment``)."""

    rows: int
    cost: int


@dataclass(frozen=True)
class PoolAssignment:
    """Maps the rows of one pool to shards.

    A row is identified by its rank (0, 1, ...) in the pool and the total cost ``before`` of the pool's
    preceding rows. It lies in part (start + before) * parts // length, clipped to the pool's parts. Part
    first + i is shard ``shards[i]``. The position in the shard is the rank, plus ``head`` in the pool's first
    part, or plus ``tail`` in the last of several parts.
    """

    start: int
    length: int
    parts: int
    first: int
    shards: tuple[int, ...]
    head: int
    tail: int


def shard_count(rows: int, slots: int, batch_size: int, requested: int | str) -> int:
    """Number of shards for ``rows`` rows; ``requested`` is a number or "auto".

    Batch slots idle at the end of each shard, which favours few shards. The last task finishes late by a
    fraction of a shard, which favours many. So "auto" makes up to four shards per task slot with at least 16
    batches each, more than four only with at least 64 batches, and at least two if they have two batches.
    """
    if requested != "auto":
        return min(requested, max(rows, 1))
    batches = rows // (batch_size * slots)
    per_slot = max(min(batches // _USUAL_BATCHES, _USUAL_PER_SLOT),
                   min(batches // _LONG_BATCHES, _MAX_PER_SLOT))
    if per_slot >= 2:
        return per_slot * slots
    limit = rows // (_MIN_BATCHES * batch_size)
    return 2 * slots if limit >= 2 * slots else slots if limit >= slots else max(1, limit)


def assign_pools(pools: Mapping[PoolKey, Load], shards: int) -> tuple[dict[PoolKey, PoolAssignment], int]:
    """Assign the rows of all pools to about ``shards`` shards; also returns the actual number.

    No shard contains two entity types. The same loads always give the same assignment.
    """
    lines = {}
    for entity in {entity for entity, _ in pools}:
        lines[entity] = {key: pools[key] for key in sorted(pools) if key[0] == entity}
    placed: dict[PoolKey, tuple] = {}
    sizes: list[float] = []  # cost of each shard, in order of creation
    for entity, parts in _shards_per_entity({entity: sum(load.cost for load in line.values())
                                 for entity, line in lines.items()}, shards).items():
        line, costs = _assign_line(lines[entity], parts)
        placed |= {key: (where, len(sizes)) for key, where in line.items()}
        sizes += costs
    order = sorted(range(len(sizes)), key=lambda shard: (-sizes[shard], shard))
    rank = {shard: number for number, shard in enumerate(order)}
    return {key: PoolAssignment(*where[:4], tuple(rank[offset + part] for part in where[4]), *where[5:])
            for key, (where, offset) in placed.items()}, len(sizes)


def _shards_per_entity(costs: Mapping[str, int], shards: int) -> dict[str, int]:
    """Number of shards of each entity type, chosen to minimize the cost of the costliest shard."""
    left, remaining, parts = shards, sum(costs.values()), {}
    for entity in sorted(costs, key=lambda entity: (costs[entity], entity)):
        cost = costs[entity]
        share = max(1, cost * left // remaining)
        remaining -= cost
        counts = [share, share + 1] if remaining else [max(1, left)]
        parts[entity] = min(counts, key=lambda count: max(cost / count, remaining / max(0.5, left - count)))
        left -= parts[entity]
    return dict(sorted(parts.items()))


def _assign_line(line: Mapping[PoolKey, Load], parts: int) -> tuple[dict[PoolKey, tuple], list[float]]:
    """Fields of ``PoolAssignment`` for one entity type, with parts in place of shards; cost of each part."""
    *starts, length = accumulate((load.cost for load in line.values()), initial=0)
    boundaries = _boundaries(starts, length, parts)
    spans = [(bisect_right(boundaries, start),
              max(bisect_right(boundaries, start), bisect_left(boundaries, start + load.cost)))
             for start, load in zip(starts, line.values(), strict=True)]
    inside = [0] * parts  # rows of pools that lie completely in a part; they come first
    heads = [0] * parts  # rows of a pool that begins in a part and continues in the next; they follow
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
    edges = [0, *boundaries, length]
    return ({key: tuple(fields) for key, fields in placed.items()},
            [end - start for start, end in zip(edges, edges[1:], strict=False)])


def _boundaries(borders: list[int], length: int, parts: int) -> list[float]:
    """Boundaries between the parts, ascending. A boundary near a border between pools moves there."""
    boundaries = []
    for part in range(1, parts):
        boundary = part * length / parts
        place = bisect_left(borders, boundary)
        nearest = min(borders[max(place - 1, 0) : place + 1], key=lambda border: abs(border - boundary))
        boundaries.append(nearest if abs(nearest - boundary) <= _NEAR * length / parts else boundary)
    return boundaries


def assign_waves(loads: Mapping[tuple[int, str, str], Load],
                number: Callable[[int], int]) -> tuple[list[tuple[int, int]], list[tuple]]:
    """Assign the rows of each wave (1, 2, ...) to shards, numbered consecutively over the waves.

    Parameters
    ----------
    loads
        By (wave, entity type, pool).
    number
        Number of shards for a wave with the given number of rows.

    Returns
    -------
    waves : list of (int, int)
        Number of rows and of shards of each wave.
    assignment : list of tuple
        (wave, entity, pool, *PoolAssignment) of each load.
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
