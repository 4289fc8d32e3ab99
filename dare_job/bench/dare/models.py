"""Small models of several architectures, grown out of the embedded model and trained on the prompts.

A model starts with the embedded model's weights where its shape has room for them. What it has besides
(layers, rows of its MLPs, biases) starts without an effect on the output and is trained. All of them generate
good texts after minutes, but their texts are relatives: they differ in the cost of a step more than in the
texts.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from dare_job import prompts
from dare_job.bench.kept import keep
from dare_job.data.sample_world.simulate import Example
from dare_job.errors import ConfigError
from dare_job.models import embedded_path
from dare_job.prompts.sets import PromptSet
from dare_job.training.embedded.corpus import worlds
from dare_job.training.embedded.train import PEAK_RATE_GOING_ON, fit_steps, schedule, write

_LOG = logging.getLogger(__name__)
_SAME = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
         "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "bos_token_id", "eos_token_id",
         "pad_token_id")
_PAPERS = ("kar", "once", "rlmrec", "trawl")
_WINDOW = 384  # tokens of a Mistral layer's sliding window: fewer than the longest rows have


def find(names: Sequence[str]) -> list[PromptSet]:
    """Prompt sets by name; without names those of the papers.

    Raises
    ------
    ConfigError
        A name is unknown.
    """
    known = prompts.set_names()
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(f"--prompts: no prompt set {', '.join(unknown)}; choose from {', '.join(known)}")
    return [prompts.load(name) for name in names or _PAPERS]


def examples(prompt_sets: Sequence[PromptSet], seed: int) -> Iterator[list[Example]]:
    """Prompts and texts of fresh synthetic data sets and made-up titles, of all prompt sets, without end."""
    streams = [worlds(prompt_set, seed + number) for number, prompt_set in enumerate(prompt_sets)]
    for parts in zip(*streams, strict=True):
        yield [example for part in parts for example in part]


@dataclass(frozen=True)
class Shape:
    """Layers and width of the MLPs; ``more``: settings of the architecture's own."""

    layers: int
    inner: int
    more: dict = field(default_factory=dict)


SHAPES = {
    "llama": Shape(4, 640),  # as the embedded model
    "qwen2": Shape(6, 640),  # with biases in its attention
    "mistral": Shape(4, 1280, {"sliding_window": _WINDOW, "head_dim": 64}),
}


def check(names: Sequence[str]) -> None:
    """Check that every architecture can be measured.

    Raises
    ------
    ConfigError
        ``names`` is empty, or an architecture is unknown.
    """
    if not names or (unknown := sorted(set(names) - set(SHAPES))):
        raise ConfigError(f"--architectures: {', '.join(unknown) if names else 'none'} cannot be measured; "
                          f"choose from {', '.join(SHAPES)}")


def trained(name: str, prompt_sets: Sequence[PromptSet], steps: int, work: Path) -> Path:
    """Folder of the architecture's model, trained for ``steps`` updates unless ``work`` has it."""
    folder = work / "models" / name
    versions = [[prompt_set.name, prompt_set.version_hash] for prompt_set in prompt_sets]
    keep(folder, [vars(SHAPES[name]), steps, versions],
         lambda out: {"steps": steps, "loss": _train(name, prompt_sets, steps, out)})
    return folder


def _train(name: str, prompt_sets: Sequence[PromptSet], steps: int, out: Path) -> dict[str, float]:
    seed = list(SHAPES).index(name)
    torch.manual_seed(seed)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    model = grown(name).train()
    batches = schedule(examples(prompt_sets, seed), tokenizer, seed, drills=0)
    _LOG.info("%s: training", name)
    _, loss = fit_steps(model, batches, steps, PEAK_RATE_GOING_ON, lambda: None)
    write(model, tokenizer, out)
    return loss


@torch.no_grad()
def grown(name: str) -> PreTrainedModel:
    """A model of this architecture that computes what the embedded model does, but for its window."""
    source = AutoModelForCausalLM.from_pretrained(embedded_path(), dtype=torch.float32)
    shape, same = SHAPES[name], {key: getattr(source.config, key) for key in _SAME}
    config = AutoConfig.for_model(name, num_hidden_layers=shape.layers, intermediate_size=shape.inner,
                                  **same, **shape.more)
    model = AutoModelForCausalLM.from_config(config)
    known = source.state_dict()
    for key, weight in model.state_dict().items():
        if key.endswith(("o_proj.weight", "down_proj.weight", "bias")):
            weight.zero_()  # new weights add nothing to the residual stream
        if key in known:
            rows, *columns = known[key].shape
            weight[(slice(rows), *map(slice, columns))] = known[key]
    return model
