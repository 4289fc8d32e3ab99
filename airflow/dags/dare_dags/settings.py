"""The DAGs' settings: defaults.yaml, with the site's file laid over it key by key."""

import os
import re
from pathlib import Path

import pendulum
import yaml

_HERE = Path(__file__).parent
_FREE = re.compile(r"spark\.(conf|env)|stages\.\w+\.conf")  # any key may stand below these


def load() -> dict:
    """All settings as nested dicts.

    Raises ValueError naming the file and the key where the site's file has one that there is not, which
    Airflow shows as the DAG's import error.
    """
    defaults = yaml.safe_load((_HERE / "defaults.yaml").read_text(encoding="utf-8"))
    file = _site_file()
    if file is None:
        return defaults
    given = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return _merged(defaults, given, str(file))


def moment(day, timezone: str):
    """Midnight of a day as YAML gives it (a date or YYYY-MM-DD); None stays None."""
    return None if day is None else pendulum.parse(str(day), tz=timezone)


def _site_file() -> Path | None:
    named = os.environ.get("DARE_DAGS_SETTINGS")
    if named and not Path(named).is_file():
        raise ValueError(f"DARE_DAGS_SETTINGS names {named}, which is no file")
    beside = _HERE.parent / "dare.yaml"
    return Path(named) if named else beside if beside.is_file() else None


def _merged(defaults: dict, given: dict, file: str, above: str = "") -> dict:
    if not isinstance(given, dict):
        raise ValueError(f"{file}: {above or 'the file'} holds {given!r}; write keys and values below it")
    merged = dict(defaults)
    for key, value in given.items():
        name = f"{above}.{key}" if above else key
        if key not in defaults and not _FREE.fullmatch(above):
            raise ValueError(f"{file}: unknown setting {name}; there are {', '.join(map(str, defaults))}")
        below = isinstance(defaults.get(key), dict)
        merged[key] = _merged(defaults[key], value, file, name) if below else value
    return merged
