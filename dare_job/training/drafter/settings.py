"""Settings of the training of a draft model: the options of ``dare-job drafter train``. Imports no torch."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from dare_job.config.options import ChatTemplate, Device, Dtype, device, dtype, option, trust_remote_code
from dare_job.errors import ConfigError
from dare_job.training.checks import require_at_least, require_heads, require_rate

KEPT = 16
_MODEL, _TRAINING = "Draft model", "Training"


@dataclass(frozen=True)
class Settings:
    """The defaults take a few minutes on one core for a target with a vocabulary of a few thousand tokens.

    Raises
    ------
    ConfigError
        A value is invalid. The message names the option.
    """

    width: int = option("Size of the hidden states.", 256, panel=_MODEL)
    layers: int = option("Number of layers.", 2, panel=_MODEL)
    heads: int = option("Number of attention heads.", 4, panel=_MODEL)
    steps: int = option("Number of updates.", 300, panel=_TRAINING)
    batch_tokens: int = option("Tokens per update, approximately.", 2048, panel=_TRAINING)
    kl: float = option("Weight of the KL divergence from the target; the rest is cross-entropy.", 0.5,
                       panel=_TRAINING)
    rate: float = option("Peak learning rate.", 4e-3, panel=_TRAINING)
    context: int = option("Maximum tokens per row; long prompts are left-truncated.", 1024, panel=_TRAINING)
    rows: int = option("At most this many texts, chosen by hash.", 20_000, panel=_TRAINING)
    held_out: int = option("Texts to evaluate on, before and after.", 32, panel=_TRAINING)
    seed: int = option("Seed of the initial weights and of the order of the examples.", 0, panel=_TRAINING)
    temperature: float = option("Temperature of the target's distribution; use that of the runs.", 1.0,
                                panel=_TRAINING)
    top_k: int = option("Most probable tokens of the target to learn; use 256 for beams and high "
                        "temperatures.", KEPT, panel=_TRAINING)

    def __post_init__(self):
        require_at_least(self, width=8, layers=1, heads=1, steps=1, batch_tokens=32, context=32, rows=1,
                         held_out=1, seed=0, top_k=1)
        require_heads(self.width, self.heads)
        if not 0 <= self.kl <= 1:
            raise ConfigError(f"--kl is {self.kl:g}; it must be from 0 (texts only) to 1 (target only)")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"--temperature is {self.temperature:g}; it must be above 0")
        require_rate(self.rate)


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job drafter train``."""

    out: str = option("Output folder (or URL) of runs.")
    to: Path = option("Folder for the draft model.", Path("drafter"), flag="--save")
    date: str | None = option("Published date. Default: the newest.", None, metavar="YYYY-MM-DD")
    model: str | None = option("Target, named as model.name. Default: that of the texts.", None)
    dtype: Dtype = dtype()
    device: Device = device()
    chat_template: ChatTemplate | None = option(
        "auto, always or never (model.chat_template). Default: as in the run.", None, metavar="MODE")
    trust_remote_code: bool = trust_remote_code()
    settings: Settings = field(default_factory=Settings)
