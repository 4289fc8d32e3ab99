"""The command ``bench dare``: from nothing to the rows of the tables, part by part."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

import pools
from dare_job import decode
from dare_job.bench import sample_job
from dare_job.bench.cli import command, ints
from dare_job.bench.dare import indexes, measure, models, tables
from dare_job.bench.dare.tables import Data
from dare_job.bench.kept import code_digest, keep_figures
from dare_job.bench.profiles import texts
from dare_job.config.options import option, words
from dare_job.config.settings import JobConfig
from dare_job.decode.engine import latency_probe
from dare_job.errors import ConfigError
from dare_job.evaluate import measured
from dare_job.generate.task import Task
from dare_job.models.files import fingerprint, tokenizer_hash
from dare_job.prompts.sets import PromptSet
from dare_job.schemas import ENTITIES, GLOBAL
from dare_job.training.checks import require_at_least
from dare_job.workspace import digest, done_record

_COUNTS = ("rows", "users", "items", "pool_texts", "steps", "repeats", "threads", "max_new_tokens")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """Options of ``bench dare``."""

    work: Path = option("Folder for models, previous texts, pools and cells; a stopped run continues there.",
                        Path("out/bench-dare"))
    data: Sequence[str] = option("ml-1m (of the folder in DARE_DATA), sample. Default: ml-1m if DARE_DATA is "
                                 "set, else sample.", (), parse=words)
    prompts: Sequence[str] = option("Prompt sets by name. Default: all but the embedded model's.", (),
                                    parse=words)
    architectures: Sequence[str] = option("Models; the first is that of table 2.",
                                          ("llama", "qwen2", "mistral"), parse=words)
    batch: Sequence[int] = option("Batch sizes.", (1, 8), parse=ints)
    nodes: Sequence[int] = option("Draft tokens per row for each batch size.", (16, 8), parse=ints)
    rows: int = option("Test rows of users and of items.", 100)
    users: int = option("Users with previous texts.", 1000)
    items: int = option("Items with previous texts, of the existing half.", 1000)
    pool_texts: int = option("Maximum number of texts in the pool of a group.", 500)
    steps: int = option("Training steps of each architecture.", 100)
    repeats: int = option("Times each method runs; medians.", 3)
    threads: int = option("torch threads, as one Spark worker has.", 1)
    max_new_tokens: int = option("Maximum number of tokens per text.", 192)

    def __post_init__(self):
        require_at_least(self, **dict.fromkeys(_COUNTS, 1))
        if len(self.batch) != len(self.nodes):
            raise ConfigError(f"--batch {','.join(map(str, self.batch))} and --nodes "
                              f"{','.join(map(str, self.nodes))}: give as many node budgets as batch sizes")
        if unknown := sorted(set(self.data) - set(tables.DATA)):
            raise ConfigError(f"--data: {', '.join(unknown)} unknown; choose from {', '.join(tables.DATA)}")
        if min((*self.batch, *self.nodes), default=0) < 1:
            raise ConfigError("--batch and --nodes must be equally many numbers of at least 1, such as 1,8 "
                              "and 16,8")


@dataclass(frozen=True)
class Cell:
    """What the rows of one cell share."""

    data: Data
    architecture: str
    prompts: PromptSet
    side: str

    @property
    def names(self) -> dict[str, str]:
        return {"data": self.data.name, "architecture": self.architecture, "prompts": self.prompts.name,
                "side": self.side}

    @property
    def folder(self) -> Path:
        return Path(*self.names.values())


def run(options: Options) -> dict:
    """DARE's speed tables: autoregressive decoding, ReSD and DARE by prompt set, side and architecture.

    Trains small models, generates the previous texts of old histories and existing items, then the texts of
    test rows (new histories and new items) by every method. The last line of standard output is one JSON
    object. Everything finished is kept in ``options.work`` and used again while its inputs are the same;
    cells are measured again when the code of decoding or drafting changes.
    """
    models.check(options.architectures)
    prompt_sets = models.find(options.prompts)
    data = [tables.load(name, options.users, options.work) for name in options.data or [tables.default()]]
    pool_of = {each.name: indexes.pools_of(each, options.work) for each in data}
    rows = []
    for architecture in options.architectures:
        model = models.trained(architecture, prompt_sets, options.steps, options.work)
        for cell in (Cell(each, architecture, prompt_set, side) for each in data
                     for prompt_set in prompt_sets for side in ENTITIES):
            _LOG.info("%s: previous texts, pools, measuring", " ".join(cell.names.values()))
            rows += [{**cell.names, **row}
                     for row in _measure(cell, model, pool_of[cell.data.name][cell.side], options)]
    rows.sort(key=lambda row: [each.name for each in data].index(row["data"]))
    measure.show(rows)
    return {"rows": rows, "settings": {name: getattr(options, name) for name in _COUNTS},
            "versions": _versions()}


def _measure(cell: Cell, model: Path, pool_of: Mapping[str, indexes.Pool], options: Options) -> list[dict]:
    """Rows of one cell, one for each batch size and method."""
    prompts = tables.prompts_of(cell.data, cell.prompts, cell.side, options.rows, options.items, options.work)
    task = _task(cell, model, options)
    previous = texts.generate(model, options.work / "old" / cell.folder, prompts.old)
    folder = options.work / "pools" / cell.folder / f"entity={cell.side}"
    sizes = indexes.build(previous, pool_of, options.pool_texts, task.tokenizer, folder, fingerprint(model))
    task = replace(task, pools_version=done_record(folder)["fingerprint"])
    sample = [{"entity": cell.side, "entity_id": key, "prompt": prompt, "pool": pool_of[key][0],
               "own_ids": previous[key].tolist() if key in previous else None, "strict": False}
              for key, prompt in prompts.new.items()]
    rows = []
    for batch, nodes in zip(options.batch, options.nodes, strict=True):
        made_of = digest([task.pools_version, sample, batch, nodes, options.repeats,
                          options.threads, options.max_new_tokens, _code()])
        rows += keep_figures(options.work / "cells" / f"{made_of}.json",
                             partial(measure.cell, task, sample, batch, nodes, options.repeats))
    return [{**row, "groups": len(sizes) - 1, "old_texts": sizes[GLOBAL]} for row in rows]


def _task(cell: Cell, model: Path, options: Options) -> Task:
    """The task of a job's worker. Relaxed verification has the paper's k and p."""
    config = JobConfig.model_validate({
        "model": {"name": str(model), "device": "cpu"}, "decode": {"max_new_tokens": options.max_new_tokens},
        "verify": {"k": 2, "p": 0.1}})
    return Task(config, str(model), tokenizer_hash(model), folder=str(options.work),
                pools=str(options.work / "pools" / cell.folder), pools_version="", plan_token="bench",
                dt="bench", run_id="bench", threads=options.threads)


def _code() -> str:
    """Digest of the code that is measured and measures, its libraries and the processor."""
    folders = [Path(module.__file__).parent for module in (decode, pools, measure)]
    own = [Path(module.__file__) for module in (sample_job, measured)]
    return digest([code_digest(*folders, *own), _versions(),
                   latency_probe.device_name(torch.device("cpu"))])


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "numba")}


main = command(Options)(run)
