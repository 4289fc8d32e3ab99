"""Checks on the driver, before a run starts, that its drafting and sampling settings are valid."""

from pathlib import Path

from dare_job.errors import ModelError
from dare_job.inference import checks
from dare_job.job import Job
from dare_job.models import files
from dare_job.models.adapters import has_adapter
from dare_job.schemas import ENTITIES
from dare_job.spark.environment import is_local
from dare_job.tables import published


def check_drafting(job: Job) -> None:
    """``inference.checks.check_drafting`` with the models of a job."""
    checks.check_drafting(job.config, lambda: job.model_path, lambda: job.draft_path)


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
