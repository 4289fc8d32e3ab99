"""The command ``tune``: the settings that recorded text and a latency curve promise the most of."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError
from dare_job.evaluate.replay import latency, search, sources, tuned
from dare_job.evaluate.replay.options import TuneOptions as Options
from dare_job.evaluate.replay.search import Space
from dare_job.evaluate.replay.trials import Objective, Trials
from dare_job.observe import progress
from pools.draft import draft, warm_up
from pools.errors import PoolError
from pools.index import Index


def run(options: Options) -> dict:
    """Search, write ``options.out`` and return the JSON object that the command prints last.

    Raises ConfigError for impossible options, DataError for files that do not serve.
    """
    budgets = _check(options)
    corpus = sources.load(options)
    if len(corpus.test) < 4:
        raise ConfigError(f"--held-out {options.held_out} leaves {len(corpus.test)} texts to replay: some "
                          "screen settings and others confirm them, so hold out four or more")
    screened = min(options.screen, len(corpus.test) // 2)
    space = _space(options, len(corpus.rest), budgets)
    sizes = sorted({size for size in options.sizes if size < len(corpus.rest)} | {len(corpus.rest)})
    most = space.replays + len(sizes)
    say = partial(print, flush=True)
    say(f"at most {most} replays: {screened} texts to screen settings, {len(corpus.test) - screened} to "
        f"confirm them; {len(corpus.rest)} texts in the pools")
    warm_up()
    objective = Objective(options.curve, options.drafting, options.threads or len(os.sched_getaffinity(0)))
    with progress.counting("replays", most, unit="replays") as counter:
        trials = Trials(corpus, screened, counter.advance)
        chosen = search.search(trials, objective, space, say)
        result = tuned.figures(trials, objective, space, chosen, sizes, options.rows)
    source = (f"{options.text}: {len(corpus.test) - screened} texts replayed, {len(corpus.rest)} in the "
              f"pools, drafts from {', '.join(options.pool)}; latency: {options.curve_name}")
    options.out.write_text(tuned.document(result, chosen, source, options.command), encoding="utf-8")
    say(f"{options.out}: {search.describe(chosen)}, {result['ratio_to_default']:.3f} times the default")
    return result


def _check(options: Options) -> list[int]:
    """Node budgets to try: what was asked and the default's, as far as the curve reaches."""
    sources.check(options)
    for name, values, low, high in (
            ("--nodes", options.nodes, 1, 512), ("--sizes", options.sizes, 1, 2**31 - 1),
            ("--contexts", options.contexts, 1, 32), ("--depths", options.depths, 1, 64),
            ("--batch", options.batch, 1, 65536), ("--screen", [options.screen], 1, 2**31 - 1)):
        for value in values:
            if not low <= value <= high:
                raise ConfigError(f"{name} {value} must be from {low} to {high}")
    usual = EngineSettings().nodes
    latency.within(options.curve, options.batch, usual)
    row, one = np.zeros((1, 1), np.int32), np.ones(1, np.int32)
    for lam in options.lambdas:
        settings = replace(tuned.default_point((), 0), lam=lam).settings
        try:
            draft(row, one, one, [[Index.build([np.zeros(2, np.int32)])]], settings)
        except PoolError:
            raise ConfigError(f"--lambdas {search.shown('lam', lam)}: each must be a number above 0, "
                              "or 'learned'") from None
    most = options.curve.common_queries
    return [nodes for nodes in sorted({0, usual, *options.nodes}) if nodes + 1 <= most]


def _space(options: Options, most: int, budgets: Sequence[int]) -> Space:
    limits = [size for size in options.sizes if size < most]
    values = {"context": options.contexts, "lam": options.lambdas, "depth": options.depths}
    values |= {f"{kind}_texts": limits for kind in ("group", "global") if kind in options.pool}
    return Space(tuned.default_point(tuple(options.pool), most), values, budgets,
                 sorted(set(options.batch)) or options.curve.batches)
