"""Log-probabilities of many item ids after one history in one forward pass, and the beam searches.

The ids are branches of a tree after the prompt: a node attends to the prompt and to its own branch. Shapes:
B users, S branches, L levels, C codes of the largest level. The searches rank by the target, by the draft's
current weights, or by a mixture of both.
"""

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.node_scores import Children, NodeScores
from dare_job.decode.trie_search.search import TopK
from dare_job.decode.trie_search.trie import Trie, Vocabulary
from dare_job.recommend.vocabulary import Recommender

NEVER = -60.0  # log-probability that pads levels with fewer codes
BATCH_USERS = 32  # at once
Scorer = tuple[torch.nn.Module, Recommender]
Engine = tuple[Target, Recommender]


def log_probabilities(model: torch.nn.Module, recommender: Recommender, histories: Sequence[np.ndarray],
                      codes: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of all codes of each level l after the prefix codes[:, :, :l], of int64 (B, S, L).

    They are float32 (B, S, L, C), normalized over the whole vocabulary; levels with fewer than C codes are
    padded with ``NEVER``.
    """
    ids, there = _prompts(recommender, histories, model.device)
    users, branches, length = codes.shape
    first = torch.tensor(recommender.first_code_token, device=ids.device)
    nodes = (codes + first)[..., :-1].reshape(users, -1)
    logits = model(
        input_ids=torch.cat((ids, nodes), 1),
        attention_mask=_additive(_seen(there, branches, length - 1), model.dtype),
        position_ids=_positions(there, branches, length - 1),
        use_cache=False, logits_to_keep=1 + nodes.shape[1]).logits
    widest, found = max(recommender.ids.sizes), []
    inner = logits[:, 1:].unflatten(1, (branches, length - 1)) if length > 1 else None
    for level in range(length):
        behind = logits[:, :1].expand(-1, branches, -1) if level == 0 else inner[:, :, level - 1]
        logs = _log_codes(behind, recommender, level)
        found.append(torch.nn.functional.pad(logs, (0, widest - logs.shape[-1]), value=NEVER))
    return torch.stack(found, 2)


def _seen(there: torch.Tensor, branches: int, depth: int) -> torch.Tensor:
    """Which token attends to which, bool (B, P + S * depth, P + S * depth)."""
    users, width = there.shape
    found = torch.zeros(users, width + branches * depth, width + branches * depth, dtype=torch.bool)
    found[:, :width, :width] = torch.ones(width, width, dtype=torch.bool).tril()
    if depth:
        found[:, width:, width:] = torch.block_diag(*[torch.ones(depth, depth).tril()] * branches).bool()
    found = found.to(there.device)
    found[:, width:, :width] = True
    found[:, :, :width] &= there[:, None]
    return found


def _positions(there: torch.Tensor, branches: int, depth: int) -> torch.Tensor:
    """Positions int64 (B, P + S * depth) of the prompt's tokens, from 0 without padding, and the nodes."""
    depths = torch.arange(depth, device=there.device).repeat(branches)
    return torch.cat(((there.cumsum(1) - 1).clamp_min(0), there.sum(1, keepdim=True) + depths), 1)


def _prompts(recommender: Recommender, histories: Sequence[np.ndarray],
            device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids int64 (B, P), padded on the left, and which of them are no padding, bool (B, P)."""
    found = [recommender.prompt(history) for history in histories]
    width = max(map(len, found))
    ids = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in found], device=device)
    lengths = torch.tensor([len(prompt) for prompt in found], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]


def _log_codes(logits: torch.Tensor, recommender: Recommender, level: int) -> torch.Tensor:
    """Log-probabilities float32 (..., C) of a level's codes from logits (..., V), over all tokens."""
    first = recommender.first_code_token[level]
    return logits.float().log_softmax(-1)[..., first:first + recommender.ids.sizes[level]]


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive attention mask (B, 1, Q, K) of a boolean one (B, Q, K)."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(
        ~seen, torch.finfo(dtype).min)[:, None]


def search_engine(scorer: Scorer, learns: bool = False) -> Engine:
    """A model prepared for search: its attention replaced, its weights prepacked.

    learns : the model is still trained, so a copy with its current weights is prepared
    """
    model, recommender = scorer
    return Target(copy.deepcopy(model) if learns else model, check=False, static=False), recommender


def top_k_search(by: Engine, trie: Trie, k: int) -> TopK:
    """Search for the k best ids, or all if there are fewer."""
    return TopK(by[0], trie, by[1].first_code_token, min(k, trie.leaves))


class MixedTopK(TopK):
    """Search by the mixture share * p + (1 - share) * q of two models: AtSpeed-S trains on its beams.

    p reads ``prompt`` of a query, q reads ``draft_prompt``.
    """

    def __init__(self, p: Engine, q: Engine, share: float, trie: Trie, k: int):
        super().__init__(p[0], trie, p[1].first_code_token, min(k, trie.leaves))
        other = NodeScores(q[0], Vocabulary(trie, list(q[1].first_code_token), q[0].device))
        self.node_scores = _Mixture((self.node_scores, other), (share, 1 - share))

    def begin(self, queries: Sequence[Query]) -> None:
        self.node_scores.begin([(query.prompt, query.draft_prompt) for query in queries])


class _Mixture:
    """A reader whose log-probabilities are those of a mixture of several readers' distributions."""

    def __init__(self, readers: Sequence[NodeScores], shares: Sequence[float]):
        self._readers = readers
        self._logs = [math.log(share) if share else -math.inf for share in shares]

    @property
    def reads(self) -> list[np.ndarray]:
        return self._readers[0].reads

    def begin(self, prompts: Sequence[Sequence[Sequence[int]]]) -> None:
        """prompts : of each row, one per reader"""
        for reader, own in zip(self._readers, zip(*prompts, strict=True), strict=True):
            reader.begin(own)

    def has(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        return self._readers[0].has(rows, nodes)

    def read(self, rows: np.ndarray, nodes: np.ndarray) -> None:
        for reader in self._readers:
            reader.read(rows, nodes)

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        found = [reader.children(rows, nodes) for reader in self._readers]
        mixed = torch.stack([logs + share for (*_, logs), share in zip(found, self._logs, strict=True)])
        return *found[0][:2], mixed.logsumexp(0)
