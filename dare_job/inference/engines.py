"""Makes engines and drafters from the job's settings."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch

from dare_job.config.base import values_for
from dare_job.config.plugins import PlugIn
from dare_job.config.settings import JobConfig
from dare_job.decode.beam.drafting import BeamDrafter
from dare_job.decode.beam.engine import BeamEngine
from dare_job.decode.draft.checked import CheckedDrafter
from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.draft.sampled_tree import TreeShape
from dare_job.decode.engine import generation_config, latency_probe
from dare_job.decode.engine.budget import CheckedBudget, DraftBudget
from dare_job.decode.engine.draft_budget import AdaptiveBudget, max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.prefill import ReuseEstimator
from dare_job.decode.engine.stop_strings import NO_STOP, StopStrings, stop_strings
from dare_job.decode.model.paged.pool import share_memory
from dare_job.decode.model.target import Target
from dare_job.decode.request import Drafter
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import BEAM_METHODS, SAMPLE_METHODS, Beams, EngineSettings, Warp
from dare_job.inference.model import LoadedModel
from pools.draft import DraftSettings
from pools.index import Index, length_quantile

LoadDraft = Callable[[], Target]  # returns the draft model, on the target's device


def make_engine(config: JobConfig, loaded: LoadedModel, threads: int, load_draft: LoadDraft,
                mode: str | None = None, batch_size: int | None = None) -> Engine:
    """A new engine with these settings. The first one with a draft budget measures forward latency.

    Parameters
    ----------
    threads
        Threads that draft.
    load_draft
        Called if ``drafter.model`` is set and the mode uses it.
    mode
        Instead of ``decode.mode``. "autoregressive" uses no drafts.
    batch_size
        Instead of ``decode.batch_size``.
    """
    decode, verify, target = config.decode, config.verify, loaded.target
    mode = mode or decode.mode
    undrafted = mode == "autoregressive" or target.drafts == "none"
    strict, plug_ins = mode != "dare" or verify.is_strict, config.plug_ins
    plugin = plug_ins.get("verify.rule") if mode == "dare" else None
    settings = EngineSettings(**values_for(EngineSettings, decode, verify) | {
        "rule": verify.rule if mode == "dare" and plugin is None else "strict",
        "batch_size": batch_size or decode.batch_size, "score": score(config, mode),
        "nodes": 0 if undrafted else _nodes(config, strict, target),
        "one_shape": verify.reproducible and config.model.dtype != "float32"})
    if decode.mode == "beam":
        return _beam_engine(config, target, settings, undrafted, load_draft)
    numbers = loaded.numbers if decode.end_loops else None
    drafter = None if undrafted else _drafter(config, target, threads, load_draft)
    stop = strings_of(config, loaded)
    if decode.mode == "sample":
        return SamplingEngine(target, settings, sampling(config), drafter, stop=stop, numbers=numbers)
    learned = _Learned.of(loaded, mode, settings, config)
    budgeted = not isinstance(decode.nodes, int) and not undrafted and not _is_reproducible(config, strict)
    measured = replace(settings, batch_size=max(decode.batch_size, settings.batch_size))
    budget = learned.budget(target, measured, plug_ins.get("decode.nodes")) if budgeted else None
    return Engine(target, settings, drafter, learned.reuse, budget, stop, numbers,
                  plugin and plugin.make(end_of_text(target, settings)))


def end_of_text(target: Target, settings: EngineSettings) -> torch.Tensor:
    """The tokens that end a text, int64 (E,), on the target's device."""
    rules = generation_config.read_rules(target.generation_config, settings.repetition_penalty)
    return torch.tensor(list(rules.eos), dtype=torch.long, device=target.device)


class _Learned:
    """What engines with the same settings learn from all rows that a process decodes."""

    def __init__(self):
        self.reuse, self._budget = ReuseEstimator(), None

    @classmethod
    def of(cls, loaded: LoadedModel, mode: str, settings: EngineSettings, config: JobConfig) -> "_Learned":
        drafter, plugins = config.drafter, tuple(plugin.text for plugin in config.plug_ins.values())
        key = (mode, settings.rule, settings.k, settings.p, settings.c, settings.epsilon, settings.delta,
               settings.batch_size, settings.nodes, drafter.model and (drafter.model, drafter.tree), plugins)
        return loaded.learned.setdefault(key, cls())

    def budget(self, target: Target, settings: EngineSettings, plugin: PlugIn | None) -> DraftBudget:
        """The draft budget; the first call measures forward latency."""
        if self._budget is None:
            curve = latency_probe.load_or_measure(target, settings)
            given = curve, settings.nodes, target.round_up
            self._budget = CheckedBudget(plugin.make(*given)) if plugin else AdaptiveBudget(*given)
        return self._budget


def strings_of(config: JobConfig, loaded: LoadedModel) -> StopStrings:
    """The stop strings of the settings. The first call for a tokenizer reads the bytes of all its tokens."""
    strings = tuple(config.decode.stop)
    return _stop_strings(strings, loaded.tokenizer) if strings else NO_STOP


_stop_strings = lru_cache(maxsize=1)(stop_strings)


def sampling(config: JobConfig) -> Sampling:
    """``Sampling`` from the section ``sample`` of the settings."""
    rule, distribution = SAMPLE_METHODS[config.sample.method]
    return Sampling(Warp(**values_for(Warp, config.sample)), config.seed, distribution, rule)


def length_limit(pools: tuple[Index, ...], config: JobConfig) -> int | None:
    """Number of tokens after which relaxed verification of a row ends; None if there is no limit.

    It is the quantile ``verify.length_quantile`` of the text lengths in the row's pools.
    """
    verify = config.verify
    if verify.length_quantile is None or config.decode.mode != "dare" or verify.is_strict:
        return None
    return length_quantile(pools, verify.length_quantile)


def _is_reproducible(config: JobConfig, strict: bool) -> bool:
    """Whether a text must not depend on its batch, and would: by its drafts, or by rounding."""
    return config.verify.reproducible and not (strict and config.model.dtype == "float32")


def _nodes(config: JobConfig, strict: bool, target: Target) -> int:
    """Draft nodes per row: the maximum if a draft budget distributes them, else the fixed number."""
    decode, drafter = config.decode, config.drafter
    if isinstance(decode.nodes, int):
        return decode.nodes
    if decode.mode == "sample" or _is_reproducible(config, strict):
        return TreeShape.parse(drafter.tree).nodes if drafter.model else EngineSettings.nodes
    return max_row_nodes(decode.batch_size, target.paged is not None)


def score(config: JobConfig, mode: str) -> str:
    """``decode.score``, or its replacement if text must not depend on batch composition or timing."""
    decode = config.decode
    if mode not in ("dare", "sample") or decode.mode == "beam":
        return "never"
    if decode.score != "auto":
        return decode.score
    if mode == "sample":
        return "never"
    return "always" if _is_reproducible(config, config.verify.is_strict) else "auto"


def _drafter(config: JobConfig, target: Target, threads: int, load_draft: LoadDraft) -> Drafter:
    """A new drafter for an engine with this target, from the section ``drafter`` of the settings."""
    decode = config.decode
    if plugin := config.plug_ins.get("drafter.plugin"):
        return CheckedDrafter(plugin.make(), target.vocabulary)
    if config.drafter.model is not None:
        return ModelDrafter(_beside(target, load_draft), config.drafter.tree, target.vocabulary)
    weight = None if decode.blend_lambda == "learned" else decode.blend_lambda
    return RetrievalDrafter(DraftSettings(depth=decode.depth, context=decode.context, pseudo_count=weight,
                                          threads=threads))


def _beside(target: Target, load_draft: LoadDraft) -> Target:
    draft = load_draft()
    share_memory(target, draft)
    return draft


def _beam_engine(config: JobConfig, target: Target, settings: EngineSettings, undrafted: bool,
                 load_draft: LoadDraft) -> BeamEngine:
    drafted = not undrafted and config.drafter.model is not None and config.beam.layers > 0
    return BeamEngine(target, settings, _beams(config, drafted),
                      BeamDrafter(_beside(target, load_draft)) if drafted else None)


def _beams(config: JobConfig, drafted: bool) -> Beams:
    """``Beams`` from the sections ``beam`` and ``sample`` of the settings."""
    sample, beam = config.sample, config.beam
    distribution, draft_distribution = BEAM_METHODS[beam.method]
    values = values_for(Beams, beam) | ({} if drafted else {"layers": 0})
    return Beams(**values, warp=Warp(sample.temperature, sample.top_k, sample.top_p), seed=config.seed,
                 distribution=distribution, draft_distribution=draft_distribution)
