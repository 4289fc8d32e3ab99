"""Requests to the engine and its results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from pools.tree import DraftBatch


@dataclass(frozen=True)
class Request:
    """One text to write.

    id              returned with the result
    prompt_ids      int32 (prompt_tokens,)
    pools           what this row's drafts are looked up in, nearest first; read by the drafter alone
    max_new_tokens  None: the engine's
    previous_ids    int32 (tokens,) or None: what the row said before, end of text included where it had one;
                    scored behind the prompt
    strict          written by the strict rule, whatever the engine's
    max_relaxed_tokens  tokens of the text that may be relaxed; those behind are written by the strict rule.
                    None: all may
    key             with a seed it decides the random numbers of a row that is sampled; None: the id
    """

    id: Any
    prompt_ids: np.ndarray
    pools: tuple = ()
    max_new_tokens: int | None = None
    previous_ids: np.ndarray | None = None
    strict: bool = False
    max_relaxed_tokens: int | None = None
    key: Any = None

    @property
    def random_key(self) -> Any:
        """What names the row's random numbers."""
        return self.id if self.key is None else self.key


@dataclass(frozen=True)
class BeamStatistics:
    """What a row's beams were, over all its steps.

    layers      tokens of its longest beam: layers that its steps accepted or drew
    width       mean beams of a layer
    judged      layers of drafts that were judged, and passed: those whose drafts were enough
    passed_width  mean beams of these
    beta        mean of the smaller of beam.threshold and the probability that a judged layer had
                beam.min_width accepted drafts
    last        layers of the last forward, which the text's end may have cut
    queries     nodes that the target's forwards read, prompts left out
    likelihoods  log P in nats of each finished beam that was kept, the best scored first: ``beam.width`` of
                them, or fewer where fewer ended. The first is the text's
    scores      of the same: likelihood / tokens ** beam.length_penalty
    sequences   their tokens, int32 (tokens,) each, as ``Result.token_ids``, which is the first; sampled beams
                may be equal
    """

    layers: int
    width: float
    judged: int
    passed: int
    passed_width: float
    beta: float
    last: int
    queries: int
    likelihoods: tuple[float, ...]
    scores: tuple[float, ...]
    sequences: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Result:
    """One text, or why there is none.

    token_ids        int32 (tokens,), the end-of-text token included where the model wrote it
    finish_reason    "eos", "length" (all tokens it may get, or the model's positions end), "error", or
                     "timeout": its forwards, which others may have slowed down, took ``row_timeout_s``
    error            of the latter two, else None; the text then holds what was written before
    target_steps     forwards of the model after the prompt's
    reused_tokens    tokens of the row's old text that the prompt's forward accepted
    accepted_tokens  draft tokens in the text that later forwards accepted
    relaxed_tokens   tokens of either kind that were not the model's first choice
    tokens_past_limit  tokens of the text behind the request's guard; 0 where it has none
    step_tokens      int16 (target_steps + 1,): tokens that each forward wrote. The first entry is the
                     prompt's forward: ``reused_tokens`` and one of its own; the sum is the number of tokens
    relaxed          int32 positions in ``token_ids`` of the relaxed tokens
    retrieval_ms     this row's share of drafting time
    decode_ms        this row's share of all step time, drafting and the prompt's forward included
    slot_steps       this row's share of the slots that its steps had, empty ones included: where all are
                     busy, as many as ``target_steps``
    beams            of a row that was written by beams, else None
    """

    id: Any
    token_ids: np.ndarray
    finish_reason: Literal["eos", "length", "error", "timeout"]
    error: str | None
    prompt_tokens: int
    target_steps: int
    reused_tokens: int
    accepted_tokens: int
    relaxed_tokens: int
    tokens_past_limit: int
    step_tokens: np.ndarray
    relaxed: np.ndarray
    retrieval_ms: float
    decode_ms: float
    slot_steps: float
    beams: BeamStatistics | None = None


def failed(request: Request, error: str) -> Result:
    """The result of a row that could not be written."""
    none = np.zeros(0, np.int32)
    return Result(request.id, none, "error", error, len(request.prompt_ids), 0, 0, 0, 0, 0,
                  none.astype(np.int16), none, 0.0, 0.0, 0.0)


class Drafter(Protocol):
    """Proposes a tree of draft tokens for each row of a batch."""

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, least: float = 0.0) -> DraftBatch:
        """Trees for R rows; the next call may overwrite their arrays.

        Parameters
        ----------
        requests : the rows' requests with their pools; the same object while the batch has the same rows.
        context : int32 (R, L), prompt and text so far, padded on the right.
        lengths : int32 (R,), tokens in use; the last one is the tree's root.
        budgets : int32 (R,), maximum number of nodes of each row.
        depths : int32 (R,), longest path that each row can still use.
        least : nodes with a lower score are left out; the nodes of a row have falling scores.
        """
