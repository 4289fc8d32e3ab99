"""What a tuner found: its figures, and the settings that ``dare-job run --config`` takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import yaml

from dare_job.config import DecodeSettings, PoolSettings
from dare_job.decode import EngineSettings
from dare_job.replay import first_night
from dare_job.replay.search import Choice, Space, best
from dare_job.replay.trials import Objective, Point, Trial, Trials, ratio_interval


def default_point(pool: tuple[str, ...], texts: int) -> Point:
    """The job's own defaults, on pools of at most ``texts``."""
    decode, pools = DecodeSettings(), PoolSettings()
    return Point(pool, decode.context, decode.depth, lam_of(decode.blend_lambda),
                 *(None if texts <= most else most for most in (pools.max_texts, pools.max_global_texts)))


def lam_of(setting: float | str) -> float | None:
    """``DraftSettings.lam`` of ``decode.blend_lambda``, which is a number or "learned"."""
    return None if setting == "learned" else float(setting)


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
    waves = first_night.recommend(rows or known, tokens, accepted) if chosen.nodes else None
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
        f"{found['tokens_per_s']:.0f} tokens/s expected, {found['ratio']:.2f} times plain decoding;",
        f"# {result['ratio_to_default']:.3f} times the default settings at this batch size "
        f"(95 % {low:.3f} to {high:.3f}).",
        *(f"# Batch {batch}: nodes {row['nodes']}, {row['tokens_per_s']:.0f} tokens/s expected, "
          f"{row['ratio']:.2f} times plain decoding."
          for batch, row in result["by_batch"].items() if batch != str(choice.batch))]
    found = yaml.safe_dump(settings(choice), sort_keys=False)
    return "\n".join(lines) + "\n" + found + _waves(result["waves"])


def _waves(plan: Mapping | None) -> str:
    """The setting of a first night's waves."""
    if plan is None:
        return ""
    if not plan["sizes"]:
        return "# Waves would save nothing on a first night.\nwaves: {when: never}\n"
    text = (f"# A first night of {plan['rows']} rows takes {plan['steps_without']} steps without waves, "
            f"{plan['steps']} ({plan['ratio']:.3f}) with these.\n")
    return text + f"waves: {{sizes: {plan['sizes']}}}\n"
