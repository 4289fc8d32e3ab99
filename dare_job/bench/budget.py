"""The command ``bench budget``: the scheduler's node budgets against the best fixed one, on recorded text.

What a curve does not reach is no fixed budget for it; steps of the scheduler behind its end are counted.
"""

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from dare_job.bench import reports
from dare_job.bench.options import command, ints
from dare_job.config.options import option
from dare_job.decode.engine import latency_probe
from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model.target import Target
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError
from dare_job.evaluate.replay import budgets, latency, sources
from dare_job.evaluate.replay.sources import Source
from dare_job.models.files import resolve
from pools.draft import DraftSettings, warm_up
from pools.index import Index

TARGET = 0.95  # times the tokens a second of the best fixed budget, at every batch size


@dataclass(frozen=True)
class Options(Source):
    """Options of ``bench budget``: all other texts of the file are the pool."""

    held_out: int = option("Texts replayed: those whose ids have the smallest SHA-256.", 500)
    pool: Sequence[str] = ("global",)
    groups: Path | None = None
    old: Path | None = None
    curves: Sequence[Path] = option("Latency curve, as in conf/latency; repeatable.", (), flag="--latency",
                                    parse=lambda _, given: list(map(Path, given)), repeatable=True)
    model: str | None = option("Measure a curve here too: 'embedded', a folder or a hub name.", None)
    save: Path | None = option("Write the measured curve to this file.", None, flag="--save-latency")
    batches: Sequence[int] = option("Batch sizes.", (1, 2, 4, 8, 16, 32, 64, 128, 256), flag="--batch",
                                    parse=ints)
    nodes: Sequence[int] = option(
        "Fixed budgets to compare with; 0: no drafts.",
        (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256), parse=ints)


def run(options: Options) -> dict:
    """Replay recorded texts in batches: the draft budget against a fixed number of draft tokens per row.

    Acceptance comes from the texts; step times come from the latency curves, plus the drafting time measured
    here. The last line of standard output is one JSON object. Exit code 1 if the draft budget reaches less
    than 0.95 times the best fixed budget.
    """
    if not options.curves and options.model is None:
        raise ConfigError("no latency curve: give --latency FILE, such as those of conf/latency, or --model "
                          "NAME to measure one here")
    if options.save and options.model is None:
        raise ConfigError("--save-latency keeps what --model measures; give --model NAME")
    if min((*options.batches, *(n + 1 for n in options.nodes)), default=0) < 1:
        raise ConfigError("--batch must be from 1, --nodes from 0")
    curves = {path.stem: latency.read(path) for path in options.curves} | _measured(options)
    corpus = sources.load(options)
    warm_up()
    pools, settings = [(Index.build(corpus.rest),)] * len(corpus.test), DraftSettings(threads=1)
    budgets.fixed(corpus.test[:2], pools[:2], 1, 2, settings)  # compiled
    rows = []
    for batch in options.batches:
        begun = time.perf_counter()
        runs = {n: budgets.fixed(corpus.test, pools, batch, n, settings) for n in options.nodes}
        for name, curve in curves.items():
            found = budgets.scheduled(corpus.test, pools, batch, max_row_nodes(batch), settings, curve)
            known = {n: steps for n, steps in runs.items() if n < curve.max_queries(batch)}
            rows.append({"curve": name, "batch": batch, **_compared(found, known, curve)})
        print(f"batch {batch}: {len(runs)} fixed budgets and {len(curves)} curves in "
              f"{time.perf_counter() - begun:.0f} s", flush=True)
    Console(width=150).print(reports.table(rows))
    worst = min(row["ratio_to_best_fixed"] for row in rows)
    for row in rows:
        if row["ratio_to_best_fixed"] < TARGET:
            print(f"missed: {row['curve']}, batch {row['batch']}: {row['ratio_to_best_fixed']:.3f} times the "
                  f"best fixed budget, {TARGET} are asked")
    return {"rows": rows, "worst": worst, "target": TARGET, "texts": len(corpus.test),
            "pool_texts": len(corpus.rest), "machine": platform.machine()}


def _measured(options: Options) -> dict[str, LatencyCurve]:
    """The curve of a model here, on one thread where that is a processor."""
    if options.model is None:
        return {}
    torch.set_num_threads(1)
    target = Target.load(resolve(options.model))
    settings = EngineSettings(batch_size=max(options.batches), nodes=max_row_nodes(1))
    table = latency_probe.measure(target, settings)
    if options.save:
        about = (f"{options.model}, {target.dtype} on {latency_probe.device_name(target.device)}, one "
                 "thread: measured by python -m dare_job.bench budget")
        options.save.write_text(json.dumps({"about": about, "latency_ms": table}, indent=1) + "\n", "utf-8")
    return {options.model: LatencyCurve.of(table, f"--model {options.model}")}


def _compared(found: budgets.Steps, runs: dict[int, budgets.Steps], curve) -> dict:
    rates = {nodes: steps.tokens_per_s(curve) for nodes, steps in runs.items()}
    best, rate = max(rates, key=rates.get), found.tokens_per_s(curve)
    plain, within = rates.get(0), curve.max_queries(int(found.rows.max())) - 1
    return {"best_fixed": best, "best_fixed_tokens_per_s": round(rates[best], 1),
            "tokens_per_s": round(rate, 1), "nodes_per_row": round(found.nodes.sum() / found.rows.sum(), 2),
            "accepted_per_step": round(found.tokens.sum() / found.rows.sum() - 1, 3),
            "ratio_to_plain": round(rate / plain, 3) if plain else None,
            "ratio_to_best_fixed": round(rate / rates[best], 5),
            "steps_beyond_curve": int((found.nodes > within * found.rows).sum())}


main = command(Options, missed=lambda asked, found: found["worst"] < found["target"])(run)
