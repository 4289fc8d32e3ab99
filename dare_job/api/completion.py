"""One generated text, with how it was decoded."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from dare_job.decode.request import Result


@dataclass(frozen=True, eq=False)
class Completion:
    """A generated text, or an error.

    Attributes
    ----------
    index
        Place of its prompt in ``prompts``.
    text
        After a thinking block, before a stop string, without special tokens; empty if there is an error.
    token_ids : int32 (tokens,)
        With the end-of-text token if the model emitted it. With an error, of the text so far.
    finish_reason
        ``eos``, ``stop`` (a string of ``decode.stop``), ``length`` (``max_new_tokens``, or the end of the
        model's positions), ``loop`` (the text repeats itself; not with ``decode.end_loops`` false), ``error``
        or ``timeout`` (``decode.row_timeout_s``).
    error
        Message if ``finish_reason`` is ``error`` or ``timeout``, else None.
    prompt_tokens
        Number of tokens of the prompt.
    steps
        Number of the model's forward passes after the one over the prompt.
    step_tokens : int16 (steps + 1,)
        Tokens of each forward pass, first that over the prompt. A step gives its accepted draft tokens and
        one token more.
    accepted_tokens
        Draft tokens that the steps accepted.
    reused_tokens
        Tokens of the previous text that the forward pass over the prompt accepted.
    relaxed_tokens
        Accepted and reused tokens that are not the model's most probable ones; 0 with ``verify.rule`` strict.
    decode_ms
        This text's share of the time of all its forward passes, in milliseconds, with prompt and drafting.
    prompt_ms, draft_ms
        Parts of it: reading the prompt with the previous text, and drafting.
    parsed
        With a JSON schema, the value of the text: a dict, list, string, number, bool or None. None without
        one, or if the text ended too early (``finish_reason`` other than ``eos``) to be JSON.
    """

    index: int
    text: str
    token_ids: np.ndarray
    finish_reason: str
    error: str | None
    prompt_tokens: int
    steps: int
    step_tokens: np.ndarray
    accepted_tokens: int
    reused_tokens: int
    relaxed_tokens: int
    decode_ms: float
    prompt_ms: float
    draft_ms: float
    parsed: Any = None

    @property
    def accepted_per_step(self) -> float:
        """Accepted draft tokens per step; 0 without steps."""
        return self.accepted_tokens / self.steps if self.steps else 0.0


def completion_of(result: Result, text: str, is_json: bool = False) -> Completion:
    """The completion of an engine's result; ``result.id`` is its index. ``is_json``: by a JSON schema."""
    return Completion(result.id, text, result.token_ids, result.finish_reason, result.error,
                      result.prompt_tokens, result.target_steps, result.step_tokens, result.accepted_tokens,
                      result.reused_tokens, result.relaxed_tokens, result.decode_ms, result.prompt_ms,
                      result.retrieval_ms, _json_value(text) if is_json else None)


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
