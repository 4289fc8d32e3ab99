"""The command ``bench dare``: from nothing to the lines of the tables, part by part."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

import pools
from dare_job import decode
from dare_job.bench import measured, night
from dare_job.bench.dare import indexes, measure, models, tables
from dare_job.bench.dare.models import Framework
from dare_job.bench.dare.tables import Data
from dare_job.bench.options import command, ints
from dare_job.bench.profiles.texts import written
from dare_job.config.options import option, words
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
    """Options of ``bench dare``."""

    work: Path = option("Folder for models, old text, pools and cells; a stopped run goes on there.",
                        Path("out/bench-dare"))
    data: Sequence[str] = option("ml-1m (of the folder in DARE_DATA), sample. Default: ml-1m where DARE_DATA "
                                 "is set, else sample.", (), parse=words)
    prompts: Sequence[str] = option("Prompt sets by name, and advertisement; without it all there are.", (),
                                    parse=words)
    architectures: Sequence[str] = option("Models; the first is that of table 2.",
                                          ("llama", "qwen2", "mistral"), parse=words)
    batch: Sequence[int] = option("Batch sizes.", (1, 8), parse=ints)
    nodes: Sequence[int] = option("Draft tokens per row for each batch size.", (16, 8), parse=ints)
    rows: int = option("Test rows of users and of items.", 100)
    users: int = option("Users with old text.", 1000)
    items: int = option("Items with old text, of the existing half.", 1000)
    pool_texts: int = option("Maximum number of texts in the pool of a group.", 500)
    steps: int = option("Training steps of each architecture.", 100)
    repeats: int = option("Times each method runs; medians.", 3)
    threads: int = option("torch threads, as one Spark worker has.", 1)
    max_new_tokens: int = option("Maximum number of tokens per text.", 192)

    def __post_init__(self):
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give 1 or more")
        if len(self.batch) != len(self.nodes):
            raise ConfigError(f"--batch {','.join(map(str, self.batch))} and --nodes "
                              f"{','.join(map(str, self.nodes))}: give as many node budgets as batch sizes")
        if unknown := sorted(set(self.data) - set(tables.DATA)):
            raise ConfigError(f"--data: {', '.join(unknown)} unknown; choose from {', '.join(tables.DATA)}")
        if min((*self.batch, *self.nodes), default=0) < 1:
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
    """DARE's speed tables: autoregressive decoding, ReSD and DARE by prompt set, side and architecture.

    Trains small models, lets them write the old text of old histories and existing items, then writes test
    rows of new histories and new items by every method. The last line of standard output is one JSON object.
    Everything finished is kept in ``options.work`` and used again while what made it is the same; cells are
    measured again when the code of decoding or drafting changes.
    """
    models.check(options.architectures)
    asked = models.find(options.prompts)
    data = [tables.load(name, options.users, options.work) for name in options.data or [tables.default()]]
    pool_of = {known.name: indexes.pools_of(known, options.work) for known in data}
    lines = []
    for architecture in options.architectures:
        model = models.trained(architecture, asked, options.steps, options.work)
        for cell in (Cell(known, architecture, framework, side) for known in data for framework in asked
                     for side in framework.sides):
            _LOG.info("%s: old text, pools, measuring", " ".join(cell.names.values()))
            found = _measured(cell, model, pool_of[cell.data.name][cell.side], options)
            lines += [{**cell.names, **line} for line in found]
            _LOG.info("times plain: %s", ", ".join(f"{line['method']} {line['ratio']}" for line in found))
    lines.sort(key=lambda line: [known.name for known in data].index(line["data"]))
    measure.show(lines)
    return {"rows": lines, "settings": {name: getattr(options, name) for name in _COUNTS},
            "versions": _versions()}


def _measured(cell: Cell, model: Path, pool_of: Mapping[str, indexes.Pool], options: Options) -> list[dict]:
    """Lines of one cell, one for each batch size and method."""
    asked = tables.of(cell.data, cell.framework, cell.side, options.rows, options.items, options.work)
    task = _task(cell, model, options)
    texts = written(model, options.work / "old" / cell.place, asked.old)
    folder = options.work / "pools" / cell.place / f"entity={cell.side}"
    sizes = indexes.index(texts, pool_of, options.pool_texts, task.tokenizer, folder, fingerprint(model))
    task = replace(task, pools_version=done_record(folder)["fingerprint"])
    sample = [{"entity": cell.side, "entity_id": key, "prompt": prompt, "pool": pool_of[key][0],
               "own_ids": texts[key].tolist() if key in texts else None, "strict": False}
              for key, prompt in asked.new.items()]
    lines = []
    for batch, nodes in zip(options.batch, options.nodes, strict=True):
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
    return Task(config, str(model), tokenizer_hash(model), folder=str(options.work),
                pools=str(options.work / "pools" / cell.place), pools_version="", plan_token="bench",
                dt="bench", run_id="bench", threads=options.threads)


def _code() -> str:
    """Digest of the code that is measured and measures, its libraries and the processor."""
    folders = [Path(package.__file__).parent for package in (decode, pools)] + [Path(__file__).parent]
    own = [Path(module.__file__) for module in (night, measured)]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return digest([*(path.read_text() for path in [*files, *own]), _versions(),
                   latency_probe.device_name(torch.device("cpu"))])


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "numba")}


main = command(Options)(run)
