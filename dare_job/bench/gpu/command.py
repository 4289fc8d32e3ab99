"""The whole measurement: ``run`` prints tables as it goes and returns everything as one object.

Tables, and the targets that the figures are held against.
"""

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

from dare_job.bench.gpu import curves, machine, peers, replay, shapes, texts
from dare_job.bench.gpu.machine import Budget, Meter, release
from dare_job.decode.model import loading
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError, DareJobError

FLOOR = 1.25  # times the bandwidth floor, a step of one token

TREE = 1.3  # times that step, 64 queries

SPEED_UP = {1: 5.0, 32: 2.5, 128: 1.3}  # of scheduled drafts over plain, by batch


def table(lines: Sequence[dict], columns: Sequence[str]) -> str:
    """A Markdown table; what a line lacks is empty."""
    rows = [[_text(line.get(column)) for column in columns] for line in lines]
    head = [column.replace("_", " ") for column in columns]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(columns), *rows])


def _text(value) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def targets(curves: Sequence[dict], replay: Sequence[dict], models: Sequence[str],
            batches: Sequence[int], text: str) -> list[dict]:
    """Every target of these models and batch sizes with its verdict: met, missed, or not measured and why.

    text  what the replay writes: another text has another verdict
    """
    found = []
    for model in dict.fromkeys(models):
        found += _of_curve(model, {(line["rows"], line["queries"]): line for line in reversed(curves)
                                   if line["model"] == model})
    for batch in dict.fromkeys(batches):
        lines = _of_replay(batch, {line["way"]: line for line in replay if line["batch"] == batch})
        found += [{**line, "text": text} for line in lines]
    return found


def _of_curve(model: str, points: dict) -> list[dict]:
    one, tree = points.get((1, 1)), points.get((1, 64))
    lacking = [str(queries) for queries, line in ((1, one), (64, tree)) if line is None]
    why = f"its latency curve has no step of one row with so many queries: {', '.join(lacking)}"
    return [_target_row(f"{model}: a step of 1 token over its floor, at most", FLOOR,
                    one and one["ms"] / one["floor_ms"], why, most=True),
            _target_row(f"{model}: 64 queries over a step of 1, at most", TREE,
                    one and tree and tree["ms"] / one["ms"], why, most=True)]


def _of_replay(batch: int, lines: dict) -> list[dict]:
    bounds = {"plain": SPEED_UP.get(batch), "generate": 1.0, "generate_batch": 1.0}
    found = []
    for way, bound in bounds.items():
        if bound is None:
            continue
        ours, other = (lines.get(name, {"error": "not run"}) for name in ("scheduled", way))
        why = "; ".join(f"{name}: {line['error']}" for name, line in (("scheduled", ours), (way, other))
                        if "error" in line)
        found.append(_target_row(
            f"batch {batch}: scheduled drafts over {way}, {'at least' if way == 'plain' else 'above'}", bound,
            None if why else ours["tokens_per_s"] / other["tokens_per_s"], why, most=False))
    return found


def _target_row(what: str, bound: float, value: float | None, why: str, most: bool) -> dict:
    """value None: not measured, and ``why``."""
    line = {"target": what, "bound": bound}
    if value is None:
        return {**line, "verdict": "not measured", "why": why}
    met = value <= bound if most else value > bound if bound == 1.0 else value >= bound
    return {**line, "measured": round(value, 3), "verdict": "met" if met else "missed"}

_CURVE = ("model", "context", "rows", "queries", "ms", "floor_ms", "times_floor")

_REPLAY = ("batch", "way", "nodes", "texts", "new_tokens", "tokens_per_s", "accepted_per_step",
           "joules_per_token", "drafting_share", "recorded_meanwhile", "error")


@dataclass(frozen=True)
class Options:
    """device       "auto", "cpu" or "cuda"
    small        tiny shapes everywhere: exercises the command, measures nothing of interest
    seconds      of the whole run, about; what does not fit is shortened or left out, and said
    shapes       models of the latency curves, comma-separated; replay takes the first one
    batches      rows decoded together in the replay
    texts, column, tokenizer   recorded texts as JSON lines; without a file they are made up
    prompt_tokens, new_tokens  of each text
    """

    device: str = "auto"
    small: bool = False
    seconds: float = 440.0
    shapes: str = "llama-2-7b,qwen2.5-0.5b,mistral-7b"
    batches: str = "1,32,128"
    texts: Path | None = None
    column: str = "text"
    tokenizer: Path | None = None
    prompt_tokens: int = 256
    new_tokens: int = 192


def run(options: Options) -> dict:
    """Measure everything. Raises ConfigError or DataError for options and files that cannot be used."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    transformers.logging.set_verbosity_error()
    options = _small(options) if options.small else options
    names, batches = options.shapes.split(","), _numbers(options.batches)
    device, budget = loading.device(options.device), Budget(options.seconds)
    recorded = _recorded(options, names[0], max(2 * min(batches[-1], 64), *batches, 4))
    found = {"label": replay.label(recorded), "small": options.small, "machine": machine.describe(device)}
    print(json.dumps(found["machine"]))
    limits, meter = machine.ceilings(device, options.small), Meter(device)
    found |= {"ceilings": asdict(limits), "energy": meter.source}
    print(f"ceilings: {limits.bandwidth / 1e9:.0f} GB/s read and written, {limits.flops / 1e12:.1f} TFLOPS\n")
    found["equality"] = peers.measure(device, budget, options.small)
    print(table(found["equality"], ("model", "texts", "equal", "accepted_per_step", "recorded")) + "\n")
    found |= {"curves": [], "ways": [], "replay": []}
    for place, name in enumerate(names):
        target = _target(name, device, budget)
        _measure_model(found, target, place, options, batches, recorded, limits, meter, budget)
        del target
        release(device)
    found |= {"targets": targets(found["curves"], found["replay"], names, batches, recorded.source),
              "texts": recorded.source,
              "notes": budget.notes, "seconds": round(budget.spent, 1)}
    print(table(found["targets"], ("target", "bound", "measured", "verdict", "why", "text")) + "\n")
    return found


def _measure_model(found: dict, target: Target, place: int, options: Options, batches: tuple, recorded,
                   limits, meter: Meter, budget: Budget) -> None:
    """One model's curves; the first one's replay too, which takes more than half of the time."""
    name, repeats = options.shapes.split(",")[place], 2 if options.small else 7
    share = budget.left / (len(options.shapes.split(",")) - place)
    until = budget.spent + (0.25 * budget.left if place == 0 else 0.9 * share)
    contexts = (options.prompt_tokens,) if options.small else (options.prompt_tokens,
                                                               4 * options.prompt_tokens)
    curve_rows = (1, 4) if options.small else (1, 8, 32, 128)
    lines = curves.measure(target, name, limits, budget, until, curve_rows, contexts, repeats,
                           (1, 16, 64) if options.small else curves.QUERIES)
    ways = curves.ways(target, name, curve_rows[:1], contexts[0], repeats)
    print(table(lines, _CURVE) + "\n\n" + table(ways, ("model", "context", "rows", "way", "ms")) + "\n")
    found["curves"] += lines
    found["ways"] += ways
    if place == 0:
        until = budget.spent + 0.7 * budget.left
        found["replay"] = replay.measure(target, recorded, batches, options.prompt_tokens, budget, until,
                                         meter, options.small)
        print(f"{name}: {replay.label(recorded)}\n")
        print(table(found["replay"], _REPLAY) + "\n")


def _target(name: str, device: torch.device, budget: Budget) -> Target:
    budget.say(f"{name}: random weights")
    return Target(shapes.large(name, device, curves.dtype(device)), check=False, static=True)


def _recorded(options: Options, shape: str, count: int) -> texts.Recorded:
    if shape not in shapes.SHAPES:
        raise ConfigError(f"shape {shape!r} is unknown; choose from {', '.join(shapes.SHAPES)}")
    vocabulary = shapes.SHAPES[shape][1]["vocab_size"]
    if options.texts is None:
        return texts.made_up(count, options.new_tokens, vocabulary)
    if options.tokenizer is None:
        raise ConfigError("--texts needs --tokenizer: tokenizer.json, or GPT-2's vocabulary and merges")
    return texts.from_file(options.texts, options.column, options.tokenizer, count, options.new_tokens,
                           vocabulary)


def _small(options: Options) -> Options:
    return Options(**{**asdict(options), "shapes": "small", "batches": "1,3", "seconds": 120.0,
                      "prompt_tokens": 16, "new_tokens": 24})


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted(int(part) for part in text.split(",")))
    except ValueError:
        numbers = (0,)
    if numbers[0] < 1:
        raise ConfigError(f"--batches {text!r} must be numbers from 1, comma-separated")
    return numbers


def main() -> None:
    """``python -m dare_job.bench.gpu``: the same without typer."""
    parser = argparse.ArgumentParser(prog="dare_job.bench.gpu", description=HELP)
    for name, (kind, text) in ARGUMENTS.items():
        flag = "--" + name.replace("_", "-")
        if kind is bool:
            parser.add_argument(flag, action="store_true", help=text)
        else:
            parser.add_argument(flag, type=kind, default=getattr(Options, name), help=text)
    try:
        found = run(Options(**vars(parser.parse_args())))
    except DareJobError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    print(json.dumps(found))


HELP = ("Measure the engine on a GPU with random weights: strict equality with generate, latency curves "
        "beside ceilings measured in the same run, replay of recorded or made-up text at full cost, joules. "
        "Takes about --seconds; ends with one JSON line.")

ARGUMENTS = {
    "device": (str, "auto, cpu or cuda."),
    "small": (bool, "Tiny shapes: exercises the command on a CPU, measures nothing of interest."),
    "seconds": (float, "Time of the whole run; what does not fit is shortened or left out, and said."),
    "shapes": (str, f"Of {', '.join(shapes.SHAPES)}: models of the curves; the first one is replayed."),
    "batches": (str, "Rows decoded together in the replay."),
    "texts": (Path, "Recorded texts, JSON lines (.gz or not); without it they are made up."),
    "column": (str, "Field of --texts that holds the text."),
    "tokenizer": (Path, "tokenizer.json, or a folder with it or with GPT-2's files, to read --texts with."),
    "prompt_tokens": (int, "Tokens of each prompt."),
    "new_tokens": (int, "Tokens of each text."),
}
