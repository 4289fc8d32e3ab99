"""Prompts of new rows, each with a part of its own old text behind it: what one forward reads."""

from collections.abc import Iterator, Sequence

import numpy as np

from dare_job.decode.request import EngineSettings
from dare_job.decode.target import Target
from pools.tree import ROOT, SOURCE_OWN, DraftBatch

_WASTE = 1.5  # logits computed for those wanted, at most
_MOST = 2**15 - 2  # tokens that one forward may write: counted as int16


def usable(old: np.ndarray | None, vocabulary: int, is_eos: np.ndarray, room: int) -> np.ndarray:
    """Old text int32 (tokens,) up to its first end of text or the first token that the model lacks.

    vocabulary  tokens with an embedding; is_eos bool (V,), as many or more; room: tokens at most
    """
    if old is None or room <= 0:
        return np.zeros(0, np.int32)
    old = np.asarray(old)[: min(room, _MOST)]
    known = (old >= 0) & (old < vocabulary)
    old = old[: len(old) if known.all() else int(known.argmin())].astype(np.int32)
    ends = is_eos[old]
    return old[: int(ends.argmax()) + 1] if ends.any() else old


def most(prompt: int, target: Target, settings: EngineSettings) -> int:
    """Tokens that a row with a prompt of this length may have scored within ``logit_bytes``."""
    return max(0, _positions(target, settings) - (1 if target.keeps_logits else prompt))


def groups(prompts: np.ndarray, scored: np.ndarray, target: Target,
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
    if target.keeps_logits:
        columns = min(longest - int(prompts[0]) + 1, wanted)
        if wanted > rows and rows * columns > _WASTE * wanted:
            return False
    return rows * longest <= settings.prefill_tokens and rows * columns <= _positions(target, settings)


def _positions(target: Target, settings: EngineSettings) -> int:
    """Positions whose logits fit into ``logit_bytes``."""
    return settings.logit_bytes // (4 * target.vocabulary)


def chains(texts: Sequence[np.ndarray]) -> DraftBatch:
    """Each row's text (its own, int32) as a tree with one branch."""
    sizes = np.array([len(text) for text in texts], np.int32)
    shape = (len(texts), int(sizes.max(initial=0)))
    tokens = np.zeros(shape, np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    parents = np.tile(np.arange(ROOT, shape[1] - 1, dtype=np.int32), (shape[0], 1))
    return DraftBatch(tokens, parents, sizes, np.ones(shape, np.float32),
                      np.full(shape, SOURCE_OWN, np.uint8))


def padded(tokens: np.ndarray, lengths: np.ndarray, drafts: DraftBatch) -> np.ndarray:
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
