"""The value of a row by coefficients that ``dare-job lab refresh --save FILE`` learned from replayed nights.

    value = sqrt(1 + traffic) * movement,    movement = constant + sum of coefficient * feature

The features are the new share of the history, the distance of the entity's vectors, and the share of a text
that its age makes void (``value.aged``). Like ``value.value``, the formula takes numbers, numpy arrays and
Spark columns.
"""

import json
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path

from dare_job.errors import ConfigError
from dare_job.refresh.value import aged

FORMAT = "dare-job refresh coefficients 2"


@dataclass(frozen=True)
class Coefficients:
    """How far a text is expected to move, by feature; all at least 0.

    Attributes
    ----------
    new, distance, age
        Of the features, each 0 to 1.
    constant
        Of any row whose prompt changed.
    no_text
        Movement of a row without a text.
    """

    new: float
    distance: float
    age: float
    constant: float
    no_text: float


def value(traffic, new, age_days, no_text, distance, coefficients: Coefficients):
    """Expected value of writing a row; arguments as of ``value.value`` and ``value.new_share``."""
    moved = (coefficients.constant + coefficients.new * new + coefficients.distance * distance
             + coefficients.age * aged(age_days))
    return (1.0 + traffic) ** 0.5 * (moved * (1.0 - no_text) + coefficients.no_text * no_text)


def document(coefficients: Coefficients, report: dict) -> str:
    """The JSON text of a file of coefficients. ``report``: how well they rank, for readers."""
    return json.dumps({"format": FORMAT, "coefficients": asdict(coefficients), "report": report},
                      indent=1) + "\n"


def read(file: Path, setting: str = "refresh.priority") -> Coefficients:
    """Coefficients of a file that ``document`` wrote.

    Raises
    ------
    ConfigError
        The file cannot be read, or has other content. The message names the setting and the fix.
    """
    names = {field.name for field in fields(Coefficients)}
    try:
        content = json.loads(Path(file).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: {file} cannot be read as JSON: {error}; `dare-job lab refresh --save "
                          "FILE` writes such a file") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"{setting}: {file} does not have \"format\": \"{FORMAT}\"; write it again with "
                          "`dare-job lab refresh --save FILE`")
    values = content.get("coefficients")
    if not isinstance(values, dict) or set(values) != names or not all(
            isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number)
            and number >= 0 for number in values.values()):
        raise ConfigError(f"{setting}: {file}: \"coefficients\" must have {', '.join(sorted(names))}, each a "
                          "number of at least 0")
    return Coefficients(**{name: float(number) for name, number in values.items()})
