"""Published texts with the prompts that they were written for, and other texts for the same prompts."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from dare_job.errors import DataError
from dare_job.schemas import KNOWLEDGE
from dare_job.tables import published
from dare_job.workspace import MANIFEST, Workspace, write_json

_SAME = ("entity_id", "error", "generated_dt", "prompt_sha256", "run_id")  # of a row with another text
_SAID = ("date", "entity", "run_id", "schema_version", "settings", "model", "tokenizer", "prompts")


@dataclass(frozen=True)
class Published:
    """One entity type of a date.

    rows      columns of KNOWLEDGE, in order of id, those without a text too
    prompts   by id, of the rows with a text
    """

    manifest: dict
    rows: pa.Table
    prompts: dict[str, str]


@dataclass(frozen=True)
class Text:
    """What a row gets instead; ids end with the end-of-text token where the text ended by itself."""

    published: str
    token_ids: list[int]
    finish_reason: str


def read(space: Workspace, entity: str) -> Published:
    """A date's texts, with prompts from its work folder.

    Raises DataError where the date is not published, where its prompts are gone, or where one of them is not
    what the text was written for.
    """
    folder, plan = space.knowledge(entity), space.stage("plan") / f"entity={entity}"
    manifest = published.read_manifest(folder)
    if not manifest:
        raise DataError(f"{folder}: no published texts; run that date first")
    if not any(plan.glob("*.parquet")):
        raise DataError(f"{plan}: the prompts of {space.dt} are gone; `dare-job plan` writes them again")
    rows = published.dataset(folder).to_table().sort_by("entity_id")
    asked = ds.dataset(str(plan), format="parquet").to_table(columns=["entity_id", "prompt"])
    prompts = dict(zip(asked["entity_id"].to_pylist(), asked["prompt"].to_pylist(), strict=True))
    texts = rows.filter(pc.is_valid(rows["knowledge"]))
    wanted = dict(zip(texts["entity_id"].to_pylist(), texts["prompt_sha256"].to_pylist(), strict=True))
    for name, expected in wanted.items():
        if hashlib.sha256((prompts.get(name) or "").encode()).hexdigest() != expected:
            raise DataError(f"{folder}: the text of {name!r} was written for another prompt than {plan} has; "
                            "run that date again")
    return Published(manifest, rows, {name: prompts[name] for name in wanted})


def write(found: Published, texts: dict[str, Text], how: dict, out: Path) -> None:
    """The rows with other texts below ``out``, as ``publish`` leaves them; rows without one have none.

    how  what the manifest says of their making, as ``sampling``
    """
    folder = out / "knowledge" / f"entity={found.manifest['entity']}" / f"dt={found.manifest['date']}"
    folder.mkdir(parents=True)
    rows = []
    for row in found.rows.select(_SAME).to_pylist():
        text = texts.get(row["entity_id"])
        if text is None:
            new = {"finish_reason": "error" if row["error"] else None}
        else:
            new = {**vars(text), "tokens": len(text.token_ids), "relaxed_tokens": 0}  # nothing drafts
        rows.append({name: (row | new).get(name) for name in KNOWLEDGE.names})
    file = folder / "part-0.parquet"
    pq.write_table(pa.Table.from_pylist(rows, KNOWLEDGE), file)
    said = {name: found.manifest[name] for name in _SAID}
    listed = {"rows": len(rows), "bytes": file.stat().st_size,
              "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    counts = {"rows": len(rows), "written": len(texts), "without_text": len(rows) - len(texts)}
    write_json(folder / MANIFEST, said | {"sampling": how, "counts": counts, "files": {file.name: listed}})
