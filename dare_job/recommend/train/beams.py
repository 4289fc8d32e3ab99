"""Beam search over item ids for many users at once, by a model or a mixture of two.

The beams of a user are nodes of one tree behind its prompt: each node attends to the prompt and to its own
ancestors, so caches are neither copied nor reordered. Shapes: B users, W beams, L levels, C codes of a level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dare_job.recommend.ids.vocabulary import Recommender
from dare_job.recommend.train.table import CodeTable


@dataclass(frozen=True)
class Beams:
    """The best W prefixes of each user after a level, best first; fewer where there are no more.

    numbers  int64 (B, W): of the prefixes in the table, of whole ids after the last level
    codes    int64 (B, W, level + 1)
    scores   float32 (B, W): sums of log-probabilities over the whole vocabulary; -inf: no prefix
    steps    float32 (B, W, level + 1): the parts of those sums
    """

    numbers: torch.Tensor
    codes: torch.Tensor
    scores: torch.Tensor
    steps: torch.Tensor


class Levels:
    """A model's log-probabilities of the codes, level by level, behind histories of item rows."""

    def __init__(self, model: torch.nn.Module, recommender: Recommender, histories: Sequence[np.ndarray]):
        self._model, self._recommender = model, recommender
        ids, self._prompt = prompts(recommender, histories, model.device)
        self._lengths = self._prompt.sum(1)
        found = model(input_ids=ids, attention_mask=self._prompt.long(), use_cache=True, logits_to_keep=1,
                      position_ids=places(self._prompt))
        self._cache, self._nodes = found.past_key_values, 0
        self._path: torch.Tensor | None = None  # (B, W, level): nodes of each beam, its own the last
        self.first = log_codes(found.logits, recommender, 0)  # (B, 1, C)

    def next(self, codes: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B, W, C) behind each beam's newest code (B, W), which continues a parent."""
        level = 0 if self._path is None else self._path.shape[2]
        users, beams = codes.shape
        own = (torch.arange(beams, device=codes.device) + self._nodes).expand(users, beams)[..., None]
        before = () if self._path is None else (
            self._path.gather(1, parents[..., None].expand(-1, -1, level)),)
        self._path, self._nodes = torch.cat((*before, own), 2), self._nodes + beams
        seen = torch.zeros(users, beams, self._nodes, dtype=torch.bool, device=codes.device)
        seen.scatter_(2, self._path, True)
        seen = torch.cat((self._prompt[:, None].expand(-1, beams, -1), seen), 2)
        found = self._model(
            input_ids=codes + self._recommender.first_code_token[level], past_key_values=self._cache,
            attention_mask=additive(seen, self._model.dtype), use_cache=True,
            position_ids=(self._lengths + level)[:, None].expand(users, beams))
        return log_codes(found.logits, self._recommender, level + 1)


def prompts(recommender: Recommender, histories: Sequence[np.ndarray],
            device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids int64 (B, P), padded on the left, and which of them are there, bool (B, P)."""
    found = [recommender.prompt(history) for history in histories]
    width = max(map(len, found))
    ids = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in found], device=device)
    lengths = torch.tensor([len(prompt) for prompt in found], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]


def places(there: torch.Tensor) -> torch.Tensor:
    """Positions int64 (B, P) of tokens that are there, from 0."""
    return (there.cumsum(1) - 1).clamp_min(0)


def log_codes(logits: torch.Tensor, recommender: Recommender, level: int) -> torch.Tensor:
    """Log-probabilities float32 (..., C) of a level's codes, of logits (..., V), among all tokens."""
    first = recommender.first_code_token[level]
    return logits.float().log_softmax(-1)[..., first:first + recommender.ids.sizes[level]]


def additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An attention mask (B, 1, Q, K) to be added to scores, of which key a query sees, bool (B, Q, K)."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(
        ~seen, torch.finfo(dtype).min)[:, None]


@torch.inference_mode()
def search(scorers: Sequence[tuple[torch.nn.Module, Recommender]], shares: Sequence[float], table: CodeTable,
           histories: Sequence[np.ndarray], width: int) -> list[Beams]:
    """The beams after each level, under the mixture sum_i shares_i p_i of the models' next-token laws."""
    levels = [Levels(model, recommender, histories) for model, recommender in scorers]
    logs, found = _mixed([one.first for one in levels], shares), []
    numbers = torch.zeros(len(histories), 1, dtype=torch.int64, device=logs.device)
    before = Beams(numbers, numbers[..., None][..., :0], torch.zeros_like(numbers, dtype=torch.float32),
                   logs[..., :0])
    for level, children in enumerate(table.children):
        beams, parents = _best(before, logs, children, width)
        found.append(beams)
        if level + 1 < len(table.children):
            logs = _mixed([one.next(beams.codes[..., -1], parents) for one in levels], shares)
        before = beams
    return found


def _best(before: Beams, logs: torch.Tensor, children: torch.Tensor,
          width: int) -> tuple[Beams, torch.Tensor]:
    """The best continuations, and which beam each one continues, int64 (B, W)."""
    following = children[before.numbers]  # (B, W, C)
    scores = (before.scores[..., None] + logs).masked_fill(following < 0, -math.inf)
    codes = scores.shape[2]
    best = scores.flatten(1).topk(min(width, scores[0].numel()))
    parents, newest = best.indices // codes, best.indices % codes
    gone = best.values == -math.inf
    inner = parents[..., None].expand(-1, -1, before.codes.shape[2])
    steps = logs.flatten(1).gather(1, best.indices)
    return Beams(following.flatten(1).gather(1, best.indices).masked_fill(gone, 0),
                 torch.cat((before.codes.gather(1, inner), newest[..., None]), 2), best.values,
                 torch.cat((before.steps.gather(1, inner), steps[..., None]), 2)), parents


def _mixed(logs: list[torch.Tensor], shares: Sequence[float]) -> torch.Tensor:
    if len(logs) == 1:
        return logs[0]
    weights = torch.tensor(shares, device=logs[0].device).log()
    return torch.stack([one + weight for one, weight in zip(logs, weights, strict=True)]).logsumexp(0)


def items(beams: Beams, table: CodeTable, without: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """Item rows of each user's whole ids, best first: ``count`` at most, none of those in ``without``."""
    found = []
    for numbers, scores, left_out in zip(beams.numbers.tolist(), beams.scores.tolist(), without, strict=True):
        seen = set(left_out.tolist())
        rows = [row for number, score in zip(numbers, scores, strict=True) if score > -math.inf
                for row in table.owners[number] if row not in seen]
        found.append(np.array(rows[:count], np.int64))
    return found
