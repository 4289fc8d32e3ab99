"""``dare-job drafter train``: published texts in, a draft model's folder and its manifest out."""

import logging
import time
from dataclasses import asdict
from pathlib import Path

from transformers import AutoTokenizer

from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError, DataError
from dare_job.models.files import fingerprint, resolve, tokenizer_hash
from dare_job.publish import prompted_texts
from dare_job.storage import atomic
from dare_job.training.checkpoint import write_model
from dare_job.training.drafter import teacher
from dare_job.training.drafter import train as drafter_train
from dare_job.training.drafter.settings import Options
from dare_job.training.drafter.train import network, train
from dare_job.training.loop import versions
from dare_job.workspace import write_json

MANIFEST = "drafter.json"
_CONTEXT = 4096  # positions of a draft model whose target names none
_LOG = logging.getLogger("dare_job")


def run(options: Options) -> dict:
    """Train and write the folder whole, or leave what was there. Returns its manifest, and where it is."""
    began, settings = time.monotonic(), options.settings
    _require_place(options.to)
    found = prompted_texts.source(options.out, options.date)
    folder = _target_folder(options, found.model())
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code)
    learned, held = prompted_texts.read(found, tokenizer, tokenizer_hash(folder), settings.rows,
                                        settings.held_out, options.chat_template)
    if all(len(row.text) >= settings.context for row in learned):
        raise DataError(f"no text of {found.dt} is shorter than --context {settings.context}: raise that")
    target = Target.load(folder, options.dtype, options.device, options.trust_remote_code)
    _LOG.info("%d texts of %s to learn from, %d to measure on", len(learned), found.dt, len(held))
    model = network(tokenizer, target.vocabulary, target.traits.context or _CONTEXT, settings)
    most = _new_tokens(found)
    before = drafter_train.greedy(target, model, held, most) if held else None
    taught = teacher.teacher_rows(target, learned, settings.kept, settings.temperature)
    record = train(model, taught, settings, "cuda" if target.device.type == "cuda" else "cpu")
    staging = atomic.stage_folder(options.to)
    with atomic.remove_on_error(staging):
        write_model(model, tokenizer, model.generation_config, staging)
        saved = Target.load(staging, device=options.device).model
        after = drafter_train.greedy(target, saved, held, most) if held else None
        manifest = {
            "target": {"name": options.model or found.model().get("name"), "hash": fingerprint(folder),
                       "tokenizer": tokenizer_hash(folder)},
            "texts": _origin(found, learned), "settings": asdict(settings), "training": record,
            "parameters": sum(p.numel() for p in model.parameters()),
            "target_parameters": sum(p.numel() for p in target.model.parameters()),
            "before": before, "after": after, "minutes": round((time.monotonic() - began) / 60, 2),
            "versions": versions()}
        write_json(staging / MANIFEST, manifest)
        atomic.replace(staging, options.to)
    return {"drafter": str(options.to), **manifest}


def _require_place(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--save {folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise ConfigError(f"--save {folder} holds something else than a draft model (no {MANIFEST}), which "
                          "would be replaced; name another folder")


def _target_folder(options: Options, wrote: dict) -> Path:
    name = options.model or wrote.get("name")
    if not name:
        raise ConfigError(f"the texts of {options.out} do not say who wrote them: name the model (--model)")
    revision = options.revision if options.model else wrote.get("revision")
    folder = resolve(name, revision, options.trust_remote_code, "--model")
    if wrote.get("hash") not in (None, fingerprint(folder)):
        _LOG.warning("the texts of %s were written by %s with other files than %s has: their words are "
                     "learned, with the probabilities of the latter", options.out, wrote.get("name"), name)
    return folder


def _new_tokens(found: prompted_texts.Source) -> int | None:
    """Tokens that a text may have, as the run that wrote them had it."""
    limits = [one["new_tokens"][1] for one in found.manifests.values() if one.get("new_tokens")]
    return max(limits, default=256)


def _origin(found: prompted_texts.Source, learned: list[prompted_texts.Row]) -> dict:
    runs = sorted({one["run_id"] for one in found.manifests.values() if one.get("run_id")})
    return {"out": str(found.out), "date": found.dt, "runs": runs, "rows": len(learned),
            "with_prompt": sum(row.has_prompt for row in learned),
            "tokens": sum(len(row.text) for row in learned)}
