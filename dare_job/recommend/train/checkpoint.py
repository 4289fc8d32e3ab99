"""A training's state in one safetensors file: weights, optimizer, random state, and counters as JSON."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dare_job import files

_NAME = "state.safetensors"


@dataclass
class Checkpoint:
    """Where a training's state is kept. fingerprint: of everything that decides its outcome; a state of
    another one is not gone on with.
    """

    folder: Path
    fingerprint: str

    def save(self, tensors: dict[str, torch.Tensor], counters: dict) -> None:
        """Replace the state, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        record = {"fingerprint": self.fingerprint, "counters": json.dumps(counters)}
        whole = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
        with files.writing(self.folder / _NAME, f".{_NAME}.partial") as file:
            file.write(save(whole, record))

    def load(self) -> tuple[dict[str, torch.Tensor], dict] | None:
        """The state, or None where there is none of this training, or a damaged one."""
        path = self.folder / _NAME
        try:
            with safe_open(path, "pt") as file:
                record = file.metadata() or {}
                if record.get("fingerprint") != self.fingerprint:
                    return None
                names = file.keys()
                return {name: file.get_tensor(name) for name in names}, json.loads(record["counters"])
        except (OSError, SafetensorError, KeyError, ValueError):
            return None


def training_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Trained weights, what the optimizer knows of each, and torch's random state."""
    found = {"random": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        found["random_cuda"] = torch.cuda.get_rng_state()
    for name, weight in trained(model).items():
        found[f"weight.{name}"] = weight
        for key, value in optimizer.state[weight].items():
            found[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
    return found


def restore(tensors: dict[str, torch.Tensor], model: torch.nn.Module,
            optimizer: torch.optim.Optimizer) -> None:
    """Put back what ``training_state`` took, in place."""
    torch.set_rng_state(tensors["random"])
    if "random_cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random_cuda"])
    weights = trained(model)
    load_weights(tensors, model)
    for full, tensor in tensors.items():
        kind, _, rest = full.partition(".")
        if kind == "optimizer":
            key, _, name = rest.partition(".")
            # the count of steps stays where it is, as the optimizer itself keeps it
            optimizer.state[weights[name]][key] = tensor if key == "step" else tensor.to(weights[name].device)


def load_weights(tensors: dict[str, torch.Tensor], model: torch.nn.Module, prefix: str = "weight") -> None:
    """Put back weights that are named ``prefix.NAME``."""
    with torch.no_grad():
        for name, weight in trained(model).items():
            weight.copy_(tensors[f"{prefix}.{name}"])


def trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Parameters that are trained, shared ones once."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
