"""Small published dates to encode, and readers of what is left of them."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.storage import paths
from dare_job.workspace import MANIFEST, write_json

ITEMS = {"i1": "a quiet western", "i2": "a loud war drama", "i3": "space comedy"}


def publish(out, day: str, users: dict[str, str | None] | list[tuple], items=ITEMS, run: str = "run",
            date: str | None = None) -> None:
    """Publish texts of both entity types, in two files each, as the stage publish does."""
    out = paths.path(str(out))
    for entity, texts in zip(ENTITIES, (users, items), strict=True):
        folder = out / "knowledge" / f"entity={entity}" / f"dt={day}"
        paths.make_folder(folder)
        rows = [{"entity_id": name, "knowledge": text, "error": None if text else "no text", "run_id": run}
                for name, text in (texts.items() if isinstance(texts, dict) else texts)]
        named = {}
        for number, part in enumerate((rows[::2], rows[1::2])):
            path = folder / f"part-{run}-{day}-{number}.parquet"
            with paths.arrow_sink(path) as sink:
                pq.write_table(pa.Table.from_pylist(part, schema=KNOWLEDGE), sink)
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            named[path.name] = {"rows": len(part), "sha256": sha256, "bytes": path.stat().st_size}
        write_json(folder / MANIFEST, {"date": date or day, "run_id": run, "published": "2026-01-02T03:00:00",
                                       "files": named})


def manifest(job, entity: str = "user") -> dict:
    return json.loads((job.space.features(entity) / MANIFEST).read_text())


def table(job, entity: str = "user") -> pa.Table:
    """All rows of a date's features, in the order of the files that its manifest names."""
    parts = []
    for name in sorted(manifest(job, entity)["files"]):
        with paths.arrow_source(job.space.features(entity) / name) as source:
            parts.append(pq.read_table(source))
    return pa.concat_tables(parts)


def rows(job, entity: str = "user") -> dict[str, dict]:
    return {row["entity_id"]: row for row in table(job, entity).to_pylist()}
