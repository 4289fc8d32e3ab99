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
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

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
    prompts = [torch.tensor(recommender.prompt(history), device=model.device) for history in histories]
    ids, real = (pad_sequence(rows, batch_first=True, padding_side="left")
                 for rows in (prompts, [torch.ones_like(prompt, dtype=torch.bool) for prompt in prompts]))
    users, branches, length = codes.shape
    first = torch.tensor(recommender.first_code_token, device=ids.device)
    nodes = (codes + first)[..., :-1].reshape(users, -1)
    logs = model(
        input_ids=torch.cat((ids, nodes), 1),
        attention_mask=_attention_mask(real, branches, length - 1, model.dtype),
        position_ids=_positions(real, branches, length - 1),
        use_cache=False, logits_to_keep=1 + nodes.shape[1]).logits.float().log_softmax(-1)
    levels, sizes = [], recommender.ids.sizes
    for level, (start, size) in enumerate(zip(recommender.first_code_token, sizes, strict=True)):
        # the prompt's last token comes before all branches, of which each has L - 1 nodes
        parents = logs[:, level::length - 1] if level else logs[:, :1].expand(-1, branches, -1)
        levels.append(pad(parents[..., start:start + size], (0, max(sizes) - size), value=NEVER))
    return torch.stack(levels, 2)


def _attention_mask(real: torch.Tensor, branches: int, depth: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive attention mask (B, 1, P + S * depth, P + S * depth); real (B, P): tokens without padding."""
    width = real.shape[1]
    prompt, branch = (torch.ones(size, size, device=real.device).tril() for size in (width, depth))
    attends = torch.block_diag(prompt, *[branch] * branches).bool()
    attends[width:, :width] = True
    attends = attends.repeat(len(real), 1, 1)
    attends[:, :, :width] &= real[:, None]
    return torch.zeros(attends.shape, dtype=dtype, device=real.device).masked_fill(
        ~attends, torch.finfo(dtype).min)[:, None]


def _positions(real: torch.Tensor, branches: int, depth: int) -> torch.Tensor:
    """Positions int64 (B, P + S * depth) of the prompt's tokens, from 0 without padding, and the nodes."""
    depths = torch.arange(depth, device=real.device).repeat(branches)
    return torch.cat(((real.cumsum(1) - 1).clamp_min(0), real.sum(1, keepdim=True) + depths), 1)


def search_engine(scorer: Scorer, trained: bool = False) -> Engine:
    """A model prepared for search: its attention replaced, its weights prepacked.

    Parameters
    ----------
    trained
        The model is still trained, so a copy with its current weights is prepared.
    """
    model, recommender = scorer
    return Target(copy.deepcopy(model) if trained else model, check=False, paged=False), recommender


def top_k_search(engine: Engine, trie: Trie, k: int) -> TopK:
    """Search for the k best ids, or all if there are fewer."""
    model, recommender = engine
    return TopK(model, trie, recommender.first_code_token, min(k, trie.leaves))


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
        self._log_shares = [math.log(share) if share else -math.inf for share in shares]

    @property
    def reads(self) -> list[np.ndarray]:
        return self._readers[0].reads

    def begin(self, prompts: Sequence[Sequence[Sequence[int]]]) -> None:
        """prompts : of each row, one per reader"""
        for reader, prompts_of_reader in zip(self._readers, zip(*prompts, strict=True), strict=True):
            reader.begin(prompts_of_reader)

    def has(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        return self._readers[0].has(rows, nodes)

    def read(self, rows: np.ndarray, nodes: np.ndarray) -> None:
        for reader in self._readers:
            reader.read(rows, nodes)

    def children(self, rows: np.ndarray, nodes: np.ndarray) -> Children:
        children = [reader.children(rows, nodes) for reader in self._readers]
        shares = zip(children, self._log_shares, strict=True)
        return *children[0][:2], torch.stack([logs + share for (*_, logs), share in shares]).logsumexp(0)
