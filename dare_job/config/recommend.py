"""Settings of top-K recommendations."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dare_job.config.base import AtLeastOne, Section
from dare_job.config.options import Dtype


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
                             "Drafter trie does not use it")
    draft_whole: int = Field(
        192, ge=0, le=4096, description="A level with at most this many prefixes below a user's beams is "
        "drafted whole, and then always accepted. 0: never, as in the AtSpeed paper")
    scores: Literal["raw", "renormalised"] = Field(
        "raw", description="Scores of codes. raw: log-probabilities over the whole vocabulary, as generate "
        "computes them. renormalised: over the codes that can follow, so that forced codes need no forward "
        "pass")
    exclude: list[Literal["seen", "duplicates"]] = Field(
        ["seen"], description="Items that are not recommended. seen: items that the user has interacted "
        "with. duplicates: all but the most popular of the items that share an id")
    temperature: float = Field(
        0, ge=0, description="Sampling temperature. 0: the K most probable ids. From 1e-6: K different ids, "
        "sampled in proportion to their probability ** (1 / temperature)")
    verify: Literal["exact", "relaxed"] = Field(
        "exact", description="Verification of drafts where temperature is above 0. exact: the distribution "
        "of the items does not change. relaxed: accepts more drafts and changes it (AtSpeed-R)")
    batch_size: int = Field(32, ge=1, le=65536, description="Users searched together on one device")
    rows_per_commit: AtLeastOne = Field(512, description="Users per output chunk, approximately. A "
                                 "killed worker loses its open chunk")

    @model_validator(mode="after")
    def _work_together(self) -> "RecommendSettings":
        if 0 < self.temperature < 1e-6:
            raise ValueError(f"recommend.temperature = {self.temperature:g}: use 0, or 1e-6 or above")
        if self.drafter == "trie" and not self.draft_whole:
            raise ValueError("recommend.drafter = 'trie' drafts whole levels only, and "
                             "recommend.draft_whole = 0 allows none: set draft_whole above 0, or drafter to "
                             "null")
        return self
