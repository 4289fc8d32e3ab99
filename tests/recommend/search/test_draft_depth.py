"""Drafts where they pay, and none where they do not; the recommendations stay the same."""

import numpy as np
import small

from dare_job.decode.trie_search.draft_depth import DraftDepth, LatencyFit
from dare_job.decode.trie_search.drafts import TrieDrafter
from dare_job.decode.trie_search.item_weights import LeafScorer, PopularityWeights
from dare_job.decode.trie_search.search import TopK
from dare_job.decode.trie_search.trie import Vocabulary


class Line(LatencyFit):
    """A known latency of forward passes."""

    def __init__(self, constant: float, per_token: float):
        self._constant, self._per_token = constant, per_token

    def record(self, queries, ms):
        pass

    def ms(self, queries):
        return self._constant + self._per_token * queries


FLAT, STEEP = Line(10, 5e-5), Line(0, 1)  # bound by memory, and proportional to tokens


def searched(line: Line, calls: int = 1):
    ids = small.trie()
    drafter = TrieDrafter(
        LeafScorer(Vocabulary(ids, small.FIRST), PopularityWeights(ids)), ids.length, 10, max_full_level=60
    )
    depth = DraftDepth(ids.length)
    depth.fit = line
    search = TopK(small.target(), ids, small.FIRST, 4, drafter, draft_depth=depth)
    for _ in range(calls):
        found = search.search(small.queries(5))
    plain = TopK(small.target(), ids, small.FIRST, 4).search(small.queries(5))
    np.testing.assert_array_equal(found.leaves, plain.leaves)
    return depth, found


def test_drafts_where_memory_bounds_a_forward():
    depth, found = searched(FLAT)
    assert depth.drafted and not depth.undrafted and (found.forwards < 4).all()


def test_no_drafts_where_latency_grows_with_tokens():
    depth, found = searched(STEEP)
    assert not depth.drafted and depth.undrafted == 3 and (found.forwards == 4).all()


def test_the_latency_fit():
    line = LatencyFit()
    for queries in (40, 4, 5, 38, 6):
        line.record(queries, 3 + 0.5 * queries)
    assert line.ms(10) is None  # too few
    line.record(5, 3 + 0.5 * 5)
    np.testing.assert_allclose([line.ms(10), line.ms(100)], [8, 53])
    alike = LatencyFit()
    for _ in range(20):
        alike.record(30, 5.0)
    assert alike.ms(30) is None
    depth = DraftDepth(4)
    assert depth.depth(np.zeros(1, np.int64), 30, 10) == 0 and not depth.undrafted
    depth.fit = line
    assert depth.expected_savings(np.zeros(1, np.int64), 30, 10).max() <= 0


def test_drafting_is_retried_from_time_to_time():
    depth, _ = searched(STEEP, calls=30)
    assert 1 <= depth.drafted <= 2 and depth.undrafted > 60


def test_a_level_that_is_never_accepted_is_no_longer_drafted():
    depth = DraftDepth(4)
    depth.fit = Line(10, 0.03)
    zero = np.zeros(1, np.int64)
    assert depth.depth(zero, 30, 10) == 3
    for _ in range(60):
        depth.record_accepted(zero, zero + 2, 3)  # the first level passes, the second one does not
    assert depth.depth(zero, 30, 10) == 1
    depth.record_draft(zero, [np.array([90])], 1000.0)
    assert depth.depth(zero, 30, 10) == 0  # drafting takes longer than it saves
