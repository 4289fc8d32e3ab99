"""Time and counts of generating rows, methods that take turns, and how tables and targets are printed."""

import logging
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import torch

from dare_job.decode.engine.engine import Engine
from dare_job.decode.request import Request

_LOG = logging.getLogger(__name__)
_Method, _Times = TypeVar("_Method", bound=Hashable), TypeVar("_Times", bound="Repeated")


def timed(call: Callable[[], Any], device: torch.device | None = None) -> tuple[Any, float, float]:
    """What a call returns, its wall-clock seconds, and the processor seconds of all threads.

    Parameters
    ----------
    device
        A GPU whose work belongs to the call.
    """
    _synchronize(device)
    wall, processor = time.perf_counter(), time.process_time()
    result = call()
    _synchronize(device)
    return result, time.perf_counter() - wall, time.process_time() - processor


def _synchronize(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(kw_only=True)
class Repeated:
    """Times of the repeats so far, one entry each.

    Attributes
    ----------
    seconds
        Wall-clock time.
    processor
        Processor seconds of all threads of this process, which other work on the machine disturbs less.
    """

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def after(self, earlier: Self | None) -> Self:
        """This repeat, with the times of the earlier ones."""
        if earlier is None:
            return self
        return replace(self, seconds=earlier.seconds + self.seconds,
                       processor=earlier.processor + self.processor)


@dataclass
class Measured(Repeated):
    """Sums over the rows that one method generated, of the last repeat.

    Attributes
    ----------
    steps
        Forward passes after the prompts', counted for each row.
    cut
        Rows that had not ended at the maximum number of tokens.
    failed
        Rows that ended with an error.
    texts
        Token ids by row, of each repeat.
    """

    tokens: int
    steps: int
    accepted: int
    relaxed: int = 0
    scored: int = 0
    retrieval_ms: float = 0.0
    slot_steps: float = 0.0
    cut: int = 0
    failed: int = 0
    texts: list[dict] = field(default_factory=list)

    def rates(self, times: Sequence[float]) -> list[float]:
        """Tokens per second of each repeat: relaxed texts may differ in length between repeats."""
        return [sum(map(len, texts.values())) / took for texts, took in zip(self.texts, times, strict=True)]

    @property
    def tokens_per_s(self) -> float:
        """Median over the repeats."""
        return statistics.median(self.rates(self.seconds))

    @property
    def tokens_per_s_of_processor(self) -> float:
        """The same by processor time."""
        return statistics.median(self.rates(self.processor))

    def after(self, earlier: Self | None) -> Self:
        """This repeat, with the times and texts of the earlier ones."""
        return replace(super().after(earlier), texts=(earlier.texts if earlier else []) + self.texts)


def generate_once(engine: Engine, requests: Sequence[Request]) -> Measured:
    """Generate the rows once."""
    results, seconds, processor = timed(lambda: list(engine.run(requests)))

    def total(name: str):
        return sum(getattr(result, name) for result in results)

    texts = {result.id: result.token_ids for result in results}
    return Measured(sum(map(len, texts.values())), total("target_steps"), total("accepted_tokens"),
                    total("relaxed_tokens"), total("reused_tokens"), total("retrieval_ms"),
                    total("slot_steps"), sum(result.finish_reason == "length" for result in results),
                    sum(result.error is not None for result in results), [texts], seconds=[seconds],
                    processor=[processor])


def take_turns(methods: Iterable[_Method], measure: Callable[[_Method], _Times],
               repeats: int) -> dict[_Method, _Times]:
    """Measure every method once per repeat, one after the other; by method, the times of all repeats."""
    methods, measured = list(methods), {}
    for repeat in range(repeats):
        for method in methods:
            once = measure(method)
            measured[method] = once.after(measured.get(method))
            _LOG.info("%d of %d: %s, %.1f s", repeat + 1, repeats, method, once.seconds[0])
    return measured


def markdown_table(rows: Sequence[Mapping], columns: Iterable[str] | None = None) -> str:
    """A Markdown table of these columns, by default those of the first row; what a row lacks is empty."""
    columns = list(columns or (rows[0] if rows else ()))
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    head = [column.replace("_", " ") for column in columns]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(columns), *cells])


def _text(value) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def print_table(title: str, rows: Sequence[Mapping], columns: Iterable[str] | None = None) -> None:
    """Print a table under its title."""
    print(f"{title}\n\n{markdown_table(rows, columns)}\n", flush=True)


def target_row(name: str, bound: float, measured: float, met: bool) -> dict:
    """A figure and the bound that it is held against."""
    return {"target": name, "bound": bound, "measured": round(float(measured), 5), "met": bool(met)}


def print_targets(targets: Iterable[Mapping]) -> None:
    """Print one line per target."""
    for each in targets:
        print(f"{'met' if each['met'] else 'MISSED'}: {each['target']} {each['bound']}: {each['measured']}")
