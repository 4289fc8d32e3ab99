"""The result of ``tune``: figures, waves of a first run, and the settings for ``dare-job run --config``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import yaml

from dare_job.config.decoding import DecodeSettings
from dare_job.config.settings import PoolSettings
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.replay import run_shares
from dare_job.evaluate.replay.batched import AUTO, Batched, Rate, fastest, ratio_interval
from dare_job.evaluate.replay.search import Choice, Space, best
from dare_job.evaluate.replay.trials import Objective, Point, Trial, Trials
from dare_job.generate.waves import wave_sizes

CANDIDATES = ((50,), (100,), (250,), (500,), (1000,), (50, 500), (100, 1000), (500, 5000), (50, 250, 1000),
              (50, 500, 5000), (100, 1000, 10000), (500, 5000, 50000))
_MIN_GAIN = 0.01  # share of all steps that another wave must save


def total_steps(rows: int, tokens: float, accepted: Mapping[int, float], sizes: Sequence[int]) -> float:
    """Steps of a first run: rows of each wave draft from the texts of the waves before.

    Parameters
    ----------
    rows
        Number of rows to generate.
    tokens
        Number of tokens per row.
    accepted
        Accepted tokens per step by number of texts in the pool, with 0; interpolated linearly in the
        logarithm, constant beyond the largest.
    sizes
        Texts after each wave, as ``waves.sizes``; the other rows follow.
    """
    known = sorted(accepted)
    places, values = np.log1p(known), [accepted[size] for size in known]
    done, total = 0, 0.0
    waves = wave_sizes(sizes, rows)
    for wave in (*waves, rows - sum(waves)):
        total += wave * tokens / (1 + float(np.interp(np.log1p(done), places, values)))
        done += wave
    return total


def recommend(rows: int, tokens: float, accepted: Mapping[int, float]) -> dict:
    """The plan with the fewest waves whose steps are at most 1 % of all steps more than the best candidate's.

    Returns {"rows", "sizes" (empty: no waves), "steps", "steps_without", "ratio"}.
    """
    plans = {sizes: total_steps(rows, tokens, accepted, sizes) for sizes in ((), *CANDIDATES)
             if not sizes or max(sizes) < rows}
    without = plans[()]
    max_steps = min(plans.values()) + _MIN_GAIN * without
    sizes = min((sizes for sizes in plans if plans[sizes] <= max_steps),
                key=lambda sizes: (len(sizes), plans[sizes]))
    return {"rows": rows, "sizes": list(sizes), "steps": round(plans[sizes]), "steps_without": round(without),
            "ratio": round(plans[sizes] / without, 4)}


def default_point(pool: tuple[str, ...], texts: int, decode: DecodeSettings, pools: PoolSettings) -> Point:
    """The settings of a run before tuning, on pools of at most ``texts``."""
    lam = None if decode.blend_lambda == "learned" else float(decode.blend_lambda)
    limits = (None if texts <= limit else limit for limit in (pools.max_texts, pools.max_global_texts))
    return Point(pool, decode.context, decode.depth, lam, *limits)


def settings(chosen: Rate, batch: int | None) -> dict[str, dict]:
    """The choice by sections and keys of the settings; a pool of all texts has no limit."""
    point = chosen.point
    decode = {**({"batch_size": batch} if batch else {}), "nodes": chosen.nodes, "depth": point.depth,
              "context": point.context, "blend_lambda": "learned" if point.lam is None else point.lam}
    limits = {"max_texts": point.group_texts, "max_global_texts": point.global_texts}
    pools = {name: value for name, value in limits.items() if value is not None}
    return {"decode": decode, **({"pools": pools} if pools else {})}


def figures(trials: Trials, objective: Objective, space: Space, chosen: Choice, sizes: Sequence[int],
            rows: int | None, batch_is_given: bool) -> tuple[dict, Rate]:
    """The result that the command prints, and the settings to write.

    The result has the settings, every batch size, the settings before ("default"), and the waves of a first
    run.

    Parameters
    ----------
    sizes
        Sizes of the global pool, whose acceptance determines the waves.
    rows
        Of the first run; None: as many as there are texts.
    batch_is_given
        Whether the batch size is written; otherwise that of the run's configuration stays.
    """
    batched = Batched(trials, objective, chosen.batch)
    default = batched(space.start, space.start_nodes)
    tuned = fastest(batched, space.start, chosen.point)
    nodes = chosen.nodes or EngineSettings().nodes
    by_size = _by_size(trials, chosen, sizes, nodes)
    accepted = {size: trial.accepted_per_step for size, trial in by_size.items()}
    tokens = float(np.mean([text.size for text in trials.corpus.test]))
    texts = len(trials.corpus.test) + len(trials.corpus.rest)
    waves = recommend(rows or texts, tokens, accepted) if chosen.nodes else None
    return {
        "best": settings(tuned, chosen.batch if batch_is_given else None),
        **_rate(tuned, batched(tuned.point, 0)),
        "by_batch": {str(batch): _at_batch(trials, objective, space, tuned.point, batch)
                     for batch in space.batches},
        "pool_sizes": {str(size): {"accepted_per_step": trial.accepted_per_step, "tokens_per_s": round(
            objective.tokens_per_s(chosen.batch, nodes, trial), 2)} for size, trial in by_size.items()},
        "default": {"batch_size": chosen.batch, "nodes": space.start_nodes,
                    "accepted_per_step": default.accepted_per_step,
                    "tokens_per_s": round(default.tokens_per_s, 2)},
        "ratio_to_default": round(tuned.tokens_per_s / default.tokens_per_s, 4),
        "ratio_ci95": ratio_interval(tuned, default),
        "waves": waves, "replays": trials.count}, tuned


def _rate(rate: Rate, autoregressive: Rate) -> dict:
    return {"accepted_per_step": rate.accepted_per_step, "tokens_per_s": round(rate.tokens_per_s, 2),
            "plain_tokens_per_s": round(autoregressive.tokens_per_s, 2),
            "ratio": round(rate.tokens_per_s / autoregressive.tokens_per_s, 4),
            "drafting_share": rate.drafting_share, "forward_share": round(1 - rate.drafting_share, 4)}


def _at_batch(trials: Trials, objective: Objective, space: Space, point: Point, batch: int) -> dict:
    """``auto`` at a batch size, and the best fixed number of nodes."""
    batched = Batched(trials, objective, batch)
    fixed = best(trials, objective, space, point, "confirm", batch)
    rate = batched(point, fixed.nodes)
    return {**_rate(batched(point, AUTO), batched(point, 0)), "fixed_nodes": fixed.nodes,
            "fixed_accepted_per_step": rate.accepted_per_step,
            "fixed_tokens_per_s": round(rate.tokens_per_s, 2)}


def add_costs(result: dict, per_gpu_hour: float) -> None:
    """Add the cost of a million tokens, in the currency of the price of a GPU's hour, to each computed rate.

    Of decoding alone: prompts, loading and waiting are not counted.
    """
    def of(tokens_per_s: float) -> float:
        return round(per_gpu_hour / 3600 / tokens_per_s * 1e6, 6)

    result["per_gpu_hour"] = per_gpu_hour
    for row in (result["default"], *result["by_batch"].values()):
        row["cost_per_million_tokens"] = of(row["tokens_per_s"])
        if "plain_tokens_per_s" in row:
            row["plain_cost_per_million_tokens"] = of(row["plain_tokens_per_s"])


def _cost_lines(result: Mapping) -> list[str]:
    """Comments about ``add_costs``; none without a price."""
    if "per_gpu_hour" not in result:
        return []
    lines = [f"# Computed cost of decoding a million tokens, at {result['per_gpu_hour']:g} per GPU hour:"]
    for batch, row in result["by_batch"].items():
        lines.append(f"# batch {batch}: {row['cost_per_million_tokens']:.4g}, autoregressive "
                     f"{row['plain_cost_per_million_tokens']:.4g}")
    return lines


def _by_size(trials: Trials, chosen: Choice, sizes: Sequence[int], nodes: int) -> dict[int, Trial]:
    """Trials by texts in the global pool, without other pools, as in a first run."""
    by_size = {}
    for size in (0, *sizes):
        limit = size if size < len(trials.corpus.rest) else None
        point = replace(chosen.point, pool=("global",), global_texts=limit, group_texts=None)
        by_size[size] = trials(point, nodes, "confirm")
    return by_size


def document(result: Mapping, source: str, command: str) -> str:
    """YAML text: figures as comments, then the settings.

    Parameters
    ----------
    result
        Of ``figures``, with ``run_shares``.
    source
        The replayed texts and the latency curve, in words.
    """
    low, high = result["ratio_ci95"]
    chosen = result["default"]["batch_size"]
    lines = [
        *(f"# {' '.join(line.split())}" for line in (command, source)),
        f"# Batch {chosen}: {result['accepted_per_step']:.2f} accepted per step, "
        f"{result['tokens_per_s']:.0f} tokens/s expected, {result['ratio']:.2f} times autoregressive "
        "decoding;",
        f"# {result['ratio_to_default']:.3f} times the settings before (decode.nodes: "
        f"{result['default']['nodes']}) at this batch size (95 % {low:.3f} to {high:.3f}).",
        *(f"# Batch {batch}: {row['tokens_per_s']:.0f} tokens/s expected, {row['ratio']:.2f} times "
          "autoregressive decoding." for batch, row in result["by_batch"].items() if batch != str(chosen)),
        "# Of the computed time, drafting takes " + ", ".join(
            f"{100 * row['drafting_share']:.0f} % (batch {batch})"
            for batch, row in result["by_batch"].items()) + "; the rest are forward passes.",
        f"# {' '.join(run_shares.words(result['run_shares']).split())}.",
        *_cost_lines(result)]
    written = yaml.safe_dump(result["best"], sort_keys=False)
    return "\n".join(lines) + "\n" + written + _waves(result["waves"])


def _waves(plan: Mapping | None) -> str:
    if plan is None:
        return ""
    if not plan["sizes"]:
        return "# Waves would save nothing in a first run.\nwaves: {when: never}\n"
    text = (f"# A first run of {plan['rows']} rows takes {plan['steps_without']} steps without waves, "
            f"{plan['steps']} ({plan['ratio']:.3f}) with these.\n")
    return text + f"waves: {{sizes: {plan['sizes']}}}\n"
