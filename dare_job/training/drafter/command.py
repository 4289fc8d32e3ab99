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
from dare_job.training.drafter.settings import Options
from dare_job.training.drafter.train import greedy, network, train
from dare_job.training.loop import versions
from dare_job.workspace import write_json

MANIFEST = "drafter.json"
_CONTEXT = 4096  # positions of a draft model whose target names none
_LOG = logging.getLogger("dare_job")


def run(options: Options) -> dict:
    """Train and write the folder whole, or leave what was there. Returns its manifest, and where it is."""
    began, settings = time.monotonic(), options.settings
    _require_place(options.to)
    source = prompted_texts.source(options.out, options.date)
    folder = _target_folder(options, source.model())
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code)
    rows, held_out = prompted_texts.read(source, tokenizer, tokenizer_hash(folder), settings.rows,
                                         settings.held_out, options.chat_template)
    if all(len(row.text) >= settings.context for row in rows):
        raise DataError(f"no text of {source.dt} is shorter than --context {settings.context}: raise that")
    target = Target.load(folder, options.dtype, options.device, options.trust_remote_code)
    _LOG.info("%d texts of %s to train on, %d to evaluate on", len(rows), source.dt, len(held_out))
    model = network(tokenizer, target.vocabulary, target.traits.context or _CONTEXT, settings)
    max_new_tokens = _max_new_tokens(source)
    before = greedy(target, model, held_out, max_new_tokens) if held_out else None
    teacher_rows = teacher.teacher_rows(target, rows, settings.kept, settings.temperature)
    record = train(model, teacher_rows, settings, target.device.type)
    staging = atomic.stage_folder(options.to)
    with atomic.remove_on_error(staging):
        write_model(model, tokenizer, model.generation_config, staging)
        saved = Target.load(staging, device=options.device).model
        after = greedy(target, saved, held_out, max_new_tokens) if held_out else None
        manifest = {
            "target": {"name": options.model or source.model().get("name"), "hash": fingerprint(folder),
                       "tokenizer": tokenizer_hash(folder)},
            "texts": _origin(source, rows), "settings": asdict(settings), "training": record,
            "parameters": model.num_parameters(),
            "target_parameters": target.model.num_parameters(),
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


def _target_folder(options: Options, writer: dict) -> Path:
    name = options.model or writer.get("name")
    if not name:
        raise ConfigError(f"the manifests of {options.out} do not name the model that wrote the texts: name "
                          "it (--model)")
    revision = options.revision if options.model else writer.get("revision")
    folder = resolve(name, revision, options.trust_remote_code, "--model")
    if writer.get("hash") not in (None, fingerprint(folder)):
        _LOG.warning("the texts of %s were written by %s with other files than those of %s: the draft model "
                     "learns these texts with the probabilities of %s", options.out, writer.get("name"), name,
                     name)
    return folder


def _max_new_tokens(source: prompted_texts.Source) -> int | None:
    """The limit of the runs that wrote the texts."""
    limits = (manifest.get("new_tokens") for manifest in source.manifests.values())
    return max((high for _, high in filter(None, limits)), default=256)


def _origin(source: prompted_texts.Source, rows: list[prompted_texts.Row]) -> dict:
    runs = sorted({manifest["run_id"] for manifest in source.manifests.values() if manifest.get("run_id")})
    return {"out": str(source.out), "date": source.dt, "runs": runs, "rows": len(rows),
            "with_prompt": sum(row.has_prompt for row in rows),
            "tokens": sum(len(row.text) for row in rows)}
