"""Reads prompt sets: built-in sets by name, user-defined sets from a YAML or Jinja file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dare_job.config.errors import explain
from dare_job.errors import ConfigError
from dare_job.prompts import sets
from dare_job.prompts.sets import VARIABLES, PromptSet
from dare_job.storage import paths

Domain = Literal["movies", "books"]
DOMAINS: tuple[str, ...] = get_args(Domain)
SAMPLE = "sample"  # the set that the embedded model knows
MAX_HISTORY = 500  # interactions; the maximum of history.max_items
_JINJA = (".jinja", ".j2")
_FOLDER = Path(__file__).parent


class _File(BaseModel):
    """Keys of a YAML file. source: the paper of the prompts; domains: values of variables by domain."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    max_history: int = Field(ge=1)
    user: str
    item: str
    source: str = ""
    domains: dict[str, Any] = {}

    @field_validator("domains")
    @classmethod
    def _have_the_same_words(cls, domains: dict[str, Any]) -> dict[str, Any]:
        first = next(iter(domains), None)
        for domain, words in domains.items():
            if domain not in DOMAINS:
                raise ValueError(f"unknown key domains.{domain}; valid keys: {', '.join(DOMAINS)}")
            if not isinstance(words, dict) or not words:
                raise ValueError(f"domains.{domain} = {words!r}: should be a mapping of words by variable")
            for word, value in words.items():
                _check_word(f"domains.{domain}.{word}", word, value)
            if differing := domains[first].keys() ^ words.keys():
                raise ValueError(f"domains.{first} and domains.{domain} differ in "
                                 f"{', '.join(sorted(differing))}: define the same variables in both")
        return domains


def set_names() -> list[str]:
    """Names of the built-in sets."""
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def load(name_or_path: str, domain: str = DOMAINS[0], side: str | None = None) -> PromptSet:
    """Load a prompt set, for ``domain`` if it has domains.

    Raises ConfigError with file, key and line if the set or domain does not exist, a key is missing, unknown
    or of the wrong type, or a template has a syntax error or an unknown variable.

    Parameters
    ----------
    name_or_path : a built-in set ("kar"), a YAML file, or a Jinja file (.jinja, .j2)
    side : "user" or "item", whose template a Jinja file contains
    """
    packaged = name_or_path in set_names()
    path = _FOLDER / f"{name_or_path}.yaml" if packaged else paths.path(name_or_path, "prompts")
    if not paths.is_local(path):
        raise ConfigError(f"prompts: {path} is a URL; use a file on the driver's disk")
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(f"prompts: no set {name_or_path!r}; use one of {', '.join(set_names())} "
                          "or a path to a YAML or Jinja file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompts: {path} cannot be read as text: {error}") from error
    return _jinja(path, text, side) if path.suffix in _JINJA else _yaml(path, text, domain)


def _jinja(path: Path, text: str, side: str | None) -> PromptSet:
    if side is None:
        raise ConfigError(f"prompts: {path} is a single template: set prompts.user or prompts.item to it")
    sets.check_template(f"prompts: {path}", text, VARIABLES[side])
    return PromptSet(path.name, MAX_HISTORY, {side: text})


def _yaml(path: Path, text: str, domain: str) -> PromptSet:
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"prompts: {path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"prompts: {path} must hold a mapping with the keys {', '.join(_File.model_fields)}"
                          f"; store a single template in a file {' or '.join(_JINJA)}")
    try:
        file = _File.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"prompts: {explain(error, _File, str(path))}") from None
    if file.domains and domain not in file.domains:
        raise ConfigError(f"prompts: {path} is not for prompts.domain = {domain!r}; it has "
                          f"{', '.join(file.domains)}")
    words: Mapping = file.domains.get(domain, {})
    templates = {"user": file.user, "item": file.item}
    for side, template in templates.items():
        sets.check_template(f"prompts: {path}: {side}", template, (*VARIABLES[side], *words))
    return PromptSet(file.name, file.max_history, templates, words)


def _check_word(place: str, word: object, value: object) -> None:
    if not isinstance(word, str) or not word.isidentifier():
        raise ValueError(f"{place}: a variable's name may only have letters, digits and _")
    reserved = {variable for variables in VARIABLES.values() for variable in variables}
    if word in reserved:
        raise ValueError(f"{place}: {', '.join(sorted(reserved))} are variables of rows; use another name")
    texts = value if isinstance(value, list) and value else [value]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"{place} = {value!r}: should be a text or a list of texts")
