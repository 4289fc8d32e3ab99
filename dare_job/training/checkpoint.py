"""The state of an unfinished training in one safetensors file: weights, optimizers, random state, step.

Also how a finished model is written.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

_NAME = "state.safetensors"
Optimizers = Sequence[torch.optim.Optimizer]


@dataclass
class Checkpoint:
    """A folder for a training's state.

    Attributes
    ----------
    fingerprint
        Digest of everything that determines the result; a state with another one is ignored.
    """

    folder: Path
    fingerprint: str

    def save(self, tensors: dict[str, torch.Tensor], counters: dict) -> None:
        """Replace the state atomically."""
        save_tensors(self.folder / _NAME, tensors, fingerprint=self.fingerprint, state=json.dumps(counters))

    def load(self) -> tuple[dict[str, torch.Tensor], dict] | None:
        """Tensors and counters; None if the state is missing, damaged, or of another training."""
        checkpoint = load_tensors(self.folder / _NAME, self.fingerprint)
        try:
            return checkpoint and (checkpoint[0], json.loads(checkpoint[1]["state"]))
        except (KeyError, ValueError):
            return None


def save_tensors(file: Path, tensors: dict[str, torch.Tensor], **record: str) -> None:
    """Replace a safetensors file atomically; its metadata is ``record``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    contents = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    partial = file.with_name(f".{file.name}.partial")
    save_file(contents, partial, record)  # a copy in memory could double what a training needs
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.replace(file)


def load_tensors(file: Path, fingerprint: str) -> tuple[dict[str, torch.Tensor], dict[str, str]] | None:
    """Tensors and metadata; None if the file is missing, damaged, or of another fingerprint."""
    try:
        with safe_open(file, "pt") as opened:
            record, names = opened.metadata() or {}, opened.keys()
            if record.get("fingerprint") == fingerprint:
                return {name: opened.get_tensor(name) for name in names}, record
    except (OSError, SafetensorError, ValueError):
        pass
    return None


def write_model(model, tokenizer, generation, folder: Path) -> None:
    """Write weights (bfloat16), configurations and tokenizer in the layout of ``from_pretrained``."""
    copy = type(model)(model.config).to(torch.bfloat16)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = generation
    copy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def training_state(model: torch.nn.Module, optimizers: Optimizers) -> dict[str, torch.Tensor]:
    """Trained weights, the optimizers' state of each, and torch's random state."""
    state = {"random": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state["random_cuda"] = torch.cuda.get_rng_state()
    owners = _owners(optimizers)
    for name, weight in trained(model).items():
        state[f"weight.{name}"] = weight
        for key, value in owners[weight].state[weight].items():
            state[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
    return state


def restore(tensors: dict[str, torch.Tensor], model: torch.nn.Module, optimizers: Optimizers) -> None:
    """Set model, optimizers and torch's random state, in place, to what ``training_state`` returned."""
    torch.set_rng_state(tensors["random"])
    if "random_cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random_cuda"])
    weights, owners = trained(model), _owners(optimizers)
    load_weights(tensors, weights)
    for full, tensor in tensors.items():
        kind, _, rest = full.partition(".")
        if kind == "optimizer":
            key, _, name = rest.partition(".")
            weight = weights[name]
            # the step count stays on the device where the optimizer keeps it
            owners[weight].state[weight][key] = tensor if key == "step" else tensor.to(weight.device)


def load_weights(tensors: dict[str, torch.Tensor], weights: dict[str, torch.Tensor],
                 prefix: str = "weight") -> None:
    """Copy the tensors named ``prefix.NAME`` into the weights of that name, in place."""
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[f"{prefix}.{name}"])


def trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Parameters with gradients; shared ones once."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _owners(optimizers: Optimizers) -> dict[torch.nn.Parameter, torch.optim.Optimizer]:
    return {weight: optimizer for optimizer in optimizers for group in optimizer.param_groups
            for weight in group["params"]}
