"""The job's settings: typed models, and the reader that turns YAML into them."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from dare_job import prompts
from dare_job.config import source as config_source
from dare_job.config.base import MOST, AtLeastOne, Section, Seed, Share
from dare_job.config.decoding import (
    BeamSettings,
    DecodeSettings,
    DrafterSettings,
    ModelSettings,
    SampleSettings,
    VerifySettings,
)
from dare_job.config.errors import explain
from dare_job.config.recommend import RecommendSettings
from dare_job.config.source import Override
from dare_job.errors import ConfigError


class InputSettings(Section):
    path: str | None = Field(None, description="folder or file with interactions, users and items")
    format: Literal["auto", "parquet", "movielens", "amazon"] = "auto"
    knowledge: str | None = Field(None, description="yesterday's text where OUT has none yet (Parquet)")
    max_reject_share: float = Field(0.01, ge=0, le=1, description="stop when more rows than this are bad")


class HistorySettings(Section):
    window: Literal["recent", "old", "new"] = Field(
        "recent", description="recent: last items; old/new: the first/last m of n, n/2 < m < n (DARE)")
    share: float = Field(0.7, gt=0.5, lt=1, description="m / n of the windows old and new")
    max_items: int = Field(20, ge=1, le=prompts.MOST_HISTORY)
    min_rating: float | None = Field(
        None, description="keep interactions rated at least this, and those without a rating")


class PromptSettings(Section):
    domain: prompts.Domain = Field("movies", description="what sets that are worded for both speak of")
    user: str = Field(prompts.SAMPLE, description="a prompt set by name, a YAML file, or a Jinja file")
    item: str = prompts.SAMPLE

    @field_validator("user", "item")
    @classmethod
    def _can_be_read(cls, value: str, info) -> str:
        try:
            prompts.load(value, info.data.get("domain", prompts.DOMAINS[0]), info.field_name)
        except ConfigError as error:
            raise ValueError(f"prompts.{info.field_name} = {value!r}: {error}") from None
        return value

    def of(self, entity: str) -> prompts.PromptSet:
        """The prompt set of an entity type, in the domain."""
        return prompts.load(getattr(self, entity), self.domain, entity)


class EmbedSettings(Section):
    source: Literal["lightgcn", "parquet"] = "lightgcn"
    users: str | None = Field(None, description="ready-made user vectors (Parquet: entity_id, vector)")
    items: str | None = None
    dim: int = Field(32, ge=2, le=MOST)
    layers: int = Field(2, ge=1, le=8)
    epochs: int = Field(20, ge=1, le=MOST)
    learning_rate: float = Field(0.01, gt=0)
    batch_size: int = Field(2048, ge=1, le=MOST)
    seed: Seed = 0

    @model_validator(mode="after")
    def _has_files(self):
        if self.source == "parquet" and not (self.users or self.items):
            raise ValueError("embed.source = parquet needs embed.users or embed.items, or both")
        return self


class GroupSettings(Section):
    clusters: AtLeastOne | Literal["auto"] = Field(
        "auto", description="k of k-means; auto: entities / target_size")
    target_size: int = Field(500, ge=2, le=MOST)
    max_group_size: int = Field(
        2000, ge=2, le=MOST, description="a larger attribute group is divided further")
    user_attributes: list[str] | Literal["learned"] = "learned"
    item_attributes: list[str] | Literal["learned"] = "learned"
    seed: Seed = 0


class RouterSettings(Section):
    min_interactions: int = Field(5, ge=0, le=MOST)
    user: Literal["auto", "collaborative", "attribute", "global"] = "auto"
    item: Literal["auto", "collaborative", "attribute", "global"] = "auto"


class PoolSettings(Section):
    own: bool = Field(True, description="mode dare: a row's own old text drafts too, as its nearest source")
    max_texts: int = Field(
        20000, ge=1, le=MOST, description="texts in a group pool; more are sampled by seed")
    max_global_texts: int = Field(200000, ge=1, le=MOST)
    seed: Seed = 0


class WaveSettings(Section):
    when: Literal["auto", "always", "never"] = Field(
        "auto", description="auto: without old text, or where another model, tokenizer or prompt wrote it")
    sizes: list[AtLeastOne] = Field(
        [50, 500], description="texts of each entity type that are there after each wave, ascending")

    @field_validator("sizes")
    @classmethod
    def _ascend(cls, value: list[int]) -> list[int]:
        if not value or any(after <= before for before, after in zip(value, value[1:], strict=False)):
            raise ValueError(f"waves.sizes = {value}: give one number or more, each larger than the one "
                             "before it, such as [500, 5000]; waves.when=never writes all rows at once")
        return value


class SparkSettings(Section):
    master: str = Field("local[*]", pattern=r"^(local(-cluster)?(\[.*\])?|yarn|(spark|k8s|mesos)://.+)$",
                        description="local[N], yarn, spark://HOST:PORT, k8s://URL")
    shards: AtLeastOne | Literal["auto"] = "auto"
    rows_per_commit: int = Field(64, ge=1, le=MOST,
                                 description="rows of a file; a killed worker loses its open ones")
    driver_memory: str = Field("2g", pattern=r"^[1-9]\d*[kmgtKMGT]$", description="as Java has it: 900m, 2g")
    ship: Literal["auto", "always", "never", "model", "pools"] = Field(
        "auto", description="carry model and pools to the executors: auto: both, unless the master is local; "
        "model or pools: only that, the other is on every host under the same path")
    conf: Annotated[dict[str, str], BeforeValidator(config_source.spark_conf)] = {}


class BaselineSettings(Section):
    rows: int = Field(
        32, ge=0, le=MOST, description="rows also decoded plainly to measure the gain, of a small night at "
        "most a quarter or a batch; 0: none")
    seed: Seed = 0


class LimitSettings(Section):
    max_error_share: Share = Field(0.05, description="publish nothing when more rows failed; null: never")


class GateSettings(Section):
    """Tonight's texts of an entity type are published only within these; null switches a check off."""

    min_failing_rows: int = Field(
        3, ge=1, le=MOST, description="fewer rows pass whatever their share: on a night of few rows one is "
        "a large share; errors and lengths have no need of it")
    max_empty_share: Share = Field(0.01, description="texts without a character that shows")
    short_tokens: int = Field(8, ge=1, le=MOST, description="a text that ended with fewer is too short")
    max_short_share: Share = 0.02
    max_cut_off_share: Share = Field(0.5, description="texts that decode.max_new_tokens cut off")
    loop_ngram: int = Field(32, ge=1, le=512, description="a loop repeats up to so many tokens ...")
    loop_repeats: int = Field(4, ge=2, le=MOST, description="... so many times or more ...")
    loop_tokens: int = Field(24, ge=2, le=MOST, description="... and is so many tokens long or longer")
    max_loop_share: Share = Field(0.02, description="texts that end in a loop")
    max_unprintable_share: Share = Field(
        0.01, description="texts with control characters but newline and tab, U+FFFD, or broken UTF-8")
    max_relaxed_share: Share = Field(0.25, description="tokens that were not the model's first choice")
    max_length_ratio: Annotated[float, Field(ge=1)] | None = Field(
        1.3, description="median of a text's tokens against those of the entity's text before, either way")
    max_length_distance: Share = Field(
        0.3, description="Kolmogorov-Smirnov distance of the same lengths; 0: as before, 1: all others")
    min_length_pairs: int = Field(50, ge=1, le=MOST, description="fewer texts tell nothing of lengths")


class EncodeSettings(Section):
    model: str | None = Field(None, min_length=1, description="null: no features; 'embedded' "
                              "(all-MiniLM-L6-v2, extra encode), a local folder, its URL, or a hub name")
    revision: str | None = None
    batch_size: int = Field(32, ge=1, le=65536, description="texts encoded at once, of similar length")
    window: int | None = Field(
        None, ge=16, le=MOST, description="tokens that the encoder reads at once; a longer text is the mean "
        "of several windows; null: as many as it can")
    clusters: list[Annotated[int, Field(ge=2, le=65536)]] = Field(
        [64, 64], description="sizes of the levels of residual k-means; []: none")
    refit: bool = Field(False, description="make new clusters tonight: all cluster ids change")
    max_drift: Annotated[float, Field(ge=1)] | None = Field(
        1.25, description="warn where tonight's vectors are this many times as far from their clusters as on "
        "the night that the clusters were made; null: never")
    row_group_rows: int = Field(8192, ge=1, le=MOST, description="rows of a row group, but of the last")
    seed: Seed = 0

    @field_validator("clusters")
    @classmethod
    def _ids_fit(cls, value: list[int]) -> list[int]:
        if math.prod(value) > MOST:
            raise ValueError(f"encode.clusters = {value}: the ids of the last level, {math.prod(value)}, do "
                             "not fit into 32 bits; give fewer or smaller levels, such as [64, 64]")
        return value


class LogSettings(Section):
    format: Literal["text", "json"] = Field(
        "text", description="format of the log on standard error; json: one object per line, for machines")
    every_s: float = Field(15, ge=0.5, description="seconds between two lines, or metrics, of progress")
    file: bool = Field(True, description="all records also in OUT/_work/dt=D/logs/RUN_ID.jsonl")


class MetricsSettings(Section):
    file: str | None = Field(None, pattern=r"^([^:]|:[^/]|:/[^/])*\.prom$", description="a path, no URL, "
                             "that ends in .prom, in the folder of node_exporter's textfile collector")
    push: str | None = Field(None, pattern=r"^https?://.+", description="a Pushgateway's address: "
                             "http://HOST:9091 or http://USER:PASSWORD@HOST:9091")
    job: str = Field("dare-job", min_length=1, description="job of the metrics that are pushed")
    labels: dict[str, str] = Field({}, description="labels of all metrics; for a push the group")

    @field_validator("labels")
    @classmethod
    def _free_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not re.fullmatch(r"[a-zA-Z_]\w*", name, re.ASCII) or name.startswith("__") or name in _LABELS:
                raise ValueError(f"metrics.labels.{name}: use letters, digits and _, and none of the names "
                                 f"{', '.join(sorted(_LABELS))}, which the metrics use themselves")
        return value


_LABELS = {"job", "entity", "stage", "run_id", "date", "command"}


class JobConfig(Section):
    out: str = Field("out", min_length=1)
    input: InputSettings = InputSettings()
    model: ModelSettings = ModelSettings()
    history: HistorySettings = HistorySettings()
    prompts: PromptSettings = PromptSettings()
    decode: DecodeSettings = DecodeSettings()
    drafter: DrafterSettings = DrafterSettings()
    verify: VerifySettings = VerifySettings()
    sample: SampleSettings = SampleSettings()
    beam: BeamSettings = BeamSettings()
    embed: EmbedSettings = EmbedSettings()
    group: GroupSettings = GroupSettings()
    router: RouterSettings = RouterSettings()
    pools: PoolSettings = PoolSettings()
    waves: WaveSettings = WaveSettings()
    spark: SparkSettings = SparkSettings()
    baseline: BaselineSettings = BaselineSettings()
    limits: LimitSettings = LimitSettings()
    gates: GateSettings = GateSettings()
    encode: EncodeSettings = EncodeSettings()
    recommend: RecommendSettings = RecommendSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()

    @model_validator(mode="after")
    def _sampled_texts_keep_their_law(self):
        for name, usual in (("rule", "strict"), ("target", None)):
            if self.decode.mode in ("sample", "beam") and getattr(self.verify, name) != usual:
                raise ValueError(
                    f"verify.{name} = {getattr(self.verify, name)!r} with decode.mode = "
                    f"{self.decode.mode!r}: what is sampled has the model's own law, and relaxed rules "
                    f"change it; leave verify.{name} out, or use decode.mode = dare")
        return self

    @model_validator(mode="after")
    def _drafter_has_a_mode(self):
        mode = self.decode.mode
        if self.drafter.model and mode not in ("dare", "sample", "beam"):
            raise ValueError(f"drafter.model = {self.drafter.model!r} with decode.mode = {mode!r}, which "
                             "uses no draft model: use decode.mode = dare, sample or beam, or leave "
                             "drafter.model out")
        if self.drafter.model and mode == "beam":
            self.beam.require_passing_layers()
        return self


def load(path: str | Path | Sequence[str | Path], overrides: list[str] | None = None,
         flags: dict[str, tuple[str, str]] | None = None) -> JobConfig:
    """Read YAML files and apply ``section.key=value`` overrides (values are YAML too), then flags.

    path   one file, or several: values of a later file win, key by key; an empty list: defaults
    flags  values by key, each with the name of its flag, as in ``{"out": ("--out", "o")}``

    Raises ConfigError naming the key, the file or flag, and the valid choices.
    """
    first, *more = [Path(path)] if isinstance(path, str | Path) else [*map(Path, path)] or [None]
    data = config_source.read(first) if first else {}
    files = []
    for file in more:
        above = config_source.read(file)
        files += [value for value in config_source.origins(above, file)
                  if value.value not in (None, {}) or value.key not in data]  # not a section left empty
        config_source.merge(data, above, file)
    given = [config_source.parse(text) for text in overrides or []]
    given += [Override(key, value, f"{flag} {value}") for key, (flag, value) in (flags or {}).items()]
    for override in given:
        config_source.apply(data, override, JobConfig)
    data = {name: value for name, value in data.items() if value is not None}  # `decode:` alone: defaults
    try:
        return JobConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, JobConfig, str(first or ""), [*files, *given])) from None
