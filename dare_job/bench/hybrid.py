"""Chains of drafts for a small model with recurrent layers, beside decoding without drafts.

The model is trained on texts of the synthetic data set, as the embedded model is, for minutes. It generates
the texts of one date, and then again those of users with a new interaction on the next date, with and without
drafts from the texts of the first date. The data set is none of those that it was trained on.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GraniteMoeHybridConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    Qwen3_5TextConfig,
)

from dare_job import prompts
from dare_job.bench.cli import command, ints
from dare_job.bench.decode import methods
from dare_job.bench.gpu import machine
from dare_job.bench.kept import keep_named, work_folder
from dare_job.bench.profiles import texts
from dare_job.config.options import option
from dare_job.data.sample_world.simulate import DAYS, simulate, user_examples
from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.model.undrafted import any_target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError
from dare_job.evaluate.measured import print_table, print_targets, take_turns, target_row
from dare_job.models import embedded_path
from dare_job.training.embedded import corpus, train
from pools.draft import warm_up
from pools.index import Index

METHODS = (methods.GENERATE, methods.AUTOREGRESSIVE, methods.RESD, methods.STRICT)
DRAFTED = (methods.RESD, methods.STRICT)  # from texts of other users alone; with the row's previous text
OVER_BASELINE = 1.3  # at batch 1, relative to the faster of generate and autoregressive
_VERSION = 1  # of the recipe: a model of another one is trained again
_ITEMS, _SEED = 300, 7  # of the synthetic data set
_FIRST_BATCH = 16  # rows decoded together on the first date
_SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
          "max_position_embeddings": train.CONTEXT_TOKENS, "tie_word_embeddings": True}


class Kind(StrEnum):
    """Architectures: gated delta rule, or Mamba 2, in three of four layers."""

    qwen3_5 = "qwen3_5"
    granite = "granite"


@dataclass(frozen=True)
class Options:
    """Options of ``bench hybrid``."""

    kind: Kind = option("Architecture: qwen3_5 (gated delta rule and attention) or granite (Mamba 2 and "
                        "attention).", Kind.qwen3_5)
    steps: int = option("Training updates of 4,096 tokens.", 300)
    rows: int = option("Users whose texts each method generates.", 16)
    pool: int = option("Other users whose previous texts are drafts.", 100)
    batch: Sequence[int] = option("Batch sizes.", (1,), parse=ints)
    tokens: int = option("Maximum number of new tokens per row.", 192)
    repeats: int = option("Times that each method runs.", 3)
    threads: int = option("torch threads while measuring.", 1)
    work: Path | None = option("Folder that keeps the trained model for the next call. Default: a temporary "
                               "folder.", None)

    def __post_init__(self):
        for name in ("steps", "rows", "pool", "tokens", "repeats", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)} must be at least 1")
        if min(self.batch, default=0) < 1:
            raise ConfigError(f"--batch {','.join(map(str, self.batch))}: sizes must be at least 1")


@command(Options, lambda options, result: not all(each["met"] for each in result["targets"]))
def main(options: Options) -> dict:
    """Measure chains of drafts with a small hybrid model, trained here, on the synthetic data set.

    Trains the model on one thread (minutes). The last line is one JSON object. Exit code 1 if decoding with
    drafts, from other users' texts alone or with the row's own previous text, is less than 1.3 times as fast
    as without drafts at batch 1.
    """
    with work_folder(options.work) as work:
        folder = model(work, options.kind, options.steps)
        torch.set_num_threads(options.threads)
        warm_up()
        target = Target.load(folder, device="cpu", make=any_target)
        requests = two_dates(target, AutoTokenizer.from_pretrained(folder), options)
        budgets = {batch: methods.Budget(batch, max_row_nodes(batch), options.tokens, options.threads,
                                         work / "latency") for batch in options.batch}
        learned = {(method, batch): methods.Learned(method, target, budget)
                   for batch, budget in budgets.items() for method in METHODS}
        for (method, batch), state in learned.items():  # compiled and warm
            methods.run_method(method, target, requests[:2], replace(budgets[batch], tokens=8), state)
        measured = take_turns(learned, lambda key: methods.run_method(
            key[0], target, requests, budgets[key[1]], learned[key]), options.repeats)
    rows = [methods.row(measured, method, batch) for method, batch in measured]
    print_table(f"{type(target.model).__name__}, drafts: {target.drafts}, {len(requests)} rows, "
                f"{options.pool} previous texts of other users, {options.threads} torch thread(s), medians "
                f"of {options.repeats}", rows)
    targets = [target_row(f"batch 1: {row['method']} over baseline, at least", OVER_BASELINE,
                          row["ratio_to_baseline"], row["ratio_to_baseline"] >= OVER_BASELINE)
               for row in rows if row["method"] in DRAFTED and row["batch"] == 1]
    print_targets(targets)
    written = measured[methods.GENERATE, min(options.batch)].texts[0]
    distinct = round(texts.distinct(list(written.values())), 3)
    print(f"{distinct:g} of the texts are distinct: a model trained for too few steps ignores its prompts")
    return {"rows": rows, "targets": targets, "distinct": distinct,
            "rows_that_differ": methods.differing(measured),
            "model": folder.name, "parameters": target.model.num_parameters(), "drafts": target.drafts,
            "training": json.loads((folder / "training.json").read_text("utf-8")),
            "machine": machine.describe(target.device)}


def model(work: Path, kind: Kind, steps: int) -> Path:
    """Folder of the model in ``work``, trained if it is missing."""
    made_of = {"kind": kind, "steps": steps, "version": _VERSION}
    return keep_named(work, f"hybrid-{kind}", made_of, lambda out: _train(out, kind, steps))


def config(kind: Kind, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """Some three million parameters, as many layers as the embedded model."""
    sizes = {**_SIZES, "vocab_size": len(tokenizer), **corpus.special_ids(tokenizer)}
    if kind is Kind.qwen3_5:
        return Qwen3_5TextConfig(
            **sizes, intermediate_size=640, head_dim=64, linear_num_value_heads=4, linear_num_key_heads=4,
            linear_key_head_dim=32, linear_value_head_dim=64,
            layer_types=["linear_attention"] * 3 + ["full_attention"])
    return GraniteMoeHybridConfig(
        **sizes, shared_intermediate_size=640, num_local_experts=0, num_experts_per_tok=0, mamba_n_heads=8,
        mamba_d_head=_SIZES["hidden_size"] // 4, mamba_d_state=32, mamba_chunk_size=64,
        position_embedding_type="rope", layer_types=["mamba"] * 3 + ["attention"])


def _train(out: Path, kind: Kind, steps: int) -> dict:
    """Train as the embedded model, with its tokenizer, and write the model."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    began = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    network = AutoModelForCausalLM.from_config(config(kind, tokenizer), dtype=torch.float32).train()
    work = train.schedule(corpus.worlds(prompts.load(prompts.SAMPLE), 0), tokenizer, 0, steps // 10)
    tokens, losses = train.fit_steps(network, work, steps, train.PEAK_RATE, lambda: None)
    train.write(network, tokenizer, out)
    record = {"steps": steps, "tokens": tokens, "minutes": round((time.monotonic() - began) / 60, 1),
              "loss": {name: round(value, 3) for name, value in losses.items()}}
    (out / "training.json").write_text(json.dumps(record), encoding="utf-8")
    return record


def two_dates(target: Target, tokenizer: PreTrainedTokenizerBase, options: Options) -> list[Request]:
    """Requests of users with a new interaction, with their previous texts and those of other users.

    Raises
    ------
    ConfigError
        There are not that many such users in a synthetic data set.
    """
    world = simulate(8 * options.rows + options.pool, _ITEMS, _SEED)
    earlier, later = ({example.row: np.asarray(tokenizer(example.prompt)["input_ids"], np.int32)
                       for example in user_examples(world, prompts.load(prompts.SAMPLE), day)}
                      for day in (DAYS - 1, DAYS))
    new = [user for user in earlier if not np.array_equal(earlier[user], later[user])][: options.rows]
    pool = [user for user in earlier if user not in new][: options.pool]
    if len(new) < options.rows or len(pool) < options.pool:
        raise ConfigError(f"--rows {options.rows}, --pool {options.pool}: there are {len(new)} users with a "
                          f"new interaction and {len(pool)} others")
    previous = _texts(target, {user: earlier[user] for user in (*new, *pool)}, options.tokens)
    all_users = Index.build([previous[user] for user in pool])
    return [Request(user, later[user], (Index.build([previous[user]], kind="own"), all_users),
                    previous_ids=previous[user]) for user in new]


def _texts(target: Target, prompt_of: dict[int, np.ndarray], tokens: int) -> dict[int, np.ndarray]:
    """Return the texts of prompts, decoded without drafts."""
    engine = Engine(target, EngineSettings(max_new_tokens=tokens, batch_size=_FIRST_BATCH, nodes=0))
    results = engine.run(Request(user, prompt) for user, prompt in prompt_of.items())
    return {result.id: result.token_ids for result in results}
