"""Prefill of new rows: prompts, each followed by part of the row's previous text, in shared forward passes.

The prefill verifies the previous text like a draft (prefix verification). Verifying a token costs its share
of the prompt's forward pass, and logits, which a prompt's token does not need. It saves the cost of
generating the token in a step if all tokens before it and the token itself are accepted. So the first n
tokens are verified as long as

    survival(n) * seconds of a row's step / tokens that the step would generate >= seconds of a verified token

While the previous text still matches, the row's own pool drafts it, so a step would generate its whole
draft path and one more token. Times are measured in the running engine, those of steps by the number of
rows. ``survival`` is estimated from the previous texts of finished rows by a life table: for each bucket of
positions, the share of rows accepted up to its start that were accepted up to its end. A row whose
comparison ends within a bucket counts in part. Rows contribute whether or not their previous text was
verified, because the generated text shows how far it matches. Before there are measurements, a fixed number
of tokens is verified, of all rows together: with many rows a step's share of a row costs little. Strict text
is unaffected.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numba
import numpy as np

from dare_job.decode.model.target import Target
from pools.tree import ROOT, SOURCE_OWN, DraftBatch

_LOGIT_BYTES = 2**28  # of one forward pass; a row that needs more alone verifies less of its previous text
_MAX_LOGIT_OVERHEAD = 1.5  # computed logits per needed logit
_MAX_PADDING = 1.25  # computed tokens per token, or
_FREE_PADDING = 32  # tokens of padding: a further pass, which reads all weights, costs about as much
_MAX_FORWARD_TOKENS = 2**15 - 2  # tokens that a forward pass may generate, counted in int16


def usable_previous_text(previous: np.ndarray | None, vocabulary: int, is_eos: np.ndarray,
                         max_tokens: int) -> np.ndarray:
    """Return the part of a previous text that can be verified.

    Parameters
    ----------
    previous : int32 (tokens,), optional
    vocabulary : int
        Tokens with an embedding.
    is_eos : bool (V,)
        At least ``vocabulary`` entries.
    max_tokens : int

    Returns
    -------
    int32 (tokens,)
        The text up to its first end of text, or up to the first token outside the vocabulary.
    """
    if previous is None or max_tokens <= 0:
        return np.zeros(0, np.int32)
    previous = np.asarray(previous)[: min(max_tokens, _MAX_FORWARD_TOKENS)]
    valid = (previous >= 0) & (previous < vocabulary)
    previous = previous[: len(previous) if valid.all() else int(valid.argmin())].astype(np.int32)
    ends = is_eos[previous]
    return previous[: int(ends.argmax()) + 1] if ends.any() else previous


def max_reused_tokens(prompt: int, target: Target) -> int:
    """Return how many previous tokens a row with a prompt of this length can verify in ``_LOGIT_BYTES``, and
    with the states that the target records.
    """
    tokens = max(0, _max_logit_positions(target) - (1 if target.supports_logits_to_keep else prompt))
    limit = target.max_submitted(prompt)
    return tokens if limit is None else min(tokens, limit)


def split_forwards(prompts: np.ndarray, submitted: np.ndarray, target: Target) -> Iterator[slice]:
    """Split rows into forward passes of at most ``max_prefill_tokens`` tokens and ``_LOGIT_BYTES`` of logits.

    Padding counts, and so do logits that only some rows need: models of transformers compute the same columns
    for all rows. With previous texts, these are limited to ``_MAX_LOGIT_OVERHEAD`` times the needed ones;
    where only needed ones are computed, tokens to ``_MAX_PADDING`` times those without padding. A single row
    may exceed any limit.

    Parameters
    ----------
    prompts, submitted : int64 (F,)
        Lengths of prompts, ascending, and of the previous texts after them.

    Yields
    ------
    slice
        Rows of a forward pass.
    """
    start = 0
    for end in range(1, len(prompts) + 1):
        part = slice(start, end + 1)
        if end == len(prompts) or not _fits(prompts[part], submitted[part], target):
            yield slice(start, end)
            start = end


def _fits(prompts: np.ndarray, submitted: np.ndarray, target: Target) -> bool:
    """Return whether several rows can share a forward pass."""
    rows, longest = len(prompts), int((prompts + submitted).max())
    needed, columns = int(submitted.sum()) + rows, longest
    if target.paged is not None:  # nothing is padded, and long passes are divided
        return needed <= _max_logit_positions(target)
    if target.llama is not None:
        tokens = int((prompts + submitted).sum())
        most = min(target.max_prefill_tokens, max(_MAX_PADDING * tokens, tokens + _FREE_PADDING))
        return rows * longest <= most and needed <= _max_logit_positions(target)
    limit = target.max_submitted(int(prompts[0]))
    if limit is not None and rows * int(submitted.max()) > limit:
        return False
    if target.supports_logits_to_keep:
        columns = min(longest - int(prompts[0]) + 1, needed)
        if needed > rows and rows * columns > _MAX_LOGIT_OVERHEAD * needed:
            return False
    return rows * longest <= target.max_prefill_tokens and rows * columns <= _max_logit_positions(target)


def _max_logit_positions(target: Target) -> int:
    """Return the number of positions whose float32 logits fit into ``_LOGIT_BYTES``."""
    return _LOGIT_BYTES // (4 * target.vocabulary)


def chain_drafts(texts: Sequence[np.ndarray]) -> DraftBatch:
    """Return each row's text, int32 (tokens,), as a draft tree with a single path."""
    sizes = np.array([len(text) for text in texts], np.int32)
    shape = (len(texts), int(sizes.max(initial=0)))
    tokens = np.zeros(shape, np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    parents = np.tile(np.arange(ROOT, shape[1] - 1, dtype=np.int32), (shape[0], 1))
    return DraftBatch(tokens, parents, sizes, np.ones(shape, np.float32),
                      np.full(shape, SOURCE_OWN, np.uint8))


def padded_ids(tokens: np.ndarray, lengths: np.ndarray, drafts: DraftBatch) -> np.ndarray:
    """Return prompts followed by their chains, padded on the right, int64 (F, P).

    ``tokens`` int32 (F, L) with prompts of ``lengths`` (F,). Padding repeats the prompt's last token, because
    another token's keys and values might be non-finite.
    """
    width = int((lengths + drafts.sizes).max())
    columns = np.arange(width)
    ids = np.take_along_axis(tokens, np.minimum(columns, lengths[:, None] - 1), 1).astype(np.int64)
    for row, (length, size) in enumerate(zip(lengths, drafts.sizes, strict=True)):
        ids[row, length : length + size] = drafts.tokens[row, :size]
    return ids


_BUCKET_STARTS = np.array([0, 1, *2 ** np.arange(1, 15)])  # positions 0, 1, 2-3, 4-7, ...
_BUCKET_WIDTHS = np.diff(_BUCKET_STARTS, append=2**15)
_PRIOR = (0.5, 4.0)  # pseudo-counts of each bucket: texts rejected in it, texts that reached it
_INITIAL_TOKENS = 32  # verified of all rows together, but at least one a row, before there are measurements
_ROW_DECAY = 0.99  # of the life table, per row: runs change, and users differ from items
_TIME_DECAY = 0.95  # of times, per forward pass


class ReuseEstimator:
    """Estimates how many tokens of a previous text are worth verifying in the prefill.

    Engines with the same model and settings may share one.
    """

    def __init__(self):
        self._rejected, self._reached = np.zeros(len(_BUCKET_STARTS)), np.zeros(len(_BUCKET_STARTS))
        self._steps = defaultdict(_MovingRate)  # seconds per row and step, by octave of rows
        self._nodes = defaultdict(_MovingRate)  # drafted per row and step, likewise
        self._prompt = _MovingRate()  # seconds per token of a prompt

    def tokens(self, max_tokens: int, depth: int, rows: int, logit_cost: float = 1.0) -> int:
        """Return how many of the first ``max_tokens`` to verify before steps of so many rows.

        What the prefill does not verify is drafted, up to ``depth`` tokens deep, and a step accepts at most
        as many tokens as it drafts. ``logit_cost`` as in ``Traits``.
        """
        octave, prompt_s = rows.bit_length(), self._prompt.mean
        step_s, nodes = self._steps[octave].mean, self._nodes[octave].mean
        if step_s is None or prompt_s is None:
            return min(max_tokens, max(1, _INITIAL_TOKENS // rows))
        saved_s = self.survival(max_tokens) * step_s / (min(nodes, depth) + 1)
        return int(np.count_nonzero(saved_s >= logit_cost * prompt_s))

    def survival(self, max_tokens: int) -> np.ndarray:
        """Return the probability (max_tokens,) that the first n + 1 tokens of a text are all accepted."""
        passed = 1 - (self._rejected + _PRIOR[0]) / (self._reached + _PRIOR[1])
        return np.cumprod(np.repeat(passed ** (1 / _BUCKET_WIDTHS), _BUCKET_WIDTHS)[:max_tokens])

    def record_row(self, matched: int, rejected: bool) -> None:
        """Record a finished row: its previous text matched for ``matched`` tokens, then differed or ended."""
        _update_life_table(self._rejected, self._reached, matched, rejected)

    def record_step(self, seconds: float, rows: int, nodes: int) -> None:
        """Record the time of a decoding step, and its draft nodes in all."""
        self._steps[rows.bit_length()].add(seconds, rows)
        self._nodes[rows.bit_length()].add(nodes, rows)

    def record_prefill(self, seconds: float, tokens: float) -> None:
        """Record the time of a prefill forward pass over ``tokens`` tokens of prompts, padding included.

        A verified token counts as ``logit_cost`` tokens.
        """
        self._prompt.add(seconds, tokens)


class _MovingRate:
    """Moving average of a quantity per item. The first forward pass is left out: its time includes setup."""

    def __init__(self):
        self._sum, self._count = None, 0.0

    def add(self, quantity: float, count: float) -> None:
        first = self._sum is None
        self._sum = 0.0 if first else _TIME_DECAY * self._sum + quantity
        self._count = 0.0 if first else _TIME_DECAY * self._count + count

    @property
    def mean(self) -> float | None:
        return self._sum / self._count if self._count else None


@numba.njit(cache=True)
def _update_life_table(rejected, reached, matched, ended_by_rejection):
    bucket = np.searchsorted(_BUCKET_STARTS, matched, side="right") - 1 if ended_by_rejection else -1
    for b in range(len(rejected)):
        width = _BUCKET_WIDTHS[b]
        exposure = 1.0 if b == bucket else min(max((matched - _BUCKET_STARTS[b]) / width, 0.0), 1.0)
        rejected[b] = _ROW_DECAY * rejected[b] + (b == bucket)
        reached[b] = _ROW_DECAY * reached[b] + exposure
