"""Settings of the training of item ids: options of ``dare-job recommender item-ids``. Imports no torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dare_job.config.options import Device, device, option
from dare_job.training.checks import require_rate

_QUANTISER = "Quantiser"


@dataclass(frozen=True)
class Settings:
    """The defaults take about a minute on one core for 10,000 vectors."""

    levels: int = option("Number of codes (levels) of an item id.", 4, panel=_QUANTISER, min=1, max=16)
    codes: int = option("Size of each level's code book.", 256, panel=_QUANTISER, min=2, max=65536)
    inner: int = 32  # size of the code vectors
    hidden: int = 256  # size of the hidden layer of encoder and decoder
    commitment: float = 0.25
    epochs: int = option("Number of epochs.", 100, panel=_QUANTISER, min=1)
    batch: int = option("Items per update.", 1024, panel=_QUANTISER, min=1)
    rate: float = option("Learning rate.", 1e-3, panel=_QUANTISER)
    seed: int = option("Seed of the weights and the order.", 0, panel=_QUANTISER, min=0)

    def __post_init__(self):
        require_rate(self.rate)


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job recommender item-ids``: item vectors, or texts and their encoder."""

    to: Path = option("File to write: item ids as JSON.", flag="--save")
    vectors: Path | None = option("Item vectors: Parquet (entity_id, vector) as the stage encode writes, or "
                                  ".npy, whose items are numbered by row from 0.", None)
    texts: Path | None = option("Item texts instead of vectors: jsonl, csv or Parquet, gzipped or not.", None,
                                flag="--text")
    column: str = option("Column of the text.", "title")
    id_column: str = option("Column of the item's id.", "item_id")
    encoder: str = option("Sentence encoder of the texts: 'embedded', a folder or a hub name.", "embedded")
    collisions: Literal["reassign", "level", "share"] = option(
        "Items with the same codes: reassign the last code, add a level that numbers them, or let them share "
        "an id.", "reassign", metavar="RULE")
    device: Device = device()
    settings: Settings = field(default_factory=Settings)
