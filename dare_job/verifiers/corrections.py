"""A memory of corrections that change nothing else, learned from texts of successive dates.

A row's previous text is a draft of its new one. Where the strict text has another token at a place and then
goes on as the draft does, rejecting the draft token changed that one token and cost a decoding step. Such a
correction recurs: the same drafts are proposed in the same contexts again. ``learn`` counts it, and
``Corrections`` accepts the draft token where it has recurred often enough.

The memory is this project's. It is the token-level window of FLy (arXiv 2511.22972), looked up among earlier
texts instead of in the draft, so that it also serves drafts that end right after the token.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import torch

from dare_job.decode.model.tree import Tree
from dare_job.decode.verify.plugin import VerifyContext
from dare_job.decode.verify.result import NodeVerification
from dare_job.errors import ConfigError, describe
from dare_job.verifiers.nodes import Nodes

MAX_CONTEXT = 8  # tokens before a correction that a memory records
_NONE = -1  # in place of a token before the beginning


def corrections(draft: Sequence[int], text: Sequence[int],
                same: int) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Find where a strict text corrects its draft.

    Parameters
    ----------
    same
        Number of tokens after the correction that have to be equal.

    Yields
    ------
    tuple of int (MAX_CONTEXT + 2,)
        The tokens of the text before the place, the text's own token, the draft's token.
    bool
        Whether both go on with the same tokens.
    """
    blocks = SequenceMatcher(None, draft, text, autojunk=False).get_opcodes()
    for (kind, i, i_end, j, j_end), following in zip(blocks, [*blocks[1:], None], strict=True):
        if kind == "equal" or i >= len(draft) or j >= len(text):
            continue
        before = [_NONE] * MAX_CONTEXT + [*text[:j]]
        is_single = kind == "replace" and i_end - i == 1 == j_end - j
        goes_on = following is not None and following[2] - following[1] >= same
        yield (*before[-MAX_CONTEXT:], text[j], draft[i]), is_single and goes_on


def learn(pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
          same: int = 5) -> dict[tuple, tuple[int, int]]:
    """Count the corrections in pairs of a draft and the strict text that followed it, by ``corrections``.

    Returns
    -------
    dict
        By correction: how often both went on with the same tokens, and how often it occurred at all.
    """
    total, harmless = Counter(), Counter()
    for draft, text in pairs:
        for correction, goes_on in corrections(draft, text, same):
            total[correction] += 1
            harmless[correction] += goes_on
    return {correction: (harmless[correction], count) for correction, count in total.items()}


def save(path: Path, counts: dict[tuple, tuple[int, int]]) -> None:
    """Write a memory as an npz file: int32 (N, MAX_CONTEXT + 2) and int32 (N, 2)."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, corrections=np.array([*counts], np.int32).reshape(-1, MAX_CONTEXT + 2),
                            counts=np.array([*counts.values()], np.int32).reshape(-1, 2))
    partial.replace(path)


class Corrections:
    """Accept a token where rejecting it has only changed that token before.

        x is the argmax, or in the memory, same(c, y, x) >= min_count and
        same(c, y, x) >= min_share * all(c, y, x)

    with y the argmax, c the last ``context`` tokens, ``all`` the number of times that y took the place of x
    after c in the texts that were learned from, and ``same`` those after which the text went on as its draft.

    Parameters
    ----------
    eos : int64 (E,)
        Not used: the engine accepts an end of text only as the argmax.
    memory : str
        File of ``dare-job pools corrections``, on every host under the same path.
    context : int
        Length of the key, from 0 to 8 tokens.
    min_count : int
        At least 1.
    min_share : float
        From 0 to 1.

    Raises
    ------
    ConfigError
        An option is out of its range, or the file cannot be read.
    """

    lossless = False

    def __init__(self, eos: torch.Tensor, memory: str, context: int = 3, min_count: int = 2,
                 min_share: float = 0.9):
        if not (0 <= context <= MAX_CONTEXT and min_count >= 1 and 0 <= min_share <= 1):
            raise ConfigError(f"context is {context!r}, min_count {min_count!r} and min_share {min_share!r}; "
                              f"they must be from 0 to {MAX_CONTEXT}, at least 1, and from 0 to 1")
        self._context = context
        self._known = _known(memory, context, min_count, min_share)

    def __call__(self, scores: torch.Tensor, tree: Tree, context: VerifyContext) -> NodeVerification:
        nodes = Nodes.of(scores, tree, context)
        passed = self._passed(tree, nodes.is_top.cpu().numpy(), context)
        return nodes.verified(torch.from_numpy(passed).to(nodes.is_top.device), context)

    def _passed(self, tree: Tree, is_top: np.ndarray, context: VerifyContext) -> np.ndarray:
        """The nodes, bool (T,), that pass together with all their ancestors. A parent precedes its nodes."""
        tokens, parents = (values.tolist() for values in tree.host[:2])
        argmax, starts = context.argmax.tolist(), tree.starts.tolist()
        length, before, passed = self._context, {}, is_top.copy()
        for row, end in enumerate(context.lengths.tolist()):
            root = starts[row]
            last = context.tokens[row, max(0, end - length):end].tolist()
            before[root] = (*[_NONE] * (length - len(last)), *last)
            for node in range(root + 1, starts[row + 1]):
                key = before.get(parents[node])
                if key is None:
                    passed[node] = False
                    continue
                if not is_top[node]:
                    passed[node] = (*key, argmax[parents[node]], tokens[node]) in self._known
                if passed[node]:
                    before[node] = (*key[1:], tokens[node]) if length else ()
        return passed


def _known(memory: str, context: int, min_count: int, min_share: float) -> frozenset[tuple[int, ...]]:
    """The corrections of a memory, by the last ``context`` tokens, that have recurred often enough."""
    try:
        with np.load(memory) as arrays:
            keys, counts = arrays["corrections"][:, MAX_CONTEXT - context:], arrays["counts"]
    except Exception as error:  # zipfile raises many kinds
        raise ConfigError(f"memory {memory!r} cannot be read as a file of `dare-job pools corrections` "
                          f"({describe(error)})") from error
    keys, places = np.unique(keys, axis=0, return_inverse=True)
    sums = np.zeros((len(keys), 2), np.int64)
    np.add.at(sums, places.reshape(-1), counts)
    same, total = sums.T
    return frozenset(map(tuple, keys[(same >= min_count) & (same >= min_share * total)].tolist()))
