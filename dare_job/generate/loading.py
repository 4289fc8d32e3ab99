"""Loads model, tokenizer, pools and engine in a worker, once per process and device, after a warm-up.

Workers import this module; Spark only sends the ``Task``.
"""

import logging
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch

from dare_job.config.base import values_for
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine import latency_probe
from dare_job.decode.engine.draft_budget import DraftBudget, max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.engine.loops import number_tokens
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.engine.stop_strings import NO_STOP, StopStrings, stop_strings
from dare_job.decode.model import failures
from dare_job.decode.model.target import Target
from dare_job.decode.model.undrafted import any_target
from dare_job.decode.prompt import answers
from dare_job.decode.prompt.answers import add_end_of_turn
from dare_job.decode.prompt.template import PromptFormat
from dare_job.decode.prompt.tokens import encoder, prompt_ids
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import SAMPLE_METHODS, EngineSettings, Warp
from dare_job.errors import RowError
from dare_job.generate import engines
from dare_job.generate.copied_words import copied_words
from dare_job.generate.task import Task, model_format
from dare_job.observe import log
from dare_job.schemas import ENTITIES, GLOBAL, MODES_WITHOUT_POOLS
from dare_job.spark import workers
from dare_job.storage import versions
from dare_job.storage.local_copy import local_copy
from dare_job.storage.paths import path
from pools.draft import DraftSettings
from pools.index import Index, length_quantile
from pools.store import Store

_LOG = logging.getLogger("dare_job")
# most specific first; wave: texts of earlier waves of this run
_ALL_POOLS = ("own", "wave", "group", "global")
POOLS_OF_MODE = {"dare": _ALL_POOLS, "sample": _ALL_POOLS, "resd": ("wave", "global"),
                 **dict.fromkeys(MODES_WITHOUT_POOLS, ())}
_VOCABULARY = 8  # of the warm-up; small enough that its pool contains every pair of tokens
_CHEAP = LatencyCurve.of({"1": {"1": 1.0, "9": 1.1}, "4": {"1": 1.0, "9": 1.1}}, "fictitious: cheap drafts")


def start_task_log(task: Task, stage: str, **fields) -> None:
    """Log this worker's records with the run id and ``fields`` to a file in the run's log folder."""
    logs = versions.base_folder(path(task.folder)).parent / "logs"
    log.in_worker(task.config.log, logs, task.run_id, date=task.dt, stage=stage, **fields)


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory with its tokenizer."""

    target: Target
    tokenizer: object

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The end-of-text tokens."""
        eos = self.target.generation_config.eos_token_id
        return () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (eos,)

    @cached_property
    def numbers(self) -> np.ndarray:
        """The tokens that are numbers, bool (V,)."""
        return number_tokens(self.tokenizer)


@lru_cache(maxsize=1)
def _load(model: str, dtype: str, device: str, gpu: str | None, trust_remote_code: bool,
          threads: int, prompt_format: PromptFormat) -> LoadedModel:
    """Load the model; again if Spark assigns another GPU to this process."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(threads)
    warm_up()
    target = engines.load_model(model, dtype, device, gpu, trust_remote_code, any_target)
    target.release_weights()
    failures.release(target)
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    if warning := add_end_of_turn(target.generation_config, tokenizer, prompt_format):
        _LOG.warning("%s", warning)
    return LoadedModel(target, tokenizer)


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
    if not drafted:
        return Request(name, ids, key=key)
    previous = np.asarray(row["own_ids"], np.int32) if row["own_ids"] else None
    pools = open_row_pools(row, task)
    limit = None if row["strict"] else length_limit(pools, task)
    return Request(name, ids, pools, previous_ids=previous, strict=bool(row["strict"]),
                   max_relaxed_tokens=limit, key=key)


def length_limit(pools: tuple[Index, ...], task: Task) -> int | None:
    """Number of tokens after which relaxed verification of a row ends; None if there is no limit.

    It is the quantile ``verify.length_quantile`` of the text lengths in the row's pools.
    """
    verify = task.config.verify
    if verify.length_quantile is None or verify.rule == "strict" or task.config.decode.mode != "dare":
        return None
    return length_quantile(pools, verify.length_quantile)


def decode_text(token_ids, task: Task) -> str:
    """Text of generated token ids: after a thinking block, before a stop string, without special tokens.

    Raises
    ------
    RowError
        The text ends inside its thinking block.
    """
    loaded, ids = load_task_model(task), np.asarray(token_ids)
    if len(ids) and ids[-1] in loaded.ends:
        ids = ids[:-1]  # an end-of-text token that the tokenizer does not mark as special would be decoded
    opened = encoder(loaded.tokenizer, model_format(task.config)).opens_thinking
    text = answers.answer(loaded.tokenizer, ids, opened)
    if text is None:
        decode = task.config.decode
        cause = ("a string of decode.stop occurs there: remove it from decode.stop"
                 if decode.stop and len(token_ids) < decode.max_new_tokens else "raise decode.max_new_tokens")
        raise RowError(f"the text ends inside its thinking block, after {len(token_ids)} tokens: {cause}, or "
                       "switch thinking off (model.template_arguments, or another model)")
    for string in task.config.decode.stop:
        text = text.partition(string)[0]
    return text.strip()


def load_stop_strings(task: Task) -> StopStrings:
    """The stop strings of a task. The first call in a process reads the bytes of all tokens."""
    strings = tuple(task.config.decode.stop)
    return _stop_strings(strings, load_task_model(task).tokenizer) if strings else NO_STOP


_stop_strings = lru_cache(maxsize=1)(stop_strings)


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
    decode, verify = task.config.decode, task.config.verify
    mode, loaded = mode or decode.mode, load_task_model(task)
    undrafted = mode == "autoregressive" or loaded.target.drafts == "none"
    sampled = decode.mode == "sample"
    rule = verify.rule if mode == "dare" else "strict"
    settings = EngineSettings(**values_for(EngineSettings, decode, verify) | {
        "rule": rule, "batch_size": batch_size or decode.batch_size, "score": _score(task, mode),
        "nodes": 0 if undrafted else _nodes(task, rule)})
    target = loaded.target
    if target.paged is not None:
        rounds = task.config.model.dtype != "float32"
        target.paged.fixed_nodes = settings.nodes if verify.reproducible and rounds else None
    if decode.mode == "beam":
        return engines.make_beam_engine(task, target, settings, undrafted)
    numbers = loaded.numbers if decode.end_loops else None
    drafter = None if undrafted else engines.make_drafter(task, target)
    stop = load_stop_strings(task)
    if sampled:
        return SamplingEngine(target, settings, sampling_settings(task), drafter, stop=stop, numbers=numbers)
    key = (task.model, mode, settings.rule, settings.k, settings.p, settings.c, settings.epsilon,
           settings.delta, settings.batch_size, settings.nodes, engines.drafter_key(task))
    budgeted = decode.nodes == "auto" and settings.nodes == max_row_nodes(decode.batch_size)
    measured = replace(settings, batch_size=max(decode.batch_size, settings.batch_size))
    budget = _draft_budget(key, target, measured) if budgeted else None
    return Engine(target, settings, drafter, _reuse_estimator(key), budget, stop, numbers)


def sampling_settings(task: Task) -> Sampling:
    """``Sampling`` from the section ``sample`` of a task's settings."""
    sample = task.config.sample
    rule, distribution = SAMPLE_METHODS[sample.method]
    return Sampling(Warp(**values_for(Warp, sample)), task.config.seed, distribution, rule)


def _reproducible(task: Task, rule: str) -> bool:
    """Whether a text must not depend on its batch, and would: by its drafts, or by rounding."""
    config = task.config
    return config.verify.reproducible and (rule != "strict" or config.model.dtype != "float32")


def _nodes(task: Task, rule: str) -> int:
    """Draft nodes per row: the maximum if a draft budget distributes them, else the fixed number."""
    decode = task.config.decode
    if decode.nodes != "auto":
        return decode.nodes
    if decode.mode == "sample" or _reproducible(task, rule):
        return engines.default_nodes(task.config.drafter)
    return max_row_nodes(decode.batch_size)


def _score(task: Task, mode: str) -> str:
    """``decode.score``, or its replacement if text must not depend on batch composition or timing."""
    decode = task.config.decode
    if mode not in ("dare", "sample") or decode.mode == "beam":
        return "never"
    if decode.score != "auto":
        return decode.score
    if mode == "sample":
        return "never"
    return "always" if _reproducible(task, task.config.verify.rule) else "auto"


@lru_cache(maxsize=64)
def _reuse_estimator(key: tuple) -> ReuseEstimator:
    """The estimator of engines with the same settings; it learns from all their rows in this process."""
    return ReuseEstimator()


_budgets: dict[tuple, DraftBudget] = {}


def _draft_budget(key: tuple, target: Target, settings: EngineSettings) -> DraftBudget:
    """The draft budget of engines with the same settings; the first call measures forward latency."""
    if key not in _budgets:
        _budgets[key] = DraftBudget(latency_probe.load_or_measure(target, settings), settings.nodes,
                                    target.round_up)
    return _budgets[key]


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Compile the kernels of a worker with a model of a few hundred weights, once per process.

    Otherwise compilation would distort latency measurements of the first rows. The first run after an
    installation compiles for about 40 s of CPU time; later runs load the cache.
    """
    target, pool = Target(_tiny_model(), check=False), Index.build([np.tile(_all_pairs(), 2)])
    requests = [Request(n, _all_pairs()[:3 + n], (pool,), max_new_tokens=6 + n, previous_ids=old)
                for n, old in enumerate((None, _all_pairs()[2:20], None, _all_pairs()[5:9], None, None))]
    for rule in ("strict", "relaxed"):
        for draft_budget in (DraftBudget(_CHEAP, 8), None):
            settings = EngineSettings(rule=rule, batch_size=4, nodes=8, depth=6, score="always")
            list(Engine(target, settings, RetrievalDrafter(DraftSettings(depth=6)),
                        draft_budget=draft_budget, numbers=np.zeros(_VOCABULARY, np.bool_)).run(requests))
    list(Engine(target, EngineSettings(batch_size=4, nodes=0)).run(requests[:3]))
    copied_words(["a"], ["a"])


def _tiny_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=128, bos_token_id=None,
        eos_token_id=None)
    with torch.random.fork_rng(devices=[]):  # leaves the global generator of the caller as it is
        return LlamaForCausalLM(config)


def _all_pairs() -> np.ndarray:
    """Text that contains every pair of tokens."""
    first, second = np.divmod(np.arange(_VOCABULARY**2), _VOCABULARY)
    return np.stack([first, second], 1).astype(np.int32).reshape(-1)
