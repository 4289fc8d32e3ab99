"""Latency curves of forward passes: computed from data sheets by the roofline model, and a published one.

In this model (Williams, Waterman and Patterson 2009) a forward pass of R rows with q queries each reads every
weight once and the keys and values of R contexts, and multiplies each of R x q tokens with every weight; its
time is that of the slower of the two:

    bytes  = 2 P + 4 R c L H d               P parameters, L layers, H key-value heads of width d, bfloat16
    FLOPs  = R q (2 P + 4 L A d (c + q))     A query heads; c tokens of context and the tree are attended
    ms     = 1000 max(bytes / bandwidth, FLOPs / peak)

It is a lower bound: launches, imperfect kernels and a sharded model cost more. Measure if you can (``dare-job
tune --model``).

The published curve is a line fitted to measurements of vLLM with Llama-3.1-8B on an H100 (arXiv 2601.11580):

    ms = 7.09 + 0.021 R q + 0.000039 R c
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONTEXT = 512  # tokens before the root: a prompt and half of a text
QUERIES = (*range(1, 18), *range(19, 34, 2), *range(37, 66, 4), *range(73, 130, 8), *range(145, 258, 16),
           *range(289, 514, 32))  # a row has at most 512 draft nodes


@dataclass(frozen=True)
class Device:
    """Bytes and dense bfloat16 FLOPs per second of the data sheet."""

    name: str
    bandwidth: float
    flops: float


@dataclass(frozen=True)
class Model:
    """Sizes of the model card and ``config.json``."""

    name: str
    parameters: float
    layers: int
    heads: int
    kv_heads: int
    width: int


H100 = Device("NVIDIA H100 SXM5 80 GB", 3.35e12, 989e12)
A100 = Device("NVIDIA A100 SXM4 80 GB", 2.039e12, 312e12)
MISTRAL = Model("Mistral-7B-v0.1, bfloat16", 7.24e9, 32, 32, 8, 128)
QWEN = Model("Qwen2.5-0.5B, bfloat16", 4.94e8, 24, 14, 2, 64)

# An H100 is memory-bound up to about 300 tokens per forward pass. An A100 has half of the FLOPs per byte: it
# is compute-bound from the fourth query per row on at batch 64, and from the second at batch 256.
FILES = {"h100-mistral-7b": (H100, MISTRAL), "a100-mistral-7b": (A100, MISTRAL),
         "h100-qwen2.5-0.5b": (H100, QWEN)}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def forward_ms(device: Device, model: Model, rows: int, queries: int, context: int = CONTEXT) -> float:
    """Milliseconds of a forward pass by the formula of this module."""
    moved = 2 * model.parameters + 4 * rows * context * model.layers * model.kv_heads * model.width
    attended = 4 * model.layers * model.heads * model.width * (context + queries)
    computed = rows * queries * (2 * model.parameters + attended)
    return 1e3 * max(moved / device.bandwidth, computed / device.flops)


PUBLISHED = "h100-llama-3.1-8b-vllm"


def published_ms(rows: int, queries: int, context: int = CONTEXT) -> float:
    """Milliseconds of a forward pass of vLLM by the published line."""
    return 7.09 + 0.021 * rows * queries + 3.9e-5 * rows * context


def published() -> dict:
    """Content of the latency file of the published line."""
    curve = {str(batch): {str(q): round(published_ms(batch, q), 3) for q in QUERIES} for batch in BATCHES}
    return {"about": f"Llama-3.1-8B in vLLM on one NVIDIA H100, {CONTEXT} tokens of context: the line of "
                     "arXiv 2601.11580, written by python -m dare_job.bench roofline", "latency_ms": curve}


def document(device: Device, model: Model, batches: Sequence[int] = BATCHES) -> dict:
    """Content of a latency file: description, and {batch: {queries per row: ms}}."""
    curve = {str(batch): {str(q): round(forward_ms(device, model, batch, q), 3) for q in QUERIES}
             for batch in batches}
    return {"about": f"{model.name} on one {device.name}, {CONTEXT} tokens of context: roofline of the data "
                     "sheet, computed by python -m dare_job.bench roofline", "latency_ms": curve}


def main(folder: Path = Path("conf/latency")) -> None:
    """Write the latency curves for `dare-job tune` (conf/latency)."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {name: document(device, model) for name, (device, model) in FILES.items()}
    for name, content in {**documents, PUBLISHED: published()}.items():
        text = json.dumps(content, indent=1) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
        print(folder / f"{name}.json")
