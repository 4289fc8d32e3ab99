"""Counts the words of texts that are copied from their prompts.

A text copies words where RUN or more of its words in a row stand in its prompt in the same order, with at
most GAP other words of the prompt between two neighbours. So a list of titles is a copy although the prompt
has years, genres and ratings between them, and whatever comes before and after the list in the text. If at
least ECHO of the words of a text of MIN_WORDS or more are in its prompt, in any order, all of these count:
that finds titles in another order. Only words with letters count, in lower case: so titles are a copy
however the list is written. A title or a phrase in a text of other words is none.
"""

import numba
import numpy as np
import pyarrow as pa

from dare_job.data.titles import words

RUN = 16  # words of the text: longer than almost every title
GAP = 12  # words of the prompt: a title's genres and ratings are fewer
ECHO, MIN_WORDS = 0.9, 8  # prose has words of its own: at most two thirds of them are in the prompt


def copied_words(prompts: list[str], texts: list[str | None]) -> np.ndarray:
    """Return the number of copied words of each text, int64 (N,)."""
    prompts_of, prompt_stops = words(prompts)
    texts_of, text_stops = words([text or "" for text in texts])
    codes = pa.concat_arrays([prompts_of, texts_of]).dictionary_encode().indices.to_numpy()
    counts = np.zeros(len(texts), np.int64)
    _fill(codes[: len(prompts_of)], prompt_stops, codes[len(prompts_of):], text_stops, counts)
    return counts


@numba.njit(cache=True, nogil=True)
def _fill(prompts, prompt_stops, texts, text_stops, counts):
    """Count the copied words of each text; words are int32 codes from 0."""
    newest = np.full(max(prompts.max() if len(prompts) else 0, texts.max() if len(texts) else 0) + 1, -1)
    start = text_start = 0
    for row in range(len(counts)):
        prompt, text = prompts[start:prompt_stops[row]], texts[text_start:text_stops[row]]
        start, text_start = prompt_stops[row], text_stops[row]
        earlier = np.empty(len(prompt), np.int64)  # where each word of the prompt stood last; -1: nowhere
        for j, word in enumerate(prompt):
            earlier[j] = newest[word]
            newest[word] = j
        counts[row] = _count(newest, earlier, text)
        for word in prompt:
            newest[word] = -1


@numba.njit(cache=True, nogil=True)
def _count(newest, earlier, text):
    known = 0
    for word in text:
        known += newest[word] >= 0
    if len(text) >= MIN_WORDS and known >= ECHO * len(text):
        return known
    if known < RUN:
        return 0
    chains, copied, last = _longest_chains(newest, earlier, text), 0, len(text)
    for i in range(len(text) - 1, -1, -1):
        if chains[i] >= RUN:  # words i + 1 - chains[i] to i; those from ``last`` on are counted already
            first = i + 1 - chains[i]
            copied += max(0, min(i + 1, last) - first)
            last = min(last, first)
    return copied


@numba.njit(cache=True, nogil=True)
def _longest_chains(newest, earlier, text):
    """Return for each word i of a text the length of the longest chain that it ends, int64 (T,).

    A chain that ends at place j of the prompt goes on from the longest one that word i - 1 ends at one of
    the places j - 1 - GAP to j - 1.
    """
    chains, lengths = np.zeros(len(text), np.int64), np.zeros(len(earlier), np.int64)
    word_of = np.full(len(earlier), -1)  # the last word i at each place of the prompt, with its ``lengths``
    for i, word in enumerate(text):
        j = newest[word]
        while j >= 0:  # from the last place on, so that equal neighbours do not count twice
            longest = 0
            for k in range(max(0, j - 1 - GAP), j):
                if word_of[k] == i - 1:
                    longest = max(longest, lengths[k])
            word_of[j], lengths[j] = i, longest + 1
            chains[i] = max(chains[i], longest + 1)
            j = earlier[j]
    return chains
