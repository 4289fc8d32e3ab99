"""The whole measurement: ``run`` prints tables as it goes and returns everything as one object."""

import argparse
import gc
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

from dare_job.bench.gpu import curves, kernels, machine, peers, replay, shapes, texts, twin
from dare_job.bench.gpu.machine import Budget, Meter, release
from dare_job.decode.model import loading
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError, DareJobError
from dare_job.evaluate.measured import print_table

HELP = ("Measure the engine on a GPU with random weights: strict equality with generate, latency curves "
        "beside ceilings measured in the same run, replay of recorded or made-up text at full cost, joules. "
        "Takes about --seconds; ends with one JSON line.")
FLOOR = 1.25  # a step of one token over its lower bound
TREE = 1.3  # 64 queries over that step
TRIE_MS = 0.1  # of the constraint at a level of a trie
PUBLISHED = 0.9  # of the tokens per second of the published line, in the shapes of 7 billion parameters
SPEED_UP = {1: 5.0, 32: 2.5, 128: 1.3}  # of drafts with a budget over autoregressive decoding, by batch size
_REPLAY = ("batch", "way", "nodes", "texts", "new_tokens", "tokens_per_s", "published_tokens_per_s",
           "accepted_per_step", "joules_per_token", "drafting_share", "recorded_meanwhile", "error")


def targets(curves: Sequence[dict], replay: Sequence[dict], models: Sequence[str],
            batches: Sequence[int], text: str) -> list[dict]:
    """Every target of these models and batch sizes with its result: met, missed, or not measured and why.

    Parameters
    ----------
    text
        The source of the replayed texts, on which the result depends.
    """
    held = []
    for model in dict.fromkeys(models):
        held += _of_curve(model, {(line["rows"], line["queries"]): line for line in reversed(curves)
                                  if line["model"] == model})
    for batch in dict.fromkeys(batches):
        ways = {line["way"]: line for line in replay if line["batch"] == batch}
        lines = _of_replay(batch, ways) + _of_published(batch, ways, models[0])
        held += [{**line, "text": text} for line in lines]
    return held


def _of_curve(model: str, points: dict) -> list[dict]:
    single, tree = points.get((1, 1)), points.get((1, 64))
    lacking = [str(queries) for queries, line in ((1, single), (64, tree)) if line is None]
    why = f"its latency curve has no step of one row with so many queries: {', '.join(lacking)}"
    return [_target_row(f"{model}: a step of 1 token over its floor, at most", FLOOR,
                    single and single["ms"] / single["floor_ms"], why, upper=True),
            _target_row(f"{model}: 64 queries over a step of 1, at most", TREE,
                    single and tree and tree["ms"] / single["ms"], why, upper=True)]


def _of_trie(lines: Sequence[dict]) -> list[dict]:
    """The target of the constraint at a level of a trie, for each size of beams."""
    return [_target_row("{rows} x {beams} beams in a trie of {ids} ids: {part}, ms at most".format(**line),
                        TRIE_MS, line["ms"], "", upper=True)
            for line in lines if line["part"] == kernels.CONSTRAINT]


def _of_replay(batch: int, lines: dict) -> list[dict]:
    bounds = {"plain": SPEED_UP.get(batch), "generate": 1.0, "generate_batch": 1.0, "vllm": 1.0}
    held = []
    for way, bound in bounds.items():
        if bound is None:
            continue
        ours, other = (lines.get(name, {"error": "not run"}) for name in ("budgeted", way))
        why = "; ".join(f"{name}: {line['error']}" for name, line in (("budgeted", ours), (way, other))
                        if "error" in line)
        held.append(_target_row(
            f"batch {batch}: drafts with a budget over {way}, "
            f"{'at least' if way == 'plain' else 'above'}", bound,
            None if why else ours["tokens_per_s"] / other["tokens_per_s"], why, upper=False))
    return held


def _of_published(batch: int, lines: dict, model: str) -> list[dict]:
    """The published line is of a model of 8 billion parameters, so it is no target of others, or of a CPU."""
    drafted = lines.get("drafted", {})
    if not model.endswith("-7b") or "published_tokens_per_s" not in drafted:
        return []
    ratio = drafted["tokens_per_s"] / drafted["published_tokens_per_s"]
    return [_target_row(f"batch {batch}: drafts over the published line of vLLM on an H100, at least",
                        PUBLISHED, ratio, "", upper=False)]


def _target_row(name: str, bound: float, value: float | None, why: str, upper: bool) -> dict:
    """value: None if it was not measured, because of ``why``; upper: whether the bound is an upper one."""
    line = {"target": name, "bound": bound}
    if value is None:
        return {**line, "result": "not measured", "why": why}
    met = value <= bound if upper else value > bound if bound == 1.0 else value >= bound
    return {**line, "measured": round(value, 3), "result": "met" if met else "missed"}


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of a command line, by default this process's.

    Raises
    ------
    ConfigError
        ``--prompt-tokens`` is below 1, or ``--new-tokens`` is below 8.
    """
    parser = argparse.ArgumentParser(prog="dare_job.bench.gpu", description=HELP)
    add = parser.add_argument
    add("--device", default="auto", help="auto, cpu or cuda.")
    add("--small", action="store_true",
        help="Tiny shapes: exercises the command on a CPU, measures nothing of interest.")
    add("--twin", action="store_true",
        help="Count on a CPU what the engine would make a GPU do; measures no time.")
    add("--seconds", type=float, default=440.0,
        help="Time of the whole run; what does not fit is shortened or left out and listed.")
    add("--shapes", default="llama-2-7b,qwen2.5-0.5b,mistral-7b",
        help=f"Models of the curves, of {', '.join(shapes.SHAPES)}; the first one is replayed.")
    add("--batches", default="1,32,128", help="Rows decoded together in the replay.")
    add("--texts", type=Path, help="Recorded texts, JSON lines (.gz or not); default: made-up texts.")
    add("--column", default="text", help="Field of --texts that holds the text.")
    add("--tokenizer", type=Path,
        help="tokenizer.json, or a folder with it or with GPT-2's files, to read --texts with.")
    add("--prompt-tokens", type=int, default=256, help="Tokens of each prompt, 1 or more.")
    add("--new-tokens", type=int, default=192, help="Tokens of each text, 8 or more.")
    options = parser.parse_args(words)
    if options.small:
        parser.set_defaults(shapes="small", batches="1,3", seconds=120.0, prompt_tokens=16, new_tokens=24)
        options = parser.parse_args(words)
    if options.prompt_tokens < 1 or options.new_tokens < 8:
        raise ConfigError("--prompt-tokens must be at least 1 and --new-tokens at least 8")
    return options


def run(options: argparse.Namespace) -> dict:
    """Measure everything.

    Raises
    ------
    ConfigError
        A shape, a batch size or the device is invalid, ``--tokenizer`` is missing, or as ``texts.from_file``.
    DataError
        As ``texts.from_file``.
    """
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    transformers.logging.set_verbosity_error()
    names, batches = options.shapes.split(","), _numbers(options.batches)
    device, budget = loading.device(options.device), Budget(options.seconds)
    recorded = _recorded(options, names[0], max(2 * batches[-1], 4))
    result = {"label": replay.label(recorded), "small": options.small, "machine": machine.describe(device)}
    print(json.dumps(result["machine"]))
    limits, meter = machine.ceilings(device, options.small), Meter(device)
    result |= {"ceilings": asdict(limits), "energy": meter.source}
    print(f"ceilings: {limits.bandwidth / 1e9:.0f} GB/s read and written, {limits.flops / 1e12:.1f} TFLOPS\n")
    result |= {"attention": kernels.attention(device), "shapes": kernels.shapes(device, options.small)}
    print_table("Attention over pages against plain attention in float32", result["attention"])
    print_table("New shapes, and products", result["shapes"])
    result["trie"] = kernels.trie(device, options.small)
    print_table("Constrained beam search beside the forward pass", result["trie"])
    result["equality"] = peers.measure(device, budget, options.small)
    print_table("Strict decoding against generate", result["equality"])
    result |= {"curves": [], "ways": [], "replay": []}
    for number, name in enumerate(names):
        target = _target(name, device, budget)
        _measure_model(result, target, number, options, batches, recorded, limits, meter, budget)
        del target
        release(device)
    held = targets(result["curves"], result["replay"], names, batches, recorded.source)
    result |= {"targets": [*_of_trie(result["trie"]), *held],
               "texts": recorded.source, "notes": budget.notes, "seconds": round(budget.spent, 1)}
    print_table("Targets", result["targets"], ("target", "bound", "measured", "result", "why", "text"))
    return result


def _measure_model(result: dict, target: Target, number: int, options: argparse.Namespace, batches: tuple,
                   recorded, limits, meter: Meter, budget: Budget) -> None:
    """One model's curves, and the first one's replay, which takes more than half of the time."""
    names, repeats = options.shapes.split(","), 2 if options.small else 7
    name, share = names[number], budget.left / (len(names) - number)
    until = budget.spent + (0.25 * budget.left if number == 0 else 0.9 * share)
    contexts = (options.prompt_tokens,) if options.small else (options.prompt_tokens,
                                                               4 * options.prompt_tokens)
    curve_rows = (1, 4) if options.small else (1, 8, 32, 128)
    lines = curves.measure(target, name, limits, budget, until, curve_rows, contexts, repeats,
                           (1, 16, 64) if options.small else curves.QUERIES)
    ways = curves.ways(target, name, curve_rows[:1], contexts[0], repeats)
    print_table(f"{name}: milliseconds of a step, and its lower bound", lines)
    print_table(f"{name}: ways of running a step", ways)
    result["curves"] += lines
    result["ways"] += ways
    if number == 0:
        result["replay"] = replay.measure(target, recorded, batches, options.prompt_tokens, budget,
                                          budget.spent + 0.7 * budget.left, meter, options.small)
        print_table(f"{name}: {replay.label(recorded)}", result["replay"], _REPLAY)


def _target(name: str, device: torch.device, budget: Budget) -> Target:
    budget.say(f"{name}: random weights")
    return Target(shapes.large(name, device, curves.dtype(device)), check=False, paged=True)


def _recorded(options: argparse.Namespace, shape: str, count: int) -> texts.Recorded:
    if shape not in shapes.SHAPES:
        raise ConfigError(f"shape {shape!r} is unknown; choose from {', '.join(shapes.SHAPES)}")
    vocabulary = shapes.SHAPES[shape][1]["vocab_size"]
    if options.texts is None:
        return texts.made_up(count, options.new_tokens, vocabulary)
    if options.tokenizer is None:
        raise ConfigError("--texts needs --tokenizer: tokenizer.json, or GPT-2's vocabulary and merges")
    return texts.from_file(options.texts, options.column, options.tokenizer, count, options.new_tokens,
                           vocabulary)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted(int(part) for part in text.split(",")))
    except ValueError:
        numbers = (0,)
    if numbers[0] < 1:
        raise ConfigError(f"--batches {text!r} must be numbers of at least 1, separated by commas")
    return numbers


def measure(words: Sequence[str] | None = None) -> None:
    """Run a command line, by default this process's, and print the result as JSON."""
    options = parsed(words)
    gc.freeze()  # objects of imported modules, which each of many collections would traverse again
    print(json.dumps(twin.measure() if options.twin else run(options)))


def main() -> None:
    """``python -m dare_job.bench.gpu``, without typer.

    Raises
    ------
    SystemExit
        The measurement raises an error of the project; the message contains it.
    """
    try:
        measure()
    except DareJobError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
