"""A draft model for the model of real profiles.

Trains the target (``train.py``, without noise) unless it exists, then a small Llama on profiles of the
training users and on the target's distributions.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from dare_job.bench.cli import command
from dare_job.bench.kept import keep_named
from dare_job.bench.profiles import data, noise, train
from dare_job.bench.profiles.data import Profile
from dare_job.config.options import option
from dare_job.decode.model.target import Target
from dare_job.models.files import fingerprint
from dare_job.publish.prompted_texts import Row
from dare_job.training.drafter import teacher
from dare_job.training.drafter.settings import Settings
from dare_job.training.drafter.teacher import TeacherRow
from dare_job.training.drafter.train import network
from dare_job.training.drafter.train import train as learn
from dare_job.workspace import digest

TEXTS = "test-users.jsonl"
SMALL = Settings(width=64, layers=2, heads=2, steps=600, context=448, rows=1500)
_MAX_TOKENS = 400  # of a profile that is learned


def drafter(folder: Path, work: Path, target: Path, test_users: int, settings: Settings) -> Path:
    """Folder of the draft model in ``work``, trained if it is missing.

    Parameters
    ----------
    folder
        Folder of the data, see ``data.py``.
    target
        Folder of the trained model.
    test_users
        Number of users who are left out of training.
    """
    learned = data.split(data.load(folder), test_users)[0][: settings.rows]
    made_of = {**asdict(settings), "target": fingerprint(target),
               "profiles": digest([asdict(profile) for profile in learned])}

    def fill(out: Path) -> dict:
        tokenizer, model = AutoTokenizer.from_pretrained(target), Target.load(target)
        rows = teacher.teacher_rows(model, [_row(tokenizer, profile) for profile in learned])
        return made_of | distill(model, target, rows, settings, out)

    return keep_named(work, "drafter", made_of, fill)


def _row(tokenizer, profile: Profile) -> Row:
    prompt = np.asarray(tokenizer(data.later(profile))["input_ids"], np.int64)
    text = [*tokenizer(profile.text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return Row(profile.user, prompt, np.asarray(text[:_MAX_TOKENS], np.int64), True)


def distill(target: Target, folder: Path, rows: list[TeacherRow], settings: Settings, out: Path) -> dict:
    """Train a draft model for a target, whose folder has the tokenizer; return the record of its training."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = network(tokenizer, target.vocabulary, target.traits.context or noise.CONTEXT_TOKENS, settings)
    record = learn(model, rows, settings, target.device.type)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return record | {"parameters": model.num_parameters()}


def texts(folder: Path, work: Path, test_users: int) -> Path:
    """``TEXTS`` in ``work``: JSON lines of user, prompt and text of the test users."""
    test = data.split(data.load(folder), test_users)[1]
    lines = [json.dumps({"user": profile.user, "prompt": data.later(profile), "text": profile.text})
             for profile in test]
    (work / TEXTS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return work / TEXTS


@dataclass(frozen=True)
class Options:
    """Options of ``bench train-profiles-drafter``."""

    data: Path = option("Folder of the data: see docs/how-to/datasets.md.")
    out: Path = option("Work folder; each model gets a folder in it.", flag="--save")
    steps: int = option("Updates.", SMALL.steps)
    width: int = option("Width of the draft model.", SMALL.width)
    layers: int = option("Layers of the draft model.", SMALL.layers)
    test_users: int = option("Users that are left out of training.", train.Settings.test_users)


@command(Options)
def main(options: Options) -> dict:
    """Train a model of real profiles without noise and a draft model for it; print the paths as JSON.

    test-users.jsonl holds the prompt and profile of each user that neither model was trained on.
    """
    data, out, test_users = options.data, options.out, options.test_users
    target = train.model(data, out, train.Settings(noise=0, test_users=test_users,
                                                   threads=torch.get_num_threads()))
    small = drafter(data, out, target, test_users,
                    replace(SMALL, steps=options.steps, width=options.width, layers=options.layers))
    return {"target": str(target), "draft": str(small), "texts": str(texts(data, out, test_users))}
