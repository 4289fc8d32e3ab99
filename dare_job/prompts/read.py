"""Reads prompt sets: built-in sets by name, user-defined sets from a YAML or Jinja file."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
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
WORDS_PER_TOKEN = 0.6  # fewer than English prose has (0.75), so that a text ends before its last token
MAX_HISTORY = 500  # interactions; the maximum of history.max_items
_JINJA = (".jinja", ".j2")
_FOLDER = Path(__file__).parent


_Side = Literal["user", "item"]
_TURN = ("user", "assistant")  # keys of an example: a prompt, and the answer that it should get


class _File(BaseModel):
    """Keys of a YAML file.

    Attributes
    ----------
    source
        The paper of the prompts.
    domains
        Values of variables by domain.
    system
        One text, or one by side.
    examples
        Turns by side.
    base
        A built-in set for the keys that the file lacks.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    max_history: int = Field(ge=1)
    user: str
    item: str
    source: str = ""
    domains: dict[str, Any] = {}
    system: str | dict[_Side, str] = ""
    examples: dict[_Side, list[Any]] = {}
    base: str = ""

    @field_validator("examples")
    @classmethod
    def _are_turns(cls, examples: dict[str, list]) -> dict[str, list]:
        for side, turns in examples.items():
            for number, turn in enumerate(turns, 1):
                texts = turn.values() if isinstance(turn, dict) and turn.keys() == set(_TURN) else [None]
                if not all(isinstance(text, str) and text.strip() for text in texts):
                    raise ValueError(f"examples.{side}, turn {number} = {turn!r}: should be a mapping with "
                                     f"the texts {' and '.join(_TURN)}")
        return examples

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


def max_words(max_new_tokens: int) -> int:
    """Words that a text of so many tokens can hold: ``WORDS_PER_TOKEN``, rounded down to tens from 20 on."""
    words = int(max_new_tokens * WORDS_PER_TOKEN)
    return words // 10 * 10 if words >= 20 else max(words, 1)


def load(name_or_path: str, domain: str = DOMAINS[0], side: str | None = None,
         max_new_tokens: int = 256) -> PromptSet:
    """Load a prompt set, for ``domain`` if it has domains.

    Parameters
    ----------
    name_or_path
        A built-in set ("kar"), a YAML file, or a Jinja file (.jinja, .j2).
    side
        "user" or "item", whose template a Jinja file contains.
    max_new_tokens
        From which the variable ``max_words`` follows.

    Raises
    ------
    ConfigError
        The set or domain does not exist, the file cannot be read, a key is missing, unknown or of the wrong
        type, or a template has a syntax error or an unknown variable. The message names file, key and line.
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
    return _parsed(path, text, domain, side, max_words(max_new_tokens))


@lru_cache(maxsize=64)  # a run asks some forty times for the same two sets
def _parsed(path: Path, text: str, domain: str, side: str | None, words: int) -> PromptSet:
    length = {sets.MAX_WORDS: words}
    return _jinja(path, text, side, length) if path.suffix in _JINJA else _yaml(path, text, domain, length)


def _jinja(path: Path, text: str, side: str | None, length: Mapping[str, int]) -> PromptSet:
    if side is None:
        raise ConfigError(f"prompts: {path} is a single template: set prompts.user or prompts.item to it")
    sets.check_template(f"prompts: {path}", text, (*VARIABLES[side], *length))
    return PromptSet(path.name, MAX_HISTORY, {side: text}, _used(length, [text]))


def _used(length: Mapping[str, int], templates: Iterable[str]) -> Mapping[str, int]:
    """``length`` if a template uses it: otherwise texts of another length would have another set's hash."""
    return length if any(sets.uses(template, name) for template in templates for name in length) else {}


def _yaml(path: Path, text: str, domain: str, length: Mapping[str, int]) -> PromptSet:
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"prompts: {path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"prompts: {path} must hold a mapping with the keys {', '.join(_File.model_fields)}"
                          f"; store a single template in a file {' or '.join(_JINJA)}")
    if "base" in content:
        content = {**_base(path, content["base"]), "name": path.stem, **content}
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
        sets.check_template(f"prompts: {path}: {side}", template, (*VARIABLES[side], *words, *length))
    system = file.system if isinstance(file.system, dict) else dict.fromkeys(templates, file.system)
    system = {side: template for side, template in system.items() if template.strip()}
    examples = {side: [tuple(turn[key] for key in _TURN) for turn in turns]
                for side, turns in file.examples.items()}
    around = {f"system of {side}": [template] for side, template in system.items()}
    around |= {f"examples of {side}": [text for turn in turns for text in turn]
               for side, turns in examples.items()}
    for place, texts in around.items():
        for template in texts:
            sets.check_template(f"prompts: {path}: {place}", template, (*words, *length))
    used = _used(length, [*templates.values(), *(text for texts in around.values() for text in texts)])
    return PromptSet(file.name, file.max_history, templates, {**words, **used}, system, examples)


def _base(path: Path, name: Any) -> dict:
    if name not in set_names():
        raise ConfigError(f"prompts: {path}: base = {name!r}: no such set; "
                          f"use one of {', '.join(set_names())}")
    return yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


def _check_word(place: str, word: object, value: object) -> None:
    if not isinstance(word, str) or not word.isidentifier():
        raise ValueError(f"{place}: a variable's name may only have letters, digits and _")
    reserved = {sets.MAX_WORDS, *(variable for variables in VARIABLES.values() for variable in variables)}
    if word in reserved:
        raise ValueError(f"{place}: {', '.join(sorted(reserved))} have a meaning already; use another name")
    texts = value if isinstance(value, list) and value else [value]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"{place} = {value!r}: should be a text or a list of texts")
