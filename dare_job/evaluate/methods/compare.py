"""``dare-job lab decode``: times decoding methods in turn on the same prompts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import torch

from dare_job.config import settings
from dare_job.config.settings import JobConfig
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.errors import DataError
from dare_job.evaluate.measured import Measured, generate_once, markdown_table, take_turns
from dare_job.evaluate.methods import inputs
from dare_job.evaluate.methods.generate import by_generate
from dare_job.evaluate.methods.inputs import Inputs
from dare_job.evaluate.methods.options import (
    AUTOREGRESSIVE,
    DARE,
    GENERATE,
    LOOKUP,
    METHODS,
    RELAXED,
    Options,
)
from dare_job.inference import checks, engines, model
from dare_job.inference.model import LoadedModel
from dare_job.inference.prompt_format import model_format
from dare_job.models import files
from dare_job.observe import progress

_SETTINGS = {AUTOREGRESSIVE: {"decode.mode": AUTOREGRESSIVE}, RELAXED: {"verify.rule": RELAXED}}
_WARM_TOKENS = 8
Flags = Mapping[str, tuple[str, object]]  # settings by key, each with the flag that sets it


@dataclass(frozen=True)
class Cell:
    """One method with one batch size."""

    method: str
    config: JobConfig
    loaded: LoadedModel
    requests: list[Request]

    def measure(self) -> Measured:
        """Generate all rows once."""
        batch, decode, target = self.config.decode.batch_size, self.config.decode, self.loaded.target
        if self.method in (GENERATE, LOOKUP):
            return by_generate(target, self.requests, batch, decode.max_new_tokens, self.method == LOOKUP,
                               decode.repetition_penalty)
        engine = engines.make_engine(self.config, self.loaded, torch.get_num_threads(), self._load_draft)
        return generate_once(engine, self.requests)

    def _load_draft(self) -> Target:
        folder, settings = _folder(self.config.drafter.model, self.config, "drafter.model"), self.config.model
        return _load_target(str(folder), settings.dtype, settings.device, settings.trust_remote_code)

    def warm_up(self) -> None:
        """Compile, and measure the latency of forward passes, on two rows and a few tokens."""
        if self.method not in (GENERATE, LOOKUP):
            few = [replace(request, max_new_tokens=_WARM_TOKENS) for request in self.requests[:2]]
            replace(self, requests=few).measure()


_load_target = lru_cache(maxsize=1)(model.load_target)


def run(options: Options) -> dict:
    """Time the methods; returns the JSON object that the command prints last.

    Raises
    ------
    ConfigError
        An option or setting is invalid, or a plug-in cannot be loaded or breaks its interface.
    DataError
        A file is invalid, or rows of a method failed.
    ModelError, InfrastructureError
        The model cannot be loaded.
    """
    configs = {(name, batch): _config(options, flags, batch) for name, flags in _methods(options).items()
               for batch in options.batch if name != LOOKUP or batch == 1}
    first = next(iter(configs.values()))
    folder = _folder(options.model, first, "--model")
    for config in configs.values():
        checks.check_drafting(config, lambda: folder,
                              lambda config=config: _folder(config.drafter.model, config, "drafter.model"))
    with progress.doing(f"loading {options.model}"):
        loaded = model.load(str(folder), options.dtype, options.device, first.model.trust_remote_code,
                            model_format(first))
    found = inputs.read(options, loaded.tokenizer, first, folder)
    measured = _measure(configs, loaded, found, options)
    rows = [_row(measured, *key) for key in configs]
    print(f"{options.model} in {options.dtype} on {loaded.target.device.type}, {len(found.prompts)} prompts, "
          f"at most {options.max_new_tokens} new tokens, medians of {options.repeats} runs")
    print(f"{found.origin}\n", flush=True)
    print(f"{markdown_table(rows)}\n", flush=True)
    return {"rows": rows, "prompts": len(found.prompts), "origin": found.origin,
            "threads": torch.get_num_threads(), "device": str(loaded.target.device)}


def _methods(options: Options) -> dict[str, Flags]:
    """The settings of each method, by its name."""
    methods: dict[str, Flags] = {name: {key: ("--methods", value) for key, value in
                                        _SETTINGS.get(name, {}).items()} for name in options.methods}
    for drafter, verifier in product((None, *options.drafter), (None, *options.verifier)):
        named = {"drafter.plugin": ("--drafter", drafter), "verify.rule": ("--verifier", verifier)}
        flags = {key: flag for key, flag in named.items() if flag[1]}
        if flags:
            methods[" + ".join(text for _, text in flags.values())] = flags
    methods |= {text: {"decode.nodes": ("--draft-budget", text)} for text in options.draft_budget}
    return methods | {_limited(count): {} for count in options.pool_texts}


def _limited(count: int) -> str:
    """Name of the method ``dare`` with so many texts of other rows."""
    return f"{DARE}, {count} texts"


def _config(options: Options, flags: Flags, batch: int) -> JobConfig:
    common = {"model.name": ("--model", options.model), "model.dtype": ("--dtype", options.dtype),
              "model.device": ("--device", options.device), "decode.batch_size": ("--batch", batch),
              "decode.max_new_tokens": ("--max-new-tokens", options.max_new_tokens)}
    # generate does not end texts that loop
    return settings.load(options.config or [], ["decode.end_loops=false", *(options.set_ or [])],
                         {**common, **flags})


def _folder(name: str, config: JobConfig, setting: str) -> Path:
    return files.resolve(name, config.model.trust_remote_code, setting=setting)


def _measure(configs: Mapping[tuple[str, int], JobConfig], loaded: LoadedModel, found: Inputs,
             options: Options) -> dict[tuple[str, int], Measured]:
    pools, repeats, cells = {_limited(n): found.shared(n) for n in options.pool_texts}, options.repeats, {}
    all_texts = found.shared()
    for (name, batch), config in configs.items():
        source = name if name in METHODS else DARE
        # what engines learn of drafts is each cell's own
        requests = found.requests(config, pools.get(name, all_texts), source)
        cells[name, batch] = Cell(name, config, replace(loaded, learned={}), requests)
    with progress.counting("decoding", (repeats + 1) * len(cells), unit="runs") as counter:
        for cell in cells.values():
            cell.warm_up()
            counter.advance()

        def measure(key: tuple[str, int]) -> Measured:
            once = cells[key].measure()
            counter.advance()
            if once.failed:
                raise DataError(f"{key[0]}, batch size {key[1]}: {progress.counted(once.failed, 'row')} "
                                "failed, perhaps because a prompt is longer than the model's context")
            return once

        return take_turns(cells, measure, repeats)


def _row(measured: Mapping[tuple[str, int], Measured], method: str, batch: int) -> dict:
    """A row of the table and of the JSON object."""
    each, reference = measured[method, batch], next(iter(measured.values())).texts[0]
    base = next((other for (_, size), other in measured.items() if size == batch), each)
    rates = each.rates(each.seconds)
    differ = sum(any(not np.array_equal(texts[row], text) for texts in each.texts)
                 for row, text in reference.items())
    per_step = each.accepted / max(1, each.steps)
    return {"method": method, "batch": batch, "tokens_per_s": round(each.tokens_per_s, 1),
            "slowest": round(min(rates), 1), "fastest": round(max(rates), 1),
            "ratio": round(each.tokens_per_s / base.tokens_per_s, 3),
            "drafting_share": round(each.retrieval_ms / 1000 / each.seconds[-1], 3),
            "accepted_per_step": round(per_step, 3), "tokens_per_step": round(per_step + 1, 3),
            "reused_share": round(each.scored / max(1, each.tokens), 4),
            "relaxed_share": round(each.relaxed / max(1, each.tokens), 4), "rows_that_differ": differ}
