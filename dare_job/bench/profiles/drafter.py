"""A draft model for the model of real profiles.

``python -m dare_job.bench.profiles.drafter --data DIR --out DIR [--steps N] [--width N] [--layers N]
[--rows N] [--seed S] [--test-users N]`` trains the target (``train.py``, without noise) where it is not there
yet, then a small Llama by ``dare_job.training.drafter.command`` on profiles of the training users and on what
the target says of them. It leaves below --out the draft model, and ``test-users.jsonl``: prompt and profile
of each test user, of whom neither model has learned; and prints the three paths as JSON.
"""

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from dare_job.bench.profiles import architectures, data, train
from dare_job.bench.profiles.data import Profile
from dare_job.decode.model.target import Target
from dare_job.models.files import fingerprint
from dare_job.publish.prompted_texts import Row
from dare_job.training.drafter import teacher
from dare_job.training.drafter.teacher import Settings
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
    small = network(tokenizer, model.vocabulary, architectures.CONTEXT_TOKENS, settings)
    found = learn(small, teacher.lessons(model, rows), settings, model.device.type)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data, see data.py")
    parser.add_argument("--out", type=Path, required=True, help="work folder; each model gets one below it")
    for name in ("steps", "width", "layers", "rows", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(SMALL, name))
    parser.add_argument("--test-users", type=int, default=train.Settings().test_users)
    options = vars(parser.parse_args())
    folder, work, kept = (options.pop(name) for name in ("data", "out", "test_users"))
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    threads = torch.get_num_threads()
    target = train.model(folder, work, train.Settings(noise=0, test_users=kept, threads=threads))
    small = drafter(folder, work, target, kept, replace(SMALL, **options))
    print(json.dumps({"target": str(target), "draft": str(small), "texts": str(texts(folder, work, kept))}))


if __name__ == "__main__":
    main()
