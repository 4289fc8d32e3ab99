"""Settings of the training of a writer: the options of ``dare-job writer train``. Imports no torch."""

from dataclasses import dataclass, field
from pathlib import Path

from dare_job.config.options import Device, device, option, trust_remote_code
from dare_job.training.checks import require_at_least, require_rate

_TRAINING = "Training"


@dataclass(frozen=True)
class Settings:
    """The defaults suit a model with some 100 million parameters and a few thousand texts."""

    epochs: int = option("Number of epochs. The weights of the best epoch are kept.", 2, panel=_TRAINING)
    batch_tokens: int = option("Tokens per update, approximately.", 2048, panel=_TRAINING)
    rate: float = option("Peak learning rate.", 1e-4, panel=_TRAINING)
    context: int = option("Leave out rows with more tokens, including the prompt.", 1024, panel=_TRAINING)
    held_out: int = option("Texts that are not trained on; their loss selects the epoch.", 48,
                           panel=_TRAINING)
    seed: int = option("Seed of the order of the rows.", 0, panel=_TRAINING)

    def __post_init__(self):
        require_at_least(self, epochs=1, batch_tokens=32, context=32, held_out=1, seed=0)
        require_rate(self.rate)


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job writer train``."""

    model: str = option("Instruction-tuned model to start from, named as model.name.", flag="--base")
    texts: Path = option('JSON lines with "prompt" and "text", and optionally "system".', flag="--text")
    to: Path = option("Folder for the fine-tuned model.", Path("writer"), flag="--save")
    device: Device = device()
    threads: int | None = option("Number of torch threads. Default: torch's own default.", None, min=1)
    trust_remote_code: bool = trust_remote_code()
    settings: Settings = field(default_factory=Settings)
