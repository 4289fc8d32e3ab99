"""Drafts of rows that have a grammar: without the tokens that it forbids, and with those that it forces."""

from collections.abc import Sequence

import numpy as np

from dare_job.decode.engine.grammar import TextParser, children_of
from pools.tree import ROOT, SOURCE_NONE, DraftBatch


def constrain(drafts: DraftBatch, parsers: Sequence[TextParser | None], nodes: np.ndarray,
              depths: np.ndarray) -> DraftBatch:
    """Return the drafts of R rows without forbidden tokens and with forced ones.

    Parameters
    ----------
    drafts : DraftBatch
    parsers : sequence of TextParser
        At the ends of the rows' texts. None: the row's drafts stay.
    nodes, depths : int32 (R,)
        Maximum number of draft nodes, and longest path, of each row.
    """
    rows = [_DraftRow.of(drafts, row) for row in range(drafts.rows)]
    rows = [row if parser is None else _constrained(parser, row, *limits) for row, parser, *limits in
            zip(rows, parsers, nodes.tolist(), depths.tolist(), strict=True)]
    sizes = np.array([len(row.tokens) for row in rows], np.int32)
    shape = len(rows), int(sizes.max(initial=0))
    parts = [np.zeros(shape, kind) for kind in (np.int32, np.int32, np.float32, np.uint8)]
    for place, row in enumerate(rows):
        for part, values in zip(parts, (row.tokens, row.parents, row.scores, row.sources), strict=True):
            part[place, : sizes[place]] = values
    tokens, parents, scores, sources = parts
    return DraftBatch(tokens, parents, sizes, scores, sources)


def _constrained(parser: TextParser, drafts: "_DraftRow", nodes: int, depth: int) -> "_DraftRow":
    """Return a row's drafts without forbidden tokens and with forced ones, best first.

    The end of text is not added: where nothing else may follow, the forward pass that accepts the node before
    it gives it.
    """
    matcher, eos = parser.matcher, parser.grammar.eos
    children, kept = children_of(drafts.parents), []
    levels, rest = {ROOT: 0}, {}  # rest: the forced tokens after a node, where they are known
    for node in parser.visit(drafts.tokens, children):
        if node != ROOT:
            levels[node] = levels[drafts.parents[node]] + 1
            kept.append(node)
        ended = matcher.is_stopped()
        forced = [] if ended else rest.pop(node, None) or matcher.compute_ff_tokens()
        if matcher.is_error():
            parser.restart()
            break
        if levels[node] == depth:
            children[node] = []
        elif forced:
            children[node] = [drafts.child(node, forced[0], children[node])]
            rest[children[node][0]] = forced[1:]
        ending = [child for child in children[node] if drafts.tokens[child] in eos]
        if ended:
            children[node] = ending
        kept += ending if ending and matcher.is_accepting() else []
    return drafts.select(sorted(kept, key=lambda node: -drafts.scores[node])[:nodes])


class _DraftRow:
    """The drafts of one row, as lists that can grow; the fields of ``DraftBatch``."""

    def __init__(self, tokens: list[int], parents: list[int], scores: list[float], sources: list[int]):
        self.tokens, self.parents, self.scores, self.sources = tokens, parents, scores, sources

    @classmethod
    def of(cls, drafts: DraftBatch, row: int) -> "_DraftRow":
        size = drafts.sizes[row]
        drafted = cls(*(part[row, :size].tolist() for part in (drafts.tokens, drafts.parents, drafts.scores,
                                                               drafts.sources)))
        for node, parent in enumerate(drafted.parents):  # descending, so that a parent is selected first
            if parent != ROOT:
                drafted.scores[node] = min(drafted.scores[node], drafted.scores[parent])
        return drafted

    def child(self, parent: int, token: int, children: Sequence[int]) -> int:
        """Return the child of a node with a forced token; add it if none of the children has it."""
        score = 1.0 if parent == ROOT else self.scores[parent]
        for child in children:
            if self.tokens[child] == token:
                self.scores[child] = max(self.scores[child], score)
                return child
        for values, value in ((self.tokens, token), (self.parents, parent), (self.scores, score),
                              (self.sources, SOURCE_NONE)):
            values.append(value)
        return len(self.tokens) - 1

    def select(self, nodes: Sequence[int]) -> "_DraftRow":
        """Return the nodes, each of which comes after its parent."""
        places = {ROOT: ROOT} | {node: place for place, node in enumerate(nodes)}
        tokens, parents, scores, sources = ([values[node] for node in nodes] for values in (
            self.tokens, self.parents, self.scores, self.sources))
        return _DraftRow(tokens, [places[parent] for parent in parents], scores, sources)
