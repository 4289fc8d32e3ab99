"""Loads model, tokenizer, pools and engine in a worker, once per process and device, after a warm-up.

Workers import this module; Spark only sends the ``Task``.
"""

from functools import lru_cache, partial

import numpy as np
import torch

from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.stop_strings import StopStrings
from dare_job.decode.model import failures
from dare_job.decode.prompt.template import PromptFormat
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.decode.request import Request
from dare_job.generate import engines
from dare_job.generate.copied_words import copied_words
from dare_job.generate.task import Task
from dare_job.inference import engines as inference
from dare_job.inference import model
from dare_job.inference.grammars import grammar_of
from dare_job.inference.model import LoadedModel
from dare_job.inference.prompt_format import model_format
from dare_job.inference.warm_up import warm_up as warm_up_engine
from dare_job.observe import log
from dare_job.schemas import ENTITIES, GLOBAL, MODES_WITHOUT_POOLS
from dare_job.spark import workers
from dare_job.storage import versions
from dare_job.storage.local_copy import local_copy
from dare_job.storage.paths import path
from pools.index import Index
from pools.store import Store

# most specific first; wave: texts of earlier waves of this run
_ALL_POOLS = ("own", "wave", "group", "global")
POOLS_OF_MODE = {"dare": _ALL_POOLS, "sample": _ALL_POOLS, "resd": ("wave", "global"),
                 **dict.fromkeys(MODES_WITHOUT_POOLS, ())}


def start_task_log(task: Task, stage: str, **fields) -> None:
    """Log this worker's records with the run id and ``fields`` to a file in the run's log folder."""
    logs = versions.base_folder(path(task.folder)).parent / "logs"
    log.in_worker(task.config.log, logs, task.run_id, date=task.dt, stage=stage, **fields)


@lru_cache(maxsize=1)
def _load(folder: str, dtype: str, device: str, gpu: str | None, trust_remote_code: bool, threads: int,
          prompt_format: PromptFormat) -> LoadedModel:
    """Load the model; again if Spark assigns another GPU to this process."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(threads)
    warm_up()
    return model.load(folder, dtype, engines.task_device(device, gpu), trust_remote_code, prompt_format)


def load_task_model(task: Task) -> LoadedModel:
    """The model of a task. The first call in a process loads it."""
    settings = task.config.model
    return _load(task.model, settings.dtype, settings.device, workers.task_gpu(), settings.trust_remote_code,
                 task.threads, model_format(task.config))


def unload_models() -> None:
    """Unload the model of this process, so that the next one is not in memory at the same time."""
    _load.cache_clear()


def load_count() -> int:
    """Number of models that this process has loaded."""
    return _load.cache_info().misses


def release_memory(task: Task) -> None:
    """Release the device memory of engines that no longer exist."""
    failures.release(load_task_model(task).target)


def make_request(row: dict, task: Task, drafted: bool = True) -> Request:
    """Make the request of a row. If ``drafted``, it includes the row's pools and previous text."""
    ids = prompt_ids(load_task_model(task).tokenizer, row["prompt"], task.prompt_format(row["entity"]))
    name = row["entity_id"]
    key = row["entity"], name  # a user and an item with the same id get different random numbers
    form = grammar_of(task.config, load_task_model(task), row["entity"])
    if not drafted:
        return Request(name, ids, key=key, grammar=form)
    previous = np.asarray(row["own_ids"], np.int32) if row["own_ids"] else None
    pools = open_row_pools(row, task)
    limit = None if row["strict"] else inference.length_limit(pools, task.config)
    return Request(name, ids, pools, previous_ids=previous, strict=bool(row["strict"]),
                   max_relaxed_tokens=limit, key=key, grammar=form)


def decode_text(token_ids, task: Task) -> str:
    """``inference.model.decode_text`` with the model of a task."""
    return model.decode_text(token_ids, load_task_model(task), task.config)


def load_stop_strings(task: Task) -> StopStrings:
    """The stop strings of a task."""
    return inference.strings_of(task.config, load_task_model(task))


def open_row_pools(row: dict, task: Task) -> tuple[Index, ...]:
    """Open the pools of a row, most specific first, with an index of its previous text.

    A group without previous text has no pool.

    Raises
    ------
    PoolError
        A pool is missing, damaged or incompatible.
    """
    store = _store(f"{task.pools}/entity={row['entity']}", task.pools_version, task.tokenizer)
    opened = []
    for kind in POOLS_OF_MODE[task.config.decode.mode]:
        name = row["pool"] if kind == "group" else GLOBAL
        if kind == "own":
            opened += [Index.build([row["own_ids"]], kind="own")] if row["own_ids"] else []
        elif kind == "wave":
            opened += [_wave_pool(folder, version, task.tokenizer)
                       for entity, folder, version in task.wave_pools if entity == row["entity"]]
        elif name in store and (kind, name) != ("group", GLOBAL):
            opened.append(store.get(name))
    return tuple(opened)


@lru_cache(maxsize=2 * len(ENTITIES))
def _wave_pool(folder: str, version: str, tokenizer: str) -> Index:
    """The pool of the earlier waves. ``version`` changes when it is rebuilt."""
    return Index.open(local_copy(path(folder), version), tokenizer)


@lru_cache(maxsize=4)
def _store(folder: str, version: str, tokenizer: str) -> Store:
    """One store of open pools per folder; ``version`` changes when the pools are rebuilt."""
    return Store(local_copy(path(folder), version), tokenizer)


def make_engine(task: Task, mode: str | None = None, batch_size: int | None = None) -> Engine:
    """A new engine with the task's settings. The mode "autoregressive" uses no drafts."""
    return inference.make_engine(task.config, load_task_model(task), task.threads,
                                 partial(engines.load_draft_model, task), mode, batch_size)


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Compile the kernels of a worker with a model of a few hundred weights, once per process.

    Otherwise compilation would distort latency measurements of the first rows. The first run after an
    installation compiles for about 40 s of CPU time; later runs load the cache.
    """
    warm_up_engine()
    copied_words(["a"], ["a"])
