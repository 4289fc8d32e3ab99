"""Prompts of a run's output folder, and the texts that the run had to draft from."""

from pathlib import Path

import numpy as np
import pyarrow.dataset as ds

from dare_job.errors import DataError
from dare_job.models.files import tokenizer_hash
from dare_job.publish import prompted_texts
from dare_job.publish.prompted_texts import Source
from dare_job.storage.paths import dated_folders
from dare_job.tables import published
from dare_job.workspace import MANIFEST

MAX_POOL_TEXTS = 5000
Rows = list[tuple[str, np.ndarray]]


def is_output_folder(folder: Path) -> bool:
    return (folder / "knowledge").is_dir()


def read(out: Path, count: int, tokenizer, model: Path) -> tuple[Rows, dict[str, np.ndarray], str]:
    """Prompts of texts that a date generated, the newest that did, and the texts of the date before.

    Of the first date, the other texts of the same date stand in for those of a date before.

    Parameters
    ----------
    model
        Folder of the model, whose tokenizer is ``tokenizer``.

    Returns
    -------
    prompts
        Up to ``count`` names (``user:1``) and prompts, int64 (tokens,): those with the smallest SHA-256.
    earlier
        The earlier texts by name, int64 (tokens,): those of the rows with prompts, and up to MAX_POOL_TEXTS
        others.
    dates
        The two dates, as a human-readable text.

    Raises
    ------
    DataError
        Nothing is published, or no date generated a text, or the prompts of the newest that did are gone.
    """
    source, digest = prompted_texts.source(str(out), None), tokenizer_hash(model)
    while not (new := _generated_names(source)):  # all texts were carried over
        before = _date_before(source)
        if before is None:
            raise DataError(f"--prompts {out}: no run generated the texts in it; name a file of prompts")
        source = prompted_texts.source(str(out), before)
    ranked = sorted(prompted_texts.ranked(source, tokenizer, digest, count, None, only=new),
                    key=lambda pair: pair[0])
    prompts = [(row.name, row.prompt) for _, row in ranked if row.has_prompt]
    if not prompts:
        raise DataError(f"--prompts {out}: no text of {source.dt} has a prompt in _work/dt={source.dt}/plan, "
                        "which `dare-job clean` removes: run another date, or name a file of prompts")
    chosen = {name for name, _ in prompts}
    before = _date_before(source)
    if before is None:
        earlier = prompted_texts.texts(source, tokenizer, digest, MAX_POOL_TEXTS, without=chosen)
        return prompts, earlier, f"prompts and other texts of {source.dt}"
    old = prompted_texts.source(str(out), before)
    earlier = (prompted_texts.texts(old, tokenizer, digest, MAX_POOL_TEXTS, without=chosen)
               | prompted_texts.texts(old, tokenizer, digest, count, only=chosen))
    return prompts, earlier, f"prompts of {source.dt}, texts of {before}"


def _generated_names(source: Source) -> set[str]:
    """Rows whose text the date's own run generated: those carried over have the prompts of before."""
    return {f"{entity}:{identifier}" for entity, folder in source.folders.items()
            for identifier in published.dataset(folder).to_table(
                columns=["entity_id"], filter=ds.field("generated_dt") == source.dt)["entity_id"].to_pylist()}


def _date_before(source: Source) -> str | None:
    """The newest earlier date with texts of all entity types."""
    dates = [{folder.name[3:] for folder in dated_folders(path.parent) if (folder / MANIFEST).exists()}
             for path in source.folders.values()]
    return max((dt for dt in set.intersection(*dates) if dt < source.dt), default=None)
