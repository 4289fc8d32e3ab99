"""What a tuner found: its figures, and the settings that ``dare-job run --config`` takes.

A first night in waves: some rows are written before the others, whose pool their texts become.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import yaml

from dare_job.config.decoding import DecodeSettings
from dare_job.config.settings import PoolSettings
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.replay.search import Choice, Space, best
from dare_job.evaluate.replay.trials import Objective, Point, Trial, Trials, ratio_interval
from dare_job.generate.waves import wave_sizes

CANDIDATES = ((50,), (100,), (250,), (500,), (1000,), (50, 500), (100, 1000), (500, 5000), (50, 250, 1000),
              (50, 500, 5000), (100, 1000, 10000), (500, 5000, 50000))
_LEAST_GAIN = 0.01  # of all steps: what another wave must save


def total_steps(rows: int, tokens: float, accepted: Mapping[int, float], sizes: Sequence[int]) -> float:
    """Steps of a whole night: rows of each wave draft from the texts of the waves before.

    rows, tokens  rows to write, and tokens a row
    accepted      accepted a step by texts in the pool, 0 among them; between two sizes linear in the
                  logarithm, behind the largest as there
    sizes         texts that are there after each wave, as ``waves.sizes``; the rest follows
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
    """The plan with the fewest waves whose steps are within 1 % of the best candidate's.

    Returns {"rows", "sizes" (empty: no waves), "steps", "steps_without", "ratio"}.
    """
    plain = total_steps(rows, tokens, accepted, ())
    plans = {(): plain} | {sizes: total_steps(rows, tokens, accepted, sizes) for sizes in CANDIDATES
                           if max(sizes) < rows}
    least = min(plans.values())
    good = [sizes for sizes, steps in plans.items() if steps <= least + _LEAST_GAIN * plain]
    sizes = min(good, key=lambda sizes: (len(sizes), plans[sizes]))
    return {"rows": rows, "sizes": list(sizes), "steps": round(plans[sizes]), "steps_without": round(plain),
            "ratio": round(plans[sizes] / plain, 4)}


def default_point(pool: tuple[str, ...], texts: int) -> Point:
    """The job's own defaults, on pools of at most ``texts``."""
    decode, pools = DecodeSettings(), PoolSettings()
    lam = None if decode.blend_lambda == "learned" else float(decode.blend_lambda)
    return Point(pool, decode.context, decode.depth, lam,
                 *(None if texts <= most else most for most in (pools.max_texts, pools.max_global_texts)))


def settings(choice: Choice) -> dict[str, dict]:
    """The choice by the job's sections and keys; a pool that holds every text has no limit to write."""
    point = choice.point
    decode = {"batch_size": choice.batch, "nodes": choice.nodes, "depth": point.depth,
              "context": point.context, "blend_lambda": "learned" if point.lam is None else point.lam}
    limits = {"max_texts": point.group_texts, "max_global_texts": point.global_texts}
    pools = {name: value for name, value in limits.items() if value is not None}
    return {"decode": decode, **({"pools": pools} if pools else {})}


def figures(trials: Trials, objective: Objective, space: Space, chosen: Choice, sizes: Sequence[int],
            rows: int | None) -> dict:
    """What the command prints last: the choice, every batch size, the default, and a first night of ``rows``.

    sizes  texts in a pool of everybody, whose acceptance says what waves would save
    rows   None: as many as there are texts
    """
    usual = EngineSettings().nodes
    default = trials(space.start, usual, "confirm")
    rate = objective.tokens_per_s(chosen.batch, usual, default)
    cost = (objective.step_ms(chosen.batch, usual, default.us)
            / objective.step_ms(chosen.batch, chosen.nodes, chosen.trial.us))
    nodes = chosen.nodes or usual
    by_size = _by_size(trials, chosen, sizes, nodes)
    accepted = {size: trial.accepted_per_step for size, trial in by_size.items()}
    tokens = float(np.mean([text.size for text in trials.corpus.test]))
    known = len(trials.corpus.test) + len(trials.corpus.rest)
    waves = recommend(rows or known, tokens, accepted) if chosen.nodes else None
    by_batch = {str(batch): _at_batch(trials, objective, space, chosen, batch) for batch in space.batches}
    return {
        "best": settings(chosen), "by_batch": by_batch,
        "pool_sizes": {str(size): {"accepted_per_step": trial.accepted_per_step, "tokens_per_s": round(
            objective.tokens_per_s(chosen.batch, nodes, trial), 2)} for size, trial in by_size.items()},
        "default": {"batch_size": chosen.batch, "nodes": usual,
                    "accepted_per_step": default.accepted_per_step, "tokens_per_s": round(rate, 2)},
        "ratio_to_default": round(chosen.tokens_per_s / rate, 4),
        "ratio_ci95": ratio_interval(chosen.trial, default, cost),
        "waves": waves, "replays": trials.count}


def _at_batch(trials: Trials, objective: Objective, space: Space, chosen: Choice, batch: int) -> dict:
    found = best(trials, objective, space, chosen.point, "confirm", [batch])
    plain = objective.tokens_per_s(batch, 0, trials(chosen.point, 0, "confirm"))
    return {"nodes": found.nodes, "accepted_per_step": found.trial.accepted_per_step,
            "tokens_per_s": round(found.tokens_per_s, 2), "plain_tokens_per_s": round(plain, 2),
            "ratio": round(found.tokens_per_s / plain, 4)}


def _by_size(trials: Trials, chosen: Choice, sizes: Sequence[int], nodes: int) -> dict[int, Trial]:
    """Trials by texts in a pool of everybody, as a first night has it: no own text, no groups."""
    found = {}
    for size in (0, *sizes):
        limit = size if size < len(trials.corpus.rest) else None
        point = replace(chosen.point, pool=("global",), global_texts=limit, group_texts=None)
        found[size] = trials(point, nodes, "confirm")
    return found


def document(result: Mapping, choice: Choice, source: str, command: str) -> str:
    """YAML text: measured figures as comments, then the settings.

    result   of ``figures``
    source   what was replayed and which latency curve counted, in words
    """
    low, high = result["ratio_ci95"]
    found = result["by_batch"][str(choice.batch)]
    lines = [
        *(f"# {' '.join(line.split())}" for line in (command, source)),
        f"# Batch {choice.batch}: {found['accepted_per_step']:.2f} accepted a step, "
        f"{found['tokens_per_s']:.0f} tokens/s expected, {found['ratio']:.2f} times autoregressive decoding;",
        f"# {result['ratio_to_default']:.3f} times the default settings at this batch size "
        f"(95 % {low:.3f} to {high:.3f}).",
        *(f"# Batch {batch}: nodes {row['nodes']}, {row['tokens_per_s']:.0f} tokens/s expected, "
          f"{row['ratio']:.2f} times autoregressive decoding."
          for batch, row in result["by_batch"].items() if batch != str(choice.batch))]
    found = yaml.safe_dump(settings(choice), sort_keys=False)
    return "\n".join(lines) + "\n" + found + _waves(result["waves"])


def _waves(plan: Mapping | None) -> str:
    if plan is None:
        return ""
    if not plan["sizes"]:
        return "# Waves would save nothing on a first night.\nwaves: {when: never}\n"
    text = (f"# A first night of {plan['rows']} rows takes {plan['steps_without']} steps without waves, "
            f"{plan['steps']} ({plan['ratio']:.3f}) with these.\n")
    return text + f"waves: {{sizes: {plan['sizes']}}}\n"
