"""Where a decoding step's time goes: inside the target's forward pass and outside it, part by part.

The rows are users of a synthetic data set. They draft from what its grammar writes for other users, in three
pools as in a run (the row's previous text, its group's pool, the global pool), so that about as much is
accepted as in a run. Texts end at uneven lengths and the next row takes the slot, so that every measured step
has all rows. ``auto``: the draft budget. A step is drafting, the tree, its mask, the forward pass,
verification, writing, moving the cache, and replacing rows that end; a prompt's forward pass is not part of a
step. Parts are timed in a run of their own, because reading the clock sixteen times per step takes time too.
On a CPU with one thread all times are thread times, which other work on the machine disturbs less; else
wall-clock times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch
from transformers import AutoTokenizer

from dare_job import prompts
from dare_job.bench import grammar_steps
from dare_job.bench.cli import command, ints
from dare_job.bench.gpu import machine
from dare_job.bench.step_timers import clock_of, profile_steps, time_steps
from dare_job.config.options import option, words
from dare_job.data.sample_world.simulate import DAYS, simulate, user_examples
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine import latency_probe
from dare_job.decode.engine.draft_budget import AdaptiveBudget, max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.decode.request import Request
from dare_job.decode.settings import RULES, EngineSettings
from dare_job.evaluate.measured import print_table
from dare_job.models.files import resolve
from pools.draft import DraftSettings, warm_up
from pools.index import Index

_WORLD = 7  # its seed; the embedded model was not trained on it
_ROUNDS = 3  # rows that each slot has; all but the last ones are timed
STEP_US, ROW_US = 500, 20  # allowance outside the forward pass

# Parts of a step. "mask": what Target.forward does beside the model's own forward.
_PARTS = ("draft", "tree", "mask", "forward", "verify", "write", "cache")


@dataclass(frozen=True)
class Options:
    """Options of ``bench overhead``."""

    model: str = option("Model, named as model.name.", "embedded")
    dtype: str = option("Data type of the model's weights.", "float32")
    device: str = option("cpu or cuda.", "cpu")
    batches: Sequence[int] = option("Batch sizes.", (1, 8, 32), parse=ints)
    nodes: Sequence[str] = option("Draft tokens per row and forward pass; auto: the draft budget.",
                                  ("0", "16", "auto"), parse=words)
    rule: str = option(f"Verification rule: {', '.join(RULES)}.", "strict")
    repetition_penalty: float | None = option("Repetition penalty, as in a generation config.", None)
    no_repeat_ngram_size: int | None = option("Length of token sequences that a text must not "
                                              "repeat, as in a generation config.", None)
    end_loops: bool = option("Whether texts that loop end, as in a run; the model's texts here do not.", True,
                             flag="--loops-go-on", negated=True)
    new_tokens: int = option("Tokens per text, on average.", 80)
    repeats: int = option("Number of measurements of each line, of which the median is shown.", 5)
    threads: int = option("torch threads.", 1)
    grammar: bool = option("Instead, what a grammar adds to a step: texts in JSON, and a small model with "
                           "random weights and the tokenizer of --model.", False)
    profile: str | None = option("File that gets a profile by function of each line's last run.", None)


def measure(target: Target, batch: int, nodes: str, options: Options) -> dict:
    """One line of the table: medians over the repeats."""
    requests = _requests(options.model, batch, options.new_tokens)
    limit = max_row_nodes(batch) if nodes == "auto" else int(nodes)
    settings = EngineSettings(max_new_tokens=2 * options.new_tokens, batch_size=batch, nodes=limit,
                              rule=options.rule)
    clock = clock_of(target, options.threads)
    curve = latency_probe.load_or_measure(target, settings) if nodes == "auto" else None
    lines, decoder = [], None
    for _ in range(options.repeats):
        decoder = Engine(target, settings, RetrievalDrafter(DraftSettings(threads=options.threads)),
                         draft_budget=AdaptiveBudget(curve, limit) if curve else None,
                         numbers=np.zeros(target.vocabulary, np.bool_) if options.end_loops else None)
        list(decoder.run(requests))  # compiles, and allocates the cache as a run of many rows does once
        lines.append(_parts(target, decoder, requests, clock) | _whole(target, decoder, requests, clock))
    if options.profile:
        profile_steps(decoder, requests, options.profile, f"{batch} rows, {nodes} draft nodes")
    medians = {key: round(float(np.median([line[key] for line in lines])), 3) for key in lines[0]}
    return {"batch": batch, "nodes": nodes, **medians, "allowed_us": STEP_US + ROW_US * batch}


def _whole(target: Target, decoder: Engine, requests: list[Request], clock) -> dict:
    """Microseconds per step outside the forward pass, and acceptance and rate of the run."""
    spent, results, seconds = time_steps(target, decoder, requests, clock, ("forward",))
    outside = spent["step"] - spent["forward"]
    return {"outside_us": outside, "outside_us_per_row": outside / decoder.settings.batch_size,
            "accepted_per_step": sum(r.accepted_tokens for r in results) / sum(
                r.target_steps for r in results),
            "tokens_per_s": sum(len(result.token_ids) for result in results) / seconds}


def _parts(target: Target, decoder: Engine, requests: list[Request], clock) -> dict:
    """Microseconds per step of each part; other: the rest, including the timers' own time."""
    spent, *_ = time_steps(target, decoder, requests, clock, _PARTS)
    spent["mask"] -= spent["forward"]
    whole = spent.pop("step")
    return {**{f"{part}_us": us for part, us in spent.items()}, "other_us": whole - sum(spent.values())}


@cache
def _written(model: str) -> tuple[list[tuple[int, np.ndarray]], dict[int, np.ndarray]]:
    """(row, prompt) of users of a synthetic data set, and by row what its grammar wrote the day before."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(model))
    world, prompt_set = simulate(400, 300, _WORLD), prompts.load(prompts.SAMPLE)
    before = {example.row: example.text for example in user_examples(world, prompt_set, DAYS - 1)}
    texts = tokenizer(list(before.values()), add_special_tokens=False)["input_ids"]
    prompts_of = [(example.row, prompt_ids(tokenizer, example.prompt))
                  for example in user_examples(world, prompt_set, DAYS) if example.row in before]
    return prompts_of, {row: np.array(text, np.int32) for row, text in zip(before, texts, strict=True)}


def _requests(model: str, rows: int, tokens: int) -> list[Request]:
    """Requests for ``rows`` slots, with texts of about ``tokens`` tokens.

    Each row's pools are its own previous text, a group's pool and the global pool.
    """
    (prompts_of, texts), rng = _written(model), np.random.default_rng(_WORLD)
    prompts_of = prompts_of[: _ROUNDS * rows]
    group = Index.build(list(texts.values())[: len(texts) // 3], kind="collaborative")
    all_rows = Index.build(list(texts.values()))
    lengths = rng.integers(tokens // 2, tokens + tokens // 2, len(prompts_of), endpoint=True)
    return [Request(row, prompt, (Index.build([texts[row]], kind="own"), group, all_rows), int(length))
            for (row, prompt), length in zip(prompts_of, lengths, strict=True)]


@command(Options)
def main(options: Options) -> dict:
    """Measure the time of a decoding step inside and outside the model's forward pass, part by part."""
    torch.set_num_threads(options.threads)
    warm_up()
    if options.grammar:
        rows = grammar_steps.measure(options.model, options.batches, options.nodes, options.rule,
                                     options.repeats, options.threads, options.profile)
        print_table("Microseconds per step, without a grammar (free) and with one", rows)
        return {"rows": rows, "model": options.model, "threads": options.threads, "rule": options.rule,
                "machine": machine.describe(torch.device("cpu"))}
    target = Target.load(resolve(options.model), options.dtype, options.device)
    processors = {name: getattr(options, name) for name in ("repetition_penalty", "no_repeat_ngram_size")}
    target.generation_config.update(eos_token_id=None, **processors)  # texts end where their requests say
    rows = [measure(target, batch, nodes, options)
            for batch, nodes in product(options.batches, options.nodes)]
    print_table("Microseconds per step", rows)
    settings = {name: getattr(options, name) for name in ("model", "dtype", "device", "threads", "rule")}
    return {"rows": rows, **settings, **processors, "machine": machine.describe(target.device)}
