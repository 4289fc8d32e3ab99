"""One night's run of the job: its date, its configuration files and the arguments of each command."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

import yaml


@dataclass(frozen=True)
class Night:
    """A run's date (YYYY-MM-DD) and parameters (``params`` of defaults.yaml)."""

    date: str
    params: dict

    @classmethod
    def of(cls, context, timezone: str) -> "Night":
        """From a task's context."""
        run, params = context["dag_run"], context["params"]
        return cls(params["date"] or night_of(run.logical_date, run.run_after, timezone), params)

    def arguments(self, first: str, last: str) -> list[str]:
        """Command line of ``dare-job`` for the stages from ``first`` to ``last``.

        Raises ValueError if no configuration file is named.
        """
        configs = self.configs()
        if not configs:
            raise ValueError("no configuration file: name one in params.config of dare.yaml, or trigger the "
                             "run with --conf '{\"config\": [\"/path/nightly.yaml\"]}'")
        given = ["run", "--from", first, "--to", last, *_each("--config", configs), "--date", self.date]
        given += _each("--set", self.params["set"])
        named = {name: self.params[name] for name in ("input", "out", "model", "limit")}
        if "{date}" in (asked := self._input() or ""):
            named["input"] = self._dated(asked)
        return given + [word for name, value in named.items() if value is not None
                        for word in (f"--{name}", str(value))]

    def configs(self) -> list[str]:
        """The files that were named, then the newest tuned one."""
        return [*self.params["config"], *self._tuned()]

    def _tuned(self) -> list[str]:
        """The tuning of the newest day before the date, so that a run that is repeated takes the same one."""
        if not self.params["tuned"]:
            return []
        if "://" in self.params["tuned"]:
            raise ValueError(f"params.tuned = {self.params['tuned']}: must be a folder that workers mount")
        files = sorted(Path(self.params["tuned"]).glob("????-??-??.yaml"))
        return [str(file) for file in files if file.stem < self.date][-1:]

    def out(self) -> str | None:
        """The output folder: the parameter, or what the last configuration file that names one says.

        None where these files are not on this machine, as with a driver in the cluster.
        """
        if self.params["out"]:
            return self.params["out"]
        found = self._settings()
        if found is None:
            return None
        return next((settings["out"] for settings in reversed(found) if settings.get("out")), "out")

    def off(self, name: str) -> bool:
        """Whether nothing gives a setting (``encode.model``) a value, as far as this machine can tell: by
        ``set``, then by the last configuration file that names it.
        """
        given = [word.partition("=")[2] for word in self.params["set"] if word.partition("=")[0] == name]
        if given:
            return given[-1] in ("", "null")
        return self._settings() is not None and not next(iter(self._said(name)), None)

    def _said(self, name: str) -> list:
        """What the configuration files that can be read here give a setting (``input.path``), last one first.
        """
        section, _, key = name.partition(".")
        named = [settings.get(section) or {} for settings in reversed(self._settings() or [])]
        return [one[key] for one in named if key in one]

    def _settings(self) -> list[dict] | None:
        """What the configuration files say, in their order; None where they cannot be read here."""
        try:
            return [yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {} for file in self.configs()]
        except (OSError, ValueError, yaml.YAMLError):
            return None

    def _input(self) -> str | None:
        """The job's input as it was named: the parameter, or what the last configuration file says."""
        if self.params["input"]:
            return self.params["input"]
        return next(filter(None, self._said("input.path")), None)

    def report(self) -> str | None:
        """The date's page; None where it is not here: a page that cannot be written fails no run."""
        out = self.out()
        folder = unquote(urlsplit(out).path) if out and out.startswith("file://") else out
        page = folder and Path(folder, "reports", f"dt={self.date}", "index.html")
        return str(page) if page and page.is_file() else None

    def awaited(self) -> list[str]:
        """Paths that must be there before the night starts: those of ``wait_for``, else the job's input."""
        paths = self.params["wait_for"] or [path for path in (self._input(),) if path]
        return [self._dated(path) for path in paths]

    def _dated(self, path: str) -> str:
        return path.replace("{date}", self.date)


def night_of(logical: datetime | None, run_after: datetime, timezone: str) -> str:
    """The date that a run writes: that of its logical date, but no later than the day before it runs.

    A run of the schedule has the date's own moment as its logical date. One that is started by hand without a
    date has none, or now, and a day that is not over has no complete input.
    """
    zone = ZoneInfo(timezone)
    yesterday = run_after.astimezone(zone).date() - timedelta(days=1)
    asked: date = logical.astimezone(zone).date() if logical else yesterday
    return min(asked, yesterday).isoformat()


def _each(flag: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]
