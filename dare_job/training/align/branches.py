"""A model's log-probabilities along many ids behind one history, in one forward with gradients.

The ids are branches of a tree behind the prompt: a node attends to the prompt and to its own branch. Shapes:
B users, S branches, L levels, C codes of the largest level.

The nights' own search, for an alignment: by the target, by the draft as it is now, and by both mixed.
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

NEVER = -60.0  # log-probability of places that a level's codes do not fill


def log_probabilities(model: torch.nn.Module, recommender: Recommender, histories: Sequence[np.ndarray],
                      codes: torch.Tensor) -> torch.Tensor:
    """Float32 (B, S, L, C): of the codes of level l behind codes[:, :, :l]. codes int64 (B, S, L).

    Normalised over the whole vocabulary. A level with fewer than C codes is filled with ``NEVER``.
    """
    ids, there = _prompts(recommender, histories, model.device)
    users, branches, length = codes.shape
    first = torch.tensor(recommender.first_code_token, device=ids.device)
    nodes = (codes + first)[..., :-1].reshape(users, -1)
    logits = model(
        input_ids=torch.cat((ids, nodes), 1),
        attention_mask=_additive(_seen(there, branches, length - 1), model.dtype),
        position_ids=torch.cat((_places(there), _depths(there, branches, length - 1)), 1),
        use_cache=False, logits_to_keep=1 + nodes.shape[1]).logits
    widest, found = max(recommender.ids.sizes), []
    inner = logits[:, 1:].unflatten(1, (branches, length - 1)) if length > 1 else None
    for level in range(length):
        behind = logits[:, :1].expand(-1, branches, -1) if level == 0 else inner[:, :, level - 1]
        logs = _log_codes(behind, recommender, level)
        found.append(torch.nn.functional.pad(logs, (0, widest - logs.shape[-1]), value=NEVER))
    return torch.stack(found, 2)


def _seen(there: torch.Tensor, branches: int, depth: int) -> torch.Tensor:
    """Which token sees which, bool (B, P + S * depth, P + S * depth)."""
    users, width = there.shape
    found = torch.zeros(users, width + branches * depth, width + branches * depth, dtype=torch.bool)
    found[:, :width, :width] = torch.ones(width, width, dtype=torch.bool).tril()
    if depth:
        found[:, width:, width:] = torch.block_diag(*[torch.ones(depth, depth).tril()] * branches).bool()
    found = found.to(there.device)
    found[:, width:, :width] = True
    found[:, :, :width] &= there[:, None]
    return found


def _depths(there: torch.Tensor, branches: int, depth: int) -> torch.Tensor:
    """Positions int64 (B, S * depth) of the branches' nodes."""
    depths = torch.arange(depth, device=there.device).repeat(branches)
    return there.sum(1, keepdim=True) + depths


def _prompts(recommender: Recommender, histories: Sequence[np.ndarray],
            device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids int64 (B, P), padded on the left, and which of them are there, bool (B, P)."""
    found = [recommender.prompt(history) for history in histories]
    width = max(map(len, found))
    ids = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in found], device=device)
    lengths = torch.tensor([len(prompt) for prompt in found], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]


def _places(there: torch.Tensor) -> torch.Tensor:
    """Positions int64 (B, P) of tokens that are there, from 0."""
    return (there.cumsum(1) - 1).clamp_min(0)


def _log_codes(logits: torch.Tensor, recommender: Recommender, level: int) -> torch.Tensor:
    """Log-probabilities float32 (..., C) of a level's codes, of logits (..., V), among all tokens."""
    first = recommender.first_code_token[level]
    return logits.float().log_softmax(-1)[..., first:first + recommender.ids.sizes[level]]


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An attention mask (B, 1, Q, K) to be added to scores, of which key a query sees, bool (B, Q, K)."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(
        ~seen, torch.finfo(dtype).min)[:, None]

USERS = 32  # at once

Scorer = tuple[torch.nn.Module, Recommender]

Engine = tuple[Target, Recommender]


def engine(scorer: Scorer, learns: bool = False) -> Engine:
    """A model as the search runs it, its attention exchanged and its weights packed as they are now: a copy
    of one that learns on.
    """
    model, recommender = scorer
    return Target(copy.deepcopy(model) if learns else model, check=False, static=False), recommender


def plain(by: Engine, trie: Trie, k: int) -> TopK:
    """The k best ids, or all where there are fewer."""
    return TopK(by[0], trie, by[1].first_code_token, min(k, trie.leaves))


class MixedTopK(TopK):
    """By the law share * p + (1 - share) * q of the next code, of two models: AtSpeed-S learns on its beams.

    ``prompt`` of a query is what p reads, ``draft_prompt`` what q does.
    """

    def __init__(self, p: Engine, q: Engine, share: float, trie: Trie, k: int):
        super().__init__(p[0], trie, p[1].first_code_token, min(k, trie.leaves))
        other = NodeScores(q[0], Vocabulary(trie, list(q[1].first_code_token), q[0].device))
        self.node_scores = _Mixture((self.node_scores, other), (share, 1 - share))

    def begin(self, queries: Sequence[Query]) -> None:
        self.node_scores.begin([(query.prompt, query.draft_prompt) for query in queries])


class _Mixture:
    """What several readers have read, as one of them: the mixture of their laws."""

    def __init__(self, readers: Sequence[NodeScores], shares: Sequence[float]):
        self._readers = readers
        self._logs = [math.log(share) if share else -math.inf for share in shares]

    @property
    def reads(self) -> list[np.ndarray]:
        return self._readers[0].reads

    def begin(self, prompts: Sequence[Sequence[Sequence[int]]]) -> None:
        """prompts: of each row, one a reader."""
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
