"""How far a draft's beams hold the target's: what strict verification would accept of a first draft.
"""

from collections.abc import Sequence

import numpy as np

from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.trie import NONE, Trie
from dare_job.training.align.branches import USERS, Engine, plain


def prefixes(by: Engine, trie: Trie, histories: Sequence[np.ndarray], width: int) -> np.ndarray:
    """The best nodes int64 (U, L - 1, W) of each level but the last, NONE where there are fewer."""
    search, queries = plain(by, trie, width), [Query(by[1].prompt(history)) for history in histories]
    found = [search.search(queries[at:at + USERS]).prefixes for at in range(0, len(queries), USERS)]
    return np.concatenate(found)[:, :-1]


def accepted_steps(wanted: np.ndarray, drafted: np.ndarray) -> np.ndarray:
    """Of each user the leading levels whose K wanted prefixes are all among the N drafted ones, int64 (U).

    ``prefixes`` of target and draft. At most L - 1: the target's forward gives the last step itself.
    """
    held = (wanted[..., None] == drafted[:, :, None]).any(-1) | (wanted == NONE)
    return np.logical_and.accumulate(held.all(-1), axis=1).sum(1)
