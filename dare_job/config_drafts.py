"""Settings of what drafts beside old text, and of texts that are sampled."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dare_job.config_base import MOST, Section, Seed, Share


class DrafterSettings(Section):
    """What drafts in the modes dare and sample, and the draft model of mode beam. Patents on mixing suffix
    trees with draft models have been reported: have it checked whether they bind you before you set
    ``source`` to hybrid.
    """

    source: Literal["retrieval", "model", "hybrid"] = Field(
        "retrieval", description="retrieval: old text, from pools; model: a smaller model; hybrid: old text "
        "where that is sure of itself, the model elsewhere (check patents first: docs/sampling.md)")
    model: str | None = Field(
        None, min_length=1, description="of model and hybrid: the draft model, a folder, its URL, or a hub "
        "name; it has the tokenizer of model.name, and dare-job train-drafter makes one")
    revision: str | None = None
    tree: str = Field(
        "4x2x1x1", pattern=r"^[1-9]\d{0,3}(x[1-9]\d{0,3})*$", description="a draft model's candidates, level "
        "by level, such as 4x2x1: four, two behind each, one behind each of those")
    confidence: float = Field(
        0.6, ge=0, le=1, description="hybrid: the probability of retrieval's likeliest node from which on a "
        "row has its drafts in a step")

    @model_validator(mode="after")
    def _has_a_model(self):
        if self.source != "retrieval" and self.model is None:
            raise ValueError(f"drafter.source = {self.source} needs drafter.model, a draft model's folder or "
                             "hub name: `dare-job train-drafter` makes one; or leave drafter.source out")
        return self


class SampleSettings(Section):
    """Of mode sample; how tokens are drawn has the meaning that ``generate`` gives it."""

    temperature: float = Field(1.0, ge=0, description="0: the most probable token, as in mode dare")
    top_k: int | None = Field(None, ge=1, description="among the k most probable tokens; null: all")
    top_p: float | None = Field(None, gt=0, le=1, description="the most probable up to this mass; null: all")
    min_p: Share = Field(None, description="at least this share of the greatest probability; null: all")
    repetition_penalty: float | None = Field(
        None, ge=1e-3, le=1e3, description="of tokens that the text holds; null: the model's generation "
        "config's")
    logit_bias: dict[Annotated[int, Field(ge=0, le=MOST)], Annotated[float, Field(ge=-1e4, le=1e4)]] = Field(
        {}, description="added to logits before all else, by token id, as sequence_bias of one token; -10000 "
        "forbids a token")
    seed: Seed = Field(0, description="with a row's entity type and id it decides what is drawn for the row")
    law: Literal["iid", "without_replacement", "distinct", "top_k", "greedy", "spechub"] = Field(
        "without_replacement", description="how a draft model's candidates are drawn; retrieval draws none")
    rule: Literal["speculative", "rrs", "mcss", "naive", "k_seq", "priority", "greedy", "spechub",
                  "traversal"] = Field(
        "rrs", description="what verifies them; it must be exact for the law, so that neither changes the "
        "law of a text")

    @field_validator("temperature")
    @classmethod
    def _float32_has_numbers(cls, value: float) -> float:
        if 0 < value < 1e-6:
            raise ValueError(f"sample.temperature = {value}: use 0 (the most probable token), or 1e-6 or "
                             "above")
        return value
