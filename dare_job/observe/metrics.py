"""Reports a run's metrics to Prometheus: a file for node_exporter's textfile collector, or a Pushgateway.

Metrics never fail a run: if the file cannot be written or the gateway is down, a warning is logged.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from prometheus_client.exposition import basic_auth_handler, default_handler, pushadd_to_gateway

from dare_job.job import Job
from dare_job.observe import figures, redact
from dare_job.observe.figures import Figure
from dare_job.observe.progress import Reading

_LOG = logging.getLogger("dare_job")
_TIMEOUT_S = 5.0


class Metrics:
    """Reports the metrics of a command as the settings ``metrics`` say."""

    def __init__(self, job: Job):
        self._job, self._settings, self._pushes = job, job.config.metrics, True
        self._labels = {name: value for name, value in self._settings.labels.items() if name != "job"}

    @property
    def enabled(self) -> bool:
        return bool(self._settings.file or self._settings.push)

    def ended(self, command: str, exit_code: int) -> None:
        """Report how the command ended, and the metrics of its date."""
        if not self.enabled:
            return
        values = figures.of_run(self._job, command, exit_code)
        if self._settings.file:
            self._write(values, Path(self._settings.file))
        self.idle(values)

    def idle(self, values: Sequence[Figure] = ()) -> None:
        """Report that nothing is running; ``values`` are pushed as well."""
        if self._settings.file:
            self._progress_file.unlink(missing_ok=True)
        if self._settings.push:
            self._push([*values, Figure("progress_running", 0)])

    def running(self, stage: str, reading: Reading) -> None:
        """Report the progress of a stage, in a file that exists while the command runs."""
        if not self.enabled:
            return
        values = figures.of_reading(stage, reading)
        if self._settings.file:
            self._write(values, self._progress_file)
        if self._settings.push and self._pushes:
            self._pushes = self._push(values)  # a gateway that is down is tried again only at the end

    @property
    def _progress_file(self) -> Path:
        return Path(self._settings.file).with_suffix(".progress.prom")

    def _write(self, values: Iterable[Figure], path: Path) -> None:
        try:
            write_to_textfile(str(path), _registry(values, self._labels))
        except OSError as error:
            _LOG.warning("metrics.file = %s cannot be written: %s", path, error.strerror or error)

    def _push(self, values: Iterable[Figure]) -> bool:
        address, handler = _with_credentials(self._settings.push)
        try:
            pushadd_to_gateway(address, self._settings.labels.get("job", "dare-job"),
                               _registry(values), self._labels, timeout=_TIMEOUT_S, handler=handler)
        except (OSError, ValueError, HTTPException) as error:  # refused, timed out, or not an HTTP response
            _LOG.warning("metrics.push = %s: the metrics were not pushed, and the run continues: %s",
                         redact.text(self._settings.push), error)
            return False
        return True


def _registry(values: Iterable[Figure], labels: dict[str, str] | None = None) -> CollectorRegistry:
    """One gauge for each name; ``labels`` are added to every sample."""
    registry, gauges = CollectorRegistry(auto_describe=False), {}
    for figure in values:
        names = {**(labels or {}), **figure.labels}
        if figure.name not in gauges:
            gauges[figure.name] = Gauge(f"dare_job_{figure.name}", figures.HELP[figure.name], [*names],
                                        registry=registry)
        gauge = gauges[figure.name].labels(**names) if names else gauges[figure.name]
        gauge.set(figure.value)
    return registry


def _with_credentials(url: str):
    """The address without user and password, and a handler that sends them."""
    parts = urlsplit(url)
    _, at, host = parts.netloc.rpartition("@")
    address = urlunsplit(parts._replace(netloc=host))
    if not at:
        return address, default_handler
    return address, partial(basic_auth_handler, username=unquote(parts.username or ""),
                            password=unquote(parts.password or ""))
