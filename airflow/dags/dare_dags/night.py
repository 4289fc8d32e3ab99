"""One run of the nightly job: its date, its configuration files and the arguments of each command."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

import yaml


@dataclass(frozen=True)
class Night:
    """Date (YYYY-MM-DD), parameters (``params`` of defaults.yaml) and time zone of a run."""

    date: str
    params: dict
    timezone: str = "UTC"

    @classmethod
    def of(cls, context, timezone: str) -> "Night":
        """Create from the context of a task."""
        run, params = context["dag_run"], context["params"]
        return cls(params["date"] or date_of(run.logical_date, run.run_after, timezone), params, timezone)

    def arguments(self, first: str, last: str) -> list[str]:
        """Arguments of ``dare-job`` for the stages from ``first`` to ``last``.

        Raises
        ------
        ValueError
            There is no configuration file.
        """
        configs = self.configs()
        if not configs:
            raise ValueError("no configuration file: name one in params.config of dare.yaml, or trigger the "
                             "run with --conf '{\"config\": [\"/path/nightly.yaml\"]}'")
        arguments = ["run", "--from", first, "--to", last, *_each("--config", configs), "--date", self.date]
        arguments += _each("--set", [*self._day_boundary(), *self.params["set"]])
        named = {name: self.params[name] for name in ("input", "out", "model", "limit")}
        if "{date}" in (path := self._input() or ""):
            named["input"] = self._dated(path)
        return arguments + [word for name, value in named.items() if value is not None
                        for word in (f"--{name}", str(value))]

    def _day_boundary(self) -> list[str]:
        """The setting by which a date ends at midnight of the DAG's time zone, where nothing else sets it.

        Configuration files that are not on this machine count as files without the setting.
        """
        key = "input.day_boundary"
        named = any(word.partition("=")[0] == key for word in self.params["set"])
        if self.timezone == "UTC" or named or next(iter(self._configured(key)), None):
            return []
        return [f"{key}={self.timezone}"]

    def configs(self) -> list[str]:
        """The configuration files, followed by the newest tuned settings."""
        return [*self.params["config"], *self._tuned()]

    def _tuned(self) -> list[str]:
        """The newest tuned settings from before the date, so that repeated runs use the same file."""
        if not self.params["tuned"]:
            return []
        if "://" in self.params["tuned"]:
            raise ValueError(f"params.tuned = {self.params['tuned']}: must be a folder that workers mount")
        files = sorted(Path(self.params["tuned"]).glob("????-??-??.yaml"))
        return [str(file) for file in files if file.stem < self.date][-1:]

    def out(self) -> str | None:
        """The output folder, from the parameter or the last configuration file that sets it.

        None if the configuration files are not on this machine, for example with a driver in the cluster.
        """
        if self.params["out"]:
            return self.params["out"]
        found = self._settings()
        if found is None:
            return None
        return next((settings["out"] for settings in reversed(found) if settings.get("out")), "out")

    def is_unset(self, name: str) -> bool:
        """Whether neither ``set`` nor a configuration file sets a setting such as ``encode.model``.

        False if the configuration files are not on this machine.
        """
        values = [word.partition("=")[2] for word in self.params["set"] if word.partition("=")[0] == name]
        if values:
            return values[-1] in ("", "null")
        return self._settings() is not None and not next(iter(self._configured(name)), None)

    def _configured(self, name: str) -> list:
        """Values of a setting such as ``input.path`` in the configuration files, last file first."""
        section, _, key = name.partition(".")
        sections = [settings.get(section) or {} for settings in reversed(self._settings() or [])]
        return [values[key] for values in sections if key in values]

    def _settings(self) -> list[dict] | None:
        """Contents of the configuration files, in order; None if they cannot be read on this machine."""
        try:
            return [yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {} for file in self.configs()]
        except (OSError, ValueError, yaml.YAMLError):
            return None

    def _input(self) -> str | None:
        """The input path, from the parameter or the last configuration file that sets it."""
        if self.params["input"]:
            return self.params["input"]
        return next(filter(None, self._configured("input.path")), None)

    def report(self) -> str | None:
        """Path of the report of the date; None if it is not on this machine."""
        out = self.out()
        folder = unquote(urlsplit(out).path) if out and out.startswith("file://") else out
        page = folder and Path(folder, "reports", f"dt={self.date}", "index.html")
        return str(page) if page and page.is_file() else None

    def awaited(self) -> list[str]:
        """Paths that must exist before the run starts: ``wait_for``, by default the input."""
        paths = self.params["wait_for"] or [path for path in (self._input(),) if path]
        return [self._dated(path) for path in paths]

    def _dated(self, path: str) -> str:
        return path.replace("{date}", self.date)


def date_of(logical: datetime | None, run_after: datetime, timezone: str) -> str:
    """The date that a run generates: its logical date, but at the latest the day before the run starts.

    A manual run without a date has no logical date, or the current time. The input of the current day is
    incomplete.
    """
    zone = ZoneInfo(timezone)
    yesterday = run_after.astimezone(zone).date() - timedelta(days=1)
    day: date = logical.astimezone(zone).date() if logical else yesterday
    return min(day, yesterday).isoformat()


def _each(flag: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]
