"""Checks the settings of drafting and sampling before weights are loaded."""

from collections.abc import Callable
from pathlib import Path

from dare_job.config.settings import JobConfig
from dare_job.decode.settings import SAMPLE_METHODS
from dare_job.errors import ConfigError, InfrastructureError, ModelError
from dare_job.inference.tokenizer import load_tokenizer
from dare_job.models import files

_ADVICE = ("dare-job drafter train trains a draft model on published text; without drafter.model, earlier "
           "texts are the drafts")


def check_drafting(config: JobConfig, model: Callable[[], Path], draft: Callable[[], Path]) -> None:
    """Check the settings of drafting and sampling without loading weights. Plug-ins are imported.

    For a draft model, check its folder, its tokenizer, its tree size, and in mode ``sample`` whether the
    verification rule is exact for the draft distribution.

    Parameters
    ----------
    model, draft
        Return the folders of the model, and of the draft model if there is one. They may fail as
        ``files.resolve``.

    Raises
    ------
    ConfigError, ModelError, InfrastructureError
        With the setting, its value and the fix.
    """
    for plugin in config.plug_ins.values():
        plugin.load()
    _require_biased_tokens(config, model)
    if config.drafter.model is None:
        return
    folder = _require_folder(config, draft)
    if config.decode.mode != "beam":  # the section beam determines its drafts
        _require_tree(config)
    _require_same_tokens(config, model(), folder)


def _require_biased_tokens(config: JobConfig, model: Callable[[], Path]) -> None:
    bias = config.sample.logit_bias
    if not bias or config.decode.mode != "sample":
        return
    size = files.vocabulary(model(), config.model.trust_remote_code)
    if max(bias) >= size:
        raise ConfigError(f"sample.logit_bias = {bias}: {config.model.name} has token ids up to "
                          f"{size - 1}; remove {max(bias)}")


def _require_folder(config: JobConfig, draft: Callable[[], Path]) -> Path:
    """The folder of the draft model, with all its files."""
    try:
        folder = draft()
        files.tokenizer_hash(folder)
        files.fingerprint(folder)
        return folder
    except (ModelError, InfrastructureError) as error:
        raise type(error)(f"drafter.model = {config.drafter.model!r}: {error}; {_ADVICE}") from error


def _require_tree(config: JobConfig) -> None:
    from dare_job.decode.draft.sampled_tree import TreeShape

    decode, shape = config.decode, TreeShape.parse(config.drafter.tree)
    if isinstance(decode.nodes, int):
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


def _require_same_tokens(config: JobConfig, model: Path, draft: Path) -> None:
    from dare_job.decode.draft.tokenizer_match import require_same_tokenizer

    trust, tokenizers = config.model.trust_remote_code, []
    for setting, folder in (("model.name", model), ("drafter.model", draft)):
        try:
            tokenizers.append(load_tokenizer(folder, trust))
        except ModelError as error:
            raise ModelError(f"{setting}: {error}") from error
    names = config.model.name, config.drafter.model
    try:
        require_same_tokenizer(*tokenizers, files.vocabulary(draft, trust), names)
    except ConfigError as error:
        raise ConfigError(f"drafter.model = {names[1]!r}: {error}") from error
