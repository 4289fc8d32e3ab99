"""Settings of the training and evaluation of recommenders: the options of the commands. Imports no torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dare_job.config.options import Device, device, numbers, option, words
from dare_job.errors import ConfigError
from dare_job.training.checks import require_at_least, require_below_one, require_heads, require_rate

GIVEN, LEAVE_ONE_OUT = "given", "leave-one-out"
_MODEL, _TRAINING = "Model", "Training"


@dataclass(frozen=True)
class Source:
    """Where a command reads sequences of items from."""

    path: Path = option("Parquet interactions, or a folder of sequential_*.txt files.", flag="--data")
    split: Literal["given", "leave-one-out"] = option(
        "given (files or time) or leave-one-out.", GIVEN, metavar="SPLIT")
    first_item: int = option("First item number in text files.", 1)
    min_rating: float | None = option("Lowest rating that counts.", None)

    def read(self, ids):
        """The sequences, as ``sequences.read`` reads them, with its errors."""
        from dare_job.training.recommender.sequences import read

        sequences = read(self.path, ids, self.first_item, self.min_rating)
        return sequences if self.split == GIVEN else sequences.leave_one_out()

    def record(self, sequences) -> dict:
        """What the JSON of a command says about the sequences."""
        return {"split": self.split, "min_rating": self.min_rating, "counts": sequences.counts}


@dataclass(frozen=True)
class Settings:
    """The defaults take about twenty minutes on one core for Amazon Beauty."""

    width: int = option("Size of a new model's hidden states.", 256, panel=_MODEL)
    layers: int = option("Number of layers of a new model.", 4, panel=_MODEL)
    heads: int = option("Number of attention heads of a new model.", 4, panel=_MODEL)
    lora: int = option("Rank of LoRA updates of --base, merged at the end; 0: train all weights.", 0,
                       panel=_MODEL)
    history: int = option("Maximum number of items in a prompt, the newest ones.", 20, panel=_MODEL)
    epochs: int = option("Maximum number of epochs.", 40, panel=_TRAINING)
    patience: int = option("Stop after this many epochs without a better validation.", 3, panel=_TRAINING)
    batch_tokens: int = option("Tokens per update, approximately.", 2048, panel=_TRAINING)
    rate: float = option("Peak learning rate.", 1e-3, panel=_TRAINING)
    weight_decay: float = option("Weight decay of AdamW.", 0.1, panel=_TRAINING)
    warmup: int = option("Updates until the peak learning rate.", 200, panel=_TRAINING)
    dropout: float = option("Dropout of embeddings and of each layer's outputs.", 0.2, panel=_TRAINING)
    item_dropout: float = option("Share of a history's items left out in an epoch.", 0.1, panel=_TRAINING)
    valid_users: int = option("Maximum number of users to validate on.", 2000, panel=_TRAINING)
    seed: int = option("Seed of the initial weights and of the order of the examples.", 0, panel=_TRAINING)

    def __post_init__(self):
        require_at_least(self, width=8, layers=1, heads=1, lora=0, history=1, epochs=1, patience=1,
                         batch_tokens=32, warmup=0, valid_users=1, seed=0)
        require_heads(self.width, self.heads)
        require_rate(self.rate)
        require_below_one(self, "dropout", "item_dropout", "weight_decay")


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job recommender train``.

    Raises
    ------
    ConfigError
        ``--lora`` is given without ``--base``.
    """

    data: Source
    ids: Path = option("Item ids, JSON, from `dare-job recommender item-ids`.")
    to: Path = option("Folder for the recommender.", flag="--save")
    model: str | None = option("Start from this model, named as model.name. Default: a new small Llama.",
                               None, flag="--base")
    device: Device = device()
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self):
        if self.settings.lora and self.model is None:
            raise ConfigError(f"--lora {self.settings.lora} updates an existing model: name it with --base, "
                              "or omit --lora")


def _named(flag: str, texts: list[str]) -> dict[str, Path]:
    folders = {name: Path(folder) for name, _, folder in (text.partition("=") for text in texts) if folder}
    if len(folders) < len(texts):
        raise ConfigError(f"{flag} {', '.join(texts)}: write NAME=FOLDER, each name once")
    return folders


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of ``dare-job recommender evaluate``."""

    data: Source
    ids: Path = option("Item ids, JSON.")
    recommenders: dict[str, Path] = option("A recommender to evaluate; repeatable.", (), flag="--recommender",
                                           metavar="NAME=FOLDER", parse=_named, repeatable=True)
    baselines: list[str] = option(
        "Baselines to evaluate: popularity, sasrec (needs the extra recommend); empty: none.",
        ("popularity",), parse=words)
    k: list[int] = option(
        "Numbers of recommendations (K) to compute the metrics for.", (5, 10), parse=numbers)
    users: int = option("Number of users, sampled with --seed; 0: all.", 0, min=0)
    width: int = option("Beams of the search; 0: as many as the largest --k.", 0, flag="--beams", min=0)
    with_interacted: bool = option("Also recommend items of the user's history.", False)
    device: Device = device()
    seed: int = option("Seed of the sample of users and the baselines.", 0)
