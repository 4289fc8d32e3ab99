"""Thinking blocks: what a reasoning model writes before its answer, which is never published."""

import numpy as np

TAGS = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))


def is_open(text: str) -> bool:
    """Whether a text ends inside a thinking block."""
    return any(text.rfind(opening) > text.rfind(closing) for opening, closing in TAGS)


def answer(tokenizer, token_ids, opened: bool) -> str | None:
    """The text after the thinking block, without special tokens; None if the block does not end.

    Parameters
    ----------
    token_ids : int (tokens,)
    opened : whether the prompt opens a thinking block
    """
    ids, inside, added = np.asarray(token_ids), opened, tokenizer.get_added_vocab()
    for opening, closing in TAGS:  # as tokens, which decoding may leave out
        ends = np.flatnonzero(ids == added.get(closing, -1))
        if len(ends):
            ids, inside = ids[ends[-1] + 1:], False
        inside |= bool((ids == added.get(opening, -1)).any())
    text = tokenizer.decode(ids, skip_special_tokens=True)
    for opening, closing in TAGS:
        _, found, rest = text.rpartition(closing)
        text, inside = rest, (inside and not found) or opening in rest
    return None if inside else text
