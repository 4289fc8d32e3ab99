
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

from dare_job.evaluate.ctr.train import TrainSettings
from dare_job.models.files import EMBEDDED
from dare_job.schemas import ENTITIES


@dataclass(frozen=True)
class Options:
    """What ``dare-job ctr`` was asked; the fields' names are those of its options.

    revision, window  of ``encoder``, as of ``encode.*``; the command line leaves them
    """

    data: str
    knowledge: dict[str, str] = field(default_factory=dict)  # name -> OUT
    models: Sequence[str] = ("din", "dcnv2")
    seeds: int = 5
    dt: str | None = None
    labels_from: date | None = None
    entities: Sequence[str] = ENTITIES
    encoder: str = EMBEDDED
    equivalent: Sequence[tuple[str, str]] = ()
    margin: float = 0.002
    history: int = 20
    min_rating: float = 4.0
    device: str = "cpu"
    training: TrainSettings = field(default_factory=TrainSettings)
    revision: str | None = None
    window: int | None = None
