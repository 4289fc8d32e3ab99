"""The training loop: epochs of updates, early stopping, and checkpoints that a killed process resumes from.

The loop knows nothing about items or texts. Its callers supply batches, a loss and a validation loss.
"""

import functools
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import transformers

from dare_job import __version__
from dare_job.errors import ModelError
from dare_job.observe import progress
from dare_job.training.checkpoint import Checkpoint, load_weights, restore, trained, training_state

_LOG = logging.getLogger("dare_job")
_PRODUCTS = 3  # the fastest of them counts


@dataclass(frozen=True)
class Stream:
    """The next ``count`` batches of an endless iterator, as one epoch."""

    source: Iterator[Any]
    count: int

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.source, self.count)

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train, and which weights to keep.

    Attributes
    ----------
    epochs
        Maximum number of epochs.
    rate
        Peak learning rate of the default optimizer.
    weight_decay
        Of the default optimizer, for matrices.
    warmup_steps
        Updates of linear warm-up before the cosine decay; None: constant learning rate.
    patience
        Epochs without a lower validation loss after which training stops.
    save_every_s
        Seconds between checkpoints.
    keep_start
        Keep the initial weights if no epoch has a lower validation loss.
    keep_last
        Train all epochs and keep the last weights, whatever their validation loss.
    max_gradient
        Maximum norm of the gradient; None: no clipping.
    """

    epochs: int
    rate: float
    weight_decay: float
    warmup_steps: int | None
    patience: int
    save_every_s: float = 60.0
    keep_start: bool = False
    keep_last: bool = False
    max_gradient: float | None = 1.0


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes
    ----------
    batches
        Batches of an epoch; the same each time that it is called for that epoch.
    loss
        Loss of a batch, with gradients.
    validate
        Validation loss; None: train all epochs and keep the last weights.
    after_epoch
        Called with the number of an epoch after its updates.
    save
        Called every ``save_every_s`` and after each epoch, beside the checkpoint.
    name
        Of the model, in progress lines.
    log_epochs
        Log the losses of each epoch.
    """

    batches: Callable[[int], Sequence[Any] | Stream]
    loss: Callable[[Any], torch.Tensor]
    validate: Callable[[], float] | None = None
    after_epoch: Callable[[int], None] = lambda epoch: None
    save: Callable[[], None] = lambda: None
    name: str = "training"
    log_epochs: bool = True


@dataclass
class State:
    """Position of a training. ``validation``: one loss per epoch, after that of the start if it is kept."""

    epoch: int = 0
    step: int = 0  # in the epoch
    updates: int = 0
    loss: float = 0.0  # moving average
    validation: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def best(self) -> int:
        """Place of the lowest validation loss."""
        return min(range(len(self.validation)), key=self.validation.__getitem__)

    @property
    def stale(self) -> int:
        """Epochs since the lowest validation loss."""
        return len(self.validation) - self.best - 1 if self.validation else 0


@dataclass
class MovingAverages:
    """Exponential moving averages of named losses, each starting from its first value."""

    weight: float = 0.05  # of the newest value
    values: dict[str, float] = field(default_factory=dict)

    def add(self, **losses: float) -> None:
        for name, loss in losses.items():
            self.values[name] = (1 - self.weight) * self.values.get(name, loss) + self.weight * loss


def rate_factor(step: int, steps: int, warmup_steps: int = 100) -> float:
    """Share of the peak learning rate: linear warm-up, and a cosine decay to 2 %."""
    warmup, cosine = min(1.0, (step + 1) / warmup_steps), 0.5 * (1 + math.cos(math.pi * step / steps))
    return warmup * (0.02 + 0.98 * cosine)


def fit(model: torch.nn.Module, training: Training, schedule: Schedule, checkpoint: Checkpoint | None = None,
        optimizers: Sequence[torch.optim.Optimizer] = (), evaluated: torch.nn.Module | None = None) -> dict:
    """Train a model in place; it ends with the best epoch's weights, or the last ones.

    Returns epochs, best_epoch (None without validation), updates, validation (losses) and seconds.

    Parameters
    ----------
    checkpoint
        Where the state is saved, and resumed from.
    optimizers
        Their learning rates are the peak rates; none: AdamW, with weight decay on matrices alone.
    evaluated
        Module that is validated and whose weights are kept, such as a moving average of the model; None: the
        model.

    Raises
    ------
    ModelError
        The loss is not finite.
    """
    optimizers = optimizers or [adamw(model, schedule.rate, schedule.weight_decay)]
    run = _Run(model, training, schedule, checkpoint, optimizers,
               model if evaluated is None else evaluated)
    with progress.counting(training.name, 0, unit="steps") as counter:
        run.train(counter)
    model.eval()
    state = run.state
    best = state.best + (not schedule.keep_start) if state.validation else None
    return {"epochs": state.epoch, "best_epoch": best, "updates": state.updates,
            "validation": [round(loss, 4) for loss in state.validation], "seconds": round(state.seconds, 1)}


@dataclass
class _Run:
    model: torch.nn.Module
    training: Training
    schedule: Schedule
    checkpoint: Checkpoint | None
    optimizers: Sequence[torch.optim.Optimizer]
    evaluated: torch.nn.Module

    def __post_init__(self):
        for group in self._groups():
            group["initial_lr"] = group["lr"]
        self.state, self.best = State(), {}
        if self.checkpoint and (saved := self.checkpoint.load()):
            tensors, counters = saved
            restore(tensors, self.model, self.optimizers)
            self.state = State(**counters)
            self.best = {name: tensor for name, tensor in tensors.items() if name.startswith("best.")}
            _LOG.info("resuming at epoch %d, step %d, from %s", self.state.epoch + 1, self.state.step,
                      self.checkpoint.folder)

    def train(self, counter: progress.Counter) -> None:
        """Train to the end. Raises ModelError if the loss is not finite."""
        state, schedule = self.state, self.schedule
        stops_early = self.training.validate is not None and not schedule.keep_last
        if schedule.keep_start and not state.validation:
            self._validate()
        while state.epoch < schedule.epochs and not (stops_early and state.stale >= schedule.patience):
            self._epoch(counter)
            self.training.after_epoch(state.epoch)
            if self.training.validate:
                self._validate()
            if self.training.validate and self.training.log_epochs:
                _LOG.info("%s: epoch %d of %d, loss %.4f, validation loss %.4f%s", self.training.name,
                          state.epoch + 1, schedule.epochs, state.loss, state.validation[-1],
                          "" if state.stale else " (best)")
            state.epoch, state.step = state.epoch + 1, 0
            self._save()
        if stops_early:
            load_weights(self.best, _kept(self.model), "best")

    def _epoch(self, counter: progress.Counter) -> None:
        state, schedule = self.state, self.schedule
        batches = self.training.batches(state.epoch)
        counter.total = schedule.epochs * len(batches)
        self.model.train()
        began = saved = time.monotonic()
        before = state.seconds
        for batch in itertools.islice(batches, state.step, None):
            self._update(batch, counter.total)
            now = time.monotonic()
            state.seconds = before + now - began
            counter.done = state.updates
            counter.details = f"epoch {state.epoch + 1} of {schedule.epochs}, loss {state.loss:.4f}"
            if now - saved > schedule.save_every_s:
                saved = now
                self._save()

    def _update(self, batch: Any, updates: int) -> None:
        state, schedule = self.state, self.schedule
        if schedule.warmup_steps is not None:
            factor = rate_factor(state.updates, updates, max(1, schedule.warmup_steps))
            for group in self._groups():
                group["lr"] = group["initial_lr"] * factor
        loss = self.training.loss(batch)
        loss.backward()
        if schedule.max_gradient is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), schedule.max_gradient)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        if not math.isfinite(value):
            raise ModelError(f"{self.training.name}: the loss of update {state.updates + 1} is not finite; "
                             f"lower the learning rate, now {schedule.rate:g} (--rate, if it is an option)")
        state.loss = value if state.updates == 0 else 0.98 * state.loss + 0.02 * value
        state.step, state.updates = state.step + 1, state.updates + 1

    def _validate(self) -> None:
        """Validate the current weights, and keep a copy of the best ones."""
        self.model.eval()
        with torch.no_grad():
            self.state.validation.append(self.training.validate())
        if not self.state.stale:
            self.best = {f"best.{name}": weight.detach().clone()
                         for name, weight in _kept(self.evaluated).items()}

    def _save(self) -> None:
        self.training.save()
        if self.checkpoint:
            self.checkpoint.save(training_state(self.model, self.optimizers) | self.best, asdict(self.state))

    def _groups(self) -> Iterator[dict]:
        return (group for optimizer in self.optimizers for group in optimizer.param_groups)


def _kept(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Trained weights, and buffers that belong to a model's state, such as running means."""
    names = model.state_dict().keys()
    return trained(model) | {name: buffer for name, buffer in model.named_buffers() if name in names}


def adamw(model: torch.nn.Module, rate: float, weight_decay: float,
          fused: bool | None = None) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices alone."""
    weights = list(trained(model).values())
    groups = [{"params": [w for w in weights if w.dim() >= 2], "weight_decay": weight_decay},
              {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, betas=(0.9, 0.98),
                             fused=fused)


def autocast(device: torch.device) -> torch.autocast:
    """Products of a loss in bfloat16 where the device computes them faster than in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type != "cpu" or _bfloat16_is_fast())


@functools.cache
def _bfloat16_is_fast() -> bool:
    """Whether this processor multiplies in bfloat16 clearly faster than in float32.

    Instructions do not tell: an Intel processor with AVX512-BF16 but no AMX takes 1.7 times as long.
    """
    if not (torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()):
        return False
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix, times = torch.ones(512, 512, dtype=dtype), []
        for _ in range(_PRODUCTS):
            start = time.perf_counter()
            matrix @ matrix
            times.append(time.perf_counter() - start)
        seconds[dtype] = min(times)
    return seconds[torch.bfloat16] < 0.8 * seconds[torch.float32]


def versions() -> dict[str, str]:
    """Versions of the packages that train a model."""
    return {"dare_job": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
