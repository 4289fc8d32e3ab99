"""Counts the words of texts that are copied from their prompts.

A text copies words where it has RUN or more words in a row that are in its prompt in the same order. If at
least ECHO of the words of a text of MIN_WORDS or more are in its prompt, in any order, all of these count:
that finds short titles in another order. Only words with letters count, in lower case: so titles are a copy
however the list is written. A title or a phrase in a text of other words is none.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

RUN = 16  # words: longer than almost every title
ECHO, MIN_WORDS = 0.9, 8  # prose has words of its own: at most two thirds of them are in the prompt
_POWERS = np.cumprod(np.full(RUN, 6364136223846793005))  # int64, which wraps


def copied_words(prompts: list[str], texts: list[str | None]) -> np.ndarray:
    """Return the number of copied words of each text, int64 (N,)."""
    prompts_of, prompt_stops = _words(prompts)
    texts_of, text_stops = _words([text or "" for text in texts])
    codes = pa.concat_arrays([prompts_of, texts_of]).dictionary_encode().indices.to_numpy()
    prompt, text = codes[: len(prompts_of)], codes[len(prompts_of):]
    pairs = zip(np.split(prompt, prompt_stops)[:-1], np.split(text, text_stops)[:-1], strict=True)
    return np.array([_count(*pair) for pair in pairs], np.int64)


def _words(texts: list[str]) -> tuple[pa.Array, np.ndarray]:
    """All words, and the int64 (N,) places where those of each text end."""
    letters = pc.replace_substring_regex(pa.array(texts, pa.string()), r"\PL+", " ")
    words = pc.utf8_split_whitespace(pc.utf8_trim(pc.utf8_lower(letters), " "))
    return words.flatten(), np.cumsum(pc.list_value_length(words).to_numpy(), dtype=np.int64)


def _count(prompt: np.ndarray, text: np.ndarray) -> int:
    known = np.count_nonzero(np.isin(text, prompt))
    if len(text) >= MIN_WORDS and known >= ECHO * len(text):
        return known
    starts = np.isin(_hashes(text), _hashes(prompt))  # of runs that are in the prompt
    return np.count_nonzero(np.convolve(starts, np.ones(RUN))) if starts.any() else 0


def _hashes(words: np.ndarray) -> np.ndarray:
    """Return a hash of each run of RUN words, int64 (max(0, W - RUN + 1),)."""
    if len(words) < RUN:
        return np.zeros(0, np.int64)
    return (sliding_window_view(words, RUN) + np.int64(1)) @ _POWERS
