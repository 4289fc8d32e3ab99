"""Log-probabilities of a model at trie nodes; each node of a row is read once, over the prompt's keys and
values.

Shape letters: R rows, X nodes that one forward pass reads, M nodes read so far, N nodes requested, C
children, P tokens of a prompt. The beams of a row share the cached prompt and the nodes they have in common.
"""

from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.model.masks import Level
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import in_order
from dare_job.decode.trie_search.trie import NONE, ROOT, Vocabulary
from dare_job.errors import ModelError

RAW, RENORMALISED = "raw", "renormalised"
Children = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # children, presence, log-probabilities
_LAST = np.iinfo(np.int64).max  # sorts after every node


class NodeScores:
    """The trie nodes that a target has read for R rows.

    Attributes
    ----------
    scores
        "raw" for log-softmax over the whole vocabulary as in ``generate``; "renormalised" over the children
        of a node, so that a forced token has log-probability 0.
    counts : int64 (R,)
        Nodes read per row.
    reads
        Per forward pass since ``begin``, int64 (R,), tokens read per row, prompts included.
    """

    def __init__(self, target: Target, vocabulary: Vocabulary, scores: str = RAW):
        self.target, self.vocabulary, self.scores = target, vocabulary, scores
        self.reads: list[np.ndarray] = []
        self.cache = None
        self.max_positions: int | None = target.traits.max_length
        if target.traits.max_columns is not None:
            self.max_positions = min(self.max_positions or target.traits.max_columns,
                                     target.traits.max_columns)

    def begin(self, prompts: Sequence[Sequence[int]]) -> None:
        """Replace all rows by these prompts.

        Raises
        ------
        ModelError
            A prompt is empty or does not fit the model.
        """
        rows, self.reads = len(prompts), []
        self.lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        if self.lengths.min(initial=1) < 1:
            raise ModelError("a prompt has no tokens: every prompt needs at least one")
        longest, length = self.lengths.max(), self.vocabulary.trie.length
        if self.max_positions is not None and longest + length > self.max_positions:
            raise ModelError(f"a prompt of {longest} tokens and an id of {length} do not fit the model's "
                             f"{self.max_positions} positions")
        self.prompts = np.zeros((rows, int(longest)), np.int64)
        self.prompts[np.arange(self.prompts.shape[1]) < self.lengths[:, None]] = np.concatenate(
            [np.asarray(prompt, np.int64) for prompt in prompts])
        if self.cache is None or self.cache.slots < rows:
            self.cache = self.target.new_cache(rows)
        for slot in range(self.cache.slots):
            self.cache.release(slot)
        self.nodes = np.full((rows, 0), NONE, np.int64)  # (R, M): the node in each place
        self.parent_places = np.full((rows, 0), NONE, np.int64)  # (R, M): the place of its parent
        self.counts = np.zeros(rows, np.int64)
        # (R, 1 + M): where log-probabilities of a place's children begin in ``_values``; column 0: the root's
        self._offsets = np.full((rows, 1), NONE, np.int64)
        self._values = torch.zeros(1, device=self.target.device)  # entry 0 is a placeholder for unread nodes

    def capacity(self) -> int | None:
        """Return how many more nodes every row can read where the model limits cache columns; None for no
        limit.
        """
        columns = self.target.traits.max_columns
        return None if columns is None else int(columns - (self.lengths + self.counts).max())

    def place(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Return places int64 (S, N) of nodes (S, N) of rows (S,) among the nodes read, from 1; 0 is the
        root, NONE unread.
        """
        places = np.where((nodes == ROOT) & (self._offsets[rows, :1] != NONE), 0, NONE)
        if self.nodes.shape[1]:
            matches = (nodes[:, :, None] == self.nodes[rows][:, None]) & (nodes >= 0)[:, :, None]
            places = np.where(matches.any(-1), matches.argmax(-1) + 1, places)
        return places

    def has(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Return bool (S, N): whether ``children`` can score these nodes of rows (S,); True for NONE."""
        readable = (self.place(rows, nodes) != NONE) | (nodes == NONE)
        if self.scores == RENORMALISED:
            readable |= self.vocabulary.trie.counts[np.maximum(nodes, 0)] == 1
        return readable

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        """Return children, whether they are present, and their log-probabilities, (S, N, C) each.

        All nodes int64 (S, N) of rows (S,) must satisfy ``has``. Absent children have log-probability -inf. A
        forced token that was not read has log-probability 0, with renormalised scores only.
        """
        places = self.place(rows, nodes)
        device = self.target.device
        children, present = self.vocabulary.children(nodes)
        first = torch.from_numpy(np.take_along_axis(self._offsets[rows], np.maximum(places, 0), 1)).to(device)
        read = present & torch.from_numpy(places != NONE).to(device)[..., None]
        index = first[..., None] + torch.arange(children.shape[-1], device=device)
        values = self._values[torch.where(read, index, 0)].masked_fill(~read, 0)
        return children, present, values.masked_fill(~present, -torch.inf)

    @torch.inference_mode()
    def read(self, rows: np.ndarray, nodes: np.ndarray) -> None:
        """Run one forward pass over the unread prompts, nodes int64 (S, X) and their ancestors; NONE and
        leaves are skipped.

        Raises
        ------
        ModelError
            They do not fit the model, or its logits are non-finite.
        """
        nodes = self.unread(rows, nodes)
        if (capacity := self.capacity()) is not None and nodes.shape[1] > capacity:
            raise ModelError(f"{nodes.shape[1]} more nodes do not fit beside the prompts and nodes read so "
                             f"far: the model's mask or index has {self.target.traits.max_columns} columns")
        new = np.full((len(self.lengths), nodes.shape[1]), NONE, np.int64)
        new[rows] = nodes
        is_new = np.zeros(len(self.lengths), np.bool_)
        is_new[rows] = self._offsets[rows, 0] == NONE
        new = self._append(new)
        counts = (new >= 0).sum(1)
        prompt_tokens = np.where(is_new, self.lengths, 0)
        if not (prompt_tokens + counts).any():
            return
        try:
            if is_new.all() and not counts.any():
                logits = self.target.prefill(self.cache, np.arange(len(rows)), self.prompts, self.lengths)
            elif self.target.paged is not None and is_new.any():
                logits = self._prefill_and_forward(new, counts, is_new)
            else:
                logits = self._forward(new, counts, prompt_tokens)
        except Exception:
            self.cache = None  # frees memory, as the error may be out-of-memory
            raise
        self.reads.append(prompt_tokens + counts)
        self._store(logits.float(), is_new, new, counts)

    def unread(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Return the unread ones of nodes int64 (S, X) and their ancestors, ascending and unique, NONE at the
        end.

        Ascending order puts parents before children.
        """
        trie = self.vocabulary.trie
        levels, ancestors = [nodes], nodes
        for _ in range(trie.length - 2):
            ancestors = np.where(ancestors > ROOT, trie.parents[np.maximum(ancestors, 0)], NONE)
            levels.append(ancestors)
        wanted = np.concatenate(levels, axis=1)
        wanted = np.where((wanted > ROOT) & (wanted < trie.first_leaf), wanted, _LAST)
        wanted = np.sort(wanted, axis=1)
        wanted[:, 1:][wanted[:, 1:] == wanted[:, :-1]] = _LAST
        wanted[self.place(rows, wanted) != NONE] = _LAST
        wanted = np.sort(wanted, axis=1)
        width = int((wanted < _LAST).sum(1).max(initial=0))
        return np.where(wanted == _LAST, NONE, wanted)[:, :width]

    def _append(self, new: np.ndarray) -> np.ndarray:
        """Compact nodes (R, X) to the left, and record them with the places of their parents."""
        order = np.argsort(new < 0, axis=1, kind="stable")
        new = np.take_along_axis(new, order, 1)
        counts_added = (new >= 0).sum(1)
        width = int((self.counts + counts_added).max(initial=0))
        missing_columns = width - self.nodes.shape[1]
        if missing_columns > 0:
            pad = ((0, 0), (0, missing_columns))
            self.nodes = np.pad(self.nodes, pad, constant_values=NONE)
            self.parent_places = np.pad(self.parent_places, pad, constant_values=NONE)
            self._offsets = np.pad(self._offsets, pad, constant_values=NONE)
        row, column = np.nonzero(new >= 0)
        at = self.counts[row] + column
        self.nodes[row, at] = new[row, column]
        parents = np.where(new >= 0, self.vocabulary.trie.parents[np.maximum(new, 0)], NONE)
        places = self.place(np.arange(len(new)), parents) - 1  # the root's becomes -1
        self.parent_places[row, at] = places[row, column]
        self.counts += counts_added
        return new

    def _forward(self, new: np.ndarray, counts: np.ndarray, prompt_tokens: np.ndarray) -> torch.Tensor:
        """Return logits (W, V) per row: of its prompt's last token if the prompt is read now, then of its new
        nodes.
        """
        rows, trie = len(counts), self.vocabulary.trie
        is_new = prompt_tokens > 0
        cached_nodes = self.counts - counts  # nodes in the cache
        cached_tokens = np.where(is_new, 0, self.lengths)  # tokens in the cache
        width = int((prompt_tokens + self.counts).max())
        shift = (np.arange(rows)[:, None], prompt_tokens[:, None] + np.arange(self.nodes.shape[1]))
        parents = np.full((rows, int(prompt_tokens.max()) + self.nodes.shape[1]), NONE, np.int64)
        depths, tokens = np.zeros_like(parents), np.zeros_like(parents)
        parents[shift] = np.maximum(self.parent_places, -1) + prompt_tokens[:, None]
        depths[shift] = trie.levels[np.maximum(self.nodes, 0)] + prompt_tokens[:, None]
        tokens[shift] = self.vocabulary.tokens[np.maximum(self.nodes, 0)]
        prompt = np.arange(parents.shape[1]) < prompt_tokens[:, None]
        chain = np.broadcast_to(np.arange(parents.shape[1]), parents.shape)
        parents, depths = np.where(prompt, chain - 1, parents), np.where(prompt, chain + 1, depths)
        prompt_width = min(self.prompts.shape[1], parents.shape[1])
        tokens[:, :prompt_width] = np.where(prompt[:, :prompt_width], self.prompts[:, :prompt_width],
                                            tokens[:, :prompt_width])
        first = np.where(is_new, 0, cached_nodes)
        read = (chain >= first[:, None]) & (chain < (prompt_tokens + cached_nodes + counts)[:, None])
        starts = np.concatenate(([0], np.cumsum(read.sum(1))))
        level = Level(tokens[read], starts, cached_tokens, first, parents[:, :width], depths[:, :width])
        wanted = (chain >= np.where(is_new, prompt_tokens - 1, first)[:, None])[read]
        return self.target.extend(self.cache, level, np.flatnonzero(wanted))

    def _prefill_and_forward(self, new: np.ndarray, counts: np.ndarray, is_new: np.ndarray
                             ) -> torch.Tensor:
        """Return the logits of ``_forward`` from two passes: over pages, prompts are packed, and only
        their last token has logits.
        """
        prompts = np.flatnonzero(is_new)
        roots = self.target.prefill(self.cache, prompts, self.prompts[prompts], self.lengths[prompts])
        if not counts.any():
            return roots
        sizes = is_new + counts
        starts = np.cumsum(sizes) - sizes
        row = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        nodes = self._forward(new, counts, np.zeros_like(counts))
        return in_order([(starts[prompts], roots), (starts[row] + is_new[row] + number, nodes)])

    def _store(self, logits: torch.Tensor, is_new: np.ndarray, new: np.ndarray, counts: np.ndarray) -> None:
        """Store the log-probabilities of the children of each node, from logits (W, V)."""
        rows = len(counts)
        nodes = np.concatenate((np.where(is_new, ROOT, NONE)[:, None], new), axis=1)  # (R, 1 + X)
        row, column = np.nonzero(nodes >= 0)
        children, present = self.vocabulary.children(nodes[row, column])
        values = logits.gather(1, self.vocabulary.token[children].clamp_min(0))
        if not values[present].isfinite().all():  # NaN in the cache would make other rows non-finite
            self.cache = None
            raise ModelError("the model's logits are not finite")
        if self.scores == RAW:
            values = values - logits.logsumexp(-1, keepdim=True)
        else:
            values = values.masked_fill(~present, -torch.inf).log_softmax(-1)
        sizes = self.vocabulary.trie.counts[nodes[row, column]]
        begin = len(self._values) + np.concatenate(([0], np.cumsum(sizes)[:-1]))
        cached_nodes = (self.counts - counts)[np.arange(rows)]
        self._offsets[row, np.where(column == 0, 0, cached_nodes[row] + column)] = begin
        self._values = torch.cat((self._values, values[present]))
