"""Sections of the settings for decoding: model, drafts, verification, sampling, beams, recommendations.

What the engine itself has as a setting is written once, in ``dare_job.decode.settings``.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from dare_job.config.base import AtLeastOne, NotNegative, Section, section_of
from dare_job.config.options import CHAT_TEMPLATE, MODEL, TRUST_REMOTE_CODE, ChatTemplate, Device, Dtype
from dare_job.config.plugins import FORM, PlugIn
from dare_job.decode.settings import (
    BEAM_METHODS,
    MAX_BIAS,
    RULES,
    SAMPLE_METHODS,
    Beams,
    EngineSettings,
    Rule,
    Warp,
    require_temperature,
)
from dare_job.errors import ConfigError


class ModelSettings(Section):
    name: str = Field("embedded", min_length=1, description=f"Language model that writes the texts: {MODEL} "
                      "(branch, tag or commit). embedded: small, knows only the synthetic data set. A GGUF "
                      "file needs the extra gguf, and an adapter (LoRA) the extra peft")
    dtype: Dtype = Field("float32", description="Floating-point type of the weights. In float32 strict text "
                         "equals greedy decoding token by token; bfloat16 suits GPUs")
    device: Device = Field(
        "auto", description="Device that runs the models. auto: a GPU where there is one")
    chat_template: ChatTemplate = Field("auto", description=CHAT_TEMPLATE)
    template_arguments: dict[str, Any] = Field(
        {}, description="Arguments of the chat template, such as {reasoning_effort: low}. enable_thinking is "
        "false unless set here. A template that prints today's date prints the date of the run")
    trust_remote_code: bool = Field(False, description=TRUST_REMOTE_CODE)


def _plug_in(kind: str, setting: str, among_others: bool = True) -> Any:
    """The type of a plug-in's name, whose form is checked; among_others: of a setting with other values."""
    def check(value: str) -> str:
        try:
            PlugIn.parse(kind, setting, value)
        except ConfigError as error:
            raise ValueError(FORM if among_others else str(error)) from None
        return value

    return Annotated[str, AfterValidator(check)]


_ENGINE = section_of(EngineSettings, "min_new_tokens", "repetition_penalty", "batch_size", "depth",
                     "score", "row_timeout_s", max_new_tokens=(int, EngineSettings.max_new_tokens))


class DecodeSettings(_ENGINE):
    mode: Literal["dare", "resd", "autoregressive", "sample", "beam"] = Field(
        "dare", description="Decoding method. dare: greedy text with drafts from the pools (DARE), or from "
        "drafter.model. resd: drafts from the global pool alone (ReSD, which DARE is compared with in its "
        "paper). autoregressive: no drafts. sample: text sampled as the section sample says. beam: "
        "beam search or sampling, as the section beam says")
    nodes: Literal["auto"] | Annotated[int, Field(ge=0, le=512)] | _plug_in(
        "draft budget", "decode.nodes") = Field(
        "auto", description="Draft tokens per forward pass. auto: chosen from measured forward latency. N: "
        "fixed number for each row. package.module:Class: a draft budget of your own, in mode dare "
        "(docs/how-to/add-your-method.md)")
    context: int = Field(31, ge=1, le=31, description="Maximum length, in tokens, of the context that is "
                         "looked up in a pool")
    blend_lambda: Literal["learned"] | Annotated[float, Field(gt=0)] = Field(
        "learned", description="Pseudo-count: number of occurrences at which a context gets weight 0.5. "
        "learned: fitted for each pool")
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="Strings that end a text, which is published without them. Not in mode beam")
    end_loops: bool = Field(True, description="End a text that loops, with finish reason loop, by the "
                            "measure of the quality gate. false: the text continues until it ends or reaches "
                            "max_new_tokens. Mode beam does not end loops")
    hang_timeout_s: float | None = Field(
        1800, gt=0, description="Seconds without a finished forward pass after which a worker is ended, so "
        "that Spark retries its task. null: never")

    @model_validator(mode="after")
    def _tokens_fit(self):
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"decode.min_new_tokens = {self.min_new_tokens} is more than "
                             f"decode.max_new_tokens = {self.max_new_tokens}")
        return self

    @model_validator(mode="after")
    def _mode_knows_them(self):
        if self.repetition_penalty is not None and self.mode == "beam":
            raise ValueError(f"decode.repetition_penalty = {self.repetition_penalty:g}: mode beam "
                             "does not support it; leave it out, or use another decode.mode")
        if self.stop and self.mode == "beam":
            raise ValueError(f"decode.stop = {self.stop!r}: mode beam does not support stop "
                             "strings; leave it out, or use another decode.mode")
        return self


class VerifySettings(section_of(EngineSettings, "k", "p", "c", "epsilon", "delta",
                                rule=(Rule | _plug_in("verifier", "verify.rule"), "strict"))):
    length_quantile: float | None = Field(
        0.95, gt=0, lt=1, description="Relaxed rules: quantile of the group's previous text lengths (of all "
        "texts, where the group has too few). Once a text exceeds it, verification switches back to strict, "
        "so that relaxed texts do not run on. null: no limit")
    reproducible: bool = Field(
        False, description="Make a text independent of its batch and partition, where the rule or rounding "
        "makes it depend on them: relaxed rules, bfloat16 and float16. The draft budget of a row is fixed "
        "(decode.nodes auto: 15) and all of its previous text is verified (decode.score auto). On a GPU, "
        "bfloat16 and float16 passes have one shape, so those with few rows take as long as full ones. "
        "Relaxed rules: a change of decode.batch_size makes no text stale")
    sample: NotNegative | Literal["auto"] = Field(
        "auto", description="Rules and plug-ins that are not lossless: number of rows, chosen by the seed, "
        "that are also written strictly. The report compares both texts. They come first, and are at most "
        "half of the rows. auto: a twentieth of the rows, from 500 to 2,000, but at most a quarter of the "
        "rows. 0: none")
    max_loss: dict[Literal["distance", "facts"], Annotated[float, Field(gt=0, lt=1)]] = Field(
        {}, description="Maximum loss, such as {distance: 0.02, facts: 0.05}; a run writes the rows after "
        "the sample strictly unless the upper bound of each loss at 95 % is within its limit. distance: 1 - "
        "cosine of the sentence vectors (encode.model, or embedded). facts: share of the texts that name "
        "other titles, attributes or numbers. {}: no limit")
    refresh_nights: NotNegative = Field(
        0, description="Relaxed rules: a row that has relaxed tokens is generated again with the strict "
        "rule on one date in N, which depends on its id. 0: never")
    target: str | None = Field(
        None, description="Quality to keep: auc=0.0005 (maximum loss), cosine=0.98 or rouge_l=0.95 "
        "(minimum). dare-job takes the fastest k and p of verify.curve whose confidence bound stays "
        "within the limit, else the strict rule")
    curve: str | None = Field(None, min_length=1, description="Path of the curve.json of `dare-job curve`, "
                              "which verify.target needs")

    @field_validator("target")
    @classmethod
    def _can_be_kept(cls, value: str | None) -> str | None:
        match = re.fullmatch(r"(auc|cosine|rouge_l)=(0?\.\d+|\d+(?:\.\d+)?(?:e-\d+)?)", value or "auc=0.5")
        if not match or not 0 < float(match[2]) < 1:
            raise ValueError(f"verify.target = {value!r}: write auc=, cosine= or rouge_l= and a number "
                             "above 0 and below 1, such as auc=0.0005 or cosine=0.98")
        return value

    @model_validator(mode="after")
    def _target_has_a_curve(self):
        if (self.target is None) != (self.curve is None):
            name, missing = ("target", "curve") if self.curve is None else ("curve", "target")
            raise ValueError(f"verify.{name} needs verify.{missing} as well: the quality to keep, and the "
                             "curve.json of `dare-job curve` to choose from")
        if self.target and self.rule != "strict":
            raise ValueError(f"verify.rule = {self.rule}: verify.target chooses the rule itself; leave one "
                             "of them out")
        return self

    @model_validator(mode="after")
    def _loss_is_measured(self):
        if self.max_loss and not self.sample:
            raise ValueError("verify.max_loss with verify.sample = 0: without a sample the loss is not "
                             "known; leave one of them out")
        return self

    @property
    def is_strict(self) -> bool:
        """Whether texts of mode dare equal greedy decoding, whatever is drafted. Imports a plug-in.

        Raises
        ------
        ConfigError
            As ``PlugIn.load``.
        """
        if self.rule in RULES:
            return self.rule == "strict"
        return PlugIn.parse("verifier", "verify.rule", self.rule).load().lossless


class DrafterSettings(Section):
    """What proposes draft tokens in the modes dare and sample, and the draft model of mode beam."""

    model: str | None = Field(
        None, min_length=1, description="Draft model: a folder, its URL, or a hub name (with @REVISION), "
        "that has the tokenizer of model.name; `dare-job drafter train` trains one. null: retrieval from "
        "earlier texts, and no drafts in mode beam")
    plugin: _plug_in("drafter", "drafter.plugin", False) | None = Field(
        None, description="Modes dare and sample: a drafter of your own, as package.module:Class or "
        "package.module:Class(option=value) (docs/how-to/add-your-method.md). null: model, or retrieval")
    tree: str = Field(
        "4x2x1x1", pattern=r"^[1-9]\d{0,3}(x[1-9]\d{0,3})*$", description="Candidates of the draft model by "
        "level of the draft tree, such as 4x2x1: four, then two after each of these, then one after each")

    @model_validator(mode="after")
    def _one_drafter(self):
        if self.plugin and self.model:
            raise ValueError(f"drafter.plugin = {self.plugin!r} and drafter.model = {self.model!r}: leave "
                             "one of them out")
        return self


def _temperature(key: str) -> Any:
    """The type of a sampling temperature, with the check of the engine."""
    def check(value: float) -> float:
        try:
            require_temperature(key, value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value

    return Annotated[float, Field(ge=0), AfterValidator(check)]


_BIAS = dict[NotNegative, Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]]


class SampleSettings(section_of(
        Warp, "min_p", logit_bias=(_BIAS, {}),
        temperature=(_temperature("sample.temperature"), 1.0),
        top_k=(Annotated[int, Field(ge=1)] | None, None),
        top_p=(Annotated[float, Field(gt=0)] | None, None))):
    """Sampling of the modes sample and beam. Parameters have the meaning that ``generate`` gives them."""

    method: Literal[tuple(SAMPLE_METHODS)] = Field(
        "rrs", description="Mode sample with a draft model: how candidates are drawn and verified, "
        "RULE or RULE/DISTRIBUTION (docs/explanation/sampling.md has the papers). All methods are "
        "exact: none changes the distribution of the texts. rrs: "
        "recursive rejection of candidates without replacement")


class BeamSettings(section_of(Beams, "width", "draft_width", "min_width", "threshold", "layers",
                              "length_penalty", "single_cache")):
    """Mode beam (docs/explanation/beams.md). Temperature, top_k and top_p are those of the section sample."""

    method: Literal[tuple(BEAM_METHODS)] = Field(
        "iid", description="How beams and drafts of a layer are sampled: iid (a beam may come twice), "
        "without_replacement, or one for the beams and one for the drafts, as in without_replacement/iid")


class RecommendSettings(Section):
    """Top-K items of each user by a generative recommender: the stage recommend."""

    model: str | None = Field(
        None, min_length=1, description="Recommender: a folder, its URL, or a hub name with @REVISION "
        "(`dare-job recommender train` trains one). null: no recommendations")
    dtype: Dtype = Field("float32", description="Floating-point type of the recommender and its drafter. In "
                         "a narrower type than float32 recommendations depend on drafts and on the batch")
    k: int = Field(10, ge=1, le=1000, description="Recommended items per user; also the beams of the search")
    drafter: str | None = Field(
        "trie", min_length=1, description="Drafter of the constrained beam search. trie: whole levels that "
        "have few prefixes. popularity, transitions: learned from the interactions of this run. A folder: a "
        "small recommender with the same ids. null: no drafts. Beam search finds the same items with any")
    draft_depth: Literal["auto", "all"] | Annotated[int, Field(ge=1, le=25)] = Field(
        "auto", description="Drafted levels (gamma of AtSpeed). auto: as many as pay by measured forward "
        "latency, often none on a CPU. all: every level. N: N levels")
    draft_width: int = Field(40, ge=1, le=4096, description="Drafted prefixes per level (N of AtSpeed). "
                             "The drafter trie does not use it")
    draft_whole: int = Field(
        192, ge=0, le=4096, description="A level with at most this many prefixes below a user's beams is "
        "drafted whole, and then always accepted. 0: never, as in the AtSpeed paper")
    scores: Literal["raw", "renormalised"] = Field(
        "raw", description="Scores of codes. raw: log-probabilities over the whole vocabulary, as generate "
        "computes them. renormalised: over the codes that can follow, so that forced codes need no forward "
        "pass")
    exclude: list[Literal["interacted", "duplicates"]] = Field(
        ["interacted"], description="Items that are not recommended. interacted: items that the user has "
        "interacted with. duplicates: all but the most popular of the items that share an id")
    temperature: _temperature("recommend.temperature") = Field(
        0, description="Sampling temperature. 0: the K most probable ids. Above: K different ids, sampled in "
        "proportion to their probability ** (1 / temperature)")
    verify: Literal["exact", "relaxed"] = Field(
        "exact", description="Verification of drafts where temperature is above 0. exact: the distribution "
        "of the items does not change. relaxed: accepts more drafts and changes it (AtSpeed-R)")
    batch_size: int = Field(32, ge=1, le=65536, description="Users searched together on one device")
    rows_per_commit: AtLeastOne = Field(512, description="Users per output chunk, approximately. A "
                                 "killed worker loses its open chunk")

    @model_validator(mode="after")
    def _work_together(self) -> "RecommendSettings":
        if self.drafter == "trie" and not self.draft_whole:
            raise ValueError("recommend.drafter = 'trie' drafts whole levels only, and "
                             "recommend.draft_whole = 0 allows none: set draft_whole above 0, or drafter to "
                             "null")
        return self
