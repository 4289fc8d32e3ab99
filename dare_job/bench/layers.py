"""``bench layers``: linear layers and attention of a decoding step, compiled and by oneDNN and torch."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn.functional import linear

from dare_job.bench.cli import command, ints
from dare_job.bench.gpu import machine
from dare_job.config.options import option
from dare_job.decode.model import compiled_attention, tree_attention
from dare_job.decode.model.compiled_linear import CompiledLinear
from dare_job.decode.model.prepacked import OneDnnLinear
from dare_job.errors import ConfigError
from dare_job.evaluate.measured import print_table

_BYTES = 120e6  # of weights, or of keys and values, that a turn reads: more than the second-level cache holds
_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Options:
    """Options of ``bench layers``; the defaults are those of SmolLM2-135M."""

    layers: tuple[int, ...] = option("Input and output features of linear layers, in pairs.",
                                     (576, 960, 1536, 576), parse=ints)
    tokens: tuple[int, ...] = option("Tokens of a step.", (1, 2, 4, 8, 16, 32, 64, 300), parse=ints)
    heads: tuple[int, ...] = option("Query heads, their groups, and numbers of a head.", (9, 3, 64),
                                    parse=ints)
    queries: tuple[int, ...] = option("Rows and queries of a row, in pairs.",
                                      (1, 1, 1, 8, 8, 1, 8, 4, 32, 1, 32, 2), parse=ints)
    columns: int = option("Tokens of a text, of which queries see all.", 400, min=1)
    repeats: int = option("Turns of each; medians.", 7, min=1)

    def __post_init__(self):
        for name, size in (("layers", 2), ("queries", 2), ("heads", 3)):
            if len(values := getattr(self, name)) % size or min(values) < 1:
                raise ConfigError(f"--{name} must have numbers from 1 on, {size} for each")


@command(Options)
def main(options: Options) -> dict:
    """Time linear layers and attention of few tokens on one thread: compiled, by oneDNN, and by torch.

    The ways take turns; weights, keys and values do not stay in the processor's cache. Processor time of the
    thread. The last line is one JSON object.
    """
    torch.set_num_threads(1)
    with torch.inference_mode():
        products, attentions = list(_products(options)), list(_attentions(options))
    print_table("Linear layers, GFLOP/s", products)
    print_table("Attention, ms", attentions)
    return {"linear": products, "attention": attentions, "machine": machine.describe(torch.device("cpu"))}


def _products(options: Options) -> Iterator[dict]:
    for dtype in _DTYPES:
        for inner, outer in zip(options.layers[::2], options.layers[1::2], strict=True):
            count = max(1, int(_BYTES / (inner * outer * dtype.itemsize)))
            weights = [torch.randn(outer, inner).to(dtype) for _ in range(count)]
            ways = {"torch": [partial(linear, weight=weight) for weight in weights],
                    "compiled": list(map(CompiledLinear, weights))}
            if dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported():
                ways["oneDNN"] = list(map(OneDnnLinear, weights))
            for tokens in options.tokens:
                values = torch.randn(tokens, inner).to(dtype)
                seconds = _seconds({name: partial(_all, calls, values) for name, calls in ways.items()},
                                   options.repeats)
                yield {"dtype": str(dtype)[6:], "features": f"{inner} to {outer}", "tokens": tokens} | {
                    name: round(2e-9 * tokens * inner * outer * count / each)
                    for name, each in seconds.items()}


def _attentions(options: Options) -> Iterator[dict]:
    heads, groups, dim = options.heads
    for dtype in _DTYPES:
        for rows, queries in zip(options.queries[::2], options.queries[1::2], strict=True):
            shape = 2, rows, groups, options.columns, dim
            count = max(1, int(_BYTES / (np.prod(shape) * dtype.itemsize)))
            states = [torch.randn(shape).to(dtype).unbind(0) for _ in range(count)]
            query = torch.randn(rows, queries, heads, dim).to(dtype)
            mask = query.new_zeros(rows, 1, queries, options.columns)
            ways = {"torch": partial(_attend_by_torch, query, mask),
                    "compiled": partial(_attend_compiled, query, mask)}
            seconds = _seconds({name: partial(_each, call, states) for name, call in ways.items()},
                               options.repeats)
            yield {"dtype": str(dtype)[6:], "rows": rows, "queries": queries, "columns": options.columns} | {
                name: round(1e3 * each / count, 3) for name, each in seconds.items()}


def _attend_by_torch(query, mask, states) -> None:
    tree_attention._attend_folded(query.transpose(1, 2), *states, mask, None)


def _attend_compiled(query, mask, states) -> None:
    rows, queries = query.shape[:2]
    compiled_attention.attend(query.flatten(0, 1), *states, mask, None, np.arange(rows + 1) * queries)


def _all(calls: Sequence[Callable], argument) -> None:
    for call in calls:
        call(argument)


def _each(call: Callable, arguments: Sequence) -> None:
    for argument in arguments:
        call(argument)


def _seconds(ways: dict[str, Callable], repeats: int) -> dict[str, float]:
    """Median seconds of each way, in turns, after one call that compiles it."""
    turns = {name: [] for name in ways}
    for call in ways.values():
        call()
    for _ in range(repeats):
        for name, call in ways.items():
            start = time.thread_time()
            call()
            turns[name].append(time.thread_time() - start)
    return {name: statistics.median(times) for name, times in turns.items()}
