"""The retrieval drafter caches state of rows that stay in the batch, which must not change drafts."""

import numpy as np

from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.request import Request
from pools.draft import DraftSettings
from pools.index import Index

SETTINGS = DraftSettings(threads=1)


def test_rows_that_start_end_and_move_have_the_drafts_of_a_new_drafter():
    rng = np.random.default_rng(3)
    indexes = [Index.build([rng.integers(0, 6, 30, dtype=np.int32) for _ in range(3)], kind=kind)
               for kind in ("own", "attribute", "global") * 4]

    def request(number: int) -> Request:
        chosen = rng.choice(len(indexes), int(rng.integers(0, 4)), replace=False)
        return Request(number, rng.integers(0, 6, int(rng.integers(1, 12)), dtype=np.int32),
                       tuple(indexes[n] for n in chosen))

    drafter, rows, widths = RetrievalDrafter(SETTINGS), [], set()
    for step, count in enumerate((1, 4, 3, 5, 2, 6, 6, 0, 1, 4)):
        staying = [rows[n] for n in rng.permutation(len(rows))[: rng.integers(0, len(rows) + 1)]][:count]
        rows = staying + [request(100 * step + n) for n in range(count - len(staying))]
        rows = [rows[n] for n in rng.permutation(count)]
        widths |= {len(row.pools) for row in rows}
        context = np.zeros((count, 12), np.int32)
        for row, one in enumerate(rows):
            context[row, : len(one.prompt_ids)] = one.prompt_ids
        lengths = np.array([len(one.prompt_ids) for one in rows], np.int32)
        budgets, depths = np.full(count, 9, np.int32), np.full(count, 12, np.int32)
        found = drafter.draft(rows, context, lengths, budgets, depths)
        fresh = RetrievalDrafter(SETTINGS).draft(rows, context, lengths, budgets, depths)
        for ours, theirs in zip(found, fresh, strict=True):
            assert np.array_equal(ours, theirs)
    assert widths == {0, 1, 2, 3}


def test_a_repeated_request_is_two_rows():
    index = Index.build([np.array([1, 2, 3, 4], np.int32)])
    request = Request(0, np.array([1, 2, 3, 1, 2], np.int32), (index,))
    context, one = np.tile(request.prompt_ids, (2, 1)), np.ones(2, np.int32)
    found = RetrievalDrafter(SETTINGS).draft([request] * 2, context, 5 * one, 4 * one, 4 * one)
    assert found.sizes[0] > 0 and np.array_equal(found.tokens[0], found.tokens[1])
