"""``dare-job bench decode``: the methods in turn, and the table of what they took."""

import logging
import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import transformers

from dare_job.bench.decode import methods, night
from dare_job.bench.decode import methods as decode_methods
from dare_job.bench.decode.methods import METHODS, Budget, Found, Learned
from dare_job.bench.profiles.train import Settings
from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError
from pools.draft import warm_up

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What ``dare-job bench decode`` was asked; the field's names are those of its options.

    batch         sizes
    nodes         draft nodes a row of each batch size; empty: the engine's own budget for each forward
    tokens        that a row gets at most
    pool          other users' old texts that draft
    """

    data: Path
    work: Path | None = None
    batch: tuple[int, ...] = (1, 8, 32)
    nodes: tuple[int, ...] = ()
    rows: int = 32
    repeats: int = 3
    pool: int = 1000
    tokens: int = 256
    model: Settings = Settings()
    threads: int = 1

    def __post_init__(self):
        if self.nodes and len(self.nodes) != len(self.batch) or not self.batch:
            raise ConfigError(f"--nodes must be auto, or a number for each of {len(self.batch)} batch sizes: "
                              f"it has {len(self.nodes)}")
        for name, values in (("batch", self.batch), ("nodes", self.nodes or [1]), ("rows", [self.rows]),
                             ("repeats", [self.repeats]), ("tokens", [self.tokens]),
                             ("threads", [self.threads])):
            if min(values) < 1:
                raise ConfigError(f"--{name} {min(values)} must be at least 1")
        if self.rows > self.model.test_users:
            raise ConfigError(f"--rows {self.rows} must be at most {self.model.test_users}, the test users")


def run(options: Options) -> dict:
    """Train, write, measure and print; returns the JSON object that the command prints last."""
    with night.working(options.work) as work:
        return _run(options, work)


def _run(options: Options, work: Path) -> dict:
    tonight = night.prepare(options.data, work, options.model, options.pool, options.rows)
    likeness = night.likeness(tonight)
    torch.set_num_threads(options.threads)
    warm_up()
    target = Target.load(tonight.model, device="cpu")
    found = _measure(target, tonight.requests(options.rows), options, work)
    rows = [decode_methods.line(found, method, batch) for method, batch in found]
    machine = {"model": tonight.model.name, "parameters": target.model.num_parameters(),
               "threads": options.threads, "cores": os.cpu_count(), "machine": platform.machine(),
               "torch": torch.__version__, "transformers": transformers.__version__}
    settings = (f"{options.rows} rows, {options.pool} old texts of other users, {options.threads} torch "
                f"thread(s), medians of {options.repeats}, draft nodes a row {options.nodes or 'auto'}")
    decode_methods.show(rows, likeness, settings)
    return {"rows": rows, "targets": decode_methods.targets(rows, likeness), "texts": likeness,
            "rows_that_differ": decode_methods.differing(found), **machine}


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
            found[key] = measured.after(found[key]) if key in found else measured
            _LOG.info("%d of %d: %s at batch %d, %.1f s", repeat + 1, options.repeats, *key,
                      measured.seconds[0])
    return found
