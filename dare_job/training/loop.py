"""Epochs of updates with early stopping, which a killed process takes up again at its last checkpoint.

It knows nothing of items: it is given batches of an epoch, a loss of a batch, and a figure to stop by.

A training's state in one safetensors file: weights, optimizer, random state, and counters as JSON.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dare_job.errors import ModelError
from dare_job.storage import paths

_WARMUP_STEPS = 100


def share_of_rate(step: int, steps: int, warmup_steps: int = _WARMUP_STEPS) -> float:
    """Of the peak rate: linear warm-up, then a cosine to 2 %."""
    warmup, cosine = min(1.0, (step + 1) / warmup_steps), 0.5 * (1 + math.cos(math.pi * step / steps))
    return warmup * (0.02 + 0.98 * cosine)

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
        with paths.atomic_writer(self.folder / _NAME, f".{_NAME}.partial") as file:
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

_LOG_EVERY_S = 10.0

_MOST_GRADIENT = 1.0

_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Pace:
    """epochs: at most; patience: epochs without a better figure that end it; save_every_s: of checkpoints;
    keep_start: the weights before the first update stay where no epoch has a better figure; keep_last: those
    of the last epoch stay whatever their figure is, and none is too many to wait for a better one.
    """

    epochs: int
    rate: float
    weight_decay: float
    warmup_steps: int
    patience: int
    save_every_s: float = 60.0
    keep_start: bool = False
    keep_last: bool = False


@dataclass(frozen=True)
class Work:
    """What is learned.

    batches  of an epoch, the same whenever asked for that epoch
    loss     of a batch, with gradients
    figure   to stop by, lower is better
    """

    batches: Callable[[int], Sequence[Any]]
    loss: Callable[[Any], torch.Tensor]
    figure: Callable[[], float]


@dataclass
class State:
    """How far a training is; figures are of the epochs so far, with ``keep_start`` of the start first."""

    epoch: int = 0
    step: int = 0  # in the epoch
    updates: int = 0
    loss: float = 0.0
    figures: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def best(self) -> int:
        """Place of the lowest figure."""
        return min(range(len(self.figures)), key=self.figures.__getitem__)

    @property
    def stale(self) -> int:
        """Epochs since the best one."""
        return len(self.figures) - self.best - 1 if self.figures else 0


def fit(model: torch.nn.Module, work: Work, pace: Pace, store: Checkpoint | None = None) -> dict:
    """Train in place, and leave the weights of the best epoch, or of the last. Returns its record.

    Raises ModelError where a loss is no number.
    """
    optimizer = _optimizer(model, pace)
    state, best = _resumed(model, optimizer, store)
    if pace.keep_start and not state.figures:
        best = _judged(model, work, state, best)
    while state.epoch < pace.epochs and (pace.keep_last or state.stale < pace.patience):
        _epoch(model, optimizer, work, pace, state, store, best)
        best = _judged(model, work, state, best)
        _LOG.info("epoch %d of %d: loss %.4f, validation %.4f%s", state.epoch + 1, pace.epochs, state.loss,
                  state.figures[-1], "" if state.stale else " (best)")
        state.epoch, state.step = state.epoch + 1, 0
        _save(model, optimizer, state, store, best)
    if not pace.keep_last:
        load_weights(best, model, "best")
    model.eval()
    return {"epochs": state.epoch, "best_epoch": state.best + (not pace.keep_start), "updates": state.updates,
            "validation": [round(figure, 4) for figure in state.figures], "seconds": round(state.seconds, 1)}


def _judged(model, work: Work, state: State, best: dict) -> dict:
    """Add the figure of the weights as they are; returns the best weights so far."""
    model.eval()
    with torch.no_grad():
        state.figures.append(work.figure())
    if state.stale:
        return best
    return {f"best.{name}": weight.detach().clone() for name, weight in trained(model).items()}


def _epoch(model, optimizer, work: Work, pace: Pace, state: State, store, best: dict) -> None:
    batches = work.batches(state.epoch)
    model.train()
    began = saved = told = time.monotonic()
    before = state.seconds
    for number in range(state.step, len(batches)):
        rate = pace.rate * share_of_rate(state.updates, pace.epochs * len(batches), max(1, pace.warmup_steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = work.loss(batches[number])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _MOST_GRADIENT)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _count(state, loss.item(), pace)
        now = time.monotonic()
        state.seconds = before + now - began
        if now - told > _LOG_EVERY_S:
            told = now
            _LOG.info("epoch %d, step %d of %d, loss %.4f", state.epoch + 1, state.step, len(batches),
                      state.loss)
        if now - saved > pace.save_every_s:
            saved = now
            _save(model, optimizer, state, store, best)


def _count(state: State, loss: float, pace: Pace) -> None:
    if loss != loss or loss in (float("inf"), float("-inf")):
        raise ModelError(f"the loss is no number in update {state.updates + 1}: take a --rate below "
                         f"{pace.rate:g}")
    state.loss = loss if state.updates == 0 else 0.98 * state.loss + 0.02 * loss
    state.step, state.updates = state.step + 1, state.updates + 1


def _resumed(model, optimizer, store: Checkpoint | None) -> tuple[State, dict]:
    found = store.load() if store else None
    if found is None:
        return State(), {}
    tensors, counters = found
    restore(tensors, model, optimizer)
    state = State(**counters)
    _LOG.info("goes on at epoch %d, step %d, from %s", state.epoch + 1, state.step, store.folder)
    return state, {name: tensor for name, tensor in tensors.items() if name.startswith("best.")}


def _save(model, optimizer, state: State, store: Checkpoint | None, best: dict) -> None:
    if store:
        store.save(training_state(model, optimizer) | best, asdict(state))


def _optimizer(model, pace: Pace) -> torch.optim.AdamW:
    weights = list(trained(model).values())
    groups = [{"params": [w for w in weights if w.dim() >= 2], "weight_decay": pace.weight_decay},
              {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=pace.rate, betas=(0.9, 0.98))
