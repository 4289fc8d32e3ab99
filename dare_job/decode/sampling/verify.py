"""Verification of one node's candidates, R rows at a time: by chance, or exactly over all that may happen."""

from typing import NamedTuple

import torch

from dare_job.decode.sampling.laws import NONE, law, pick
from dare_job.decode.sampling.rules import rule_for
from dare_job.decode.sampling.steps import Rule, normalised


class Outcome(NamedTuple):
    """What happened to R rows.

    place  int64 (R,): of the accepted candidate, NONE where the token is none of them
    token  int64 (R,): what is emitted, NONE where p or q of the row are no probabilities
    """

    place: torch.Tensor
    token: torch.Tensor


class Output(NamedTuple):
    """What may happen to R rows.

    tokens  float64 (R, V): probability that each is emitted
    places  float64 (R, n): that each candidate is accepted
    """

    tokens: torch.Tensor
    places: torch.Tensor


class Verifier:
    """A rule for n candidates of a law that it is exact for.

    p and q are float32 (R, V), what the target and the draft say of the next token after the same warping;
    they are normalised in float64. candidates int64 (R, n) were drawn by the law from this q.
    """

    def __init__(self, rule: str | Rule, law_name: str, n: int):
        self.law, self.n = law(law_name), n
        self.rule = rule_for(rule, self.law, n) if isinstance(rule, str) else rule

    def verify(self, p: torch.Tensor, q: torch.Tensor, candidates: torch.Tensor,
               uniforms: torch.Tensor) -> Outcome:
        """uniforms (R, n + 1) in [0, 1): one a candidate, and the residual's."""
        chance = _Sampled(candidates, uniforms)
        self._run(p, q, candidates, chance)
        return Outcome(chance.place, chance.token)

    def law_of_output(self, p: torch.Tensor, q: torch.Tensor, candidates: torch.Tensor) -> Output:
        """Exactly, of given candidates."""
        chance = _Exact(candidates, p.shape[1])
        self._run(p, q, candidates, chance)
        return Output(chance.tokens, chance.places)

    def _run(self, p, q, candidates, chance) -> None:
        p, q = normalised(p.double()), normalised(q.double())
        state = self.rule.start(self.law, p, q, candidates)
        for j in range(self.n):
            left = chance.step(j, self.rule.accept(state, j))
            if left is not None:
                state = state.rows(left)
                if not len(left):
                    return
            state = self.rule.reject(self.law, state, j)
        chance.end(self.rule.residual(state))


class _Sampled:
    """One thing happens to each row; rows whose candidate is accepted leave."""

    def __init__(self, candidates: torch.Tensor, uniforms: torch.Tensor):
        self.candidates, self.uniforms = candidates, uniforms
        self.alive = torch.arange(len(candidates), device=candidates.device)
        self.place, self.token = (torch.full_like(self.alive, NONE) for _ in range(2))

    def step(self, j: int, accept: torch.Tensor) -> torch.Tensor:
        """Numbers of the rows that go on, among those that came."""
        passed = self.uniforms[self.alive, j] < accept
        done, left = self.alive[passed], (~passed).nonzero()[:, 0]
        self.place[done], self.token[done] = j, self.candidates[done, j]
        self.alive = self.alive[left]
        return left

    def end(self, weights: torch.Tensor) -> None:
        token = pick(weights, self.uniforms[self.alive, -1])
        equal = (self.candidates[self.alive] == token[:, None]) & (token >= 0)[:, None]
        self.token[self.alive] = token
        self.place[self.alive] = torch.where(equal.any(-1), equal.int().argmax(-1), NONE)


class _Exact:
    """All happens, with its probability."""

    def __init__(self, candidates: torch.Tensor, vocabulary: int):
        self.candidates, shape = candidates, candidates.shape
        self.weight = torch.ones(shape[0], dtype=torch.float64, device=candidates.device)
        self.tokens, self.places = self.weight.new_zeros(shape[0], vocabulary), self.weight.new_zeros(shape)

    def step(self, j: int, accept: torch.Tensor) -> None:
        gain = self.weight * accept
        self.tokens.scatter_add_(1, self.candidates[:, j : j + 1].clamp_min(0), gain[:, None])
        self.places[:, j] += gain
        self.weight = self.weight * (1 - accept)

    def end(self, weights: torch.Tensor) -> None:
        emitted = self.weight[:, None] * normalised(weights)
        self.tokens += emitted
        for j in range(self.candidates.shape[1]):
            column = self.candidates[:, j : j + 1]
            new = (column >= 0) & (self.candidates[:, :j] != column).all(-1, keepdim=True)
            self.places[:, j] += (emitted.gather(1, column.clamp_min(0)) * new)[:, 0]
