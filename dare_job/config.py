"""The job's settings: typed models, and the reader that turns YAML into them."""

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dare_job.config_errors import explain
from dare_job.errors import ConfigError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class InputSettings(Section):
    path: str | None = Field(None, description="folder or file with interactions, users and items")
    format: Literal["auto", "parquet", "movielens", "amazon"] = "auto"
    knowledge: str | None = Field(None, description="yesterday's text where OUT has none yet (Parquet)")
    max_reject_share: float = Field(0.01, ge=0, le=1, description="stop when more rows than this are bad")


class ModelSettings(Section):
    name: str = Field("embedded", description="'embedded', a local folder, or a hub name")
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    chat_template: Literal["auto", "always", "never"] = "auto"
    trust_remote_code: bool = False


class HistorySettings(Section):
    window: Literal["recent", "old", "new"] = Field(
        "recent", description="recent: last items; old/new: the first/last m of n, n/2 < m < n (DARE)")
    share: float = Field(0.7, gt=0.5, lt=1, description="m / n of the windows old and new")
    max_items: int = Field(20, ge=1, le=500)
    min_rating: float | None = Field(
        None, description="keep interactions rated at least this, and those without a rating")


class PromptSettings(Section):
    user: str = Field("kar", description="a prompt set by name, or a YAML file")
    item: str = "kar"


class DecodeSettings(Section):
    mode: Literal["dare", "resd", "autoregressive"] = "dare"
    max_new_tokens: int = Field(256, ge=1)
    min_new_tokens: int = Field(0, ge=0)
    batch_size: int = Field(8, ge=1, description="rows decoded at once on one device")
    nodes: int = Field(16, ge=0, le=512, description="draft nodes a row and forward")
    depth: int = Field(12, ge=1, le=64, description="longest draft path")
    context: int = Field(12, ge=1, le=32, description="longest context looked up")
    blend_lambda: float = Field(8.0, gt=0)


class VerifySettings(Section):
    rule: Literal["strict", "relaxed", "top_k", "threshold", "literal"] = Field(
        "strict", description="strict equals greedy decoding; relaxed needs top k and p; literal is eq. 8")
    k: int = Field(2, ge=1, le=64)
    p: float = Field(0.1, ge=0, lt=1)
    reproducible: bool = Field(
        False, description="relaxed text independent of batch and partition: keeps each row's draft budget "
        "fixed, as it always is today, and leaves batch_size out of what makes a row stale")


class EmbedSettings(Section):
    source: Literal["lightgcn", "parquet"] = "lightgcn"
    users: str | None = Field(None, description="ready-made user vectors (Parquet: entity_id, vector)")
    items: str | None = None
    dim: int = Field(32, ge=2)
    layers: int = Field(2, ge=1, le=8)
    epochs: int = Field(20, ge=1)
    learning_rate: float = Field(0.01, gt=0)
    batch_size: int = Field(2048, ge=1)
    seed: int = 0


class GroupSettings(Section):
    clusters: int | Literal["auto"] = Field("auto", description="k of k-means; auto: entities / target_size")
    target_size: int = Field(500, ge=2)
    max_group_size: int = Field(2000, ge=2, description="a larger attribute group is divided further")
    user_attributes: list[str] | Literal["learned"] = "learned"
    item_attributes: list[str] | Literal["learned"] = "learned"
    seed: int = 0


class RouterSettings(Section):
    min_interactions: int = Field(5, ge=0)
    user: Literal["auto", "collaborative", "attribute", "global"] = "auto"
    item: Literal["auto", "collaborative", "attribute", "global"] = "auto"


class PoolSettings(Section):
    max_texts: int = Field(20000, ge=1, description="texts in a group pool; more are sampled by seed")
    max_global_texts: int = Field(200000, ge=1)
    seed: int = 0


class SparkSettings(Section):
    master: str = "local[*]"
    shards: int | Literal["auto"] = "auto"
    rows_per_commit: int = Field(64, ge=1, description="rows lost at most when a worker is killed")
    driver_memory: str = "2g"
    conf: dict[str, str] = {}


class BaselineSettings(Section):
    rows: int = Field(32, ge=0, description="rows also decoded plainly to measure the gain; 0: none")
    seed: int = 0


class LimitSettings(Section):
    max_error_share: float = Field(0.05, ge=0, le=1, description="publish nothing when more rows failed")


class JobConfig(Section):
    out: str = "out"
    input: InputSettings = InputSettings()
    model: ModelSettings = ModelSettings()
    history: HistorySettings = HistorySettings()
    prompts: PromptSettings = PromptSettings()
    decode: DecodeSettings = DecodeSettings()
    verify: VerifySettings = VerifySettings()
    embed: EmbedSettings = EmbedSettings()
    group: GroupSettings = GroupSettings()
    router: RouterSettings = RouterSettings()
    pools: PoolSettings = PoolSettings()
    spark: SparkSettings = SparkSettings()
    baseline: BaselineSettings = BaselineSettings()
    limits: LimitSettings = LimitSettings()


def load(path: str | Path, overrides: list[str] | None = None) -> JobConfig:
    """Read a YAML file and apply ``section.key=value`` overrides (values are YAML too).

    Raises ConfigError naming the key, the file and the valid choices.
    """
    path = Path(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of sections, found {type(data).__name__}")
    for override in overrides or []:
        _apply(data, override)
    try:
        return JobConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, JobConfig, str(path))) from None


def _apply(data: dict, override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override!r}: write it as section.key=value")
    *sections, name = key.strip().split(".")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise ConfigError(f"--set {override!r}: {section} is not a section")
    try:
        data[name] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override!r}: the value is not valid YAML") from None
