"""``bench decode``: the methods in turn, and the table of what they took."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dare_job.bench.decode import methods, night
from dare_job.bench.decode.methods import METHODS, Budget, Found, Learned
from dare_job.bench.measured import machine
from dare_job.bench.options import command, ints
from dare_job.config.options import option
from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError
from pools.draft import warm_up

_LOG = logging.getLogger(__name__)


def _nodes(flag: str, text: str) -> tuple[int, ...]:
    return () if text == "auto" else ints(flag, text)


@dataclass(frozen=True)
class Options(night.Options):
    """Options of ``bench decode``; without ``nodes`` the engine has its own budget for each forward."""

    batch: tuple[int, ...] = option("Batch sizes.", (1, 8, 32), parse=ints)
    nodes: tuple[int, ...] = option(
        "Draft tokens per row, one number for each batch size, for example 16,8,4. Default: auto, chosen for "
        "each forward pass from measured latency.", (), parse=_nodes)
    rows: int = option("Test users whose texts each method generates.", 32)
    repeats: int = option("Times that each method runs.", 3)
    tokens: int = option("Maximum number of new tokens per row.", 256)

    def __post_init__(self):
        if self.nodes and len(self.nodes) != len(self.batch) or not self.batch:
            raise ConfigError(f"--nodes must be auto, or a number for each of {len(self.batch)} batch sizes: "
                              f"it has {len(self.nodes)}")
        self.check(batch=self.batch, nodes=self.nodes or 1, rows=self.rows, repeats=self.repeats,
                   tokens=self.tokens)


def run(options: Options) -> dict:
    """Measure every decoding method on the CPU with a model trained on real profiles.

    Trains a model of 5.5 M parameters on ML-1M profiles with titles as prompts (minutes) and generates the
    texts of an earlier date. Then generates those of the next date with `generate`, prompt lookup, the engine
    without drafts, resd, dare strict and dare relaxed. The last line is one JSON object.
    """
    with night.working(options.work) as work:
        tonight = night.prepare(options.data, work, options.model, options.pool, options.rows)
        likeness = night.likeness(tonight)
        torch.set_num_threads(options.threads)
        warm_up()
        target = Target.load(tonight.model, device="cpu")
        found = _measure(target, tonight.requests(options.rows), options, work)
    rows = [methods.line(found, method, batch) for method, batch in found]
    settings = (f"{options.rows} rows, {options.pool} old texts of other users, {options.threads} torch "
                f"thread(s), medians of {options.repeats}, draft nodes a row {options.nodes or 'auto'}")
    methods.show(rows, likeness, settings)
    return {"rows": rows, "targets": methods.targets(rows, likeness), "texts": likeness,
            "rows_that_differ": methods.differing(found), "model": tonight.model.name,
            "parameters": target.model.num_parameters(), "threads": options.threads, **machine()}


def _budgets(options: Options, work: Path) -> dict[int, Budget]:
    """By batch size."""
    asked = options.nodes or [max_row_nodes(batch) for batch in options.batch]
    curves = None if options.nodes else work / "latency"
    return {batch: Budget(batch, nodes, options.tokens, options.threads, curves)
            for batch, nodes in zip(options.batch, asked, strict=True)}


def _measure(target: Target, requests: list, options: Options, work: Path) -> Found:
    """Measured by (method, batch size), the methods taking turns."""
    budgets = _budgets(options, work)
    keys = [(method, batch) for batch in budgets for method in METHODS if methods.possible(method, batch)]
    learned = {key: Learned(key[0], target, budgets[key[1]]) for key in keys}
    for method, batch in keys:  # compiled and warm
        methods.once(method, target, requests[:2], replace(budgets[batch], tokens=8), learned[method, batch])
    found: Found = {}
    for repeat in range(options.repeats):
        for key in keys:
            measured = methods.once(key[0], target, requests, budgets[key[1]], learned[key])
            found[key] = measured.after(found.get(key))
            _LOG.info("%d of %d: %s at batch %d, %.1f s", repeat + 1, options.repeats, *key,
                      measured.seconds[0])
    return found


main = command(Options)(run)
