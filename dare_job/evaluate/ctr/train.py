"""Trains one CTR model, with early stopping and the averaged weights of the best epoch.

torch-rechub's trainer keeps the last epoch's weights if it did not stop early, and does not guarantee that
every set of texts of a seed is trained on the same batches.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from dare_job.evaluate.ctr.examples import Examples
from dare_job.evaluate.ctr.inputs import Inputs
from dare_job.evaluate.ctr.options import TrainSettings
from dare_job.training import loop as training_loop
from dare_job.training.loop import Schedule, Training


@dataclass(frozen=True)
class Fitted:
    """Metrics of the test part, by the averaged weights of the epoch with the best validation AUC."""

    auc: float
    logloss: float
    epochs: int
    seconds: float


def tensors(examples: Examples, inputs: Inputs, device: str = "cpu") -> dict[str, Tensor]:
    """All N label rows as a batch of ``models.Ctr``, with ``label``.

    Histories are int32 (N, L), ``label`` is float32 (N,), all others are int32 (N,).
    """
    columns = {"user": examples.user, "item": examples.item, "history": examples.history,
               "label": examples.label} | {f"text.{side}": data.text for side, data in inputs.sides.items()}
    if "item" in inputs.sides:
        columns["text.history"] = inputs.sides["item"].history
    return {name: torch.from_numpy(np.ascontiguousarray(column)).to(device)
            for name, column in columns.items()}


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """Exponential moving average of a model's weights, and of batch norm's statistics, over steps.

    After the first step it is the model; then the n-th average keeps min(decay, (1 + n) / (10 + n)) of
    itself, so that untrained weights are soon forgotten.
    """
    def update(average: Tensor, current: Tensor, steps: int) -> Tensor:
        if not current.is_floating_point():
            return current
        return average.lerp(current, 1 - min(decay, (1 + int(steps)) / (10 + int(steps))))

    return AveragedModel(model, avg_fn=update, use_buffers=True)


def fit(model: nn.Module, examples: Examples, inputs: Inputs, seed: int, settings: TrainSettings,
        device: str = "cpu") -> Fitted:
    """Train on the train part; the order of rows depends only on the seed."""
    began, model = time.perf_counter(), model.to(device)
    data = tensors(examples, inputs, device)
    rows = {name: torch.from_numpy(places).to(device) for name, places in examples.rows.items()}
    optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate,
                                 weight_decay=settings.weight_decay)
    order = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    average = averaged(model, settings.average)
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))

    def batches(epoch: int) -> list[Tensor]:
        shuffled = rows["train"][torch.randperm(len(rows["train"]), generator=order).to(device)]
        return [part for part in shuffled.split(settings.batch_size) if len(part) > 1]  # batch norm needs two

    training = Training(batches, lambda part: _loss(model, data, part),
                        lambda: -roc_auc_score(*predicted(average.module, data, rows["valid"])),
                        name="CTR model", log_epochs=False)
    schedule = Schedule(settings.epochs, settings.learning_rate, settings.weight_decay, None,
                        settings.patience, max_gradient=None)
    record = training_loop.fit(model, training, schedule, optimizers=[optimizer], evaluated=average.module)
    label, probability = predicted(model, data, rows["test"])
    return Fitted(float(roc_auc_score(label, probability)), float(log_loss(label, probability)),
                  record["epochs"], time.perf_counter() - began)


def _loss(model: nn.Module, data: dict[str, Tensor], rows: Tensor) -> Tensor:
    batch = {name: column[rows] for name, column in data.items()}
    return nn.functional.binary_cross_entropy(model(batch), batch["label"])


@torch.no_grad()
def predicted(model: nn.Module, data: dict[str, Tensor], rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions, float64 (n,), of ``rows`` (n,) int64 of ``data`` (as ``tensors``)."""
    model.eval()
    parts = [model({name: column[part] for name, column in data.items()}) for part in rows.split(8192)]
    return data["label"][rows].cpu().numpy(), torch.cat(parts).double().cpu().numpy()
