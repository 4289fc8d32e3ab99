"""Small models of several architectures, grown out of the embedded model and taught the prompts of the bench.

A model starts with the embedded model's weights where its shape has room for them. What it has besides
(layers, rows of its MLPs, biases) starts without a say in the output and is trained. All of them write well
after minutes, but their texts are relatives: they differ in what a step costs more than in what they say.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from dare_job.bench.dare.frameworks import Framework, lessons
from dare_job.errors import ConfigError
from dare_job.model import embedded_path
from dare_job.model.train import PEAK_RATE_GOING_ON, fit, save, schedule
from dare_job.workspace import committing, digest, is_done

_SAME = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
         "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "bos_token_id", "eos_token_id",
         "pad_token_id")
_LOG = logging.getLogger(__name__)
_WINDOW = 384  # tokens that a Mistral layer looks back: fewer than the longest rows have


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
    """Raises ConfigError for an unknown architecture, or none."""
    if not names or (unknown := sorted(set(names) - set(SHAPES))):
        raise ConfigError(f"--architectures: {', '.join(unknown) if names else 'none'} cannot be measured; "
                          f"choose from {', '.join(SHAPES)}")


def trained(name: str, frameworks: Sequence[Framework], steps: int, work: Path) -> Path:
    """Folder of the architecture's model, trained for ``steps`` updates where ``work`` has none like it."""
    folder = work / "models" / name
    taught = [[framework.name, framework.prompts.version_hash, framework.sides] for framework in frameworks]
    made_of = digest([vars(SHAPES[name]), steps, taught])
    if not is_done(folder, made_of):
        record: dict = {"steps": steps}
        with committing(folder, made_of, record) as staging:
            record["loss"] = _train(name, frameworks, steps, staging)
    return folder


def _train(name: str, frameworks: Sequence[Framework], steps: int, out: Path) -> dict[str, float]:
    seed = list(SHAPES).index(name)
    torch.manual_seed(seed)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    model = grown(name).train()
    lesson = schedule(lessons(frameworks, seed), tokenizer, seed, drills=0)
    _LOG.info("%s: training", name)
    _, loss = fit(model, lesson, steps, PEAK_RATE_GOING_ON, lambda: None)
    save(model, tokenizer, out)
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
            weight.zero_()  # what is new adds nothing to the residual stream
        if key in known:
            rows, *columns = known[key].shape
            weight[(slice(rows), *map(slice, columns))] = known[key]
    return model
