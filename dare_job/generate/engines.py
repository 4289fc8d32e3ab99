"""Loads models in a worker and creates drafters and the engine of mode ``beam``."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from dare_job.config.base import values_for
from dare_job.config.decoding import DrafterSettings
from dare_job.decode.beam.drafting import BeamDrafter
from dare_job.decode.beam.engine import BeamEngine
from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.draft.sampled_tree import TreeShape
from dare_job.decode.model import failures
from dare_job.decode.model.paged.pool import share_memory
from dare_job.decode.model.target import Target
from dare_job.decode.request import Drafter
from dare_job.decode.settings import BEAM_METHODS, Beams, EngineSettings, Warp
from dare_job.errors import DeviceError, InfrastructureError, describe
from dare_job.generate.task import Task
from dare_job.spark import workers
from pools.draft import DraftSettings


def load_model(folder: str, dtype: str, device: str, gpu: str | None, trust_remote_code: bool,
               make: Callable[..., Target] | None = None) -> Target:
    """Load a model onto its device. ``gpu`` is the address of the GPU that Spark assigned to this task.

    ``make`` as for ``Target.load``: with ``any_target``, a model without drafts is loaded too.

    Raises
    ------
    ModelError, ConfigError
        As ``Target.load``.
    InfrastructureError
        The model does not fit into memory, or its device failed.
    """
    with memory_errors("the model"):
        return Target.load(Path(folder), dtype, workers.select_device(device, gpu), trust_remote_code,
                           make=make)


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Convert memory and device failures of the block, which loads ``what``.

    Raises
    ------
    InfrastructureError
        ``what`` does not fit into memory, or the device failed.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not failures.is_out_of_memory(error) and not failures.is_device_failure(error):
            raise
        raise InfrastructureError(
            f"{socket.gethostname()}: {what} does not fit into memory, or the device failed: "
            f"{describe(error)}; give each task more memory, or run fewer tasks per machine") from error


def raise_if_device_failed(error: Exception, ids: Sequence[str]) -> None:
    """Check whether ``error`` is a device failure. ``ids`` are the rows that were being decoded.

    Raises
    ------
    DeviceError
        It is one. This ends the worker process, and Spark restarts the task in another one.
    """
    if failures.is_device_failure(error):
        raise DeviceError(f"{socket.gethostname()}: the device failed: {describe(error)}", ids) from error


def make_drafter(task: Task, target: Target) -> Drafter:
    """A new drafter for an engine with this target, from the section ``drafter`` of the task's settings."""
    drafter = task.config.drafter
    if drafter.model is not None:
        return ModelDrafter(_draft_model(task, target), drafter.tree, target.vocabulary)
    decode = task.config.decode
    weight = None if decode.blend_lambda == "learned" else decode.blend_lambda
    return RetrievalDrafter(DraftSettings(depth=decode.depth, context=decode.context, pseudo_count=weight,
                                          threads=task.threads))


def load_draft_model(task: Task) -> Target:
    """The draft model of a task, on the target's device. The first call in a process loads it."""
    settings = task.config.model
    return _load(task.draft, settings.dtype, settings.device, workers.task_gpu(), settings.trust_remote_code)


def _draft_model(task: Task, target: Target) -> Target:
    draft = load_draft_model(task)
    share_memory(target, draft)
    return draft


_load = lru_cache(maxsize=1)(load_model)


def default_nodes(drafter: DrafterSettings) -> int:
    """Draft nodes per row if ``decode.nodes`` is auto and the number must not depend on the batch."""
    return TreeShape.parse(drafter.tree).nodes if drafter.model else EngineSettings.nodes


def drafter_key(task: Task) -> tuple:
    """A key that differs for drafters with different costs or acceptance."""
    drafter = task.config.drafter
    return (task.draft, drafter.tree) if drafter.model else ()


def make_beam_engine(task: Task, target: Target, settings: EngineSettings,
                     undrafted: bool) -> BeamEngine:
    """A new engine of mode ``beam`` with the task's settings. ``undrafted``: without the draft model."""
    config = task.config
    drafted = not undrafted and config.drafter.model is not None and config.beam.layers > 0
    return BeamEngine(target, settings, beam_settings(task, drafted),
                      BeamDrafter(_draft_model(task, target)) if drafted else None)


def beam_settings(task: Task, drafted: bool) -> Beams:
    """``Beams`` from the sections ``beam`` and ``sample`` of a task's settings."""
    sample, beam = task.config.sample, task.config.beam
    distribution, draft_distribution = BEAM_METHODS[beam.method]
    values = values_for(Beams, beam) | ({} if drafted else {"layers": 0})
    return Beams(**values, warp=Warp(sample.temperature, sample.top_k, sample.top_p), seed=task.config.seed,
                 distribution=distribution, draft_distribution=draft_distribution)
