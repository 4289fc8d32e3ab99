"""A draft model for the model of real profiles.

Trains the target (``train.py``, without noise) unless it is there, then a small Llama on profiles of the
training users and on the target's distributions.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from transformers import AutoTokenizer

from dare_job.bench.profiles import data, noise, train
from dare_job.bench.profiles.data import Profile
from dare_job.decode.model.target import Target
from dare_job.models.files import fingerprint
from dare_job.publish.prompted_texts import Row
from dare_job.training.drafter import teacher
from dare_job.training.drafter.settings import Settings
from dare_job.training.drafter.train import network
from dare_job.training.drafter.train import train as learn
from dare_job.workspace import committing, digest, is_done

TEXTS = "test-users.jsonl"
SMALL = Settings(width=64, layers=2, heads=2, steps=600, context=448, rows=1500)
_LONGEST = 400  # tokens of a profile that is learned


def drafter(folder: Path, work: Path, target: Path, test_users: int, settings: Settings) -> Path:
    """Folder of the draft model in ``work``, trained where it is not there yet.

    folder  of the data, see ``data.py``; target: of the trained model; test_users: whom nothing is learned of
    """
    learned = data.split(data.load(folder), test_users)[0][: settings.rows]
    named = {**asdict(settings), "target": fingerprint(target),
             "profiles": digest([asdict(profile) for profile in learned])}
    mark = digest(named)
    out, record = work / f"drafter-{mark[:12]}", {}
    if not is_done(out, mark):
        with committing(out, mark, record) as staging:
            record |= named | _distilled(learned, target, staging, settings)
    return out


def _distilled(profiles: Sequence[Profile], target: Path, out: Path, settings: Settings) -> dict:
    tokenizer, model = AutoTokenizer.from_pretrained(target), Target.load(target)
    rows = [_row(tokenizer, profile) for profile in profiles]
    small = network(tokenizer, model.vocabulary, noise.CONTEXT_TOKENS, settings)
    found = learn(small, teacher.teacher_rows(model, rows), settings, model.device.type)
    small.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return found | {"parameters": sum(p.numel() for p in small.parameters())}


def _row(tokenizer, profile: Profile) -> Row:
    asked = np.asarray(tokenizer(data.later(profile))["input_ids"], np.int64)
    text = [*tokenizer(profile.text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return Row(profile.user, asked, np.asarray(text[:_LONGEST], np.int64), True)


def texts(folder: Path, work: Path, test_users: int) -> Path:
    """``TEXTS`` in ``work``: JSON lines of user, prompt and text of the test users."""
    kept = data.split(data.load(folder), test_users)[1]
    lines = [json.dumps({"user": one.user, "prompt": data.later(one), "text": one.text}) for one in kept]
    (work / TEXTS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return work / TEXTS


def main(
    data: Annotated[Path, typer.Option(help="Folder of the data: see docs/how-to/datasets.md.")],
    out: Annotated[Path, typer.Option(help="Work folder; each model gets a folder in it.")],
    steps: Annotated[int, typer.Option(help="Updates.")] = SMALL.steps,
    width: Annotated[int, typer.Option(help="Width of the draft model.")] = SMALL.width,
    layers: Annotated[int, typer.Option(help="Layers of the draft model.")] = SMALL.layers,
    rows: Annotated[int, typer.Option(help="Training users.")] = SMALL.rows,
    seed: Annotated[int, typer.Option(help="Random seed.")] = SMALL.seed,
    test_users: Annotated[int, typer.Option(
        help="Users that are left out of training.")] = train.Settings.test_users,
) -> None:
    """Train a model of real profiles without noise and a draft model for it; print the paths as JSON.

    test-users.jsonl holds the prompt and profile of each user that neither model was trained on.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    threads = torch.get_num_threads()
    target = train.model(data, out, train.Settings(noise=0, test_users=test_users, threads=threads))
    settings = replace(SMALL, steps=steps, width=width, layers=layers, rows=rows, seed=seed)
    small = drafter(data, out, target, test_users, settings)
    rows = texts(data, out, test_users)
    print(json.dumps({"target": str(target), "draft": str(small), "texts": str(rows)}))
