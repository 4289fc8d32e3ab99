"""Counts the words of texts that are copied from their prompts.

A text copies words where it has RUN or more words in a row that are in its prompt in the same order. If at
least ECHO of the words of a text of MIN_WORDS or more are in its prompt, in any order, all of these count:
that finds short titles in another order. Only words with letters count, in lower case: so titles are a copy
however the list is written. A title or a phrase in a text of other words is none.
"""

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RUN = 16  # words: longer than almost every title
ECHO, MIN_WORDS = 0.9, 8  # prose has words of its own: at most two thirds of them are in the prompt


def copied_words(prompts: list[str], texts: list[str | None]) -> np.ndarray:
    """Return the number of copied words of each text, int64 (N,)."""
    prompts_of, prompt_stops = _words(prompts)
    texts_of, text_stops = _words([text or "" for text in texts])
    codes = pa.concat_arrays([prompts_of, texts_of]).dictionary_encode().indices.to_numpy()
    copied = np.zeros(len(texts), np.int64)
    _count(codes[: len(prompts_of)], prompt_stops, codes[len(prompts_of):], text_stops, copied)
    return copied


def _words(texts: list[str]) -> tuple[pa.Array, np.ndarray]:
    """All words, and the int64 (N,) places where those of each text end."""
    letters = pc.replace_substring_regex(pa.array(texts, pa.string()), r"\PL+", " ")
    words = pc.utf8_split_whitespace(pc.utf8_trim(pc.utf8_lower(letters), " "))
    return words.flatten(), np.cumsum(pc.list_value_length(words).to_numpy(), dtype=np.int64)


@numba.njit(cache=True, nogil=True)
def _count(prompts, prompt_stops, texts, text_stops, copied):
    for row in range(len(copied)):
        prompt = prompts[prompt_stops[row - 1] if row else 0 : prompt_stops[row]]
        text = texts[text_stops[row - 1] if row else 0 : text_stops[row]]
        known = np.count_nonzero(_are_in(text, prompt))
        if len(text) >= MIN_WORDS and known >= ECHO * len(text):
            copied[row] = known
        else:
            copied[row] = _in_runs(_are_in(_hashes(text), _hashes(prompt)))


@numba.njit(cache=True, nogil=True)
def _are_in(values, others):
    """Return whether each value is among others, bool (V,)."""
    found, others = np.zeros(len(values), np.bool_), np.sort(others)
    for i, place in enumerate(np.searchsorted(others, values)):
        found[i] = place < len(others) and others[place] == values[i]
    return found


@numba.njit(cache=True, nogil=True)
def _in_runs(starts):
    """Return the number of words that are in runs of RUN words; starts: whether one begins at each word."""
    words = counted = 0  # words before ``counted`` have been counted
    for i in np.flatnonzero(starts):
        words += i + RUN - max(i, counted)
        counted = i + RUN
    return words


@numba.njit(cache=True, nogil=True)
def _hashes(words):
    """Return a hash of each run of RUN words, int64 (max(0, W - RUN + 1),)."""
    hashes = np.zeros(max(0, len(words) - RUN + 1), np.int64)
    for i in range(len(hashes)):
        for word in words[i : i + RUN]:
            hashes[i] = hashes[i] * np.int64(6364136223846793005) + word + 1
    return hashes
