"""Searches the settings with the most expected tokens per second, one setting at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dare_job.evaluate.replay.trials import Objective, Point, Trial, Trials

_ROUNDS = 2
_MIN_GAIN = 0.002  # for changing a value; less is noise of the drafting time


@dataclass(frozen=True)
class Space:
    """The settings to search.

    Attributes
    ----------
    start
        The settings before, always a candidate.
    start_nodes
        ``decode.nodes`` of these settings.
    values
        Candidates by field of Point, in the order in which they are tried.
    nodes
        Ascending node budgets, with 0 (autoregressive decoding).
    batch
        Batch size of the search.
    batches
        Batch sizes that are reported.
    """

    start: Point
    start_nodes: int | str
    values: Mapping[str, Sequence]
    nodes: Sequence[int]
    batch: int
    batches: Sequence[int]

    @property
    def replays(self) -> int:
        """Maximum number of replays of a search and its confirmation."""
        budgets = sum(nodes > 0 for nodes in self.nodes)
        return _ROUNDS * (budgets + sum(map(len, self.values.values()))) + 2 * budgets


@dataclass(frozen=True)
class Choice:
    """The best budget of one point at a batch size, with its trial and expected tokens per second."""

    point: Point
    batch: int
    nodes: int
    trial: Trial
    tokens_per_s: float


def search(trials: Trials, objective: Objective, space: Space, say: Callable[[str], None]) -> Choice:
    """The best point with its fixed budget on the confirming texts.

    Screens one setting after the other at the best budget so far, until nothing changes or
    twice. Then the winner and the start are compared at every budget on texts that screening did not use.
    """
    point = space.start
    for _ in range(_ROUNDS):
        chosen = best(trials, objective, space, point, "screen")
        say(f"screening: {describe(chosen)}")
        before, point = point, _one_by_one(trials, objective, space, chosen, say)
        if point == before:
            break
    say("confirming on the other texts")
    finals = [best(trials, objective, space, final, "confirm")
              for final in dict.fromkeys((space.start, point))]
    return max(finals, key=lambda choice: choice.tokens_per_s)


def best(trials: Trials, objective: Objective, space: Space, point: Point, part: str,
         batch: int | None = None, drafted: bool = False) -> Choice:
    """The best budget for a point, of equal ones the first. drafted: exclude budget 0."""
    batch, choices = batch or space.batch, []
    for nodes in space.nodes[drafted:]:
        trial = trials(point, nodes, part)
        choices.append(Choice(point, batch, nodes, trial, objective.tokens_per_s(batch, nodes, trial)))
    return max(choices, key=lambda choice: choice.tokens_per_s)


def _one_by_one(trials: Trials, objective: Objective, space: Space, chosen: Choice,
                say: Callable[[str], None]) -> Point:
    """The best value of each setting, with the best values so far of the others."""
    point, batch, nodes = chosen.point, chosen.batch, chosen.nodes
    if nodes == 0:  # other settings may make drafts pay
        nodes = best(trials, objective, space, point, "screen", batch, drafted=True).nodes
    for name, values in space.values.items():
        candidates = dict.fromkeys([point, *(replace(point, **{name: value}) for value in values)])
        rates = {candidate: objective.tokens_per_s(batch, nodes, trials(candidate, nodes, "screen"))
                 for candidate in candidates}
        winner = max(rates, key=rates.__getitem__)
        point = winner if rates[winner] > (1 + _MIN_GAIN) * rates[point] else point
        say(f"{name}: " + ", ".join(f"{_in_words(name, getattr(candidate, name))} {rate:.0f} tokens/s"
                                    for candidate, rate in rates.items()))
    return point


def describe(choice: Choice) -> str:
    return (f"batch {choice.batch}, {choice.nodes} nodes: {choice.trial.accepted_per_step:.2f} accepted per "
            f"step, {choice.tokens_per_s:.0f} tokens/s")


def _in_words(name: str, value) -> str:
    """A value of a field of Point in words."""
    if value is None:
        return "learned" if name == "lam" else "all"
    return f"{value:g}"
