"""What beams are asked to be."""

from dataclasses import dataclass, field

from dare_job.decode.beam.kernel import IID, beam_distribution_for
from dare_job.decode.sampling.warp import Warp
from dare_job.errors import ConfigError

MOST = 64  # beams of a row


@dataclass(frozen=True)
class Beams:
    """width          beams of plain layers, and of any layer at most; finished ones that are kept
    draft_width     W_S: drafts of a layer
    min_width       W_min: beams of a layer whose drafts are verified, at least; ``width``: always as many
    threshold       t: a layer is as wide as its drafts reach with this probability
    layers          gamma: drafted layers of a step; 0: none
    warp            temperature, top-k and top-p of pairs; temperature 0: beam search as in ``generate``
    law, draft_law  of a layer's beams and of its drafts: "iid", where one may come twice, or
                    "without_replacement"
    length_penalty  a finished beam's score is log P / tokens ** length_penalty
    single_cache    only the most probable beam goes on into the next step: lossy
    seed            with a row's id it decides what is drawn for the row

    Raises ConfigError.
    """

    width: int = 4
    draft_width: int = 4
    min_width: int = 1
    threshold: float = 0.9
    layers: int = 4
    warp: Warp = field(default_factory=Warp)
    law: str = IID
    draft_law: str = IID
    length_penalty: float = 1.0
    single_cache: bool = False
    seed: int = 0

    def __post_init__(self):
        for name, least, most in (("width", 1, MOST), ("draft_width", 1, MOST), ("min_width", 1, MOST),
                                  ("layers", 0, MOST)):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"beam.{name} is {getattr(self, name)}; it must be {least} to {most}")
        if not 0 <= self.threshold <= 1:
            raise ConfigError(f"beam.threshold is {self.threshold}; it must be a probability, such as 0.9")
        beam_distribution_for(self.law, "beam.law"), beam_distribution_for(self.draft_law, "beam.draft_law")
        if self.min_width > self.width:
            raise ConfigError(f"beam.min_width = {self.min_width} is more than beam.width = {self.width}")
        for name in ("min_width", "width") if self.deterministic else ("min_width",):
            if self.layers and self.draft_width < getattr(self, name):
                raise ConfigError(
                    f"beam.draft_width = {self.draft_width} is less than beam.{name} = "
                    f"{getattr(self, name)}: no layer of drafts could pass; use as many or more, or "
                    "beam.layers = 0")

    @property
    def deterministic(self) -> bool:
        return self.warp.greedy

    @property
    def nodes(self) -> int:
        """Queries of a row's step, at most."""
        return self.width + self.layers * self.draft_width
