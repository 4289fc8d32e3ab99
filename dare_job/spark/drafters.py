"""What drafts for a worker's engines: old text, a draft model that is loaded once a process, or both."""

from functools import lru_cache

from dare_job.config_drafts import DrafterSettings
from dare_job.decode import EngineSettings, Target
from dare_job.decode.draft.base import Drafter
from dare_job.decode.draft.hybrid import HybridDrafter
from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.draft.shape import Shape
from dare_job.spark import gpus, models
from dare_job.spark.task import Task
from pools.draft import DraftSettings


def drafter(task: Task, target: Target) -> Drafter:
    """A fresh one for an engine with this target, by the section drafter of the task's settings."""
    asked = task.config.drafter
    if asked.source == "retrieval":
        return _retrieval(task)
    model = ModelDrafter(draft_model(task), asked.tree, target.vocabulary)
    return model if asked.source == "model" else HybridDrafter(_retrieval(task), model, asked.confidence)


def draft_model(task: Task) -> Target:
    """The draft model of a task, loaded on the first call in this process, where the target is."""
    settings = task.config.model
    return _load(task.draft, settings.dtype, settings.device, gpus.address(), settings.trust_remote_code)


_load = lru_cache(maxsize=1)(models.load)


def nodes(asked: DrafterSettings) -> int:
    """Draft nodes of a row where decode.nodes is auto and each has as many, whatever its company."""
    usual, tree = EngineSettings.nodes, Shape.parse(asked.tree).nodes
    return {"retrieval": usual, "model": tree, "hybrid": max(usual, tree)}[asked.source]


def key(task: Task) -> tuple:
    """Differs where drafts cost or are accepted otherwise."""
    asked = task.config.drafter
    return (asked.source,) if asked.source == "retrieval" else (
        asked.source, task.draft, asked.tree, asked.confidence)


def _retrieval(task: Task) -> RetrievalDrafter:
    decode = task.config.decode
    lam = None if decode.blend_lambda == "learned" else decode.blend_lambda
    return RetrievalDrafter(DraftSettings(depth=decode.depth, context=decode.context, lam=lam,
                                          threads=task.threads))
