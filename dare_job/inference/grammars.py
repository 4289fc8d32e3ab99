"""The grammars of ``decode.schema`` for a model."""

from collections.abc import Callable
from pathlib import Path

from dare_job.config.schema import TextForm
from dare_job.config.settings import JobConfig
from dare_job.decode.engine.grammar import Grammar, definition, token_table
from dare_job.decode.prompt.tokens import encoder
from dare_job.errors import ConfigError
from dare_job.inference.model import LoadedModel
from dare_job.inference.prompt_format import model_format
from dare_job.inference.tokenizer import load_tokenizer


def check_schema(config: JobConfig, model: Callable[[], Path]) -> None:
    """Check ``decode.schema`` without loading weights. ``model`` returns the model's folder.

    Raises
    ------
    ConfigError
        A grammar is invalid, llguidance is not installed or does not support the tokenizer, or prompts open
        a thinking block. The message has the setting and the fix.
    ModelError
        The tokenizer cannot be loaded.
    """
    forms = config.decode.forms
    if not forms:
        return
    texts = {key: _definition(key, form) for key, form in forms.items()}
    tokenizer = load_tokenizer(model(), config.model.trust_remote_code)
    _require_no_thinking(config, tokenizer)
    table = token_table(tokenizer)
    for key, text in texts.items():
        try:
            Grammar(text, table)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from error


def grammar_of(config: JobConfig, loaded: LoadedModel, entity: str | None = None) -> Grammar | None:
    """The grammar of the texts of an entity type, or of all texts. The first call for a grammar compiles it.

    Raises
    ------
    ConfigError
        As ``check_schema``, or the model has no end-of-text token.
    """
    form = config.decode.form_of(entity)
    if not form.kind:
        return None
    key = f"{form.kind} {form.value}"
    if key not in loaded.grammars:
        if not loaded.ends:
            raise ConfigError("decode.schema needs an end-of-text token, and the model has none: set "
                              "eos_token_id in its generation_config.json, or leave decode.schema out")
        _require_no_thinking(config, loaded.tokenizer)
        loaded.grammars[key] = Grammar(_definition(f"decode.schema.{form.kind}", form), loaded.token_table)
    return loaded.grammars[key]


def _definition(key: str, form: TextForm) -> str:
    try:
        return definition(form.kind, form.value)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def _require_no_thinking(config: JobConfig, tokenizer) -> None:
    if encoder(tokenizer, model_format(config)).opens_thinking:
        raise ConfigError("decode.schema: the chat template opens a thinking block, which would have to "
                          "follow the schema; switch thinking off (model.template_arguments, or another "
                          "model), or leave decode.schema out")
