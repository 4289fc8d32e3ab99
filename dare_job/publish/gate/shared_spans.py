"""Finds long spans of words that a text shares with the text of another row.

A draft from a pool is a text about somebody else. Strict verification takes over only what the model would
have written anyway; relaxed verification takes over more. A long span that two texts share says how much of
one person's text stands in another's.
"""

import numpy as np
import pandas as pd
import pyarrow as pa

from dare_job.data.titles import words

RUN = 24  # words; shorter spans are phrases
_KEPT = 4  # one in so many spans of RUN words is remembered: those with such a hash, in whatever text
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class SharedSpans:
    """Spans of RUN words of all texts so far, as hashes. Memory: 2 bytes per word."""

    def __init__(self):
        self._seen = np.zeros(0, np.uint64)

    def add(self, texts: pa.Array, prompts: pa.Array) -> np.ndarray:
        """Add N texts with the hashes of their prompts.

        Returns the number of words of the longest span that each text shares with an earlier one, int64 (N,);
        0 below RUN + _KEPT - 1, of which some are not seen. Rows with the prompt of an earlier row of the
        batch are left out, since they have the same text.
        """
        all_words, stops = words(texts.to_pylist())
        hashes, starts = _spans(all_words), np.concatenate([[0], stops[:-1]])
        rows = np.searchsorted(stops, np.arange(len(hashes)), side="right")
        inside = np.arange(len(hashes)) + RUN <= stops[rows] if len(hashes) else np.zeros(0, bool)
        first = ~pd.Series(prompts.to_pylist()).duplicated().to_numpy()
        kept = np.flatnonzero(inside & (hashes % np.uint64(_KEPT) == 0) & first[rows]) if len(hashes) else []
        longest = np.zeros(len(texts), np.int64)
        if len(kept):
            shared = self._shared(hashes[kept], rows[kept])
            _note_longest(longest, kept - starts[rows[kept]], rows[kept], shared)
            self._seen = np.union1d(self._seen, hashes[kept])
        return longest

    def _shared(self, hashes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(K,) bool: an earlier text has the span."""
        _, first, back = np.unique(hashes, return_index=True, return_inverse=True)
        return np.isin(hashes, self._seen, assume_unique=False) | (rows[first][back] < rows)


def _spans(all_words: pa.Array) -> np.ndarray:
    """Hashes of all spans of RUN words, uint64 (W - RUN + 1,)."""
    encoded = all_words.dictionary_encode()
    names = encoded.dictionary.to_numpy(zero_copy_only=False)
    of_words = pd.util.hash_array(names, categorize=False)[encoded.indices.to_numpy(zero_copy_only=False)]
    count = max(0, len(of_words) - RUN + 1)
    total = np.zeros(count, np.uint64)
    for place in range(RUN):
        total = total * _FACTOR + of_words[place:place + count]
    return (total ^ (total >> np.uint64(29))) * _FACTOR >> np.uint64(2)


def _note_longest(longest: np.ndarray, places: np.ndarray, rows: np.ndarray, shared: np.ndarray) -> None:
    """Length of the longest run of shared spans of each row, into ``longest`` (N,)."""
    begins = np.flatnonzero(np.diff(np.concatenate([[-1], rows])) | ~shared | np.concatenate([[True],
                                                                                              ~shared[:-1]]))
    ends = np.concatenate([begins[1:], [len(rows)]])
    lengths = places[ends - 1] - places[begins] + RUN
    np.maximum.at(longest, rows[begins], np.where(shared[begins], lengths, 0))
