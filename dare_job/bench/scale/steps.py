"""What stands between the job's own commands, each step in a process of its own.

    python -m dare_job.bench.scale.steps world|snapshot|cut|texts SETTINGS
"""

import json
import shutil
import sys
from pathlib import Path

from dare_job.bench.scale import texts, world
from dare_job.config.settings import load
from dare_job.generate import shard_plan
from dare_job.job import Job
from dare_job.stages import generate
from dare_job.workspace import Workspace


def write_world(settings: Path) -> dict:
    """The input of both nights and its vectors."""
    asked = json.loads((settings.parent / "world.json").read_text())
    return world.write(settings.parent, asked["users"], asked["dim"])


def write_snapshot(settings: Path) -> dict:
    """The first night's snapshot from its plan, which is not needed any more."""
    job = _job(settings, 0)
    found = texts.snapshot(job, texts.Bank(job.model_path))
    shutil.rmtree(job.space.work)
    return found


def cut_rows(settings: Path) -> dict:
    """What the stage generate does before it loads a model."""
    work = generate.prepare(_job(settings, 1))
    return {"rows": work.rows, "shards": work.shards}


def write_texts(settings: Path) -> dict:
    """The chunks that the model's workers would leave."""
    job = _job(settings, 1)
    work = shard_plan.read_plan(job.space.stage("generate"))
    return texts.finish(work, texts.Bank(job.model_path, seed=1), job)


_STEPS = {"world": write_world, "snapshot": write_snapshot, "cut": cut_rows, "texts": write_texts}


def _job(settings: Path, night: int) -> Job:
    loaded = load(settings)
    return Job(loaded, Workspace(Path(loaded.out), world.NIGHTS[night]), f"scale-{night}")


if __name__ == "__main__":
    print(json.dumps(_STEPS[sys.argv[1]](Path(sys.argv[2]))))
