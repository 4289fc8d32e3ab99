"""Settings of texts that are the best of several beams."""

from typing import Literal

from pydantic import Field, model_validator

from dare_job.config_base import Section, Seed


class BeamSettings(Section):
    """Of mode beam (docs/beams.md)."""

    width: int = Field(4, ge=1, le=64, description="beams of a row, at most")
    draft_width: int = Field(4, ge=1, le=64, description="W_S: drafts of a layer")
    min_width: int = Field(1, ge=1, le=64, description="W_min: beams of a drafted layer, at least; width: "
                           "every layer has as many")
    threshold: float = Field(0.9, ge=0, le=1, description="t: a drafted layer is as wide as its drafts reach "
                             "with this probability")
    layers: int = Field(4, ge=0, le=64, description="gamma: layers of a step that drafter.model drafts, with "
                        "drafter.source = model; 0: none")
    temperature: float = Field(1.0, ge=0, description="of pairs of a beam and a token; 0: beam search, as "
                               "generate(num_beams=width) has it, drafted or not")
    top_k: int | None = Field(None, ge=1, description="among the k most probable pairs; null: all")
    top_p: float | None = Field(None, gt=0, le=1, description="the most probable pairs up to this mass")
    law: Literal["iid", "without_replacement"] = Field(
        "iid", description="how a layer's beams are drawn; iid: one may come twice")
    draft_law: Literal["iid", "without_replacement"] = Field("iid", description="how its drafts are drawn")
    length_penalty: float = Field(
        1.0, description="of beams that ended the best log P / tokens ** length_penalty is the text")
    single_cache: bool = Field(
        False, description="only the likeliest beam goes on into the next step: lossy")
    seed: Seed = Field(0, description="with a row's id it decides what is drawn for the row")

    @model_validator(mode="after")
    def _has_beams(self):
        if 0 < self.temperature < 1e-6:
            raise ValueError(f"beam.temperature = {self.temperature}: use 0 (beam search), or 1e-6 or above")
        if self.min_width > self.width:
            raise ValueError(f"beam.min_width = {self.min_width} is more than beam.width = {self.width}")
        return self

    def require_passing_layers(self) -> None:
        """Where there is a draft model. Raises ValueError."""
        name = "width" if self.temperature == 0 else "min_width"
        if self.layers and self.draft_width < getattr(self, name):
            raise ValueError(f"beam.draft_width = {self.draft_width} is less than beam.{name} = "
                             f"{getattr(self, name)}: no layer of drafts could pass; use as many or more, or "
                             "beam.layers = 0")
