"""Log records of the job: human-readable lines or JSON lines on standard error, and a JSON file for each run.

Modules log with ``logging.getLogger("dare_job")`` and pass the fields of a record as ``extra``. Fields bound
with ``bound`` (run_id, date, command, stage, shard) are added to every record.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import structlog
from structlog.contextvars import bound_contextvars as bound  # noqa: F401  (fields of a block's records)

from dare_job.observe import redact
from dare_job.storage import errors
from dare_job.storage.paths import AnyPath, atomic_writer, is_local

_LOGGERS = tuple(map(logging.getLogger, ("dare_job", "pools")))
_LOG = _LOGGERS[0]
_FIRST = ("timestamp", "level", "event", "run_id", "date", "command", "stage", "entity")
_PUT_EVERY_S = 60.0
_LOST = "%s cannot be written (%s): the run goes on without a log file"
_MARKS = ("ended", "printed")  # flags for ``_text`` and ``_Stderr``, which are not logged
_LEFTOVERS = ("message", "asctime")  # attributes that another formatter may have set before


def shows_text(form: str) -> bool:
    """Whether results are also printed as text: with a log as text (``form``), and on a terminal."""
    return form == "text" or sys.stdout.isatty()


def to_stderr(form: str = "text", level: int = logging.INFO) -> None:
    """Send the log to standard error, also if called more than once. ``form``: the setting ``log.format``."""
    handlers = [handler for handler in _LOG.handlers if isinstance(handler, _Stderr)]
    (handlers[0] if handlers else _attach(_Stderr(), level)).shape(form)
    for logger in _LOGGERS:
        logger.setLevel(logging.INFO)
        logger.propagate = False


@contextmanager
def to_file(path: AnyPath | None) -> Iterator[None]:
    """Append the records of the block to a file as JSON lines; None: no file. URLs: see ``_RunObject``."""
    handler = path and _attach(_run_file(path))
    try:
        yield
    finally:
        if handler:
            _detach(handler)


_worker_file: AnyPath | None = None


def in_worker(settings, folder: AnyPath, run_id: str, **fields) -> None:
    """Set up the log of a Spark worker: warnings on standard error, all records in a file of its own.

    Parameters
    ----------
    settings : LogSettings
    folder
        Folder of the run's log files.
    fields
        Fields of all further records.
    """
    global _worker_file
    to_stderr(settings.format, logging.WARNING)
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(run_id=run_id, **fields)
    path = folder / f"{run_id}.{socket.gethostname()}-{os.getpid()}.jsonl"
    if path != _worker_file:  # a worker may outlive a run
        for handler in _run_files():
            _detach(handler)
        _attach(_run_file(path))
        _worker_file = path


def flush() -> None:
    """Write out records that are still buffered (at a URL). Called at the end of a worker's task."""
    for handler in _run_files():
        handler.flush()


def _run_file(path: AnyPath) -> logging.Handler:
    return _RunFile(path) if is_local(path) else _RunObject(path)


def _run_files() -> list[logging.Handler]:
    return [handler for handler in _LOG.handlers if isinstance(handler, _RunFile | _RunObject)]


class _Stderr(logging.StreamHandler):
    """Writes to the current ``sys.stderr``, which a progress bar replaces to print lines above itself."""

    def __init__(self):
        logging.Handler.__init__(self)

    def shape(self, form: str) -> None:
        self.as_text = form == "text"
        self.setFormatter(_formatter(_text if self.as_text else _json()))

    @property
    def stream(self):
        return sys.stderr

    def filter(self, record: logging.LogRecord):
        """Drop records whose content the command prints itself, unless the output is JSON."""
        return not (self.as_text and getattr(record, "printed", False)) and super().filter(record)


class _RunFile(logging.FileHandler):
    """A log file on disk. If the disk refuses a line, logging to the file ends; the run continues."""

    def __init__(self, path: Path):
        super().__init__(path, encoding="utf-8", delay=True, errors="backslashreplace")
        self.setFormatter(_formatter(_json()))

    def _open(self):
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        _detach(self)
        if getattr(record, "printed", False):  # the command itself failed, usually for this reason
            return
        _LOG.warning(_LOST, self.baseFilename, error)


class _RunObject(logging.Handler):
    """A log file at a URL, which cannot be appended to: it is written whole, at most every minute.

    It is written immediately after a warning and at the end of a stage, of a worker's shard and of the
    command. A kill loses the last minute. If the store refuses the file, the run continues without it.
    """

    def __init__(self, path: AnyPath):
        super().__init__()
        self.setFormatter(_formatter(_json()))
        self._path, self._lines, self._put, self._due = path, [], 0, 0.0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record))
        except Exception:
            self.handleError(record)
        urgent = record.levelno >= logging.WARNING or getattr(record, "ended", False)
        if urgent or time.monotonic() >= self._due:
            self._write(getattr(record, "printed", False))

    def flush(self) -> None:
        self._write()

    def close(self) -> None:
        self._write(last=True)
        super().close()

    def _write(self, last: bool = False) -> None:
        with self.lock:
            if self._put == len(self._lines):
                return
            self._put, self._due = len(self._lines), time.monotonic() + _PUT_EVERY_S
            try:
                with atomic_writer(self._path, "") as file:
                    file.write("".join(f"{line}\n" for line in self._lines).encode())
            except Exception as error:  # store clients raise errors of their own
                _detach(self)
                if not last:
                    _LOG.warning(_LOST, self._path, errors.store_message(error) or error)


def _attach(handler: logging.Handler, level: int = logging.INFO) -> logging.Handler:
    handler.setLevel(level)
    for logger in _LOGGERS:
        logger.addHandler(handler)
    return handler


def _detach(handler: logging.Handler) -> None:
    for logger in _LOGGERS:
        logger.removeHandler(handler)
    with suppress(OSError):  # the disk may still be full
        handler.close()


def _formatter(renderer) -> logging.Formatter:
    before = [structlog.contextvars.merge_contextvars, structlog.stdlib.add_log_level,
              structlog.stdlib.ExtraAdder(), _without_leftovers, _stamped]
    after = [structlog.stdlib.ProcessorFormatter.remove_processors_meta,
             structlog.processors.format_exc_info, _without_secrets, renderer]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=after)


def _stamped(logger, method: str, event: dict) -> dict:
    """Add the record's creation time, so that it is the same in all outputs."""
    made = datetime.fromtimestamp(event["_record"].created, UTC)
    return event | {"timestamp": made.isoformat(timespec="milliseconds").replace("+00:00", "Z")}


def _without_leftovers(logger, method: str, event: dict) -> dict:
    return {name: value for name, value in event.items() if name not in _LEFTOVERS}


def _without_secrets(logger, method: str, event: dict) -> dict:
    return redact.values(event)


def _json():
    render = structlog.processors.JSONRenderer(default=str, ensure_ascii=False)

    def ordered(logger, method: str, event: dict) -> str:
        named = {name: value for name, value in event.items() if name not in _MARKS}
        return render(logger, method, {name: named[name] for name in _FIRST if name in named} | named)
    return ordered


def _text(logger, method: str, event: dict) -> str:
    """A human-readable line: the result of a stage, or the first letter of the level and the message."""
    bold, dim, red, end = ("\033[1m", "\033[2m", "\033[31m", "\033[0m") if sys.stderr.isatty() else ("",) * 4
    if event.get("ended"):
        return f"{bold}{event['stage']:<9}{end} {event['event']}  {dim}{event['seconds']:.1f} s{end}"
    colour = red if event["level"] in ("warning", "error", "critical") else dim
    trace = f"\n{event['exception']}" if "exception" in event else ""
    return f"{colour}{event['level'][0].upper()}{end} {redact.printable(str(event['event']))}{trace}"
