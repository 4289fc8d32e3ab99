"""Scores of rows that have a grammar: -inf for forbidden tokens, in the engine and in ``generate``."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LogitsProcessor

from dare_job.decode.engine.grammar import Grammar, TextParser, children_of
from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.compiled import strict_argmax
from dare_job.decode.verify.penalty import PenaltyContext

_ALL = -1  # of a mask: 32 tokens that are allowed


def forbid(scores: torch.Tensor, tree: Tree, parsers: Sequence[TextParser | None]) -> None:
    """Set the scores float32 (T, V) of forbidden tokens to -inf, in place.

    Parameters
    ----------
    parsers : sequence of TextParser
        Of each row, at the end of its text. None: all tokens are allowed.
    """
    words = _words(parsers)
    if not words:
        return
    tokens, parents, _, starts = tree.host
    masks = np.full((len(tokens), words), _ALL, np.int32)
    for parser, start, end in zip(parsers, starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if parser is not None:
            nodes = slice(start + 1, end)
            parser.fill_masks(tokens[nodes].tolist(), (parents[nodes] - nodes.start).tolist(),
                              masks[start:end])
    _apply(masks, scores)


def forbid_on_path(scores: torch.Tensor, tree: Tree, parsers: Sequence[TextParser | None],
                   penalty: PenaltyContext) -> None:
    """As ``forbid`` on a CPU, but only after the nodes that the strict rule visits.

    The rule goes down one path of each tree, so most nodes of a tree need no mask.
    """
    lines, mask = scores.numpy(), np.empty((1, _words(parsers)), np.int32)
    tokens, parents, _, starts = tree.host
    for row, parser in enumerate(parsers):
        if parser is None:
            continue
        first, end = starts[row] + 1, starts[row + 1]
        drafted = tokens[first:end].tolist()
        children = children_of((parents[first:end] - first).tolist())
        for node in parser.visit(drafted, children):
            line = lines[first + node]
            if not parser.fill_mask(node, mask.ctypes.data, mask.nbytes):
                line[:] = -np.inf
                break
            forbidden = _forbidden(mask, len(line))[0]
            np.copyto(line[: len(forbidden)], -np.inf, where=forbidden)
            top = strict_argmax(line, tokens, parents, first - 1, first + node, row, penalty)
            children[node] = [child for child in children[node] if drafted[child] == top]


def _words(parsers: Sequence[TextParser | None]) -> int:
    return next((parser.grammar.words for parser in parsers if parser is not None), 0)


def _apply(masks: np.ndarray, scores: torch.Tensor) -> None:
    """Set the scores (T, V) of the tokens whose bit in ``masks`` int32 (T, W) is 0 to -inf."""
    columns = min(scores.shape[1], 32 * masks.shape[1])
    if scores.device.type == "cpu":
        forbidden = torch.from_numpy(_forbidden(masks, columns))
    else:
        forbidden = _unpacked(torch.from_numpy(~masks).to(scores.device), columns)
    scores[:, :columns].masked_fill_(forbidden, -torch.inf)


def _forbidden(masks: np.ndarray, columns: int) -> np.ndarray:
    """Return which of the first tokens the masks int32 (T, W) forbid, bool (T, at most ``columns``)."""
    count = min(columns, 32 * masks.shape[1])
    return np.unpackbits(~masks.view(np.uint8), axis=1, count=count, bitorder="little").view(np.bool_)


def _unpacked(words: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the first bits, bool (T, columns), of ``words`` int32 (T, W); slower than numpy on a CPU."""
    bits = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[..., None] >> bits) & 1).flatten(1)[:, :columns].bool()


class GrammarProcessor(LogitsProcessor):
    """Holds the rows of ``generate`` to their grammars.

    Parameters
    ----------
    grammars : sequence of Grammar
        Of each row; None: any text.
    prompt : int
        Tokens of the prompts, with padding on the left.
    """

    def __init__(self, grammars: Sequence[Grammar | None], prompt: int):
        self._parsers = [None if grammar is None else TextParser(grammar) for grammar in grammars]
        self._prompt = prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        masks = np.full((len(scores), _words(self._parsers)), _ALL, np.int32)
        for row, (parser, text) in enumerate(zip(self._parsers, input_ids[:, self._prompt :].cpu().numpy(),
                                                 strict=True)):
            if parser is not None:
                parser.follow(text)
                parser.fill_masks((), (), masks[row : row + 1])
        scores = scores.clone()
        _apply(masks, scores)
        return scores
