"""Settings of what drafts beside old text, and of texts that are sampled.

Settings of texts that are the best of several beams.
"""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dare_job.config.base import MOST, Dtype, Section, Seed, Share


class ModelSettings(Section):
    name: str = Field("embedded", min_length=1, description="'embedded', a local folder, or a hub name")
    revision: str | None = None
    dtype: Dtype = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    chat_template: Literal["auto", "always", "never"] = "auto"
    trust_remote_code: bool = False


class DecodeSettings(Section):
    mode: Literal["dare", "resd", "autoregressive", "sample", "beam"] = Field(
        "dare", description="dare: greedy text, drafted from pools; resd: from the global pool alone; "
        "autoregressive: not drafted; sample: texts drawn by the section sample, drafted as in dare; beam: "
        "the most probable of several beams, by the section beam")
    max_new_tokens: int = Field(256, ge=1, le=MOST)
    min_new_tokens: int = Field(0, ge=0, le=MOST)
    batch_size: int = Field(8, ge=1, le=65536, description="rows decoded at once on one device")
    nodes: Literal["auto"] | Annotated[int, Field(ge=0, le=512)] = Field(
        "auto", description="draft nodes; auto: a forward has as many as pay by what it costs here, for the "
        "rows where they pay; a number: so many for every row")
    depth: int = Field(12, ge=1, le=64, description="longest draft path")
    context: int = Field(31, ge=1, le=32, description="longest context looked up; a pool holds up to 31")
    blend_lambda: Literal["learned"] | Annotated[float, Field(gt=0)] = Field(
        "learned", description="learned: by each pool; a number: occurrences that make half of the trust")
    score: Literal["auto", "always", "never"] = Field(
        "auto", description="mode dare: keep what still holds of a row's own old text (pools.own) in the "
        "prompt's forward; auto: as much of it as is worth its cost")
    row_timeout_s: float | None = Field(
        None, gt=0, description="seconds of forwards after which a row is taken out of its batch and tried "
        "alone, then given up; null: never")
    hang_timeout_s: float | None = Field(
        1800, gt=0, description="seconds without the end of a forward after which a worker is ended, so "
        "that Spark starts its task anew; null: never")

    @model_validator(mode="after")
    def _tokens_fit(self):
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"decode.min_new_tokens = {self.min_new_tokens} is more than "
                             f"decode.max_new_tokens = {self.max_new_tokens}")
        return self


class VerifySettings(Section):
    rule: Literal["strict", "relaxed", "top_k", "threshold", "literal", "ratio", "entropy"] = Field(
        "strict", description="strict equals greedy decoding; relaxed needs top k and p; literal is eq. 8; "
        "ratio compares with the first choice, entropy with a bound that falls as the model gets unsure")
    k: int = Field(2, ge=1, le=64, description="relaxed, top_k, literal: among the k most probable tokens")
    p: float = Field(0.1, ge=0, lt=1, description="relaxed, threshold, literal: probability above p")
    c: float = Field(0.5, gt=0, le=1, description="ratio: at least c times the first choice's probability")
    epsilon: float = Field(
        0.09, gt=0, le=1, description="entropy: probability above min(epsilon, delta exp(-entropy))")
    delta: float = Field(0.3, gt=0, le=1, description="entropy: see epsilon; its root is usual")
    length_quantile: float | None = Field(
        0.95, gt=0, lt=1, description="relaxed rules: a text longer than this share of its group's old ones "
        "(everybody's, where the group has too few) is written by the strict rule from there on; null: never")
    reproducible: bool = Field(
        False, description="relaxed text independent of batch and partition: keeps each row's draft budget "
        "fixed (decode.nodes auto: 16 a row), scores all of its old text (decode.score auto), and leaves "
        "batch_size out of what makes a row stale")
    refresh_nights: int = Field(
        0, ge=0, le=MOST, description="relaxed rules: every so many nights a row is written by the strict "
        "rule, and is stale if its text has relaxed tokens; 0: never")
    target: str | None = Field(None, description="auc=0.0005 (lost at most), cosine=0.98 or rouge_l=0.95 (at "
                               "least): the fastest k and p of the curve whose bound keeps it, else strict")
    curve: str | None = Field(None, min_length=1, description="curve.json of dare-job curve, for target")

    @field_validator("target")
    @classmethod
    def _can_be_kept(cls, value: str | None) -> str | None:
        found = re.fullmatch(r"(auc|cosine|rouge_l)=(0?\.\d+|\d+(?:\.\d+)?(?:e-\d+)?)", value or "auc=0.5")
        if not found or not 0 < float(found[2]) < 1:
            raise ValueError(f"verify.target = {value!r}: write auc=, cosine= or rouge_l= and a number "
                             "above 0 and below 1, such as auc=0.0005 or cosine=0.98")
        return value

    @model_validator(mode="after")
    def _target_has_a_curve(self):
        if (self.target is None) != (self.curve is None):
            there, missing = ("target", "curve") if self.curve is None else ("curve", "target")
            raise ValueError(f"verify.{there} needs verify.{missing} beside it: what to keep, and the "
                             "curve.json of `dare-job curve` to choose from")
        if self.target and self.rule != "strict":
            raise ValueError(f"verify.rule = {self.rule}: verify.target chooses the rule itself; leave one "
                             "of them out")
        return self


class DrafterSettings(Section):
    """What proposes draft tokens in the modes dare and sample, and the draft model of mode beam."""

    model: str | None = Field(
        None, min_length=1, description="draft model: a folder, its URL, or a hub name, with the tokenizer "
        "of model.name (`dare-job train-drafter` trains one); null: retrieval from earlier texts")
    revision: str | None = None
    tree: str = Field(
        "4x2x1x1", pattern=r"^[1-9]\d{0,3}(x[1-9]\d{0,3})*$", description="candidates of the draft model on "
        "each level of its tree, such as 4x2x1: four, two after each of these, one after each of those")


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
