"""``bench decode``: the methods in turn, and the table of their figures."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dare_job.bench.cli import command, ints
from dare_job.bench.decode import methods
from dare_job.bench.decode.methods import METHODS, Budget, ByMethod, Learned
from dare_job.bench.gpu import machine
from dare_job.bench.kept import work_folder
from dare_job.bench.profiles import two_dates
from dare_job.config.options import option
from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError
from dare_job.evaluate.measured import print_table, print_targets, take_turns
from pools.draft import warm_up


def _nodes(flag: str, text: str) -> tuple[int, ...]:
    return () if text == "auto" else ints(flag, text)


@dataclass(frozen=True)
class Options(two_dates.Options):
    """Options of ``bench decode``; without ``nodes`` the engine chooses a draft budget per forward pass."""

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
    with work_folder(options.work) as work:
        dates = two_dates.prepare(options.data, work, options.model, options.pool, options.rows)
        likeness = two_dates.likeness(dates)
        torch.set_num_threads(options.threads)
        warm_up()
        target = Target.load(dates.model, device="cpu")
        measured = _measure(target, dates.requests(options.rows), options, work)
    rows = [methods.row(measured, method, batch) for method, batch in measured]
    print_table(f"{options.rows} rows, {options.pool} previous texts of other users, "
                f"{options.threads} torch thread(s), medians of {options.repeats}, draft tokens per "
                f"row {options.nodes or 'auto'}", rows)
    print("baseline: the faster of generate and autoregressive; accepted_per_step: draft tokens alone; "
          "ratio_by_processor: to generate, by processor time; ceiling_to_baseline: if a tree's forward pass "
          "took no longer than one token's, and nothing else took time")
    print_table("texts and recorded profiles", [likeness])
    targets = methods.targets(rows, likeness)
    print_targets(targets)
    return {"rows": rows, "targets": targets, "texts": likeness,
            "rows_that_differ": methods.differing(measured), "model": dates.model.name,
            "parameters": target.model.num_parameters(), "threads": options.threads,
            "machine": machine.describe(target.device)}


def _measure(target: Target, requests: list, options: Options, work: Path) -> ByMethod:
    nodes = options.nodes or [max_row_nodes(batch) for batch in options.batch]
    budgets = {batch: Budget(batch, count, options.tokens, options.threads,
                             None if options.nodes else work / "latency")
               for batch, count in zip(options.batch, nodes, strict=True)}
    learned = {(method, batch): Learned(method, target, budget) for batch, budget in budgets.items()
               for method in METHODS if methods.possible(method, batch)}
    for (method, batch), state in learned.items():  # compiled and warm
        methods.run_method(method, target, requests[:2], replace(budgets[batch], tokens=8), state)
    return take_turns(learned, lambda key: methods.run_method(key[0], target, requests, budgets[key[1]],
                                                              learned[key]), options.repeats)


main = command(Options)(run)
