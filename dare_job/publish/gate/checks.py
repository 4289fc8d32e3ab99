"""A batch of tonight's texts, and which of its rows each check counts: whole columns, no Python a row.

Texts whose end repeats the same n-gram over and over: what greedy decoding falls into when it fails.
"""

from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.config.settings import GateSettings

SHORT_TOKENS = 8  # a text that ended by itself with fewer is too short
# A loop repeats up to LOOP_NGRAM tokens at least LOOP_REPEATS times, over at least LOOP_TOKENS tokens.
LOOP_NGRAM, LOOP_REPEATS, LOOP_TOKENS = 32, 4, 24
AFTER = 8  # other tokens that may follow a loop: a full stop, an end of text


def looping(tokens: np.ndarray, offsets: np.ndarray, longest: int, repeats: int, least: int) -> np.ndarray:
    """Tokens of the loop at each text's end, 0 where there is none.

    A text loops where, for some n <= ``longest``, a run of it equals itself moved by n tokens, holds its
    n-gram ``repeats`` times or more and ``least`` tokens or more, and fewer than AFTER other tokens follow.
    Of several n the smallest counts, with the whole of its run.

    tokens   (T,) int32, the texts one behind the other
    offsets  (N + 1,) int64, where each begins
    """
    found = np.zeros(len(offsets) - 1, np.int32)
    _fill(tokens, offsets, longest, repeats, least, found)
    return found


@numba.njit(cache=True, nogil=True)
def _fill(tokens, offsets, longest, repeats, least, found):
    for row in range(len(found)):
        begin, end = offsets[row], offsets[row + 1]
        for n in range(1, longest + 1):
            wanted = max(repeats * n, least)
            if wanted > end - begin:
                break
            covered = _run(tokens, begin, end, n)
            if covered >= wanted:
                found[row] = covered
                break


@numba.njit(cache=True, nogil=True)
def _run(tokens, begin, end, n):
    """Length of the longest run of period n that fewer than AFTER tokens follow."""
    best, i = 0, end - 1
    while i - n >= begin and end - 1 - i < AFTER:
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

_UNPRINTABLE = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x{9f}\\x{fffd}]"  # control characters, and what no text was


@dataclass(frozen=True)
class Texts:
    """Rows of KNOWLEDGE without ``error``, as Arrow columns."""

    rows: pa.RecordBatch

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Texts":
        return cls(batch.filter(pc.is_null(batch["error"])))

    def __len__(self) -> int:
        return self.rows.num_rows

    @property
    def ids(self) -> pa.Array:
        return self.rows["entity_id"]

    @cached_property
    def text(self) -> pa.Array:
        """The texts, none of them null, in valid UTF-8: what is none (a lone surrogate, say) is U+FFFD."""
        text = self.rows["knowledge"]
        try:
            text = text.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            raw = text.cast(pa.binary()).to_pylist()
            text = pa.array([word and word.decode("utf-8", "replace") for word in raw], pa.string())
        return pc.fill_null(text, "")

    @cached_property
    def tokens(self) -> np.ndarray:
        """(N,) int64: tokens of each text, an end of text counted."""
        return _numbers(self.rows["tokens"])

    @cached_property
    def relaxed_tokens(self) -> np.ndarray:
        return _numbers(self.rows["relaxed_tokens"])

    @cached_property
    def _ended_by_length(self) -> pa.Array:
        return pc.fill_null(pc.equal(self.rows["finish_reason"], "length"), False)

    @cached_property
    def cut_off(self) -> np.ndarray:
        return _mask(self._ended_by_length)

    @cached_property
    def empty(self) -> np.ndarray:
        return _mask(pc.equal(pc.binary_length(pc.utf8_trim_whitespace(self.text)), 0))

    def loop_tokens(self) -> np.ndarray:
        """(N,) int32: tokens of the loop at each text's end, 0: none."""
        ids = self.rows["token_ids"]
        flat, lengths = pc.list_flatten(ids), pc.fill_null(pc.list_value_length(ids), 0)
        offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)])
        return looping(np.asarray(pc.fill_null(flat, -1), np.int32), offsets, LOOP_NGRAM,
                       LOOP_REPEATS, LOOP_TOKENS)

    def unprintable(self) -> np.ndarray:
        """(N,) int64: characters that cannot be shown. One that a cut tore at the end is the cut's."""
        whole = pc.utf8_rtrim(self.text, characters="\ufffd")
        text = pc.if_else(self._ended_by_length, whole, self.text)
        return _numbers(pc.count_substring_regex(text, _UNPRINTABLE))


def counted(texts: Texts, gates: GateSettings) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of each check of single rows: (N,) which rows it counts, and (N,) the value that is why."""
    tokens, cut_off, empty = texts.tokens, texts.cut_off, texts.empty
    loops, unprintable = texts.loop_tokens(), texts.unprintable()
    relaxed = texts.relaxed_tokens / np.maximum(tokens, 1)
    most = 1.0 if gates.max_relaxed_share is None else gates.max_relaxed_share
    return {
        "empty": (empty, tokens),
        "short": (~empty & ~cut_off & (tokens < SHORT_TOKENS), tokens),
        "cut_off": (cut_off, tokens),
        "loop": (loops > 0, loops),
        "unprintable": (unprintable > 0, unprintable),
        "relaxed": (relaxed > most, relaxed),
    }


def _numbers(column: pa.Array) -> np.ndarray:
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _mask(column: pa.Array) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False)
