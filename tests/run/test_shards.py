"""Cutting rows into shards: arithmetic only."""

import random
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st
from run_helpers import place

from dare_job.generate.sharding import Load, assign_pools, assign_waves, shard_count

POOLS = st.dictionaries(
    st.tuples(st.sampled_from(["user", "item"]), st.text("abcdef", min_size=1, max_size=3)),
    st.lists(st.integers(1, 300), min_size=1, max_size=60), min_size=1, max_size=25)  # cost of each row


def placed(pools, shards):
    """(shard, position, cost) of every row by pool, and how many shards there are."""
    where, count = assign_pools({key: Load(len(costs), sum(costs)) for key, costs in pools.items()}, shards)
    rows = {}
    for key, costs in pools.items():
        before = [sum(costs[:rank]) for rank in range(len(costs))]
        rows[key] = [(*place(where[key], rank, before[rank]), cost) for rank, cost in enumerate(costs)]
    return rows, count


def costs_of(rows, count):
    found = [0] * count
    for members in rows.values():
        for shard, _, cost in members:
            found[shard] += cost
    return found


@given(POOLS, st.integers(1, 40))
def test_every_row_has_a_place_of_its_own_in_a_shard_of_one_entity(pools, shards):
    rows, count = placed(pools, shards)
    places = [row[:2] for members in rows.values() for row in members]
    assert len(set(places)) == len(places) and all(0 <= shard < count for shard, _ in places)
    assert all(position >= 0 for _, position in places)
    entities = {(shard, key[0]) for key, members in rows.items() for shard, *_ in members}
    assert len({shard for shard, _ in entities}) == len(entities)
    assert count <= max(shards, len({key[0] for key in pools}))


@given(POOLS, st.integers(1, 40))
def test_a_pool_stays_together_but_where_a_line_is_cut(pools, shards):
    rows, count = placed(pools, shards)
    borders = sum(len({shard for shard, *_ in members}) - 1 for members in rows.values())
    assert borders <= count - len({key[0] for key in pools})
    for members in rows.values():
        runs = [shard for shard, _ in groupby(members, lambda row: row[0])]
        assert len(set(runs)) == len(runs)


@given(POOLS, st.integers(1, 40))
def test_shards_of_an_entity_cost_alike_but_for_moved_cuts_and_one_row(pools, shards):
    rows, count = placed(pools, shards)
    dearest = max(max(costs) for costs in pools.values())
    for entity in {key[0] for key in pools}:
        mine = {key: members for key, members in rows.items() if key[0] == entity}
        numbers = {shard for members in mine.values() for shard, *_ in members}
        whole = sum(sum(costs) for key, costs in pools.items() if key[0] == entity)
        fair = whole / max(1, len(numbers))
        assert max(costs_of(mine, count)) <= 1.25 * fair + dearest


def test_shards_are_numbered_from_the_costliest_down():
    rng = random.Random(0)
    pools = {("user", f"p{n}"): [rng.randint(1, 9) for _ in range(rng.randint(1, 400))] for n in range(40)}
    pools |= {("item", f"p{n}"): [rng.randint(1, 3) for _ in range(100)] for n in range(10)}
    rows, count = placed(pools, 24)
    costs = costs_of(rows, count)
    assert count == 24 and all(costs)
    assert all(later <= before + 18 for before, later in zip(costs, costs[1:], strict=False))  # two rows
    assert max(costs) < 1.3 * sum(costs) / count


def test_a_giant_pool_is_split_by_cost_and_tiny_ones_share():
    pools = {("user", "giant"): [30] * 100 + [1] * 3000}
    pools |= {("user", f"tiny-{n}"): [10] * 10 for n in range(10)}
    rows, count = placed(pools, 7)
    giant = [shard for shard, *_ in rows["user", "giant"]]
    assert count == 7 and len(set(giant)) == 6
    assert max(costs_of(rows, count)) - min(costs_of(rows, count)) <= 30
    assert [giant.count(shard) for shard in dict.fromkeys(giant)][0] < 40  # long texts: few rows
    tiny = {shard for key, members in rows.items() if key[1] != "giant" for shard, *_ in members}
    assert len(tiny) == 1 and not tiny & set(giant)


def test_a_cut_near_a_border_leaves_the_pool_whole():
    pools = {("user", f"p{n}"): [1] * rows for n, rows in enumerate([104, 97, 101, 98])}
    rows, count = placed(pools, 4)
    assert count == 4 and all(len({shard for shard, *_ in members}) == 1 for members in rows.values())


def test_an_entity_type_of_little_work_gets_shards_out_of_the_same_number():
    pools = {("user", "a"): [10] * 1555, ("item", "a"): [10] * 45}
    rows, count = placed(pools, 16)
    assert count == 16 and {shard for shard, *_ in rows["item", "a"]} == {15}
    assert assign_pools({}, 4) == ({}, 0)


def test_automatic_shards_fill_the_slots_and_are_not_below_two_batches():
    assert shard_count(100_000, slots=10, batch_size=8, requested="auto") == 160  # sixteen a slot
    assert shard_count(4000, slots=10, batch_size=8, requested="auto") == 30  # of sixteen batches
    assert shard_count(8000, slots=100, batch_size=8, requested="auto") == 200  # two a slot
    assert shard_count(1600, slots=100, batch_size=8, requested="auto") == 100  # one a slot
    assert shard_count(50, slots=10, batch_size=8, requested="auto") == 3
    assert shard_count(0, slots=10, batch_size=8, requested="auto") == 1
    assert shard_count(50, slots=10, batch_size=8, requested=5) == 5 and shard_count(3, 10, 8, 5) == 3


def test_the_shards_of_a_wave_follow_on_those_before():
    loads = {(1, "user", "a"): Load(4, 40), (2, "user", "a"): Load(10, 100), (2, "item", "a"): Load(2, 9)}
    waves, table = assign_waves(loads, lambda rows: 1 + rows // 6)
    assert waves == [(4, 1), (12, 3)]
    assert {row[:3]: row[7] for row in table} == {
        (1, "user", "a"): [0], (2, "user", "a"): [1, 2], (2, "item", "a"): [3]}
