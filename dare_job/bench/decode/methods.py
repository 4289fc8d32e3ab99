"""The ways of decoding that are compared: each writes the same rows once and says what that took."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dare_job import baseline
from dare_job.decode import Engine, EngineSettings, Request, Target, step_cost
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.scheduler import Scheduler
from dare_job.decode.scoring import Scoring
from pools.draft import DraftSettings

GENERATE, LOOKUP = "generate", "prompt lookup (generate)"
AUTOREGRESSIVE, OWN_LOOKUP = "autoregressive", "prompt lookup (engine)"
RESD, STRICT, RELAXED = "resd", "dare strict", "dare relaxed"
METHODS = (GENERATE, LOOKUP, AUTOREGRESSIVE, OWN_LOOKUP, RESD, STRICT, RELAXED)
LOOKUP_TOKENS = 10  # that transformers drafts a step, as its documentation advises


@dataclass(frozen=True)
class Budget:
    """Rows decoded together, draft nodes a row, new tokens a row at most, torch threads.

    curves  folder of what steps cost, by which a scheduler gives at most ``nodes`` to each row; None: each
            row has as many
    """

    batch: int
    nodes: int
    tokens: int
    threads: int
    curves: Path | None = None


class Learned:
    """What the runs of one method and batch size have seen: of old text, and of drafts' worth."""

    def __init__(self, method: str, target: Target, budget: Budget):
        self.scoring, self.scheduler = Scoring(), None
        if budget.curves and method in (OWN_LOOKUP, RESD, STRICT, RELAXED):
            curve = step_cost.curve(target, _settings(method, budget), budget.curves)
            self.scheduler = Scheduler(curve, budget.nodes)


@dataclass
class Measured:
    """Sums over the rows of one method and batch size; numbers are of the last repeat.

    steps               forwards after the prompts', counted for each row
    seconds, processor  by the clock, and of processor time, which neighbours on the machine disturb less: one
                        entry a repeat
    texts               of each repeat, token ids by row
    """

    tokens: int
    steps: int
    accepted: int
    relaxed: int = 0
    scored: int = 0
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    texts: list[dict] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self._rate(self.seconds)

    @property
    def tokens_per_s_of_processor(self) -> float:
        return self._rate(self.processor)

    def _rate(self, seconds: list[float]) -> float:
        """Median of the repeats' rates: relaxed texts may be of other lengths in each."""
        written = [sum(map(len, texts.values())) for texts in self.texts]
        return statistics.median(n / s for n, s in zip(written, seconds, strict=True))

    def after(self, seen: "Measured") -> "Measured":
        """This repeat, with the times and texts of those before."""
        return replace(self, seconds=seen.seconds + self.seconds, processor=seen.processor + self.processor,
                       texts=seen.texts + self.texts)


class _Watch:
    """Seconds by the clock and of this process's threads since it was made, each in a list."""

    def __init__(self):
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, list[float]]:
        clock, processor = self._began
        return {"seconds": [time.perf_counter() - clock], "processor": [time.process_time() - processor]}


def possible(method: str, batch: int) -> bool:
    """Whether a method works at this batch size: prompt lookup in ``generate`` takes one row at a time."""
    return method != LOOKUP or batch == 1


def once(method: str, target: Target, requests: Sequence[Request], budget: Budget,
         learned: Learned) -> Measured:
    """Write the rows once.

    requests  with all that ``dare`` drafts from: the row's own old text, and the others' pool as the last
    """
    requests = sorted(requests, key=lambda request: len(request.prompt_ids))
    if method in (GENERATE, LOOKUP):
        return _by_generate(method, target, requests, budget)
    engine = _engine(method, target, budget, learned)
    asked = [_asked(method, request) for request in requests]
    watch = _Watch()
    results = list(engine.run(asked))
    times = watch.read()

    def total(name: str) -> int:
        return sum(getattr(result, name) for result in results)

    texts = {result.id: result.token_ids for result in results}
    return Measured(sum(map(len, texts.values())), total("target_steps"), total("accepted_tokens"),
                    total("relaxed_tokens"), total("scored_tokens"), texts=[texts], **times)


def _by_generate(method: str, target: Target, requests: Sequence[Request], budget: Budget) -> Measured:
    options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if method == LOOKUP else {}
    calls = 0

    def count(*_) -> None:
        nonlocal calls
        calls += 1

    handle = target.model.register_forward_pre_hook(count)
    watch = _Watch()
    written = baseline.greedy(target, requests, budget.batch, budget.tokens, **options)
    times = watch.read()
    handle.remove()
    tokens = sum(map(len, written))
    texts = {request.id: text for request, text in zip(requests, written, strict=True)}
    if method == LOOKUP:  # one row at a time: a call is a row's forward, which writes one token of its own
        return Measured(tokens, calls - len(requests), tokens - calls, texts=[texts], **times)
    return Measured(tokens, tokens - len(requests), 0, texts=[texts], **times)


def _engine(method: str, target: Target, budget: Budget, learned: Learned) -> Engine:
    plain = method == AUTOREGRESSIVE
    drafter = None if plain else RetrievalDrafter(DraftSettings(threads=budget.threads))
    return Engine(target, _settings(method, budget), drafter, learned.scoring, learned.scheduler)


def _settings(method: str, budget: Budget) -> EngineSettings:
    return EngineSettings(
        rule="relaxed" if method == RELAXED else "strict", max_new_tokens=budget.tokens,
        batch_size=budget.batch, nodes=0 if method == AUTOREGRESSIVE else budget.nodes,
        score="auto" if method in (STRICT, RELAXED) else "never")


def _asked(method: str, request: Request) -> Request:
    """The request with what the method drafts from."""
    if method in (STRICT, RELAXED):
        return request
    return replace(request, pools=request.pools[-1:] if method == RESD else (), old_ids=None)
