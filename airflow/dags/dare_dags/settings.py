"""Settings of the DAGs: defaults.yaml, overridden by the file of the site."""

import os
import re
from pathlib import Path

import pendulum
import yaml

_HERE = Path(__file__).parent
_FREE = re.compile(r"spark\.(conf|env)|stages\.\w+\.conf")  # sections with arbitrary keys


def load() -> dict:
    """All settings as nested dicts.

    Raises
    ------
    ValueError
        The file of the site has an unknown key; the message names both. Airflow shows it as an import error
        of the DAG.
    """
    defaults = yaml.safe_load((_HERE / "defaults.yaml").read_text(encoding="utf-8"))
    file = _site_file()
    if file is None:
        return defaults
    site = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return _merged(defaults, site, str(file))


def moment(day, timezone: str):
    """Midnight of a day (a date or YYYY-MM-DD); None stays None."""
    return None if day is None else pendulum.parse(str(day), tz=timezone)


def _site_file() -> Path | None:
    named = os.environ.get("DARE_DAGS_SETTINGS")
    if named and not Path(named).is_file():
        raise ValueError(f"DARE_DAGS_SETTINGS = {named} does not exist")
    beside = _HERE.parent / "dare.yaml"
    return Path(named) if named else beside if beside.is_file() else None


def _merged(defaults: dict, site: dict, file: str, section: str = "") -> dict:
    if not isinstance(site, dict):
        raise ValueError(f"{file}: {section or 'the file'} is {site!r}; it must contain keys and values")
    merged = dict(defaults)
    for key, value in site.items():
        name = f"{section}.{key}" if section else key
        if key not in defaults and not _FREE.fullmatch(section):
            raise ValueError(f"{file}: unknown setting {name}; known settings: "
                             f"{', '.join(map(str, defaults))}")
        is_section = isinstance(defaults.get(key), dict)
        merged[key] = _merged(defaults[key], value, file, name) if is_section else value
    return merged
