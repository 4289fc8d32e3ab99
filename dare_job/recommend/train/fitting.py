"""Epochs of updates with early stopping, which a killed process takes up again at its last checkpoint.

It knows nothing of items: it is given batches of an epoch, a loss of a batch, and a figure to stop by.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from dare_job.errors import ModelError
from dare_job.model.train import share_of_rate
from dare_job.recommend.train import checkpoint
from dare_job.recommend.train.checkpoint import Checkpoint

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
        checkpoint.load_weights(best, model, "best")
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
    return {f"best.{name}": weight.detach().clone() for name, weight in checkpoint.trained(model).items()}


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
    checkpoint.restore(tensors, model, optimizer)
    state = State(**counters)
    _LOG.info("goes on at epoch %d, step %d, from %s", state.epoch + 1, state.step, store.folder)
    return state, {name: tensor for name, tensor in tensors.items() if name.startswith("best.")}


def _save(model, optimizer, state: State, store: Checkpoint | None, best: dict) -> None:
    if store:
        store.save(checkpoint.training_state(model, optimizer) | best, asdict(state))


def _optimizer(model, pace: Pace) -> torch.optim.AdamW:
    weights = list(checkpoint.trained(model).values())
    groups = [{"params": [w for w in weights if w.dim() >= 2], "weight_decay": pace.weight_decay},
              {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=pace.rate, betas=(0.9, 0.98))
