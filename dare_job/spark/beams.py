"""The engine of mode beam, and its draft model: one in memory for each process and device."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import AutoTokenizer

from dare_job.decode import EngineSettings, Target
from dare_job.decode.beam.drafting import BeamDrafter
from dare_job.decode.beam.engine import BeamEngine
from dare_job.decode.beam.settings import Beams
from dare_job.decode.draft.same import require_same
from dare_job.decode.sampling.warp import Warp
from dare_job.model_files import resolve
from dare_job.spark.task import Task

if TYPE_CHECKING:
    from dare_job.spark.loading import Loaded


def engine(task: Task, loaded: "Loaded", settings: EngineSettings, plain: bool) -> BeamEngine:
    """A fresh engine with the task's settings; plain: without its draft model."""
    drafter = None if plain else _drafter(task, loaded)
    return BeamEngine(loaded.target, settings, of(task, drafted=drafter is not None), drafter)


def of(task: Task, drafted: bool) -> Beams:
    """The section ``beam``."""
    asked = task.config.beam
    warp = Warp(asked.temperature, asked.top_k, asked.top_p)
    return Beams(asked.width, asked.draft_width, asked.min_width, asked.threshold,
                 asked.layers if drafted else 0, warp, asked.law, asked.draft_law, asked.length_penalty,
                 asked.single_cache, asked.seed)


def _drafter(task: Task, loaded: "Loaded") -> BeamDrafter | None:
    asked = task.config.beam
    if asked.draft is None or not asked.layers:
        return None
    folder = resolve(asked.draft, None, task.config.model.trust_remote_code, "beam.draft")
    target = loaded.target
    return BeamDrafter(_model(str(folder), task.model, task.config.model.dtype, str(target.device),
                              task.config.model.trust_remote_code))


@lru_cache(maxsize=1)
def _model(folder: str, target: str, dtype: str, device: str, trust_remote_code: bool) -> Target:
    """Raises ConfigError where its tokens are not the target's."""
    model = Target.load(Path(folder), dtype, device.partition(":")[0], trust_remote_code)
    ours, own = (AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
                 for name in (target, folder))
    require_same(ours, own, model.vocabulary, (target, folder))
    return model
