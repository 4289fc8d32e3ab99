"""Resident memory of a process that decodes on a CPU, by the capacity of oneDNN's cache of primitives.

oneDNN compiles a primitive for each shape of a matrix product and keeps it. Draft trees give a step almost
any number of queries, so the cache fills up to its capacity. Each capacity is measured in its own process.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from dare_job.bench.cli import command, ints
from dare_job.bench.gpu import machine
from dare_job.config.options import Dtype, dtype, option
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model import failures
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.measured import print_table
from dare_job.evaluate.oracle import OracleDrafter
from dare_job.models.files import resolve

CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"  # oneDNN reads it at the first product of a process
_PROMPTS, _TIMES = 64, 10  # different prompts, at most; times that memory is measured while it decodes


@dataclass(frozen=True)
class Options:
    """Options of ``bench memory``."""

    model: str = option("Model, named as model.name.", "embedded")
    capacities: tuple[int, ...] = option("Capacities of oneDNN's cache of primitives; its default is 1024.",
                                         (1024, 256, 64, 16), flag="--capacity", parse=ints)
    rows: int = option("Texts to decode.", 40, min=1)
    tokens: int = option("Tokens of a text.", 64, min=1)
    prompt_tokens: int = option("Tokens of the longest prompt; the shortest has a quarter.", 200, min=4)
    batch: int = option("Rows decoded together.", 8, min=1)
    nodes: int = option("Draft tokens per row.", 16, min=1)
    dtype: Dtype = dtype()


def run(options: Options) -> dict:
    """Measure resident memory and speed of one process with one thread on a CPU, by capacity.

    Drafts contain the text that is decoded among wrong tokens, so that steps have trees, and every second row
    has a previous text whose first half is that of its text. The last line of standard output is one JSON
    object.
    """
    results = [_in_process(options, capacity) for capacity in options.capacities]
    print_table(f"{options.rows} texts of {options.tokens} tokens", results)
    return {**asdict(options), "results": results, "machine": machine.describe(torch.device("cpu"))}


def _in_process(options: Options, capacity: int) -> dict:
    code = ("import sys, json\nfrom dare_job.bench import memory\n"
            "print(json.dumps(memory.measure(memory.Options(**json.loads(sys.argv[1])))))")
    done = subprocess.run([sys.executable, "-c", code, json.dumps(asdict(options))], check=True, text=True,
                          env={**os.environ, CAPACITY: str(capacity)}, stdout=subprocess.PIPE)
    return {"capacity": capacity, **json.loads(done.stdout.splitlines()[-1])}


def measure(options: Options) -> dict:
    """MiB of this process before the model, with it, and while it decodes, after rows and at most, and of its
    keys and values; tokens per second of CPU time.

    Memory is that of the process itself, without files that the kernel can read again (``RssAnon``).
    ``ready_mib``: after texts of the embedded model, without its weights, so that what any model needs is
    imported and compiled.
    """
    torch.set_num_threads(1)
    before, few = _own_mib(), replace(options, model="embedded", rows=2 * options.batch)
    embedded, weights = _load(few)
    _decode(embedded, few)
    ready = _own_mib() - (weights >> 20)
    del embedded
    target, weights = _load(options)
    loaded = _own_mib()
    return {"before_mib": before, "ready_mib": ready, "weights_mib": weights >> 20, "loaded_mib": loaded,
            **_decode(target, options)}


def _load(options: Options) -> tuple[Target, int]:
    """Return the model as a worker has it, and the bytes of its weights."""
    target = Target.load(resolve(options.model), options.dtype, "cpu")
    weights = sum(weight.nbytes for weight in target.model.parameters())
    target.release_weights()
    failures.release(target)
    return target, weights


def _decode(target: Target, options: Options) -> dict:
    """Decode the texts; return what ``measure`` says of it. The caches are released."""
    rng, few = np.random.default_rng(0), min(options.rows // 4 or 1, _PROMPTS)
    lengths = rng.integers(options.prompt_tokens // 4, options.prompt_tokens + 1, few)
    prompts = [rng.integers(0, target.vocabulary, length).astype(np.int32) for length in lengths]
    settings = EngineSettings(max_new_tokens=options.tokens, min_new_tokens=options.tokens, nodes=0,
                              batch_size=options.batch)
    texts = {result.id: result.token_ids for result in Engine(target, settings).run(
        Request(number, prompt) for number, prompt in enumerate(prompts))}
    known = {number: texts[number % few] for number in range(options.rows)}
    previous = [np.concatenate((text[: len(text) // 2], text[:1])) for text in texts.values()]
    began, tokens, decoding = time.process_time(), 0, []
    drafter = OracleDrafter(known, target.vocabulary)
    results = Engine(target, replace(settings, nodes=options.nodes), drafter).run(
        Request(number, prompts[number % few], previous_ids=previous[number % few] if number % 2 else None)
        for number in range(options.rows))
    _forget_peak()
    for number, result in enumerate(results, 1):
        tokens += len(result.token_ids)
        if number * _TIMES // options.rows > (number - 1) * _TIMES // options.rows:
            decoding.append(_own_mib())
    peak = _own_peak_mib()
    seconds, cache = time.process_time() - began, target.spare_cache
    keys_and_values = cache.slots * cache.capacity * target.cache_bytes[0]
    failures.release(target)
    return {"decoding_mib": decoding, "peak_mib": peak, "cache_mib": keys_and_values >> 20,
            "tokens_per_cpu_s": round(tokens / seconds, 1)}


def _own_mib() -> int:
    """Resident MiB of this process that belong to no file."""
    return _status_kib("RssAnon") // 1024


def _forget_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _own_peak_mib() -> int:
    """Most of ``_own_mib`` since ``_forget_peak``, as far as the files' part is that of now."""
    return (_status_kib("VmHWM") - _status_kib("RssFile")) // 1024


def _status_kib(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:"))


main = command(Options)(run)
