"""Prompts of new rows, each with a part of its own old text behind it: what one forward reads.

How many tokens of a row's own old text are worth a place behind its prompt.

Scoring a token costs its share of the prompt's forward, and saves what writing it in a step would have cost,
provided that all tokens before it and itself pass. So text is scored as long as

    survival(n) * seconds of a row's step / tokens that it would write  >=  seconds of a token of a prompt

Where old text still holds, the row's own pool drafts it: a step would write its whole draft path and one
token more. Both times are those of the running engine, and survival is that of the old text of the rows
written so far: of those that reached a bucket of positions, the share that passed it; one that was not asked
to the bucket's end counts by its part of it (a life table). A row tells this whether it was scored or not,
because its text says how far it follows the old one: nothing can lock itself out. Until there are figures the
first tokens are scored. None of this can change strict text.
"""

from collections.abc import Iterator, Sequence

import numba
import numpy as np

from dare_job.decode.model.target import Target
from dare_job.decode.settings import EngineSettings
from pools.tree import ROOT, SOURCE_OWN, DraftBatch

_MAX_LOGIT_OVERHEAD = 1.5  # logits computed for those wanted, at most

_MAX_FORWARD_TOKENS = 2**15 - 2  # tokens that one forward may write: counted as int16


def usable_previous_text(old: np.ndarray | None, vocabulary: int, is_eos: np.ndarray,
                         room: int) -> np.ndarray:
    """Old text int32 (tokens,) up to its first end of text or the first token that the model lacks.

    vocabulary  tokens with an embedding; is_eos bool (V,), as many or more; room: tokens at most
    """
    if old is None or room <= 0:
        return np.zeros(0, np.int32)
    old = np.asarray(old)[: min(room, _MAX_FORWARD_TOKENS)]
    known = (old >= 0) & (old < vocabulary)
    old = old[: len(old) if known.all() else int(known.argmin())].astype(np.int32)
    ends = is_eos[old]
    return old[: int(ends.argmax()) + 1] if ends.any() else old


def max_reused_tokens(prompt: int, target: Target, settings: EngineSettings) -> int:
    """Tokens that a row with a prompt of this length may have scored within ``logit_bytes``."""
    return max(0, _max_logit_positions(target, settings) - (1 if target.supports_logits_to_keep else prompt))


def split_forwards(prompts: np.ndarray, scored: np.ndarray, target: Target,
           settings: EngineSettings) -> Iterator[slice]:
    """Cut rows, shortest prompts first, into forwards of at most ``prefill_tokens`` and ``logit_bytes``.

    prompts, scored (F,): lengths. Padding counts, and so do logits that one row needs and the others do not:
    a model computes the same columns for all. Where old text is scored, those are at most ``_WASTE`` times
    what is needed. One row alone may be over either limit.
    """
    start = 0
    for end in range(1, len(prompts) + 1):
        part = slice(start, end + 1)
        if end == len(prompts) or not _fits(prompts[part], scored[part], target, settings):
            yield slice(start, end)
            start = end


def _fits(prompts: np.ndarray, scored: np.ndarray, target: Target, settings: EngineSettings) -> bool:
    """Whether several rows go into one forward."""
    rows, longest = len(prompts), int((prompts + scored).max())
    wanted, columns = int(scored.sum()) + rows, longest
    if target.supports_logits_to_keep:
        columns = min(longest - int(prompts[0]) + 1, wanted)
        if wanted > rows and rows * columns > _MAX_LOGIT_OVERHEAD * wanted:
            return False
    if rows * longest > settings.prefill_tokens:
        return False
    return rows * columns <= _max_logit_positions(target, settings)


def _max_logit_positions(target: Target, settings: EngineSettings) -> int:
    """Positions whose logits fit into ``logit_bytes``."""
    return settings.logit_bytes // (4 * target.vocabulary)


def chain_drafts(texts: Sequence[np.ndarray]) -> DraftBatch:
    """Each row's text (its own, int32) as a tree with one branch."""
    sizes = np.array([len(text) for text in texts], np.int32)
    shape = (len(texts), int(sizes.max(initial=0)))
    tokens = np.zeros(shape, np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    parents = np.tile(np.arange(ROOT, shape[1] - 1, dtype=np.int32), (shape[0], 1))
    return DraftBatch(tokens, parents, sizes, np.ones(shape, np.float32),
                      np.full(shape, SOURCE_OWN, np.uint8))


def padded_ids(tokens: np.ndarray, lengths: np.ndarray, drafts: DraftBatch) -> np.ndarray:
    """Prompts and the chains behind them, int64 (F, P).

    tokens int32 (F, L) with prompts of ``lengths`` (F,). Padded with the prompt's last token: another row's
    keys and values could be no numbers.
    """
    width = int((lengths + drafts.sizes).max())
    columns = np.arange(width)
    ids = np.take_along_axis(tokens, np.minimum(columns, lengths[:, None] - 1), 1).astype(np.int64)
    for row, (length, size) in enumerate(zip(lengths, drafts.sizes, strict=True)):
        ids[row, length : length + size] = drafts.tokens[row, :size]
    return ids

_BUCKET_STARTS = np.array([0, 1, *2 ** np.arange(1, 15)])  # of buckets of positions: 0, 1, 2-3, 4-7, ...

_BUCKET_WIDTHS = np.diff(_BUCKET_STARTS, append=2**15)

_PRIOR = (0.5, 4.0)  # texts that failed in each bucket, of those that reached it, before anything was seen

_INITIAL_TOKENS = 32  # tokens scored before anything was seen

_ROW_DECAY = 0.99  # weight of what was known, at each new row: nights change, and users differ from items

_TIME_DECAY = 0.95  # the same at each forward


class ReuseEstimator:
    """What was seen so far; engines with the same model and settings may share it."""

    def __init__(self):
        self._died, self._reached = np.zeros(len(_BUCKET_STARTS)), np.zeros(len(_BUCKET_STARTS))
        self._step = _MovingRate()  # of a row's step
        self._prompt = _MovingRate()  # of a token of a prompt's forward

    def tokens(self, most: int, drafted: int) -> int:
        """How many of the first ``most`` tokens of an old text to score; a step drafts up to ``drafted``."""
        step_s, prompt_s = self._step.seconds, self._prompt.seconds
        if step_s is None or prompt_s is None:
            return min(most, _INITIAL_TOKENS)
        return int(np.count_nonzero(self.survival(most) * step_s / (drafted + 1) >= prompt_s))

    def survival(self, most: int) -> np.ndarray:
        """Probability (most,) that the first n + 1 tokens of an old text pass."""
        passed = 1 - (self._died + _PRIOR[0]) / (self._reached + _PRIOR[1])
        return np.cumprod(np.repeat(passed ** (1 / _BUCKET_WIDTHS), _BUCKET_WIDTHS)[:most])

    def record_row(self, kept: int, died: bool) -> None:
        """A row was written: its old text passed up to ``kept``, and there it failed or was not asked on."""
        _update_life_table(self._died, self._reached, kept, died)

    def record_step(self, seconds: float, rows: int) -> None:
        """A step of so many rows."""
        self._step.add(seconds, rows)

    def record_prefill(self, seconds: float, tokens: int) -> None:
        """A forward read so many tokens of prompts and old text, padding included."""
        self._prompt.add(seconds, tokens)


class _MovingRate:
    """Seconds of one, of late. The first forward is left out: it sets up what later ones find ready."""

    def __init__(self):
        self._seconds, self._count = None, 0.0

    def add(self, seconds: float, count: int) -> None:
        first = self._seconds is None
        self._seconds = 0.0 if first else _TIME_DECAY * self._seconds + seconds
        self._count = 0.0 if first else _TIME_DECAY * self._count + count

    @property
    def seconds(self) -> float | None:
        return self._seconds / self._count if self._count else None


@numba.njit(cache=True)
def _update_life_table(died, reached, kept, failed):
    bucket = np.searchsorted(_BUCKET_STARTS, kept, side="right") - 1 if failed else -1
    for b in range(len(died)):
        part = 1.0 if b == bucket else min(max((kept - _BUCKET_STARTS[b]) / _BUCKET_WIDTHS[b], 0.0), 1.0)
        died[b] = _ROW_DECAY * died[b] + (b == bucket)
        reached[b] = _ROW_DECAY * reached[b] + part
