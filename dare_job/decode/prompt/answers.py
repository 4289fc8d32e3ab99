"""Finds the answer of a chat model after its thinking block, and the token with which a turn ends."""

from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dare_job.decode.prompt.template import THINKING_TAGS, PromptFormat, Renderer
from dare_job.decode.prompt.tokens import control_tokens
from dare_job.errors import ConfigError


def answer(tokenizer, token_ids, opened: bool) -> str | None:
    """The text after the thinking block, without special tokens; None if the block does not end.

    Parameters
    ----------
    token_ids : int (tokens,)
    opened
        Whether the prompt opens a thinking block.
    """
    ids, inside = np.asarray(token_ids), opened
    for opening, closing in _tag_ids(tokenizer):  # decoding without special tokens may drop them
        ends = _ends(ids, closing)
        if len(ends):
            ids, inside = ids[ends[-1]:], False
        inside |= len(_ends(ids, opening)) > 0
    text = tokenizer.decode(ids, skip_special_tokens=True)
    for opening, closing in THINKING_TAGS:
        _, tag, rest = text.rpartition(closing)
        text, inside = rest, (inside and not tag) or opening in rest
    return None if inside else text


@lru_cache(maxsize=16)
def _tag_ids(tokenizer) -> list[tuple[np.ndarray, np.ndarray]]:
    """The token ids, int64 (n,), of the THINKING_TAGS for which the tokenizer has added tokens; a tag that is
    ordinary text has none.
    """
    added = tokenizer.get_added_vocab()

    def ids_of(tag: str) -> np.ndarray:
        if tag in added:
            return np.array([added[tag]])
        ids = np.array(tokenizer(tag, add_special_tokens=False)["input_ids"], np.int64)
        return ids if np.isin(ids[:1], list(added.values())).any() else ids[:0]

    pairs = [(ids_of(opening), ids_of(closing)) for opening, closing in THINKING_TAGS]
    return [pair for pair in pairs if any(map(len, pair))]


def _ends(ids: np.ndarray, tag: np.ndarray) -> np.ndarray:
    """The places after each occurrence of a tag, int64 (n,)."""
    if not 0 < len(tag) <= len(ids):
        return np.zeros(0, np.int64)
    return np.flatnonzero((sliding_window_view(ids, len(tag)) == tag).all(1)) + len(tag)


def end_of_turn(tokenizer, prompt_format: PromptFormat) -> int | None:
    """The control token that the chat template prints after an answer; None if it prints none."""
    try:
        renderer = Renderer(tokenizer, prompt_format)
        rest = renderer.after_answer().lstrip()
    except ConfigError:  # the template renders prompts, but no answers
        return None
    controls = control_tokens(tokenizer, renderer.template)
    return max((token for token, text in controls.items() if text and rest.startswith(text)),
               key=lambda token: len(controls[token]), default=None)


def add_end_of_turn(generation_config, tokenizer, prompt_format: PromptFormat) -> str | None:
    """Add the token that ends a turn to a model's end-of-text tokens, for the engine and for ``generate``.

    Returns a warning if the model's generation config lacked the token, else None.
    """
    token, ends = end_of_turn(tokenizer, prompt_format), generation_config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    if token is None or token in ends:
        return None
    generation_config.eos_token_id = [*ends, token]
    return (f"the chat template ends answers with {tokenizer.convert_ids_to_tokens(token)} (token {token}), "
            f"which is not among the model's end-of-text tokens {ends}; texts end there all the same. Add "
            f"{token} to eos_token_id in the model's generation_config.json, so that other programs end "
            "there too")
