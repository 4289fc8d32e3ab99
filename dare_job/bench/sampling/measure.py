"""One way of sampling: the rows written by it once, and what that took."""

import math
import statistics
from dataclasses import dataclass

import numpy as np

from dare_job.bench.gpu.machine import Meter
from dare_job.bench.measured import Repeated, timed
from dare_job.bench.sampling.paths import PathsEngine, SamplingPathsEngine
from dare_job.bench.sampling.world import BATCH, World
from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.draft.sampled_tree import TreeShape
from dare_job.decode.engine.engine import Engine
from dare_job.decode.request import Drafter, Result
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import EngineSettings, Warp
from dare_job.errors import ModelError
from pools.draft import DraftSettings

PLAIN, RETRIEVAL = "plain", "retrieval"
_DEEPEST = 8  # path of retrieval's trees


@dataclass(frozen=True)
class Method:
    """drafter  before, after (the draft models), retrieval or none
    widths      of the draft model's trees; nodes: of retrieval's
    law, rule   at temperature 0 all are one: the most probable candidates, and the target's argmax token
    paths       without tree attention: each path is a row of the target's forwards
    """

    name: str
    drafter: str = "none"
    widths: tuple[int, ...] = ()
    law: str = "without_replacement"
    rule: str = "rrs"
    nodes: int = 0
    paths: bool = False

    @property
    def size(self) -> int:
        """Draft nodes of a row's forward, at most."""
        return TreeShape(self.widths).nodes if self.widths else self.nodes

    @property
    def target_tokens(self) -> int:
        """That the target reads for a row, at most."""
        return math.prod(self.widths) * (1 + len(self.widths)) if self.paths else 1 + self.size


@dataclass
class Measured(Repeated):
    """Sums over the rows, which are the same in each repeat.

    steps        forwards after the prompts', counted for each row
    step_tokens  int64 (S,): tokens that each of them wrote, but for each row's last, which the text's end may
                 have cut
    joules       of the GPU, of the last repeat; None where they cannot be read
    drafting_ms  share of the clock that drafting had, of the last repeat
    """

    rows: int
    tokens: int
    steps: int
    step_tokens: np.ndarray
    drafting_ms: float
    joules: float | None = None

    @property
    def per_step(self) -> float:
        """Block efficiency: tokens a step, the target's own included."""
        return float(self.step_tokens.mean()) if len(self.step_tokens) else 1.0

    @property
    def error(self) -> float:
        """Standard error of ``per_step``, as if steps were independent."""
        return float(self.step_tokens.std() / max(1, len(self.step_tokens)) ** 0.5)

    @property
    def per_forward(self) -> float:
        """Tokens by all forwards of a row, the prompt's included: plain sampling has 1."""
        return self.tokens / (self.steps + self.rows)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / statistics.median(self.seconds)

    @property
    def tokens_per_s_of_processor(self) -> float:
        return self.tokens / statistics.median(self.processor)

    def rates(self, levels: int) -> np.ndarray:
        """float64 (levels,): how often a candidate of each level was accepted where one before was; NaN
        where nothing came so far.
        """
        reached = np.array([(self.step_tokens > level).sum() for level in range(levels + 1)])
        return np.where(reached[:-1] > 0, reached[1:] / np.maximum(1, reached[:-1]), np.nan)


def once(world: World, method: Method, temperature: float, tokens: int) -> Measured:
    """Write the rows. Raises ModelError where one cannot be."""
    settings = EngineSettings(max_new_tokens=tokens, batch_size=BATCH, nodes=method.size,
                              depth=len(method.widths) or _DEEPEST, score="never")
    drafter = drafter_of(world, method)
    if temperature == 0:
        engine = (PathsEngine if method.paths else Engine)(world.target, settings, drafter)
    else:
        sampling = Sampling(Warp(temperature), world.seed, method.law, rule=method.rule)
        engine = (SamplingPathsEngine if method.paths else SamplingEngine)(world.target, settings, sampling,
                                                                          drafter)
    results, joules, took = metered(world, engine, method.name)
    whole = [result.step_tokens[1:-1] for result in results]
    return Measured(len(results), sum(len(result.token_ids) for result in results),
                    sum(result.target_steps for result in results), np.concatenate(whole).astype(np.int64),
                    sum(result.retrieval_ms for result in results), joules, **took)


def metered(world: World, engine, name: str) -> tuple[list[Result], float | None, dict[str, list[float]]]:
    """Results of an engine on tonight's rows, joules and times. Raises ModelError where a row has none."""
    meter = Meter(world.target.device)
    (results, joules), took = timed(lambda: meter.joules(lambda: list(engine.run(world.requests))))
    if failed := [result for result in results if result.error]:
        raise ModelError(f"{name}: row {failed[0].id} could not be written: {failed[0].error}")
    return results, joules, took


def drafter_of(world: World, method: Method) -> Drafter | None:
    """What drafts for a way of sampling."""
    if method.drafter == "none":
        return None
    if method.drafter == RETRIEVAL:
        return RetrievalDrafter(DraftSettings(threads=1))
    return ModelDrafter(world.drafters[method.drafter], TreeShape(method.widths),
                        vocabulary=world.target.vocabulary)
