"""Attribute groups and the router."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools import PoolError
from pools.attributes import AttributeTree, learn_order
from pools.router import pool_name, route

VALUE = st.one_of(st.none(), st.sampled_from(["a", "b", "c/d", "~other", "e=f", ""]))
ROWS = st.lists(st.fixed_dictionaries({"x": VALUE, "y": VALUE, "z": VALUE}), max_size=60).map(
    lambda rows: [(f"u{i}", attributes) for i, attributes in enumerate(rows)])


def counted(rows):
    return [(attributes, 1) for _, attributes in rows]


def sizes(tree):
    """Size of each group by its path."""
    return {"/".join(path) or "all": size for path, (size, split) in tree._trie.items() if split is None}


@given(ROWS, st.integers(1, 20), st.integers(0, 8), st.randoms())
def test_groups_partition_the_entities_with_an_attribute(rows, max_size, min_size, rng):
    tree = AttributeTree.build(counted(rows), ["x", "y", "z"], max_size, min_size)
    groups = {i: tree.group_of(attributes) for i, attributes in rows}
    usable = {i for i, attributes in rows if any(attributes.values())}
    assert {i for i, group in groups.items() if group is not None} == usable
    assert Counter(group for group in groups.values() if group) == Counter(sizes(tree))
    again = rows[:]
    rng.shuffle(again)
    other = AttributeTree.build(counted(again), ["x", "y", "z"], max_size, min_size)
    assert {i: other.group_of(attributes) for i, attributes in rows} == groups
    counts = Counter(tuple(attributes.items()) for _, attributes in rows)
    combinations = ((dict(attributes), count) for attributes, count in counts.items())
    assert AttributeTree.build(combinations, ["x", "y", "z"], max_size, min_size)._trie == tree._trie
    for i, attributes in rows:
        if groups[i] and sizes(tree)[groups[i]] > max_size and min_size < 2:  # no attribute is left
            same = [a for j, a in rows if groups[j] == groups[i]]
            rest = ["x", "y", "z"][groups[i].count("/") + 1 if groups[i] != "all" else 0 :]
            assert all((a[name] or None) == (attributes[name] or None) for a in same for name in rest[-1:])


def test_large_groups_are_split_and_new_values_get_a_group():
    rows = [(f"d{i}", {"genre": "Drama", "age": "old" if i % 3 else "young"}) for i in range(30)]
    rows += [(f"c{i}", {"genre": "Comedy", "age": "old"}) for i in range(12)]
    rows += [(f"r{i}", {"genre": f"rare{i}"}) for i in range(5)] + [("none", {}), ("null", None)]
    tree = AttributeTree.build(counted(rows), ["genre", "age"], max_size=20, min_size=3)
    assert sizes(tree) == {"genre=Comedy": 12, "genre=Drama/age=old": 20, "genre=Drama/age=young": 10,
                           "genre=~other": 5}
    assert tree.group_of({"genre": "never seen"}) == "genre=~other"
    assert tree.group_of({"genre": "Drama", "age": "never seen"}) == "genre=Drama/age=old"
    assert tree.group_of({"age": "old"}) == "genre=~other"
    assert tree.group_of({"height": "1"}) is tree.group_of(None) is None
    assert AttributeTree.build([], ["x"], 5).group_of({"x": "1"}) is None
    for order, size in (([], 5), ("genre", 5), (["genre"], 0)):
        with pytest.raises(PoolError):
            AttributeTree.build(counted(rows), order, size)


def test_learned_order_puts_the_informative_attribute_first():
    rng = random.Random(0)
    rows = [(f"u{i}", {"noise": rng.choice("abc"), "taste": rng.choice("pqr"), "title": f"t{i}"})
            for i in range(400)]
    labels = {i: attributes["taste"] for i, attributes in rows}
    assert learn_order(rows, labels) == ["taste", "noise"]
    assert learn_order(rows[::-1], labels, max_rows=100) == ["taste", "noise"]
    assert learn_order(rows, {}) == []


@pytest.mark.parametrize("interactions, collaborative, attribute, override, pool, reason", [
    (5, "0007", "g=a", "auto", "collaborative-0007", "at least 5 interactions"),
    (4, "0007", "young", "auto", "attribute-young", "fewer than 5 interactions"),
    (9, None, "young", "auto", "attribute-young", "no collaborative group"),
    (9, None, None, "auto", "global", "no collaborative group and no attribute group"),
    (4, "0007", None, "auto", "global", "fewer than 5 interactions and no attribute group"),
    (0, "0007", "young", "collaborative", "collaborative-0007", "users are set to collaborative"),
    (0, None, "young", "collaborative", "attribute-young",
     "users are set to collaborative, but there is no collaborative group"),
    (9, "0007", None, "attribute", "collaborative-0007",
     "users are set to attribute, but there is no attribute group"),
    (9, None, None, "attribute", "global",
     "users are set to attribute, but there is no attribute group and no collaborative group"),
    (9, "0007", "young", "global", "global", "users are set to global"),
])
def test_route(interactions, collaborative, attribute, override, pool, reason):
    found = route("user", interactions, collaborative, attribute, 5, override)
    assert (found.pool, found.pool_kind, found.reason) == (pool, pool.partition("-")[0], reason)


def test_unknown_override_is_refused():
    with pytest.raises(PoolError, match="'best'"):
        route("item", 1, None, None, 5, "best")


@given(st.lists(st.text(max_size=70), unique=True, max_size=20))
def test_pool_names_are_safe_and_distinct(groups):
    names = [pool_name("attribute", group) for group in groups]
    assert len({name.casefold() for name in names}) == len(groups)
    assert all(len(name) <= 80 and name.isascii() and "/" not in name and not name.startswith(".")
               for name in names)
