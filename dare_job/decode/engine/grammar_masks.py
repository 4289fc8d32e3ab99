"""Verification of rows that have a grammar; -inf for forbidden tokens, in the engine and in ``generate``."""

from collections.abc import Callable, Iterator, Sequence

import numba
import numpy as np
import torch
from transformers import LogitsProcessor

from dare_job.decode.engine.grammar import Grammar, TextParser
from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.compiled import strict_argmax
from dare_job.decode.verify.penalty import PenaltyContext
from dare_job.decode.verify.result import NodeVerification
from pools.tree import ROOT

_ALL = np.int32(-1)  # of a mask: 32 tokens that are allowed
_BITS = np.int32(1) << np.arange(32, dtype=np.int32)
_FORBIDDEN = np.float32(-np.inf)


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


def verify_allowed(scores: torch.Tensor, tree: Tree, parsers: Sequence[TextParser | None],
                   penalty: PenaltyContext) -> NodeVerification:
    """Verify by the strict rule among the tokens that grammars allow, on a CPU.

    The rule goes down one path of each tree, so most nodes need neither an argmax nor a mask. Nor does a node
    need a mask if its argmax among all tokens is allowed: it is the argmax among the allowed ones, too.

    Parameters
    ----------
    scores : float32 (T, V)
        Changed in place where a mask is needed.
    parsers : sequence of TextParser
        Of each row, at the end of its text. None: all tokens are allowed.
    """
    tokens, parents, _, starts = tree.host
    argmax, finite = np.full(len(tokens), -1), np.ones(len(tokens), np.bool_)
    lines, mask = scores.numpy(), np.empty((1, _words(parsers)), np.int32)
    edges = list(zip(parents.tolist(), tokens.tolist(), strict=True))
    for row, parser in enumerate(parsers):
        root, end = starts[row : row + 2].tolist()

        def best(node: int, row=row, root=root) -> tuple[int, bool]:
            return strict_argmax(lines[node], tokens, parents, root, node, row, penalty)

        for node, top, is_finite in _strict_path(parser, edges, root, end, best, lines, mask):
            argmax[node], finite[node] = top, is_finite
    return NodeVerification(*map(torch.from_numpy, (argmax, tokens == argmax[parents], finite)))


def _strict_path(parser: TextParser | None, edges: Sequence[tuple[int, int]], root: int, end: int,
                 best: Callable[[int], tuple[int, bool]], lines: np.ndarray,
                 mask: np.ndarray) -> Iterator[tuple[int, int, bool]]:
    """Yield the nodes that the strict rule visits, the argmax of each, and whether its score is finite.

    Parameters
    ----------
    edges : sequence of (int, int)
        Parent and token of each node.
    root, end : int
        The row's root, and where its nodes end.
    best
        The argmax of a node's scores, and whether it is finite.
    mask : int32 (1, W)
        Work memory.
    """
    node, depth, matcher = root, 0, None if parser is None else parser.matcher
    while node is not None:
        top, is_finite = best(node)
        if parser is not None and not (is_finite and parser.allows(top)):
            if not parser.fill_mask(ROOT if node == root else node, mask.ctypes.data, mask.nbytes):
                yield node, top, False
                return  # the parser is at the end of the text again
            _forbid_tokens(mask, lines[node : node + 1])
            top, is_finite = best(node)
        yield node, top, is_finite
        node = next((child for child in range(node + 1, end) if edges[child] == (node, top)), None)
        if node is not None and parser is not None:
            if top not in parser.grammar.eos and matcher.try_consume_tokens([top]):
                depth += 1
            else:
                parser = None  # the text ends, or no token was allowed
    if depth:
        matcher.rollback(depth)


def _words(parsers: Sequence[TextParser | None]) -> int:
    return next((parser.grammar.words for parser in parsers if parser is not None), 0)


def _apply(masks: np.ndarray, scores: torch.Tensor) -> None:
    """Set the scores (T, V) of the tokens whose bit in ``masks`` int32 (T, W) is 0 to -inf."""
    if scores.device.type == "cpu" and scores.dtype == torch.float32:
        _forbid_tokens(masks, scores.numpy())
        return
    columns = min(scores.shape[1], 32 * masks.shape[1])
    forbidden = _unpacked(torch.from_numpy(~masks).to(scores.device), columns)
    scores[:, :columns].masked_fill_(forbidden, -torch.inf)


@numba.njit
def _forbid_word(scores, allowed):
    """Apply a word of a mask to the scores float32 (32,) of its tokens.

    Written so that the loop compiles to vector instructions.
    """
    for i in range(32):
        scores[i] = scores[i] if allowed & _BITS[i] else _FORBIDDEN


@numba.njit(cache=True)
def _forbid_tokens(masks, scores):
    """``_apply`` for scores float32 (T, V) on a CPU."""
    for node in range(len(scores)):
        line, mask = scores[node], masks[node]
        for word in range(min(len(mask), len(line) // 32)):
            if mask[word] != _ALL:
                _forbid_word(line[32 * word : 32 * word + 32], mask[word])
        for token in range(len(line) // 32 * 32, min(len(line), 32 * len(mask))):
            if not mask[token // 32] & _BITS[token % 32]:
                line[token] = _FORBIDDEN


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
