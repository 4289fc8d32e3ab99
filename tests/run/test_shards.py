"""Cutting rows into shards: arithmetic only."""

from hypothesis import given
from hypothesis import strategies as st

from dare_job.spark.shards import place, target_rows

COUNTS = st.dictionaries(
    st.tuples(st.sampled_from(["user", "item"]), st.text("abcdef", min_size=1, max_size=3)),
    st.integers(1, 500), max_size=25)


def rows_of(counts, placements):
    """(shard, position) of every row, by pool."""
    return {key: [(place.shards[rank // place.piece_rows], place.offset + rank % place.piece_rows)
                  for rank in range(counts[key])] for key, place in placements.items()}


@given(COUNTS, st.integers(1, 200))
def test_every_row_has_its_own_place_and_shards_have_no_gaps(counts, target):
    rows = rows_of(counts, place(counts, target))
    places = [where for found in rows.values() for where in found]
    assert len(set(places)) == len(places) == sum(counts.values())
    shards = {}
    for shard, position in places:
        shards.setdefault(shard, []).append(position)
    assert sorted(shards) == list(range(len(shards)))
    assert all(sorted(positions) == list(range(len(positions))) for positions in shards.values())


@given(COUNTS, st.integers(1, 200))
def test_shards_are_near_the_target_largest_first_and_of_one_entity(counts, target):
    rows = rows_of(counts, place(counts, target))
    sizes, entities = {}, {}
    for key, found in rows.items():
        for shard, _ in found:
            sizes[shard] = sizes.get(shard, 0) + 1
            entities.setdefault(shard, set()).add(key[0])
    ordered = [sizes[shard] for shard in sorted(sizes)]
    assert ordered == sorted(ordered, reverse=True)
    assert all(size <= max(1.5 * target, 1) + 1 for size in ordered)
    assert all(len(found) == 1 for found in entities.values())


def test_a_giant_pool_is_split_evenly_and_tiny_ones_share():
    counts = {("user", "giant"): 1000, **{("user", f"tiny-{n}"): 10 for n in range(10)}}
    placed = place(counts, 100)
    assert len(placed["user", "giant"].shards) == 10 and placed["user", "giant"].piece_rows == 100
    assert len({placed["user", f"tiny-{n}"].shards for n in range(10)}) == 1


def test_automatic_shards_fill_the_slots_and_are_not_below_two_batches():
    assert target_rows(8000, slots=10, batch_size=8, shards="auto") == 200
    assert target_rows(8000, slots=100, batch_size=8, shards="auto") == 40  # two a slot
    assert target_rows(700, slots=2, batch_size=8, shards="auto") == 128  # 16 batches
    assert target_rows(50, slots=10, batch_size=8, shards="auto") == 16
    assert target_rows(50, slots=10, batch_size=8, shards=5) == 10
    assert target_rows(0, slots=10, batch_size=8, shards=5) == 1
