"""What it takes to write rows: seconds of a call, sums over what an engine wrote, and the machine."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
import transformers

from dare_job.decode.engine.engine import Engine
from dare_job.decode.request import Request


def machine() -> dict:
    """Processors and libraries that figures are of."""
    return {"cores": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__,
            "transformers": transformers.__version__}


def timed(call: Callable[[], Any]) -> tuple[Any, dict[str, list[float]]]:
    """What a call returns, and its ``seconds`` and ``processor`` as the entries of one repeat."""
    clock, processor = time.perf_counter(), time.process_time()
    found = call()
    return found, {"seconds": [time.perf_counter() - clock], "processor": [time.process_time() - processor]}


@dataclass(kw_only=True)
class Repeated:
    """Times of the repeats so far, an entry each.

    seconds    in wall-clock time
    processor  of all threads of this process, which neighbours on the machine disturb less
    """

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def after(self, seen: Self | None) -> Self:
        """This repeat, with the times of those before."""
        if seen is None:
            return self
        return replace(self, seconds=seen.seconds + self.seconds, processor=seen.processor + self.processor)


@dataclass
class Measured(Repeated):
    """Sums over the rows of one way of writing, of the last repeat.

    steps  forwards after the prompts', counted for each row
    cut    rows that had not ended at the most tokens
    texts  of each repeat, token ids by row
    """

    tokens: int
    steps: int
    accepted: int
    relaxed: int = 0
    scored: int = 0
    retrieval_ms: float = 0.0
    slot_steps: float = 0.0
    cut: int = 0
    texts: list[dict] = field(default_factory=list)

    @property
    def written(self) -> list[int]:
        """Tokens of each repeat: relaxed texts may be of other lengths in each."""
        return [sum(map(len, texts.values())) for texts in self.texts]

    @property
    def tokens_per_s(self) -> float:
        """Median of the repeats' rates."""
        return statistics.median(n / s for n, s in zip(self.written, self.seconds, strict=True))

    @property
    def tokens_per_s_of_processor(self) -> float:
        """The same by processor time."""
        return statistics.median(n / s for n, s in zip(self.written, self.processor, strict=True))

    def after(self, seen: Self | None) -> Self:
        """This repeat, with the times and texts of those before."""
        return replace(super().after(seen), texts=(seen.texts if seen else []) + self.texts)


def run(engine: Engine, requests: Sequence[Request]) -> Measured:
    """Write the rows once."""
    results, took = timed(lambda: list(engine.run(requests)))

    def total(name: str):
        return sum(getattr(result, name) for result in results)

    texts = {result.id: result.token_ids for result in results}
    return Measured(sum(map(len, texts.values())), total("target_steps"), total("accepted_tokens"),
                    total("relaxed_tokens"), total("reused_tokens"), total("retrieval_ms"),
                    total("slot_steps"), sum(result.finish_reason == "length" for result in results), [texts],
                    **took)
