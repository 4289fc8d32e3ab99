"""Accepted tokens of recorded texts, counted without a model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dare_job.api.pool import Pool, indexes
from dare_job.api.prompts import Text, Tokens, as_list
from dare_job.errors import ConfigError
from dare_job.evaluate.replay import measure
from dare_job.evaluate.replay.drafters import Blend
from dare_job.observe import progress
from pools.draft import DraftSettings, warm_up
from pools.index import Index

_MAX_NODES = 512


@dataclass(frozen=True, eq=False)
class Replay:
    """How many draft tokens a model that writes the recorded texts would accept.

    Attributes
    ----------
    nodes
        Draft tokens per step, at most.
    accepted_per_step
        Mean number of accepted draft tokens per step.
    ci95
        Its 95 % interval, by resampling texts.
    steps
        Number of steps of all texts.
    per_text : int64 (texts, 2)
        Accepted tokens and steps of each text.
    """

    nodes: int
    accepted_per_step: float
    ci95: tuple[float, float]
    steps: int
    per_text: np.ndarray

    @property
    def tokens_per_step(self) -> float:
        """Accepted draft tokens per step and the token that the model itself adds."""
        return self.accepted_per_step + 1


def replay(texts: Iterable[Text], model: str, previous: Iterable[Text | None] | None = None,
           pool: Pool | Sequence[Pool] | None = None, nodes: Sequence[int] = (16, 64),
           trust_remote_code: bool = False) -> list[Replay]:
    """Replay recorded texts: draft, count the accepted tokens, continue after them.

    No model is loaded: the recorded text says which drafts strict verification accepts. Only the first token
    of each text is known at the start, not its prompt.

    Parameters
    ----------
    texts
        Strings, or token ids (tokens,). Those with fewer than two tokens have no steps.
    model
        Its tokenizer is used; named as for ``LLM``.
    previous, pool
        As for ``LLM.generate``. The pool must not contain the replayed texts themselves.
    nodes
        Numbers of draft tokens per step, from 1 to 512, to replay with.

    Returns
    -------
    list of Replay
        One for each number in ``nodes``.

    Raises
    ------
    ConfigError
        An argument is invalid.
    PoolError
        ``pool`` was made with another tokenizer.
    """
    texts = as_list("texts", texts)
    if not all(1 <= count <= _MAX_NODES for count in nodes):
        raise ConfigError(f"nodes is {list(nodes)}; each must be from 1 to {_MAX_NODES}")
    tokens = Tokens.of_model(model, trust_remote_code)
    shared = indexes(pool, tokens, model)
    recorded = tokens.all_ids("texts", texts)
    nearest = tokens.previous_ids(previous, "texts", len(texts))
    pools = [((Index.build([own], kind="own"),) if own is not None and own.size else ()) + shared
             for own in nearest]
    with progress.doing(f"replaying {progress.counted(len(texts), 'text')}"):
        warm_up()
        return [_replay(recorded, pools, count) for count in nodes]


def _replay(texts: list[np.ndarray], pools: list[tuple[Index, ...]], nodes: int) -> Replay:
    figures = measure.replay(texts, Blend(pools, DraftSettings()), nodes)
    return Replay(nodes, figures["accepted_per_step"], tuple(figures["ci95"]), figures["steps"],
                  figures["per_text"])
