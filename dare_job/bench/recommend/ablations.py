"""Drafts without parts of what makes them: without tree attention, and without the constraint to real ids."""

import numpy as np
import torch

from dare_job.bench.recommend import measure
from dare_job.bench.recommend.measure import Measured, measured
from dare_job.bench.recommend.methods import Makers, Method
from dare_job.decode.trie_search.beams import Candidates, best
from dare_job.decode.trie_search.drafts import ModelScorer, TrieDrafter
from dare_job.decode.trie_search.node_scores import RAW, NodeScores

_WIDTH = 40


def of(makers: Makers, k: int, batch: int, plain: Measured) -> list[dict]:
    """Of each draft model, strict, N = 40."""
    found = []
    for name in makers.world.drafts:
        method = Method(name, k=k, width=_WIDTH)
        whole = measured(makers, method, batch, 1)
        alone = np.concatenate([measure.without_tree_ms(lists, _WIDTH, k) for lists in whole.lists])
        loose = measured(_Loose(makers), method, batch, 1)
        found.append({
            "method": name, "k": k, "accepted_steps": whole.accepted,
            "speedup_memory_bound": float(plain.memory_bound_ms.mean() / whole.memory_bound_ms.mean()),
            "without_tree_attention": {
                "speedup_memory_bound": float(plain.memory_bound_ms.mean() / alone.mean())},
            "without_constraint": {
                "accepted_steps": loose.accepted,
                "speedup_memory_bound": float(plain.memory_bound_ms.mean() / loose.memory_bound_ms.mean())}})
    return found


class _Loose(Makers):
    """Draft models choose among all tokens: those that no id has take places of the N, and lead nowhere.

    What would stand behind such tokens is not followed, which would take places too: a bound from above.
    """

    def __init__(self, makers: Makers):
        self.__dict__.update(makers.__dict__)

    def make(self, method, scheduler=None):
        search = super().make(method, scheduler)
        scorer = search.drafter.scorer
        scorer.node_scores = _Rivals(scorer.node_scores.target, scorer.node_scores.vocabulary, RAW)
        search.drafter = _LooseDrafter(scorer, search.trie.length, method.width, method.depth)
        return search


class _Rivals(NodeScores):
    """Also keeps the N best log-probabilities of tokens that are no child, of each node that it reads."""

    def begin(self, prompts) -> None:
        super().begin(prompts)
        self.rivals: dict[tuple[int, int], torch.Tensor] = {}

    def _store(self, logits, fresh, new, counts) -> None:
        super()._store(logits, fresh, new, counts)
        nodes = np.concatenate((np.where(fresh, 0, -1)[:, None], new), axis=1)
        row, column = np.nonzero(nodes >= 0)
        children, there = self.vocabulary.children(torch.from_numpy(nodes[row, column]).to(logits.device))
        logs = logits.log_softmax(-1)
        inside = torch.zeros_like(logs, dtype=torch.bool)
        inside.scatter_(1, torch.where(there, self.vocabulary.token[children], self.vocabulary.token[
            children[:, :1]]), True)
        found = logs.masked_fill(inside, -torch.inf).topk(min(_WIDTH, logs.shape[1]), dim=-1).values
        keys = zip(row.tolist(), nodes[row, column].tolist(), strict=True)
        self.rivals.update(zip(keys, found, strict=True))


class _LooseDrafter(TrieDrafter):
    scorer: ModelScorer

    def select_level(self, rows: np.ndarray, found: Candidates):
        """Of the N best of all tokens those that an id has."""
        trie = self.scorer.node_scores.vocabulary.trie
        limits = torch.zeros(len(rows), dtype=torch.int64, device=found.nodes.device)
        for at, row in enumerate(rows.tolist()):
            nodes, scores = found.nodes[at], found.scores[at]
            known = nodes >= 0
            parents = trie.parents[nodes[known].cpu().numpy()]
            logs, where = scores[known], {}
            for parent, *one in zip(parents.tolist(), nodes[known].tolist(), logs.tolist(), strict=True):
                where.setdefault(parent, one)
            others = [self._above(row, parent, *one) for parent, one in where.items()]
            if others:
                every = torch.cat((logs, *others))
                least = every.topk(min(self.width, len(every))).values[-1]
                limits[at] = min(self.width, int((logs >= least).sum()))
        return best(found, max(1, int(limits.max())), limits), None

    def _above(self, row: int, parent: int, child: int, score: float) -> torch.Tensor:
        """Whole-path scores of the tokens behind a node that are no child: its own score is a child's less
        the child's log-probability.
        """
        reader = self.scorer.node_scores
        _, _, logs = reader.children(np.array([row]), np.array([[parent]]))
        own = score - float(logs[0, 0, child - int(reader.vocabulary.trie.first[parent])])
        return reader.rivals[row, parent] + own
