"""Checks of single texts, vectorized over the columns of a batch.

Includes the detection of texts that end in a repeated n-gram, as failed greedy decoding often does.
"""

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.config.settings import GateSettings

SHORT_TOKENS = 8  # a finished text with fewer tokens is too short
# A loop has an n-gram of up to LOOP_NGRAM tokens LOOP_REPEATS times or more, and LOOP_TOKENS tokens or more.
LOOP_NGRAM, LOOP_REPEATS, LOOP_TOKENS = 32, 4, 24
LOOP_TAIL = 8  # fewer other tokens may follow a loop, such as a full stop and the end-of-text token


def loop_lengths(tokens: np.ndarray, offsets: np.ndarray, max_n: int, min_repeats: int,
                 min_tokens: int) -> np.ndarray:
    """Length in tokens of the loop at the end of each text.

    A loop is a run in which every token equals the token n places before it, for an n of at most ``max_n``.
    It has ``min_repeats`` n-grams and ``min_tokens`` tokens or more, and fewer than LOOP_TAIL other tokens
    follow it. If several n match, the smallest one is used.

    Parameters
    ----------
    tokens : (T,) int32, the concatenated texts
    offsets : (N + 1,) int64, start of each text

    Returns
    -------
    (N,) int32, 0 for a text without a loop
    """
    lengths = np.zeros(len(offsets) - 1, np.int32)
    _fill(tokens, offsets, max_n, min_repeats, min_tokens, lengths)
    return lengths


@numba.njit(cache=True, nogil=True)
def _fill(tokens, offsets, max_n, min_repeats, min_tokens, lengths):
    for row in range(len(lengths)):
        begin, end = offsets[row], offsets[row + 1]
        for n in range(1, max_n + 1):
            required = max(min_repeats * n, min_tokens)
            if required > end - begin:
                break
            length = _run_length(tokens, begin, end, n)
            if length >= required:
                lengths[row] = length
                break


@numba.njit(cache=True, nogil=True)
def _run_length(tokens, begin, end, n):
    """Length of the longest run of period n that is followed by fewer than LOOP_TAIL tokens."""
    best, i = 0, end - 1
    while i - n >= begin and end - 1 - i < LOOP_TAIL:
        last = i
        while i - n >= begin and tokens[i] == tokens[i - n]:
            i -= 1
        if last > i:
            best = max(best, last - i + n)
        else:
            i -= 1
    return best


COLUMNS = ("entity_id", "knowledge", "token_ids", "tokens", "finish_reason", "error", "prompt_sha256",
           "relaxed_tokens")

_UNPRINTABLE = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x{9f}\\x{fffd}]"  # control characters and U+FFFD


class Texts:
    """Rows of KNOWLEDGE without ``error``, as columns (N,).

    Attributes
    ----------
    text : valid UTF-8 without nulls
    tokens : number of tokens, including the end-of-text token
    """

    def __init__(self, batch: pa.RecordBatch):
        rows = batch.filter(pc.is_null(batch["error"]))
        self.ids, self._token_ids = rows["entity_id"], rows["token_ids"]
        self.text = _valid_utf8(rows["knowledge"])
        self.tokens, self.relaxed_tokens = _integers(rows["tokens"]), _integers(rows["relaxed_tokens"])
        self._hit_length_limit = pc.fill_null(pc.equal(rows["finish_reason"], "length"), False)
        self.cut_off = _mask(self._hit_length_limit)
        self.empty = _mask(pc.equal(pc.binary_length(pc.utf8_trim_whitespace(self.text)), 0))

    def __len__(self) -> int:
        return len(self.ids)

    def loop_tokens(self) -> np.ndarray:
        """(N,) int32: length in tokens of the loop at the end of each text; 0 without a loop."""
        flat = pc.list_flatten(self._token_ids)
        lengths = pc.fill_null(pc.list_value_length(self._token_ids), 0)
        offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)])
        return loop_lengths(np.asarray(pc.fill_null(flat, -1), np.int32), offsets, LOOP_NGRAM,
                            LOOP_REPEATS, LOOP_TOKENS)

    def unprintable(self) -> np.ndarray:
        """(N,) int64: number of unprintable characters.

        An incomplete character at the end of a text that hit the length limit does not count.
        """
        whole = pc.utf8_rtrim(self.text, characters="\ufffd")
        text = pc.if_else(self._hit_length_limit, whole, self.text)
        return _integers(pc.count_substring_regex(text, _UNPRINTABLE))


def failing_texts(texts: Texts, gates: GateSettings) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each check of single texts: (N,) bool, the rows that fail it, and (N,) the checked values."""
    tokens, cut_off, empty = texts.tokens, texts.cut_off, texts.empty
    loops, unprintable = texts.loop_tokens(), texts.unprintable()
    relaxed = texts.relaxed_tokens / np.maximum(tokens, 1)
    max_relaxed = 1.0 if gates.max_relaxed_share is None else gates.max_relaxed_share
    return {
        "empty": (empty, tokens),
        "short": (~empty & ~cut_off & (tokens < SHORT_TOKENS), tokens),
        "cut_off": (cut_off, tokens),
        "loop": (loops > 0, loops),
        "unprintable": (unprintable > 0, unprintable),
        "relaxed": (relaxed > max_relaxed, relaxed),
    }


def _valid_utf8(text: pa.Array) -> pa.Array:
    """The texts without nulls; invalid bytes, such as lone surrogates, become U+FFFD."""
    try:
        text = text.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raw = text.cast(pa.binary()).to_pylist()
        text = pa.array([value and value.decode("utf-8", "replace") for value in raw], pa.string())
    return pc.fill_null(text, "")


def _integers(column: pa.Array) -> np.ndarray:
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _mask(column: pa.Array) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False)
