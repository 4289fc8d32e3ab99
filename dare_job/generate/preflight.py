"""Checks on the driver, before a run starts, that its drafting and sampling settings are valid."""

from pathlib import Path

from dare_job.config.settings import JobConfig
from dare_job.decode.settings import SAMPLE_METHODS
from dare_job.errors import ConfigError, InfrastructureError, ModelError
from dare_job.job import Job
from dare_job.models import files
from dare_job.models.adapters import has_adapter
from dare_job.schemas import ENTITIES
from dare_job.spark.environment import is_local
from dare_job.tables import published

_ADVICE = ("dare-job drafter train trains a draft model on published text; without drafter.model, earlier "
           "texts are the drafts")


def check_drafting(job: Job) -> None:
    """Check the settings of drafting and sampling without loading weights.

    For a draft model, check its folder, its tokenizer, its tree size, and in mode ``sample`` whether the
    verification rule is exact for the draft distribution.

    Raises
    ------
    ConfigError, ModelError, InfrastructureError
        With the setting, its value and the fix.
    """
    _require_biased_tokens(job)
    if job.config.drafter.model is None:
        return
    _require_folder(job)
    if job.config.decode.mode != "beam":  # the section beam determines its drafts
        _require_tree(job.config)
    _require_same_tokens(job)


def check_model(job: Job) -> None:
    """Check by the configuration whether the engine supports the model, before any stage computes.

    A model that wrote the previous texts is supported, which saves importing torch on the driver.

    Raises
    ------
    ModelError
        It does not. The message names the model and the reason.
    """
    old = job.space.previous(ENTITIES[0])
    known = old and published.read_manifest(old).get("model", {}).get("hash") == job.model_hash
    if known or job.config.model.name == files.EMBEDDED:
        return
    model = job.config.model
    try:
        config = require_supported(job.model_path, model.trust_remote_code,
                                   job.config.decode.repetition_penalty)
        _require_packages(job, config)
    except ModelError as error:
        raise ModelError(f"model.name = {model.name}: {error}") from error


def require_supported(path: Path, trust_remote_code: bool, repetition_penalty: float | None = None):
    """Check the configuration and the generation config of a model, without loading weights.

    Returns
    -------
    PreTrainedConfig

    Raises
    ------
    ModelError
        The model is not supported, not even without drafts.
    """
    from dare_job.decode.engine.generation_config import read_rules
    from dare_job.decode.model import loading, support

    outline = loading.outline(path, trust_remote_code)
    support.undrafted_traits(outline)
    read_rules(outline.generation_config, repetition_penalty)
    return outline.config


def _require_packages(job: Job, config) -> None:
    """Check packages for quantized weights and adapters, if the workers run on this host."""
    from dare_job.decode.model import adapter, loading, quantized

    if quantized.method(config) is None and not has_adapter(job.model_path):
        return
    if is_local(job.spark.sparkContext.master):
        quantized.require(config, loading.device(job.config.model.device), str(job.model_path))
        adapter.require_peft(job.model_path)


def _require_biased_tokens(job: Job) -> None:
    bias = job.config.sample.logit_bias
    if not bias or job.config.decode.mode != "sample":
        return
    size = files.vocabulary(job.model_path, job.config.model.trust_remote_code)
    if max(bias) >= size:
        raise ConfigError(f"sample.logit_bias = {bias}: {job.config.model.name} has token ids up to "
                          f"{size - 1}; remove {max(bias)}")


def _require_folder(job: Job) -> str:
    """The fingerprint of the draft model."""
    try:
        files.tokenizer_hash(job.draft_path)
        return job.draft_hash
    except (ModelError, InfrastructureError) as error:
        raise type(error)(f"drafter.model = {job.config.drafter.model!r}: {error}; {_ADVICE}") from error


def _require_tree(config: JobConfig) -> None:
    from dare_job.decode.draft.sampled_tree import TreeShape

    decode, shape = config.decode, TreeShape.parse(config.drafter.tree)
    if decode.nodes != "auto":
        shape.require(decode.nodes)
    if shape.depth > decode.depth:
        raise ConfigError(f"drafter.tree = {shape} has {shape.depth} levels, more than decode.depth = "
                          f"{decode.depth}; raise decode.depth or use a tree with fewer levels")
    if decode.mode == "sample":
        _require_exact(config, shape.widths)


def _require_exact(config: JobConfig, widths: tuple[int, ...]) -> None:
    from dare_job.decode.sampling.engine import Sampling

    rule, distribution = SAMPLE_METHODS[config.sample.method]
    try:
        Sampling(distribution=distribution, rule=rule).require(widths)
    except ConfigError as error:
        raise ConfigError(f"sample.method = {config.sample.method}, drafter.tree = "
                          f"{config.drafter.tree}: {error}") from error


def _require_same_tokens(job: Job) -> None:
    from transformers import AutoTokenizer

    from dare_job.decode.draft.tokenizer_match import require_same_tokenizer

    trust, tokenizers = job.config.model.trust_remote_code, []
    for setting, folder in (("model.name", job.model_path), ("drafter.model", job.draft_path)):
        try:
            tokenizers.append(AutoTokenizer.from_pretrained(folder, trust_remote_code=trust))
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelError(f"{setting}: {folder} has no tokenizer that can be loaded: {error}") from error
    names = job.config.model.name, job.config.drafter.model
    try:
        require_same_tokenizer(*tokenizers, files.vocabulary(job.draft_path, trust), names)
    except ConfigError as error:
        raise ConfigError(f"drafter.model = {names[1]!r}: {error}") from error
