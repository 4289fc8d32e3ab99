"""Settings of an alignment: the options of ``dare-job recommender align``. Imports no torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from dare_job.config.options import Device, device, option
from dare_job.errors import ConfigError
from dare_job.training.checks import require_at_least, require_below_one, require_rate
from dare_job.training.recommender.settings import Source

Loss = Literal["s", "r", "sft", "wordkd", "tvdkd", "seqkd"]
LOSSES = get_args(Loss)
SEARCHED_ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)  # those of the paper, and 0.9
_LOSS, _TRAINING = "Loss", "Training"


def _alpha(flag: str, text: str) -> float | None:
    try:
        return None if text == "search" else float(text)
    except ValueError:
        raise ConfigError(f"{flag} {text!r}: write a number from 0 to 1, or search") from None


@dataclass(frozen=True)
class Settings:
    """The defaults take about ten minutes on one core for Amazon Beauty.

    AtSpeed: Lin et al., "Efficient inference for large language model-based generative recommendation".

    Attributes
    ----------
    alpha
        None: searched among ``SEARCHED_ALPHAS``.

    Raises
    ------
    ConfigError
        A value is invalid. The message names the option.
    """

    loss: Loss = option(
        "s (AtSpeed-S), r (AtSpeed-R), or sft, wordkd, tvdkd, seqkd to compare.", "r", metavar="LOSS",
        panel=_LOSS)
    alpha: float | None = option(
        "Weight of the alignment loss, or search: the best on held-out histories.", 0.9, parse=_alpha,
        panel=_LOSS)
    k: int = option("Sequences per history to align on.", 10, panel=_LOSS)
    mix: float = option("Loss s: target's share in the mixture that is searched.", 0.5, panel=_LOSS)
    density: bool = option("Ablation: loss s without its density term.", True, flag="--no-density",
                           negated=True, panel=_LOSS)
    top_one: bool = option("Ablation: align only on the best sequence.", False, panel=_LOSS)
    all_steps: bool = option("Also align on prefixes of every beam step.", False, panel=_LOSS)
    constrained: bool = option(
        "Ablation: losses s and r over all codes of a level.", True, flag="--unconstrained", negated=True,
        panel=_LOSS)
    keep_last: bool = option("Keep the last epoch's weights, not the best.", False,
                             panel=_TRAINING)
    examples: int = option("Histories to learn from, at most.", 8000, panel=_TRAINING)
    held_out: int = option("Histories to evaluate on.", 256, panel=_TRAINING)
    beams: int = option("Beams of the draft that should hold the target's top K.", 40, panel=_TRAINING)
    epochs: int = option("Maximum number of epochs.", 6, panel=_TRAINING)
    patience: int = option("Stop after this many epochs without more accepted steps.", 3, panel=_TRAINING)
    batch: int = option("Histories per update.", 32, panel=_TRAINING)
    rate: float = option("Peak learning rate.", 2e-4, panel=_TRAINING)
    weight_decay: float = option("Weight decay of AdamW.", 0.01, panel=_TRAINING)
    warmup: int = option("Updates until the peak learning rate.", 100, panel=_TRAINING)
    dropout: float = option("Dropout of embeddings and of each layer's outputs.", 0.1, panel=_TRAINING)
    seed: int = option("Seed of the weights and examples' order.", 0, panel=_TRAINING)

    def __post_init__(self):
        require_at_least(self, k=1, examples=1, held_out=1, beams=1, epochs=1, patience=1, batch=1, warmup=0,
                         seed=0)
        for name in ("alpha", "mix"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"--{name} is {getattr(self, name):g}; it must be from 0 to 1")
        require_below_one(self, "dropout", "weight_decay")
        require_rate(self.rate)
        if self.beams < self.k:
            raise ConfigError(f"--beams {self.beams} is below --k {self.k}: with fewer beams, a draft "
                              "never contains all of the target's top K")


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job recommender align``."""

    data: Source
    target: Path = option("Recommender to speed up.", flag="--recommender")
    draft: Path = option("Small recommender, same item ids.")
    to: Path = option("Folder for the result.", flag="--save")
    teacher_paths: Path | None = option("File that keeps the target's outputs.", None)
    device: Device = device()
    settings: Settings = field(default_factory=Settings)
