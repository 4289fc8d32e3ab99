"""The job's settings: typed sections, and the reader that turns YAML into them."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from dare_job import prompts
from dare_job.config import source as config_source
from dare_job.config.base import MAX_INT, AtLeastOne, NotNegative, Section, Share, check_zone
from dare_job.config.decoding import (
    BeamSettings,
    DecodeSettings,
    DrafterSettings,
    ModelSettings,
    RecommendSettings,
    SampleSettings,
    VerifySettings,
)
from dare_job.config.errors import explain
from dare_job.config.gates import GateSettings
from dare_job.config.plugins import PlugIn
from dare_job.config.refresh import RefreshSettings
from dare_job.config.source import Override
from dare_job.config.tables import InputTables
from dare_job.decode.settings import RULES, EngineSettings, check_widths
from dare_job.errors import ConfigError
from dare_job.prompts import PromptSet


class InputSettings(Section):
    """Interactions, users and items, and earlier texts."""

    path: str | None = Field(None, description="Folder or file with interactions, users and items, or a URL")
    format: str = Field("auto", description="Format of the input: parquet (tables with the usual names), "
                        "movielens, amazon, recbole, or another public data set. auto: recognized from its "
                        "files")
    tables: InputTables = InputTables()
    knowledge: str | None = Field(None, description="Folder of earlier texts (Parquet) for a first run, when "
                                  "OUT has none yet. null: none")
    max_reject_share: float = Field(0.01, ge=0, le=1, description="Maximum share of malformed input rows; "
                                    "with more the run stops before it loads a model")
    day_boundary: str = Field("UTC", description="Time zone in whose midnight a date ends, such as "
                              "Europe/Berlin. Interactions up to the end of --date count")

    @field_validator("day_boundary")
    @classmethod
    def _is_zone(cls, value: str) -> str:
        return check_zone(value, "day_boundary")


class HistorySettings(Section):
    """The interactions that prompts show."""

    window: Literal["recent", "old", "new"] = Field(
        "recent", description="Part of a user's n interactions that prompts show. recent: the last ones. "
        "old, new: the first or last m of them, n/2 < m < n, as in the DARE paper")
    share: float = Field(0.7, gt=0.5, lt=1, description="Windows old and new: m / n. 0.7 is this project's "
                         "choice")
    max_items: int = Field(20, ge=1, le=prompts.MAX_HISTORY, description="Maximum number of interactions "
                           "in a prompt. Longer prompts take more time and memory")
    repeats: Literal["all", "newest"] = Field(
        "all", description="Interactions of a user with the same item. all: each is an entry of the history. "
        "newest: only the last one is, so that max_items counts different items")
    min_rating: float | None = Field(None, description="Lowest rating of an interaction that counts; those "
                                     "without a rating always count. null: all")


class PromptSettings(Section):
    """Prompt sets of users and items."""

    domain: prompts.Domain = Field(
        "movies",
        description="What the items are. Prompt sets that serve both domains take their words from it")
    user: str | None = Field(prompts.SAMPLE, description="Prompt set of users: its name, or a YAML or Jinja "
                             "file. A row whose prompt changes is generated again. null: no texts about "
                             "users")
    item: str | None = Field(prompts.SAMPLE, description="Prompt set of items: its name, or a YAML or Jinja "
                             "file. null: no texts about items")

    history: Literal["full", "compact"] = Field(
        "full", description="What templates see of a user's history. compact: titles alone, without the year "
        "in parentheses, ratings and attributes, which makes prompts shorter "
        "([tokens](prompts.md)). A change of this setting makes the texts of all users stale")

    @field_validator("user", "item")
    @classmethod
    def _can_be_read(cls, value: str | None, info) -> str | None:
        if value is None:
            return None
        try:
            prompts.load(value, info.data.get("domain", prompts.DOMAINS[0]), info.field_name)
        except ConfigError as error:
            raise ValueError(f"prompts.{info.field_name} = {value!r}: {error}") from None
        return value

    def of(self, entity: str, max_new_tokens: int = EngineSettings.max_new_tokens) -> prompts.PromptSet:
        """The prompt set of an entity type, in the domain, for texts of at most ``max_new_tokens``.

        Returns a set without templates if the entity type gets no texts.
        """
        name = getattr(self, entity)
        if name is None:
            return prompts.PromptSet("none", 1, {})
        prompt_set = prompts.load(name, self.domain, entity, max_new_tokens)
        return replace(prompt_set, compact=self.history == "compact" and entity == "user")

    @model_validator(mode="after")
    def _something_is_written(self):
        if self.user is None and self.item is None:
            raise ValueError("prompts.user and prompts.item are both null: name at least one prompt set")
        return self


class EmbedSettings(Section):
    """Vectors of users and items: ready-made ones, or those of LightGCN."""

    vectors: dict[Literal["user", "item"], str] = Field(
        {}, description="Ready-made vectors: Parquet file or folder (entity_id, vector) by entity type, such "
        "as {user: FILE, item: FILE}. An entity type that is left out has no vectors. {}: LightGCN")
    dim: int = Field(32, ge=2, le=MAX_INT, description="Dimensions of LightGCN's vectors")
    epochs: AtLeastOne = Field(20, description="Training epochs of LightGCN")


class GroupSettings(Section):
    """Groups of similar entities, which share a draft pool and a shard where possible."""

    clusters: AtLeastOne | Literal["auto"] = Field(
        "auto", description="Number of k-means clusters. auto: number of entities / target_size")
    target_size: int = Field(500, ge=2, le=MAX_INT, description="Average number of entities in a group. "
                             "An attribute group of more than four times as many is split by a further "
                             "attribute")
    user_attributes: list[str] | Literal["learned"] = Field(
        "learned", description="Attributes that group users, in order. learned: chosen by information gain")
    item_attributes: list[str] | Literal["learned"] = Field(
        "learned", description="Attributes that group items, in order. learned: chosen by information gain")


class RouterSettings(Section):
    """Which pool an entity drafts from, besides the global one."""

    min_interactions: NotNegative = Field(5, description="Entities with fewer interactions use the "
                                  "pool of their attribute group in place of their collaborative group")
    user: Literal["auto", "collaborative", "attribute", "global"] = Field(
        "auto", description="Pool of users. auto: by min_interactions")
    item: Literal["auto", "collaborative", "attribute", "global"] = Field(
        "auto", description="Pool of items. auto: by min_interactions")


class PoolSettings(Section):
    """Size and content of draft pools."""

    own: bool = Field(True, description="Mode dare: use a row's own previous text as its nearest draft "
                      "source")
    max_texts: AtLeastOne = Field(20000, description="Maximum number of texts in a group pool; if "
                           "there are more, a random sample is kept. A text takes about 11 bytes per token "
                           "on disk")
    max_global_texts: AtLeastOne = Field(200000, description="Maximum number of texts in the global "
                                  "pool; if there are more, a random sample is kept")


class WaveSettings(Section):
    """Generation in waves, each with the texts of the waves before it as drafts."""

    when: Literal["auto", "always", "never"] = Field(
        "auto", description="When to generate in waves, so that the first texts are drafts for the others. "
        "auto: if there are no earlier texts, or another model, tokenizer or prompt wrote them")
    sizes: list[AtLeastOne] = Field(
        [50, 500], description="Number of texts of each entity type after each wave, ascending. Add 5000 for "
        "inputs of more than 100,000 rows")

    @field_validator("sizes")
    @classmethod
    def _ascend(cls, value: list[int]) -> list[int]:
        if not value or any(after <= before for before, after in zip(value, value[1:], strict=False)):
            raise ValueError(f"waves.sizes = {value}: give one number or more, each larger than the one "
                             "before it, such as [500, 5000]; waves.when=never generates all rows at once")
        return value


class SparkSettings(Section):
    """Spark session, shards and output files."""

    master: str = Field("local[*]", pattern=r"^(local(-cluster)?(\[.*\])?|yarn|(spark|k8s|mesos)://.+)$",
                        description="Spark master: local[N], yarn, spark://HOST:PORT, k8s://URL. --master of "
                        "spark-submit has precedence")
    shards: AtLeastOne | Literal["auto"] = Field(
        "auto", description="Number of Spark tasks that generate. auto: up to four per task slot, by "
        "estimated tokens")
    rows_per_commit: AtLeastOne = Field(
        64, description="Rows per output file. A killed worker loses the rows of its incomplete files: at "
        "most one file and eight batches, because rows are read ahead and the longest start first")
    ship: Literal["auto", "always", "never", "model", "pools"] = Field(
        "auto", description="What the driver sends to executors. auto: model and pools, unless the master is "
        "local. model, pools: that alone; the other is on every host under the same path")
    conf: Annotated[dict[str, str], BeforeValidator(config_source.spark_conf)] = Field(
        {}, description="Spark properties, such as spark.driver.memory: 8g (default: 2g)")


class BaselineSettings(Section):
    """Autoregressive decoding of some rows, for the speed-up in the report."""

    rows: NotNegative | Literal["auto"] = Field(
        "auto", description="Rows that are also decoded autoregressively, to measure the speed-up: at most a "
        "quarter of the run's rows, or one batch for each worker if that is more. auto: 32, or one batch for "
        "each worker and in large runs four if that is more. The speed-up is shown only if each worker has a "
        "full batch, of workers with a GPU of their own at least one. 0: no measurement")


class LimitSettings(Section):
    """When nothing is published."""

    max_error_share: Share = Field(0.05, description="Maximum share of failed rows; with more nothing is "
                                   "published (exit code 3). null: no limit")
    min_input_share: Share = Field(0.5, description="Minimum share of the interactions (up to the date), "
                                   "users and items of the newest earlier date; with fewer the run stops "
                                   "before it writes anything (exit code 3). null: no limit")


class EncodeSettings(Section):
    """Published texts as vectors, ids and clusters for CTR models (docs/how-to/features.md)."""

    model: str | None = Field(
        None, min_length=1, description="Text encoder: 'embedded' (all-MiniLM-L6-v2, extra encode), a "
        "folder, its URL, or a hub name with @REVISION. null: no features")
    batch_size: int = Field(32, ge=1, le=65536, description="Texts of similar length encoded together")
    clusters: list[Annotated[int, Field(ge=2, le=65536)]] = Field(
        [64, 64], description="Clusters on each level of residual k-means. []: no clusters")
    refit: bool = Field(False, description="Fit new clusters in this run, which changes all cluster ids")

    @field_validator("clusters")
    @classmethod
    def _ids_fit(cls, value: list[int]) -> list[int]:
        if math.prod(value) > MAX_INT:
            raise ValueError(f"encode.clusters = {value}: the ids of the last level, {math.prod(value)}, do "
                             "not fit into 32 bits; give fewer or smaller levels, such as [64, 64]")
        return value


class LogSettings(Section):
    format: Literal["text", "json"] = Field(
        "text", description="Format of the log on standard error. json: one object per line, for machines. "
        "OUT/_work/dt=D/logs/RUN_ID.jsonl always has all records as JSON")


class MetricsSettings(Section):
    """Prometheus metrics of a run (docs/how-to/monitoring.md)."""

    file: str | None = Field(None, pattern=r"^([^:]|:[^/]|:/[^/])*\.prom$", description="Path (no URL) of a "
                             ".prom file in the folder of node_exporter's textfile collector. null: none")
    push: str | None = Field(None, pattern=r"^https?://.+", description="Address of a Pushgateway, "
                             "http://HOST:9091 or http://USER:PASSWORD@HOST:9091. null: no push")
    labels: dict[str, str] = Field({}, description="Labels of all metrics, which also identify the group "
                                   "of a push. job: name of the pushed job (default: dare-job)")

    @field_validator("labels")
    @classmethod
    def _free_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not re.fullmatch(r"[a-zA-Z_]\w*", name, re.ASCII) or name.startswith("__") or name in _LABELS:
                raise ValueError(f"metrics.labels.{name}: use letters, digits and _, and none of the names "
                                 f"{', '.join(sorted(_LABELS))}, which the metrics use themselves")
        return value


_LABELS = {"entity", "stage", "run_id", "date", "command"}


class CostSettings(Section):
    per_gpu_hour: float | None = Field(None, ge=0, description="Price of one worker (GPU) for an hour, in "
                                       "your currency, for the costs in report, dry run and tune. null: no "
                                       "costs")


class JobConfig(Section):
    out: str = Field("out", min_length=1, description="Output folder: a path, s3://BUCKET/folder or "
                     "hdfs:///folder. Texts go to OUT/knowledge, files of a run to OUT/_work")
    seed: NotNegative = Field(0, description="Random seed of all stages. Sampled text depends on it, on "
                      "the row's entity type and id, and on its drafts, but not on the batch")
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
    refresh: RefreshSettings = RefreshSettings()
    limits: LimitSettings = LimitSettings()
    gates: GateSettings = GateSettings()
    encode: EncodeSettings = EncodeSettings()
    recommend: RecommendSettings = RecommendSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    cost: CostSettings = CostSettings()

    @model_validator(mode="after")
    def _sampled_text_is_exact(self):
        for name, usual in (("rule", "strict"), ("target", None)):
            if self.decode.mode in ("sample", "beam") and getattr(self.verify, name) != usual:
                raise ValueError(
                    f"verify.{name} = {getattr(self.verify, name)!r} with decode.mode = "
                    f"{self.decode.mode!r}: sampled text has the model's distribution, and relaxed rules "
                    f"change it; leave verify.{name} out, or use decode.mode = dare")
        return self

    @model_validator(mode="after")
    def _mode_has_its_settings(self):
        mode, drafted = self.decode.mode, self.drafter.model is not None
        if drafted and mode not in ("dare", "sample", "beam"):
            raise ValueError(f"drafter.model = {self.drafter.model!r} with decode.mode = {mode!r}, which "
                             "uses no draft model: use decode.mode = dare, sample or beam, or leave "
                             "drafter.model out")
        for key, plugin in self.plug_ins.items():
            modes = ("dare", "sample") if key == "drafter.plugin" else ("dare",)
            if mode not in modes:
                raise ValueError(f"{key} = {plugin.text!r} with decode.mode = {mode!r}, which does not use "
                                 f"it: use decode.mode = {' or '.join(modes)}, or leave {key} out")
        try:
            check_widths(self.beam, self.sample.temperature, drafted and mode == "beam")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def plug_ins(self) -> dict[str, PlugIn]:
        """The plug-ins that are named, by the key of their setting."""
        named = (("drafter", "drafter.plugin", self.drafter.plugin, (None,)),
                 ("verifier", "verify.rule", self.verify.rule, RULES),
                 ("draft budget", "decode.nodes", self.decode.nodes, ("auto",)))
        return {key: PlugIn.parse(kind, key, value) for kind, key, value, others in named
                if value not in others and not isinstance(value, int)}

    def prompt_set(self, entity: str) -> PromptSet:
        """The prompt set of an entity type, for texts of at most ``decode.max_new_tokens``."""
        return self.prompts.of(entity, self.decode.max_new_tokens)


def load(path: str | Path | Sequence[str | Path], overrides: list[str] | None = None,
         flags: dict[str, tuple[str, str]] | None = None) -> JobConfig:
    """Read YAML files, then apply overrides and flags.

    Parameters
    ----------
    path
        One file, or several: values of a later file have precedence, key by key; an empty list: defaults.
    overrides
        ``section.key=value``, the value in YAML.
    flags
        Values by key, each with the name of its flag, as in ``{"out": ("--out", "o")}``.

    Raises
    ------
    ConfigError
        Names the key, its file or flag, and the valid choices.
    """
    files = [Path(path)] if isinstance(path, str | Path) else [*map(Path, path)]
    data, values = {}, []
    for file in files:
        above = config_source.read(file)
        values += [value for value in config_source.origins(above, file)
                   if value.value not in (None, {}) or value.key not in data]  # not a section left empty
        config_source.merge(data, above, file)
    options = [config_source.parse(text) for text in overrides or []]
    options += [Override(key, value, f"{flag} {value}") for key, (flag, value) in (flags or {}).items()]
    for override in options:
        config_source.apply(data, override, JobConfig)
    data = {name: value for name, value in data.items() if value is not None}  # `decode:` alone: defaults
    try:
        return JobConfig.model_validate(data)
    except ValidationError as error:
        file = str(files[0]) if files else ""
        raise ConfigError(explain(error, JobConfig, file, [*values, *options])) from None
