"""Command-line options as fields of dataclasses: a field gives the option's name, type, default and help."""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal

from dare_job.errors import ConfigError

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]  # of a model's weights
ChatTemplate = Literal["auto", "always", "never"]

# Descriptions of settings that are options of commands, too.
MODEL = "'embedded', a folder, its URL, a GGUF file or a hub name, optionally with @REVISION"
CHAT_TEMPLATE = ("Format each prompt as a user message of the tokenizer's chat template. auto: if it has "
                 "one. always: require one. never: use the prompt as it is")
PLUG_IN = "MODULE:CLASS"
TRUST_REMOTE_CODE = "Run Python code that comes with a hub model"


@dataclass(frozen=True)
class Option:
    """How a field is written on the command line.

    Attributes
    ----------
    flag
        Default: the field's name.
    argument
        Written without a flag, at its place.
    parse
        Maps the flag and the text after it to the value, if that is not written as one word.
    repeatable
        The option may be given several times; ``parse`` then gets the list of texts.
    negated
        The flag sets the field to False.
    """

    help: str
    flag: str | None = None
    argument: bool = False
    parse: Callable[[str, Any], Any] | None = None
    repeatable: bool = False
    negated: bool = False
    panel: str | None = None
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    envvar: str | None = None


def option(help: str, default: Any = MISSING, **more) -> Any:
    """A dataclass field that is a command-line option. ``more``: further fields of ``Option``."""
    return field(default=default, metadata={"option": Option(help, **more)})


def device(panel: str | None = None) -> Any:
    return option("cpu, cuda, or auto: cuda if present.", "auto", metavar="DEVICE", panel=panel)


def dtype(help: str = "float32, bfloat16 or float16.", panel: str | None = None) -> Any:
    return option(help, "float32", metavar="DTYPE", panel=panel)


def trust_remote_code() -> Any:
    return option(f"{TRUST_REMOTE_CODE}.", False)


def as_given(flag: str, texts: Sequence[str]) -> list[str]:
    """The values of a repeatable option."""
    return list(texts)


def paths(flag: str, texts: Sequence[str]) -> list[Path]:
    """The paths of a repeatable option."""
    return list(map(Path, texts))


def words(flag: str, text: str) -> list[str]:
    """Words separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(flag: str, text: str) -> list[int]:
    """Integers separated by commas.

    Raises
    ------
    ConfigError
        A word is not an integer; the message names the option.
    """
    try:
        return [int(part) for part in words(flag, text)]
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is not a list of numbers; write for example 16,64") from None


def day(flag: str, text: str) -> date:
    """A date as YYYY-MM-DD.

    Raises
    ------
    ConfigError
        The text has another form, or the date has no next day. The message names the option.
    """
    try:
        parsed = date.fromisoformat(text)
    except ValueError:
        parsed = None
    if parsed is None or parsed.isoformat() != text:
        raise ConfigError(f"{flag} {text!r} is not a date; write it as YYYY-MM-DD, for example 2026-01-02")
    if parsed == date.max:  # the day after it does not exist
        raise ConfigError(f"{flag} {text!r} is too late: the last date is {date.max - timedelta(days=1)}")
    return parsed
