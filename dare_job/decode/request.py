"""Requests to the engine, its results, and the interface of drafters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from pools.index import Index
from pools.tree import DraftBatch


@dataclass(frozen=True)
class Request:
    """A text to generate.

    Attributes
    ----------
    id
        Returned with the result.
    prompt_ids : int32 (prompt_tokens,)
        The prompt.
    pools : tuple of pools.index.Index
        Pools from which a retrieval drafter drafts, nearest first. ``kind`` of a pool is own (the row's
        previous text), collaborative, attribute or global, ``texts`` its number of texts;
        ``pools.export.texts(pool)`` yields the token ids, int32 (tokens,), of each text.
    max_new_tokens
        Maximum number of tokens; None: the engine's setting.
    previous_ids : int32 (tokens,)
        The row's previous text with its end-of-text token, if any. It is verified together with the prompt,
        and the accepted prefix is reused; None: no previous text.
    strict
        Whether the row is verified by the strict rule, whatever the engine's rule.
    max_relaxed_tokens
        Length limit of relaxed verification in tokens: later tokens are verified by the strict rule; None: no
        limit.
    key
        With the seed, determines the random numbers of a sampled row; None: the id.
    grammar
        Form of the text, a ``Grammar`` of ``engine.grammar``; None: any text. Engines of beams ignore it.
    """

    id: Any
    prompt_ids: np.ndarray
    pools: tuple[Index, ...] = ()
    max_new_tokens: int | None = None
    previous_ids: np.ndarray | None = None
    strict: bool = False
    max_relaxed_tokens: int | None = None
    key: Any = None
    grammar: Any = None

    @property
    def random_key(self) -> Any:
        """Key of the row's random streams."""
        return self.id if self.key is None else self.key


@dataclass(frozen=True)
class BeamStatistics:
    """Statistics of a row's beams over all its steps.

    Attributes
    ----------
    layers
        Number of tokens of the longest beam.
    width
        Mean number of beams per layer.
    verified
        Number of drafted layers that were verified.
    passed
        Number of those that had enough accepted drafts.
    passed_width
        Mean number of beams of the passed layers.
    beta
        Mean of min(beam.threshold, probability that a verified layer had beam.min_width accepted drafts).
    last_layers
        Number of layers of the last forward pass, which the end of the text may have truncated.
    queries
        Number of nodes in the target's forward passes, without prompts.
    likelihoods
        Log P in nats of each finished beam, best score first; at most ``beam.width``. The first belongs to
        the text.
    scores
        Likelihood / tokens ** beam.length_penalty of the same beams.
    sequences : int32 (tokens,)
        Each, the tokens of the same beams; sampled beams may be equal.
    """

    layers: int
    width: float
    verified: int
    passed: int
    passed_width: float
    beta: float
    last_layers: int
    queries: int
    likelihoods: tuple[float, ...]
    scores: tuple[float, ...]
    sequences: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Result:
    """A generated text, or an error.

    Attributes
    ----------
    token_ids : int32 (tokens,)
        With the end-of-text token if the model emitted it.
    finish_reason
        Eos; stop (the last token completes a stop string); length (maximum number of tokens, or the end of
        the model's positions); loop (the text repeats itself); error; timeout (the forward passes of the
        row's batches took ``row_timeout_s``).
    error
        Message if ``finish_reason`` is error or timeout, else None. ``token_ids`` then holds a partial text.
    prompt_tokens
        Number of tokens of the prompt.
    target_steps
        Number of the model's forward passes after the one over the prompt.
    reused_tokens
        Tokens of the row's previous text that the forward pass over the prompt accepted.
    accepted_tokens
        Draft tokens that later forward passes accepted.
    relaxed_tokens
        Reused and accepted tokens that were not the model's argmax.
    tokens_past_limit
        Tokens after ``Request.max_relaxed_tokens``; 0 without such a limit.
    step_tokens : int16 (target_steps + 1,)
        Tokens emitted per forward pass. The first entry is that of the prompt, ``reused_tokens`` + 1; the sum
        is the number of tokens.
    relaxed : int32 (relaxed_tokens,)
        Positions of the relaxed tokens in ``token_ids``.
    retrieval_ms
        This row's share of drafting time.
    decode_ms
        This row's share of all step time, including drafting and the prompt.
    slot_steps
        This row's share of the batch slots of its steps, including empty slots; equal to ``target_steps`` if
        no slot was empty.
    beams
        Statistics of the row's beams; None if it was generated without beams.
    prompt_ms
        Part of ``decode_ms`` that reading the prompt took, with the row's previous text.
    """

    id: Any
    token_ids: np.ndarray
    finish_reason: Literal["eos", "stop", "length", "loop", "error", "timeout"]
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
    prompt_ms: float = 0.0


def failed(request: Request, error: str) -> Result:
    """Result of a row that cannot be generated, with the message ``error``."""
    none = np.zeros(0, np.int32)
    return Result(request.id, none, "error", error, len(request.prompt_ids), 0, 0, 0, 0, 0,
                  none.astype(np.int16), none, 0.0, 0.0, 0.0)


class Drafter(Protocol):
    """Proposes a tree of draft tokens for each row of a batch.

    One that a user plugs in is made once per engine, by ``Class(**options)``. It may leave ``scores`` and
    ``sources`` of its trees None, which counts as scores of 1. Its trees are checked before they are used.
    """

    def draft(self, requests: Sequence[Request], context: np.ndarray, lengths: np.ndarray,
              budgets: np.ndarray, depths: np.ndarray, min_score: float = 0.0) -> DraftBatch:
        """Trees for R rows; the next call may overwrite their arrays.

        Parameters
        ----------
        requests
            The rows' requests with their pools; the same object while the batch has the same rows.
        context : int32 (R, L)
            Prompt and text so far, padded on the right.
        lengths : int32 (R,)
            Tokens in use; the last one is the tree's root.
        budgets : int32 (R,)
            Maximum number of nodes of each row.
        depths : int32 (R,)
            Longest path that each row can still use.
        min_score
            Nodes with a lower score are left out; the nodes of a row have descending scores.
        """
