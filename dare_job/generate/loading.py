"""Loads what a worker needs to decode, once per process and device: model, tokenizer, pools, engine.

Workers import this module; Spark only sends the ``Task``.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dare_job.config.base import values_for
from dare_job.decode.draft.warm_up import warm_up
from dare_job.decode.engine import latency_probe
from dare_job.decode.engine.draft_budget import DraftBudget, max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.engine.prompt import prompt_ids
from dare_job.decode.model import memory
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import SAMPLE_METHODS, EngineSettings, Warp
from dare_job.generate import engines
from dare_job.generate.task import Task
from dare_job.observe import log
from dare_job.schemas import ENTITIES, GLOBAL, MODES_WITHOUT_POOLS
from dare_job.spark import workers
from dare_job.storage import atomic
from dare_job.storage.local_copy import local_copy
from dare_job.storage.paths import path
from pools.index import Index, length_quantile
from pools.store import Store, open_pool

# most specific first; wave: texts of earlier waves of this run
_ALL = ("own", "wave", "group", "global")
POOLS_OF_MODE = {"dare": _ALL, "sample": _ALL, "resd": ("wave", "global"),
                 **dict.fromkeys(MODES_WITHOUT_POOLS, ())}


def start_task_log(task: Task, stage: str, **fields) -> None:
    """Log this worker's records with the run's id and these fields, beside the run's own file."""
    logs = atomic.base_folder(path(task.folder)).parent / "logs"
    log.in_worker(task.config.log, logs, task.run_id, date=task.dt, stage=stage, **fields)


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory with its tokenizer."""

    target: Target
    tokenizer: object


@lru_cache(maxsize=1)
def _load(model: str, dtype: str, device: str, gpu: str | None, trust_remote_code: bool,
          threads: int) -> LoadedModel:
    """Loads again where Spark gives this process another GPU than before."""
    import torch
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(threads)
    warm_up()
    target = engines.load_model(model, dtype, device, gpu, trust_remote_code)
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    return LoadedModel(target, tokenizer)


def load_task_model(task: Task) -> LoadedModel:
    """The model of a task, loaded on the first call in this process."""
    settings = task.config.model
    return _load(task.model, settings.dtype, settings.device, workers.task_gpu(), settings.trust_remote_code,
                 task.threads)


def load_count() -> int:
    """How often this process has loaded a model."""
    return _load.cache_info().misses


def release_memory(task: Task) -> None:
    """Give back what engines of this process left."""
    memory.release(load_task_model(task).target)


def make_request(row: dict, task: Task, drafted: bool = True) -> Request:
    """Make the request of a row. If ``drafted``, it includes the row's pools and previous text."""
    ids = prompt_ids(load_task_model(task).tokenizer, row["prompt"], task.config.model.chat_template)
    name = row["entity_id"]
    key = row["entity"], name  # a user and an item of one id have random numbers of their own
    if not drafted:
        return Request(name, ids, key=key)
    own = np.asarray(row["own_ids"], np.int32) if row["own_ids"] else None
    pools = open_row_pools(row, task)
    guard = None if row["strict"] else length_limit(pools, task)
    return Request(name, ids, pools, previous_ids=own, strict=bool(row["strict"]), max_relaxed_tokens=guard,
                   key=key)


def length_limit(pools: tuple[Index, ...], task: Task) -> int | None:
    """Tokens behind which a row's text is long for its group, where relaxed text may run on; else None."""
    verify = task.config.verify
    if verify.length_quantile is None or verify.rule == "strict" or task.config.decode.mode != "dare":
        return None
    return length_quantile(pools, verify.length_quantile)


def decode_text(token_ids, task: Task) -> str:
    """Generated token ids as text."""
    return load_task_model(task).tokenizer.decode(token_ids, skip_special_tokens=True).strip()


def open_row_pools(row: dict, task: Task) -> tuple[Index, ...]:
    """Open the row's own previous text and its pools. A group without previous text has no pool.

    Raises PoolError on damage.
    """
    store = _store(f"{task.pools}/entity={row['entity']}", task.pools_version, task.tokenizer)
    found = []
    for kind in POOLS_OF_MODE[task.config.decode.mode]:
        name = row["pool"] if kind == "group" else GLOBAL
        if kind == "own":
            found += [Index.build([row["own_ids"]], kind="own")] if row["own_ids"] else []
        elif kind == "wave":
            found += [_wave_pool(folder, version, task.tokenizer)
                      for entity, folder, version in task.wave_pools if entity == row["entity"]]
        elif name in store and (kind, name) != ("group", GLOBAL):
            found.append(store.get(name))
    return tuple(found)


@lru_cache(maxsize=2 * len(ENTITIES))
def _wave_pool(folder: str, version: str, tokenizer: str) -> Index:
    """The pool of the earlier waves, opened once; ``version`` changes when it is rebuilt."""
    return open_pool(local_copy(path(folder), version), tokenizer)


@lru_cache(maxsize=4)
def _store(folder: str, version: str, tokenizer: str) -> Store:
    """One store of open pools per folder; ``version`` changes when the pools are rebuilt."""
    return Store(local_copy(path(folder), version), tokenizer_hash=tokenizer)


def make_engine(task: Task, mode: str | None = None, batch_size: int | None = None) -> Engine:
    """A fresh engine with the task's settings; ``mode`` "autoregressive" drafts nothing."""
    decode, verify = task.config.decode, task.config.verify
    mode = mode or decode.mode
    plain = mode == "autoregressive"
    sampled = decode.mode == "sample"
    rule = verify.rule if mode == "dare" else "strict"
    settings = EngineSettings(**values_for(EngineSettings, decode, verify) | {
        "rule": rule, "batch_size": batch_size or decode.batch_size, "score": _score(task, mode),
        "nodes": 0 if plain else _nodes(task, rule)})
    target = load_task_model(task).target
    if decode.mode == "beam":
        return engines.make_beam_engine(task, target, settings, plain)
    drafter = None if plain else engines.make_drafter(task, target)
    if sampled:
        return SamplingEngine(target, settings, sampling_settings(task), drafter)
    key = (task.model, mode, settings.rule, settings.k, settings.p, settings.c, settings.epsilon,
           settings.delta, settings.batch_size, settings.nodes, engines.drafter_key(task))
    shared = decode.nodes == "auto" and settings.nodes == max_row_nodes(decode.batch_size)
    measured = replace(settings, batch_size=max(decode.batch_size, settings.batch_size))  # fewer rows too
    scheduler = _scheduler(key, target, measured) if shared else None
    return Engine(target, settings, drafter, _scoring(key), scheduler)


def sampling_settings(task: Task) -> Sampling:
    """What the section sample of a task's settings asks for."""
    sample = task.config.sample
    values = values_for(Warp, sample)
    model_penalty = sample.repetition_penalty is None
    warp = Warp(**values | ({"repetition_penalty": 1.0} if model_penalty else {}))
    rule, law = SAMPLE_METHODS[sample.method]
    return Sampling(warp, task.config.seed, law, rule, model_penalty)


def _nodes(task: Task, rule: str) -> int:
    """Draft nodes of a row: at most where the scheduler gives them out, else each row's."""
    asked = task.config.decode.nodes
    if asked != "auto":
        return asked
    fixed = task.config.verify.reproducible and rule != "strict"
    fixed |= task.config.decode.mode == "sample"
    if fixed:
        return engines.default_nodes(task.config.drafter)
    return max_row_nodes(task.config.decode.batch_size)


def _score(task: Task, mode: str) -> str:
    """decode.score, or what follows where text must depend on neither company nor time."""
    decode, verify = task.config.decode, task.config.verify
    if mode == "beam" or decode.mode == "beam":
        return "never"
    if mode == "sample":
        return "never" if decode.score == "auto" else decode.score
    if mode != "dare":
        return "never"
    fixed = verify.reproducible and verify.rule != "strict" and decode.score == "auto"
    return "always" if fixed else decode.score


@lru_cache(maxsize=64)
def _scoring(key: tuple) -> ReuseEstimator:
    """What this process has seen of old text, for the engines that cost and accept alike."""
    return ReuseEstimator()


_schedulers: dict[tuple, DraftBudget] = {}


def _scheduler(key: tuple, target: Target, settings: EngineSettings) -> DraftBudget:
    """The scheduler of the engines that cost and accept alike; the first one measures what forwards cost."""
    if key not in _schedulers:
        _schedulers[key] = DraftBudget(latency_probe.load_or_measure(target, settings), settings.nodes)
    return _schedulers[key]
