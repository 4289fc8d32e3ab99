"""A model's probabilities behind trie nodes: each node of a row is read once, over the prompt's keys and
values.

Shape letters: R rows, X nodes that one forward reads, M nodes that were read so far, N nodes asked for, C
children, P tokens of a prompt. Beams of a row share what the cache holds of the prompt and of each other.
"""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.model.masks import Level
from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.trie import NONE, ROOT, Vocabulary
from dare_job.errors import ModelError

RAW, RENORMALISED = "raw", "renormalised"
Children = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # as ``Reader.children`` gives them
_LAST = np.iinfo(np.int64).max  # a node behind all others


class NodeScores:
    """What a target has read of R rows.

    scores       raw: log-softmax over the whole vocabulary, as ``generate`` has it; renormalised: over the
                 children of a node, so that a forced token has log-probability 0
    counts       int64 (R,): nodes that each row has read
    reads        of each forward since ``begin``, int64 (R,): tokens that it read of each row, prompts
                 included
    """

    def __init__(self, target: Target, vocabulary: Vocabulary, scores: str = RAW):
        self.target, self.vocabulary, self.scores = target, vocabulary, scores
        self.reads: list[np.ndarray] = []
        self.cache = None
        self.longest: int | None = target.traits.max_length
        if target.traits.max_columns is not None:
            self.longest = min(self.longest or target.traits.max_columns, target.traits.max_columns)

    def begin(self, prompts: Sequence[Sequence[int]]) -> None:
        """Forget all rows; these are the new ones. Raises ModelError for a prompt that the model cannot
        hold.
        """
        rows, self.reads = len(prompts), []
        self.lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        if self.lengths.min(initial=1) < 1:
            raise ModelError("a prompt without a token: nothing stands before the first code")
        if self.longest is not None and self.lengths.max() + self.vocabulary.trie.length > self.longest:
            raise ModelError(f"a prompt of {self.lengths.max()} tokens and an id of "
                             f"{self.vocabulary.trie.length} do not fit the model's {self.longest} positions")
        self.prompts = np.zeros((rows, int(self.lengths.max())), np.int64)
        self.prompts[np.arange(self.prompts.shape[1]) < self.lengths[:, None]] = np.concatenate(
            [np.asarray(prompt, np.int64) for prompt in prompts])
        if self.cache is None or self.cache.slots < rows:
            self.cache = self.target.new_cache(rows)
        self.nodes = np.full((rows, 0), NONE, np.int64)  # (R, M): the node in each place
        self.above = np.full((rows, 0), NONE, np.int64)  # (R, M): the place of its parent
        self.counts = np.zeros(rows, np.int64)
        # (R, 1 + M): where log-probabilities of a place's children begin in ``_values``; column 0: the root's
        self._offsets = np.full((rows, 1), NONE, np.int64)
        self._values = torch.zeros(1, device=self.target.device)  # the first one stands for what was not read

    def room(self) -> int | None:
        """Nodes that a row may read yet, where cache columns bound them; None: any number."""
        columns = self.target.traits.max_columns
        return None if columns is None else int(columns - (self.lengths + self.counts).max())

    def place(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Rows (S,), nodes int64 (S, N) -> places int64 (S, N) among what was read, from 1 on; the root's is
        0, NONE: it was not read.
        """
        found = np.where((nodes == ROOT) & (self._offsets[rows, :1] != NONE), 0, NONE)
        if self.nodes.shape[1]:
            equal = (nodes[:, :, None] == self.nodes[rows][:, None]) & (nodes >= 0)[:, :, None]
            found = np.where(equal.any(-1), equal.argmax(-1) + 1, found)
        return found

    def knows(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """bool (S, N): what ``children`` can say of nodes int64 (S, N) of rows (S,); True for NONE."""
        known = (self.place(rows, nodes) != NONE) | (nodes == NONE)
        if self.scores == RENORMALISED:
            known |= self.vocabulary.trie.counts[np.maximum(nodes, 0)] == 1
        return known

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        """Of known nodes int64 (S, N) of rows (S,): children, bool, log-probabilities (S, N, C).

        Where there is no child, bool is False and the log-probability -inf. A forced token that was not read
        has log-probability 0: only renormalised scores know such nodes.
        """
        places = self.place(rows, nodes)
        device = self.target.device
        children, there = self.vocabulary.children(torch.from_numpy(nodes).to(device))
        begin = torch.from_numpy(np.take_along_axis(self._offsets[rows], np.maximum(places, 0), 1)).to(device)
        read = there & torch.from_numpy(places != NONE).to(device)[..., None]
        at = begin[..., None] + torch.arange(children.shape[-1], device=device)
        values = self._values[torch.where(read, at, 0)].masked_fill(~read, 0)
        return children, there, values.masked_fill(~there, -torch.inf)

    @torch.inference_mode()
    def read(self, rows: np.ndarray, nodes: np.ndarray) -> None:
        """One forward over what rows (S,) have not read yet: their prompts, nodes int64 (S, X), and whatever
        stands above these. NONE and leaves are left out. Raises ModelError where they do not fit, or the
        model gives logits that are no numbers.
        """
        nodes = self.missing(rows, nodes)
        if (room := self.room()) is not None and nodes.shape[1] > room:
            raise ModelError(f"{nodes.shape[1]} more nodes behind the prompts and nodes so far do not fit "
                             f"the {self.target.traits.max_columns} columns of the model's own mask")
        new = np.full((len(self.lengths), nodes.shape[1]), NONE, np.int64)
        new[rows] = nodes
        fresh = np.zeros(len(self.lengths), np.bool_)
        fresh[rows] = self._offsets[rows, 0] == NONE
        new = self._appended(new)
        counts = (new >= 0).sum(1)
        heads = np.where(fresh, self.lengths, 0)
        if not (heads + counts).any():
            return
        try:
            if fresh.all() and not counts.any():
                logits = self.target.prefill(self.cache, np.arange(len(rows)), self.prompts, self.lengths)
            else:
                logits = self._forward(new, counts, heads)
        except Exception:
            self.cache = None  # memory may be short for so many rows
            raise
        self.reads.append(heads + counts)
        self._keep(logits.float(), fresh, new, counts)

    def missing(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Of nodes int64 (S, X), and those above them, what was not read: ascending, so that parents stand
        before children, each once, NONE behind them.
        """
        trie = self.vocabulary.trie
        every, above = [nodes], nodes
        for _ in range(trie.length - 2):
            above = np.where(above > ROOT, trie.parents[np.maximum(above, 0)], NONE)
            every.append(above)
        wanted = np.concatenate(every, axis=1)
        wanted = np.where((wanted > ROOT) & (wanted < trie.first_leaf), wanted, _LAST)
        wanted = np.sort(wanted, axis=1)
        wanted[:, 1:][wanted[:, 1:] == wanted[:, :-1]] = _LAST
        wanted[self.place(rows, wanted) != NONE] = _LAST
        wanted = np.sort(wanted, axis=1)
        width = int((wanted < _LAST).sum(1).max(initial=0))
        return np.where(wanted == _LAST, NONE, wanted)[:, :width]

    def _appended(self, new: np.ndarray) -> np.ndarray:
        """Nodes (R, X) moved to the left, and noted with their parents' places."""
        order = np.argsort(new < 0, axis=1, kind="stable")
        new = np.take_along_axis(new, order, 1)
        added = (new >= 0).sum(1)
        width = int((self.counts + added).max(initial=0))
        grown = width - self.nodes.shape[1]
        if grown > 0:
            pad = ((0, 0), (0, grown))
            self.nodes = np.pad(self.nodes, pad, constant_values=NONE)
            self.above = np.pad(self.above, pad, constant_values=NONE)
            self._offsets = np.pad(self._offsets, pad, constant_values=NONE)
        row, column = np.nonzero(new >= 0)
        at = self.counts[row] + column
        self.nodes[row, at] = new[row, column]
        above = np.where(new >= 0, self.vocabulary.trie.parents[np.maximum(new, 0)], NONE)
        places = self.place(np.arange(len(new)), above) - 1  # the root's becomes -1
        self.above[row, at] = places[row, column]
        self.counts += added
        return new

    def _forward(self, new: np.ndarray, counts: np.ndarray, heads: np.ndarray) -> torch.Tensor:
        """Logits (W, V): of each row, its prompt's last token where it is read now, then its new nodes."""
        rows, trie = len(counts), self.vocabulary.trie
        fresh = heads > 0
        before = self.counts - counts  # nodes in the cache
        base = np.where(fresh, 0, self.lengths)  # tokens in the cache
        width = int((heads + self.counts).max())
        shift = (np.arange(rows)[:, None], heads[:, None] + np.arange(self.nodes.shape[1]))
        parents = np.full((rows, int(heads.max()) + self.nodes.shape[1]), NONE, np.int64)
        depths, tokens = np.zeros_like(parents), np.zeros_like(parents)
        parents[shift] = np.where(self.above >= 0, self.above + heads[:, None], heads[:, None] - 1)
        depths[shift] = trie.levels[np.maximum(self.nodes, 0)] + heads[:, None]
        tokens[shift] = self.vocabulary.tokens[np.maximum(self.nodes, 0)]
        prompt = np.arange(parents.shape[1]) < heads[:, None]
        chain = np.broadcast_to(np.arange(parents.shape[1]), parents.shape)
        parents, depths = np.where(prompt, chain - 1, parents), np.where(prompt, chain + 1, depths)
        longest = min(self.prompts.shape[1], parents.shape[1])
        tokens[:, :longest] = np.where(prompt[:, :longest], self.prompts[:, :longest], tokens[:, :longest])
        first = np.where(fresh, 0, before)
        read = (chain >= first[:, None]) & (chain < (heads + before + counts)[:, None])
        starts = np.concatenate(([0], np.cumsum(read.sum(1))))
        level = Level(tokens[read], starts, base, first, parents[:, :width], depths[:, :width])
        wanted = (chain >= np.where(fresh, heads - 1, first)[:, None])[read]
        return self.target.extend(self.cache, level, np.flatnonzero(wanted))

    def _keep(self, logits: torch.Tensor, fresh: np.ndarray, new: np.ndarray, counts: np.ndarray) -> None:
        """Log-probabilities of the children of each node that logits (W, V) are of."""
        rows = len(counts)
        nodes = np.concatenate((np.where(fresh, ROOT, NONE)[:, None], new), axis=1)  # (R, 1 + X)
        row, column = np.nonzero(nodes >= 0)
        parents = torch.from_numpy(nodes[row, column]).to(logits.device)
        children, there = self.vocabulary.children(parents)
        values = logits.gather(1, self.vocabulary.token[children].clamp_min(0))
        if not values[there].isfinite().all():  # what stands in the cache would spoil other rows' sums
            self.cache = None
            raise ModelError("the model's logits are no numbers")
        if self.scores == RAW:
            values = values - logits.logsumexp(-1, keepdim=True)
        else:
            values = values.masked_fill(~there, -torch.inf).log_softmax(-1)
        sizes = self.vocabulary.trie.counts[nodes[row, column]]
        begin = len(self._values) + np.concatenate(([0], np.cumsum(sizes)[:-1]))
        before = (self.counts - counts)[np.arange(rows)]
        self._offsets[row, np.where(column == 0, 0, before[row] + column)] = begin
        self._values = torch.cat((self._values, values[there]))
