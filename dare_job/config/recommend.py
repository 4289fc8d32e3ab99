"""Settings of top-K lists of items."""

from typing import Literal

from pydantic import Field, model_validator

from dare_job.config.base import MOST, Dtype, Section, Seed


class RecommendSettings(Section):
    """Lists of items by a generative recommender: the stage recommend."""

    model: str | None = Field(None, min_length=1, description="null: no lists; a recommender's folder, its "
                              "URL, or a hub name (dare-job train-recommender)")
    revision: str | None = None
    dtype: Dtype = Field("float32", description="of the recommender and its drafter. In a narrower type "
                         "lists hang on what drafts and on who shares a batch")
    k: int = Field(10, ge=1, le=1000, description="items of a list, and beams of the search")
    drafter: str | None = Field("trie", min_length=1, description="null: plain beam search; trie: levels "
                                "with few prefixes, whole; popularity or transitions (learned from tonight's "
                                "interactions); or the folder of a small recommender with the same ids. The "
                                "lists are the same")
    draft: Literal["auto", "always"] = Field(
        "auto", description="auto: as deep as it pays by what forwards cost here, often not at all on a "
        "processor; always: draft_depth levels")
    draft_width: int = Field(40, ge=1, le=4096, description="N: drafted prefixes of a level; of trie: none")
    draft_whole: int = Field(192, ge=0, le=4096, description="a level with at most so many prefixes below a "
                             "user's beams is drafted whole, so that it is always accepted")
    draft_depth: int | None = Field(None, ge=1, le=25, description="gamma: levels of a draft; null: all")
    scores: Literal["raw", "renormalised"] = Field(
        "raw", description="raw: log-probabilities over the whole vocabulary, as generate has them; "
        "renormalised: over the codes that an id can go on with, so that forced codes cost no forward")
    exclude: list[Literal["seen", "duplicates"]] = Field(
        ["seen"], description="seen: items that the user has taken; duplicates: all but the most popular of "
        "the items that share an id")
    temperature: float = Field(0, ge=0, description="0: the K most probable ids; from 1e-6 on: K different "
                               "ids are drawn, in proportion to their probability ** (1 / temperature)")
    verify: Literal["exact", "relaxed"] = Field(
        "exact", description="drafts of drawn lists: exact keeps their law; relaxed (AtSpeed) accepts more "
        "and changes it. At temperature 0 lists are always those of beam search")
    seed: Seed = 0
    batch_size: int = Field(32, ge=1, le=65536, description="users searched at once on one device")
    rows_per_commit: int = Field(512, ge=1, le=MOST, description="users of a chunk, about; a killed worker "
                                 "loses its open one")

    @model_validator(mode="after")
    def _work_together(self) -> "RecommendSettings":
        if 0 < self.temperature < 1e-6:
            raise ValueError(f"temperature {self.temperature:g} is neither 0 nor at least 1e-6: float32 has "
                             "no numbers for it")
        if self.drafter == "trie" and not self.draft_whole:
            raise ValueError("drafter: trie drafts whole levels alone, and draft_whole: 0 has none: set "
                             "draft_whole above 0, or drafter to null")
        return self
