"""``dare-job bench decode``: the methods in turn, and the table of what they took."""

import logging
import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table

from dare_job.bench.decode import methods, night
from dare_job.bench.decode.methods import AUTOREGRESSIVE, GENERATE, METHODS, RELAXED, STRICT, Budget, Measured
from dare_job.bench.profiles.train import Settings
from dare_job.decode import Target
from dare_job.decode.scoring import Scoring
from dare_job.errors import ConfigError
from pools.draft import warm_up

_LOG = logging.getLogger(__name__)
Found = dict[tuple[str, int], Measured]


@dataclass(frozen=True)
class Options:
    """What ``dare-job bench decode`` was asked; the field's names are those of its options.

    batch, nodes  batch sizes, and the draft nodes a row of each
    tokens        that a row gets at most
    pool          other users' old texts that draft
    """

    data: Path
    work: Path | None = None
    batch: tuple[int, ...] = (1, 8, 32)
    nodes: tuple[int, ...] = (16, 8, 4)
    rows: int = 32
    repeats: int = 3
    pool: int = 1000
    tokens: int = 256
    model: Settings = Settings()
    threads: int = 1

    def __post_init__(self):
        if len(self.nodes) != len(self.batch) or not self.batch:
            raise ConfigError(f"--nodes needs one number for each batch size: {len(self.batch)}, not "
                              f"{len(self.nodes)}")
        for name, values in (("batch", self.batch), ("nodes", self.nodes), ("rows", [self.rows]),
                             ("repeats", [self.repeats]), ("tokens", [self.tokens]),
                             ("threads", [self.threads])):
            if min(values) < 1:
                raise ConfigError(f"--{name} {min(values)} must be at least 1")
        if self.rows > self.model.test_users:
            raise ConfigError(f"--rows {self.rows} must be at most {self.model.test_users}, the test users")


def run(options: Options) -> dict:
    """Train, write, measure and print; returns the JSON object that the command prints last."""
    if options.work is not None:
        return _run(options, options.work)
    with TemporaryDirectory() as work:
        return _run(options, Path(work))


def _run(options: Options, work: Path) -> dict:
    tonight = night.prepare(options.data, work, options.model, options.pool, options.rows)
    likeness = night.likeness(tonight)
    torch.set_num_threads(options.threads)
    warm_up()
    target = Target.load(tonight.model, device="cpu")
    found = _measure(target, tonight.requests(options.rows), options)
    rows = [_line(found, method, batch) for method, batch in found]
    machine = {"model": tonight.model.name, "parameters": target.model.num_parameters(),
               "threads": options.threads, "cores": os.cpu_count(), "machine": platform.machine(),
               "torch": torch.__version__, "transformers": transformers.__version__}
    _print(rows, likeness, options)
    return {"rows": rows, "texts": likeness, "rows_that_differ": _differing(found), **machine}


def _measure(target: Target, requests: list, options: Options) -> Found:
    """Measured by (method, batch size), the methods taking turns."""
    budgets = {batch: Budget(batch, nodes, options.tokens, options.threads)
               for batch, nodes in zip(options.batch, options.nodes, strict=True)}
    keys = [(method, batch) for batch in budgets for method in METHODS if methods.possible(method, batch)]
    scorings = {key: Scoring() for key in keys}
    for method, batch in keys:  # compiled and warm
        methods.once(method, target, requests[:2], replace(budgets[batch], tokens=8))
    found: Found = {}
    for repeat in range(options.repeats):
        for key in keys:
            measured = methods.once(key[0], target, requests, budgets[key[1]], scorings[key])
            found[key] = measured.after(found[key]) if key in found else measured
            _LOG.info("%d of %d: %s at batch %d, %.1f s", repeat + 1, options.repeats, *key,
                      measured.seconds[0])
    return found


def _line(found: Found, method: str, batch: int) -> dict:
    seen = found[method, batch]
    rate = {name: found[name, batch].tokens_per_s for name in (GENERATE, AUTOREGRESSIVE)}
    return {"method": method, "batch": batch, "tokens_per_s": round(seen.tokens_per_s, 1),
            "accepted_per_step": round(seen.accepted / max(1, seen.steps), 3), "target_steps": seen.steps,
            "ratio_to_generate": round(seen.tokens_per_s / rate[GENERATE], 3),
            "ratio_by_processor": round(seen.tokens_per_s_of_processor
                                        / found[GENERATE, batch].tokens_per_s_of_processor, 3),
            "ratio_to_plain": round(seen.tokens_per_s / max(rate.values()), 3),
            "scored_share": round(seen.scored / seen.tokens, 4),
            "relaxed_share": round(seen.relaxed / seen.tokens, 4)}


def _differing(found: Found) -> int:
    """Rows whose strict text is another under some method or batch size: ties of two logits."""
    texts = [seen.texts for (method, _), seen in found.items() if seen.texts and method != RELAXED]
    first = texts[0]
    return sum(any(not np.array_equal(other[row], first[row]) for other in texts) for row in first)


def _print(rows: list[dict], likeness: dict, options: Options) -> None:
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(str(value) for value in row.values()), end_section=row["method"] == RELAXED)
    console = Console(width=160)
    console.print(table)
    by = {(row["method"], row["batch"]): row["tokens_per_s"] for row in rows}
    cpu = {(row["method"], row["batch"]): row["ratio_by_processor"] for row in rows}
    for batch in options.batch:
        console.print(f"batch {batch}: relaxed over strict {by[RELAXED, batch] / by[STRICT, batch]:.3f}, by "
                      f"processor time {cpu[RELAXED, batch] / cpu[STRICT, batch]:.3f}")
    console.print(f"{options.rows} rows, {options.pool} old texts of other users, {options.threads} torch "
                  f"thread(s), medians of {options.repeats}; draft nodes a row {options.nodes}; plain: the "
                  "faster of generate and autoregressive; accepted_per_step: without the model's own token; "
                  "ratio_by_processor: to generate, by processor time")
    console.print("texts (and recorded profiles): {distinct:.1%} ({distinct_real:.1%}) distinct; replayed at "
                  "16 nodes {accepted:.2f} ({accepted_real:.2f}) accepted, {accepted_ratio:.3f} times; "
                  "{tokens:.0f} ({tokens_real:.0f}) tokens, median".format(**likeness))
