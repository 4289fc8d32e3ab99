"""The engine of mode beam in a worker."""

from dare_job.decode import EngineSettings, Target
from dare_job.decode.beam.drafting import BeamDrafter
from dare_job.decode.beam.engine import BeamEngine
from dare_job.decode.beam.settings import Beams
from dare_job.decode.sampling.warp import Warp
from dare_job.spark import drafters
from dare_job.spark.task import Task


def engine(task: Task, target: Target, settings: EngineSettings, plain: bool) -> BeamEngine:
    """A fresh engine with the task's settings; plain: without its draft model."""
    asked = task.config
    drafted = not plain and asked.drafter.source == "model" and asked.beam.layers > 0
    return BeamEngine(target, settings, of(task, drafted),
                      BeamDrafter(drafters.draft_model(task)) if drafted else None)


def of(task: Task, drafted: bool) -> Beams:
    """The section ``beam``."""
    asked = task.config.beam
    warp = Warp(asked.temperature, asked.top_k, asked.top_p)
    return Beams(asked.width, asked.draft_width, asked.min_width, asked.threshold,
                 asked.layers if drafted else 0, warp, asked.law, asked.draft_law, asked.length_penalty,
                 asked.single_cache, asked.seed)
