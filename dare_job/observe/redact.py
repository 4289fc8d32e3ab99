"""Takes secrets out of what is logged, printed or kept: by a setting's name, and by the look of a value."""

import re

HIDDEN = "***"
_NAMES = re.compile(r"secret|passw|token(?!iz)|credential|(access|account|api|private)[._-]?key",
                    re.IGNORECASE)
_VALUES = (
    (re.compile(r"(?<=://)[^/\s@]+(?=@)"), HIDDEN),  # user:password@ of an address
    (re.compile(r"\b(hf|api_org)_[A-Za-z0-9]{8,}\b"), HIDDEN),  # tokens of the model hub
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"((?:(?:secret|passw(?:or)?d|signature|(?:access|account|api)[._-]?key)[\w.-]*|token)"
                r"(?:=|: ))[^\s&;,'\"]+", re.IGNORECASE), rf"\1{HIDDEN}"),
)


def text(value: str) -> str:
    """A text without the passwords, tokens and keys in it."""
    for pattern, instead in _VALUES:
        value = pattern.sub(instead, value)
    return value


def values(value, name: str = ""):
    """The same of a JSON-like value; texts under a name such as ``password`` are hidden as a whole."""
    if isinstance(value, dict):
        return {key: values(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [values(entry, name) for entry in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if value and _NAMES.search(name) else text(value)
