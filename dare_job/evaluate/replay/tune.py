"""``dare-job tune``: finds the fastest draft settings with recorded texts and a latency curve."""

import os
from collections.abc import Sequence
from functools import partial

from dare_job.config.settings import JobConfig, load
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError
from dare_job.evaluate.replay import run_shares, search, sources, tuned
from dare_job.evaluate.replay.options import TuneOptions as Options
from dare_job.evaluate.replay.search import Space
from dare_job.evaluate.replay.trials import Objective, Trials
from dare_job.observe import progress
from pools.draft import warm_up


def run(options: Options) -> dict:
    """Search, write ``options.out`` and return the JSON object that the command prints last.

    Raises
    ------
    ConfigError
        An option is invalid, or too few texts are held out.
    DataError
        A file is invalid.
    """
    config = load(options.config)
    batches = sorted(set(options.batch)) or list(options.curve.batches)
    batch = config.decode.batch_size if options.config else max(options.batch, default=None)
    batch_is_given = batch is not None
    if batch is None:  # the default; a curve of other batch sizes ends nearest to it
        batch = min(max(config.decode.batch_size, batches[0]), batches[-1])
    budgets = _check(options, batch)
    corpus = sources.load(options)
    if len(corpus.test) < 4:
        raise ConfigError(f"--held-out {options.held_out} leaves {len(corpus.test)} texts to replay, some to "
                          "screen settings and others to confirm them: hold out four or more")
    screened = min(options.screen, len(corpus.test) // 2)
    space = _space(options, config, len(corpus.rest), budgets, batch, sorted({batch, *batches}))
    sizes = sorted({size for size in options.sizes if size < len(corpus.rest)} | {len(corpus.rest)})
    max_replays = space.replays + len(sizes)
    say = partial(print, flush=True)
    say(f"at most {max_replays} replays: {screened} texts to screen settings, {len(corpus.test) - screened} "
        f"to confirm them; {len(corpus.rest)} texts in the pools")
    warm_up()
    objective = Objective(options.curve, options.drafting, options.threads or len(os.sched_getaffinity(0)))
    with progress.counting("replays", max_replays, unit="replays") as counter:
        trials = Trials(corpus, screened, counter.advance)
        chosen = search.search(trials, objective, space, say)
        result, winner = tuned.figures(trials, objective, space, chosen, sizes, options.rows, batch_is_given)
    price = config.cost.per_gpu_hour if options.per_gpu_hour is None else options.per_gpu_hour
    if price is not None:
        tuned.add_costs(result, price)
    measured = run_shares.find(options.text, config)
    result["run_shares"] = measured and measured.record()
    source = (f"{', '.join(map(str, options.text))}: {len(corpus.test) - screened} texts replayed, "
              f"{len(corpus.rest)} in the pools, drafts from {', '.join(options.pool)}; latency: "
              f"{options.curve_name}")
    options.out.write_text(tuned.document(result, source, options.command), encoding="utf-8")
    say(f"{options.out}: batch {batch}, nodes {winner.nodes}: {winner.accepted_per_step:.2f} accepted per "
        f"step, {winner.tokens_per_s:.0f} tokens/s, {result['ratio_to_default']:.3f} times the settings "
        f"before; of the computed time, drafting takes {winner.drafting_share:.0%}, forward passes the rest. "
        f"{run_shares.words(result['run_shares'])}")
    return result


def _check(options: Options, batch: int) -> list[int]:
    """Node budgets to try: ``--nodes`` and the default, up to the end of the curve."""
    sources.check(options)
    curve, default = options.curve, EngineSettings().nodes
    for name, values, low, high in (
            ("--nodes", options.nodes, 1, 512), ("--sizes", options.sizes, 1, 2**31 - 1),
            ("--contexts", options.contexts, 1, 31), ("--depths", options.depths, 1, 64),
            ("--screen", [options.screen], 1, 2**31 - 1),
            ("with this latency curve --batch", options.batch, curve.batches[0], curve.batches[-1]),
            ("with this latency curve decode.batch_size", [batch], curve.batches[0], curve.batches[-1])):
        for value in values:
            if not low <= value <= high:
                raise ConfigError(f"{name} {value} must be from {low} to {high}")
    for value in options.lambdas:
        if value is not None and value <= 0:
            raise ConfigError(f"--lambdas {value:g}: each must be a number above 0, or 'learned'")
    if default >= curve.common_queries:
        raise ConfigError(f"the latency curve ends at {curve.common_queries} queries per row, but {default} "
                          f"draft tokens need {default + 1}: measure more queries")
    return [nodes for nodes in sorted({0, default, *options.nodes}) if nodes < curve.common_queries]


def _space(options: Options, config: JobConfig, texts: int, budgets: Sequence[int], batch: int,
           batches: Sequence[int]) -> Space:
    limits = [size for size in options.sizes if size < texts]
    values = {"context": options.contexts, "lam": options.lambdas, "depth": options.depths}
    values |= {f"{kind}_texts": limits for kind in ("group", "global") if kind in options.pool}
    start = tuned.default_point(tuple(options.pool), texts, config.decode, config.pools)
    nodes = config.decode.nodes
    if "decode.nodes" in config.plug_ins:
        raise ConfigError(f"decode.nodes = {nodes}: tune replays dare-job's own draft budget; use auto")
    return Space(start, nodes, values, budgets, batch, batches)
