"""Options of several commands, and the job that the options of a date describe."""

import os
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from dare_job.config import options as option_types
from dare_job.config.options import option
from dare_job.errors import ConfigError


def writable(option: str, path: Path) -> Path:
    """Create the folder of a file.

    Raises
    ------
    ConfigError
        The file cannot be written; the message names the option.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        reason = "it is a folder" if path.is_dir() else None
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            reason = "no permission"
    except OSError as error:
        reason = error.strerror
    if reason:
        raise ConfigError(f"{option} {path} cannot be written: {reason}")
    return path


def torch_device(device: str) -> str:
    """The name of a torch device; auto: a GPU if there is one."""
    if device != "auto":
        return str(device)
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


_CONFIG = "YAML settings, for example conf/demo.yaml; repeatable, later files win key by key."


def config_option(help: str = _CONFIG, default: Any = None) -> Any:
    """The option ``--config``. default: MISSING makes it required."""
    return option(help, default)


def set_option(example: str = "decode.batch_size=16") -> Any:
    """The option ``--set``."""
    return option(f"Override a setting, as in {example}; repeatable.", None, flag="--set",
                  metavar="KEY=VALUE")


@dataclass(frozen=True)
class Night:
    """Options of commands that run one date."""

    config: list[Path] = config_option(default=MISSING)
    date: str = option("Date of the run; input up to and including this date counts.", metavar="YYYY-MM-DD")
    input: str | None = option("Folder, file or zip of the input (input.path).", None)
    out: str | None = option("Output folder (out).", None)
    model: str | None = option("Language model (model.name).", None)
    set_: list[str] | None = set_option()


def job(night: Night, limit: int | None = None, pick: bool = True, overrides: Sequence[str] = (), flags=None):
    """The job of a date.

    Parameters
    ----------
    pick
        Apply the verification that verify.target chooses.
    overrides
        More settings, as in ``--set``.
    flags
        More settings by key, each with the name of its flag and its value.

    Raises
    ------
    ConfigError
        A setting, the date or the quality curve is invalid. Nothing has been written.
    """
    from dare_job.config.settings import load
    from dare_job.job import Job
    from dare_job.storage import paths
    from dare_job.workspace import Workspace

    values = {"input.path": ("--input", night.input), "out": ("--out", night.out),
              "model.name": ("--model", night.model), **(flags or {})}
    settings = load(night.config, [*(night.set_ or []), *overrides],
                    {key: flag for key, flag in values.items() if flag[1] is not None})
    space = Workspace(paths.path(settings.out, "out"), day(night.date))
    job = Job(settings, space, _run_id(space.dt), limit)
    if settings.verify.target is None or not pick:
        return job
    from dare_job.evaluate.curve.choose import chosen

    return chosen(job)


def day(text: str, option: str = "--date") -> date:
    """A date of the command line.

    Raises
    ------
    ConfigError
        As ``config.options.day``.
    """
    return option_types.day(option, text)


def _run_id(dt: str) -> str:
    import secrets
    import time

    return f"{dt}.{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.{secrets.token_hex(3)}"
