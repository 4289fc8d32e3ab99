"""The command ``bench dare``: from nothing to the lines of the tables, part by part."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

import pools
from dare_job import decode
from dare_job.bench import night
from dare_job.bench.dare import (
    indexes,
    measure,
    models,
    tables,
)
from dare_job.bench.dare import (
    indexes as dare_indexes,
)
from dare_job.bench.dare import (
    measure as dare_measure,
)
from dare_job.bench.dare import (
    models as dare_models,
)
from dare_job.bench.dare import (
    tables as dare_tables,
)
from dare_job.bench.dare.models import Framework
from dare_job.bench.dare.tables import Data
from dare_job.bench.profiles.texts import written
from dare_job.config.settings import JobConfig
from dare_job.decode.engine import latency_probe
from dare_job.errors import ConfigError
from dare_job.generate.task import Task
from dare_job.models.files import fingerprint, tokenizer_hash
from dare_job.schemas import GLOBAL
from dare_job.workspace import digest, done_record, write_json

_COUNTS = ("rows", "users", "items", "pool_texts", "steps", "repeats", "threads", "max_new_tokens")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What ``dare-job bench dare`` was asked; the fields' names are those of its options.

    budgets  draft nodes a row by batch size
    """

    work: Path
    data: Sequence[str]
    prompts: Sequence[str]
    architectures: Sequence[str]
    budgets: Mapping[int, int]
    rows: int = 100
    users: int = 1000
    items: int = 1000
    pool_texts: int = 500
    steps: int = 100
    repeats: int = 3
    threads: int = 1
    max_new_tokens: int = 192

    def __post_init__(self):
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give 1 or more")
        if unknown := sorted(set(self.data) - set(tables.DATA)):
            raise ConfigError(f"--data: {', '.join(unknown)} unknown; choose from {', '.join(tables.DATA)}")
        if not self.budgets or min(min(self.budgets.items())) < 1:
            raise ConfigError("--batch and --nodes: give as many numbers from 1 in each, as in 1,8 and 16,8")


@dataclass(frozen=True)
class Cell:
    """What the lines of one cell share."""

    data: Data
    architecture: str
    framework: Framework
    side: str

    @property
    def names(self) -> dict[str, str]:
        return {"data": self.data.name, "architecture": self.architecture, "prompts": self.framework.name,
                "side": self.side}

    @property
    def place(self) -> Path:
        return Path(*self.names.values())


def run(options: Options) -> dict:
    """Train, write old text, measure, print the tables; returns the JSON object that the command prints last.

    Everything finished is kept in ``options.work`` and used again while what made it is the same; cells are
    measured again when the code of decoding or drafting changes.
    """
    models.check(options.architectures)
    asked = dare_models.find(options.prompts)
    data = [tables.load(name, options.users, options.work) for name in options.data]
    pool_of = {known.name: dare_indexes.pools_of(known, options.work) for known in data}
    lines = []
    for architecture in options.architectures:
        model = models.trained(architecture, asked, options.steps, options.work)
        for cell in _cells(data, architecture, asked):
            _LOG.info("%s: old text, pools, measuring", " ".join(cell.names.values()))
            found = _measured(cell, model, pool_of[cell.data.name][cell.side], options)
            lines += [{**cell.names, **line} for line in found]
            _LOG.info("times plain: %s", ", ".join(f"{line['method']} {line['ratio']}" for line in found))
    lines.sort(key=lambda line: list(options.data).index(line["data"]))
    dare_measure.show(lines)
    return {"rows": lines, "settings": {name: getattr(options, name) for name in _COUNTS},
            "versions": _versions()}


def _cells(data: Sequence[Data], architecture: str, asked: Sequence[Framework]) -> Iterator[Cell]:
    for known in data:
        for framework in asked:
            for side in framework.sides:
                yield Cell(known, architecture, framework, side)


def _measured(cell: Cell, model: Path, pool_of: Mapping[str, indexes.Pool], options: Options) -> list[dict]:
    """Lines of one cell, one for each batch size and method."""
    asked = dare_tables.of(cell.data, cell.framework, cell.side, options.rows, options.items, options.work)
    task = _task(cell, model, options)
    texts = written(model, options.work / "old" / cell.place, asked.old)
    folder = options.work / "pools" / cell.place / f"entity={cell.side}"
    sizes = indexes.index(texts, pool_of, options.pool_texts, task.tokenizer, folder, fingerprint(model))
    task = replace(task, pools_version=done_record(folder)["fingerprint"])
    sample = [{"entity": cell.side, "entity_id": key, "prompt": prompt, "pool": pool_of[key][0],
               "own_ids": texts[key].tolist() if key in texts else None, "strict": False}
              for key, prompt in asked.new.items()]
    lines = []
    for batch, nodes in options.budgets.items():
        made_of = digest([task.pools_version, sample, batch, nodes, options.repeats,
                          options.threads, options.max_new_tokens, _code()])
        lines += _kept(options.work / "cells" / f"{made_of}.json",
                       partial(measure.cell, task, sample, batch, nodes, options.repeats))
    return [{**line, "groups": len(sizes) - 1, "old_texts": sizes[GLOBAL]} for line in lines]


def _kept(path: Path, measured: Callable[[], list[dict]]) -> list[dict]:
    """The lines in a file, which is written where it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, measured())
    return json.loads(path.read_text())


def _task(cell: Cell, model: Path, options: Options) -> Task:
    """What a worker of the job would be given. Relaxed: the paper's k and p."""
    config = JobConfig.model_validate({
        "model": {"name": str(model), "device": "cpu"}, "decode": {"max_new_tokens": options.max_new_tokens},
        "verify": {"k": 2, "p": 0.1}})
    folder = options.work / "pools" / cell.place
    return Task(config, str(model), tokenizer_hash(model), folder=str(options.work),
                        pools=str(folder), pools_version="", plan_token="bench", dt="bench", run_id="bench",
                        threads=options.threads)


def _code() -> str:
    """Digest of the code that is measured and measures, its libraries and the processor."""
    folders = [Path(package.__file__).parent for package in (decode, pools)] + [Path(__file__).parent]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return digest([*(path.read_text() for path in [*files, Path(night.__file__)]), _versions(),
                   latency_probe.device_name(torch.device("cpu"))])


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "numba")}
