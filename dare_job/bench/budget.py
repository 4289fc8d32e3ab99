"""``bench budget``: the draft budget against the best fixed number of draft tokens, on recorded text.

A fixed budget that a latency curve does not reach is not compared on it. Steps in which the draft budget goes
beyond the curve are counted.
"""

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dare_job.bench.cli import command, ints
from dare_job.config.options import option
from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.errors import ConfigError
from dare_job.evaluate.measured import print_table
from dare_job.evaluate.replay import budgets, sources
from dare_job.evaluate.replay.sources import Source
from pools.draft import DraftSettings, warm_up
from pools.index import Index

TARGET = 0.95  # times the tokens per second of the best fixed budget, at every batch size


@dataclass(frozen=True)
class Options(Source):
    """Options of ``bench budget``: all other texts of the file are the pool."""

    held_out: int = option("Texts replayed: those whose ids have the smallest SHA-256.", 500)
    pool: Sequence[str] = ("global",)
    groups: Path | None = None
    old: Path | None = None
    curves: Sequence[Path] = option("Latency curve, as in conf/latency or saved by dare-job tune; "
                                    "repeatable.", (), flag="--latency",
                                    parse=lambda _, texts: list(map(Path, texts)), repeatable=True)
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
    if not options.curves:
        raise ConfigError("no latency curve: give --latency FILE, such as those of conf/latency, or one that "
                          "dare-job tune --model NAME --save-latency FILE measures here")
    if min((*options.batches, *(n + 1 for n in options.nodes)), default=0) < 1:
        raise ConfigError("--batch must be at least 1, and --nodes at least 0")
    curves = {path.stem: budgets.read_curve(path) for path in options.curves}
    corpus = sources.load(options)
    warm_up()
    pools, settings = [(Index.build(corpus.rest),)] * len(corpus.test), DraftSettings(threads=1)
    budgets.fixed(corpus.test[:2], pools[:2], 1, 2, settings)  # compiled
    rows = []
    for batch in options.batches:
        began = time.perf_counter()
        fixed = {n: budgets.fixed(corpus.test, pools, batch, n, settings) for n in options.nodes}
        for name, curve in curves.items():
            scheduled = budgets.scheduled(corpus.test, pools, batch, max_row_nodes(batch), settings, curve)
            known = {n: steps for n, steps in fixed.items() if n < curve.max_queries(batch)}
            rows.append({"curve": name, "batch": batch, **_compare(scheduled, known, curve)})
        print(f"batch {batch}: {len(fixed)} fixed budgets and {len(curves)} curves in "
              f"{time.perf_counter() - began:.0f} s", flush=True)
    print_table(f"Draft budget against the best fixed one, {len(corpus.test)} texts", rows)
    for row in rows:
        if row["ratio_to_best_fixed"] < TARGET:
            print(f"missed: {row['curve']}, batch {row['batch']}: {row['ratio_to_best_fixed']:.3f} times the "
                  f"best fixed budget; the target is {TARGET}")
    return {"rows": rows, "worst": min(row["ratio_to_best_fixed"] for row in rows), "target": TARGET,
            "texts": len(corpus.test), "pool_texts": len(corpus.rest), "machine": platform.machine()}


def _compare(scheduled: budgets.Steps, fixed: dict[int, budgets.Steps], curve) -> dict:
    rates = {nodes: steps.tokens_per_s(curve) for nodes, steps in fixed.items()}
    best, rate = max(rates, key=rates.get), scheduled.tokens_per_s(curve)
    plain, within = rates.get(0), curve.max_queries(int(scheduled.rows.max())) - 1
    steps = scheduled.rows.sum()
    return {"best_fixed": best, "best_fixed_tokens_per_s": round(rates[best], 1),
            "tokens_per_s": round(rate, 1), "nodes_per_row": round(scheduled.nodes.sum() / steps, 2),
            "accepted_per_step": round(scheduled.tokens.sum() / steps - 1, 3),
            "ratio_to_baseline": round(rate / plain, 3) if plain else None,
            "ratio_to_best_fixed": round(rate / rates[best], 5),
            "steps_beyond_curve": int((scheduled.nodes > within * scheduled.rows).sum())}


main = command(Options, missed=lambda options, result: result["worst"] < result["target"])(run)
