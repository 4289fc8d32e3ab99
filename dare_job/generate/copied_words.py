"""Counts the words of texts that are copied from their prompts.

A text copies words where it has RUN or more words in a row that are in its prompt in the same order. Only
words with letters count, in lower case: so titles in the order of the prompt's list are a copy however the
list is written, and a title or a phrase is none.
"""

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RUN = 16  # words: longer than almost every title


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
        prompt = _hashes(prompts[prompt_stops[row - 1] if row else 0 : prompt_stops[row]])
        text = _hashes(texts[text_stops[row - 1] if row else 0 : text_stops[row]])
        prompt.sort()
        counted = 0  # words before this place have been counted
        for i in range(len(text)):
            place = np.searchsorted(prompt, text[i])
            if place < len(prompt) and prompt[place] == text[i]:
                copied[row] += i + RUN - max(i, counted)
                counted = i + RUN


@numba.njit(cache=True, nogil=True)
def _hashes(words):
    """Return a hash of each run of RUN words, int64 (max(0, W - RUN + 1),)."""
    hashes = np.zeros(max(0, len(words) - RUN + 1), np.int64)
    for i in range(len(hashes)):
        for word in words[i : i + RUN]:
            hashes[i] = hashes[i] * np.int64(6364136223846793005) + word + 1
    return hashes
