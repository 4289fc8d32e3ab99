"""Removes secrets from what is logged, printed or stored: by names of settings and patterns of values.

Also removes control characters from what a terminal shows.
"""

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
    """The text with passwords, tokens and keys replaced."""
    for pattern, instead in _VALUES:
        value = pattern.sub(instead, value)
    return value


def values(value, name: str = ""):
    """Redact a JSON-like value; a string under a name such as ``password`` is hidden completely."""
    if isinstance(value, dict):
        return {key: values(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [values(entry, name) for entry in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if value and _NAMES.search(name) else text(value)


def printable(text: str) -> str:
    """Text without control characters, which could move the cursor or change the state of a terminal."""
    return "".join(letter if letter in "\n\t" or letter.isprintable() else "\ufffd" for letter in text)
