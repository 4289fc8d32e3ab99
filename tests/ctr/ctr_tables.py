"""Small inputs of a CTR check: clicks with a rule behind them, and tables as the job leaves them."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.evaluate.ctr import examples
from dare_job.evaluate.ctr.examples import Examples
from dare_job.evaluate.ctr.source import Source

DAY_S = 86_400
FIRST = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())


def source(users: int = 60, items: int = 40, rows: int = 3000, seed: int = 0, days: int = 20) -> Source:
    """Users like one of two kinds of items, which no attribute tells; labels follow that in 9 of 10 rows."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(users, size=rows), rng.integers(items, size=rows)
    liked = (user % 2) == (item % 2)
    label = np.where(rng.random(rows) < 0.9, liked, ~liked).astype(np.float32)
    second = FIRST + np.sort(rng.integers(days * DAY_S, size=rows))
    table = pd.DataFrame({"user_id": [f"u{u}" for u in user], "item_id": [f"i{i}" for i in item],
                          "timestamp": second, "label": label})
    people = pd.DataFrame({"user_id": [f"u{u}" for u in range(users)]}).assign(attributes=None)
    films = pd.DataFrame({"item_id": [f"i{i}" for i in range(items)],
                          "title": [f"Title {i}" for i in range(items)],
                          "attributes": [[("genre", f"g{i % 3}")] for i in range(items)]})
    return Source(table, people, films)


def made(labels_from: int | None = None, **sizes) -> Examples:
    return examples.make(source(**sizes), labels_from, 5)


def kinds(count: int, size: int = 4, seed: int = 1) -> np.ndarray:
    """(count, size) vectors whose first number tells the kind."""
    found = np.random.default_rng(seed).normal(0, 0.1, (count, size)).astype(np.float32)
    found[:, 0] += np.arange(count) % 2
    return found


def write_features(out: Path, entity: str, dt: str, ids: list[str], vectors, clusters=(),
                   encoder: str = "test 1", texts: list[str] | None = None, sha256: str = "") -> Path:
    """One file of features; ``clusters``: a list of ids a level; ``texts``: which ones the vectors are of."""
    size = len(vectors[0])
    ragged = any(vector is None or len(vector) != size for vector in vectors)
    kind = pa.list_(pa.float32()) if ragged else pa.list_(pa.float32(), size)
    numbers = [None if vector is None else list(map(float, vector)) for vector in vectors]
    columns = {"entity_id": pa.array(ids), "id": pa.array(range(1, len(ids) + 1), pa.int32()),
               "vector": pa.array(numbers, kind)}
    columns |= {f"cluster_{level}": pa.array(codes, pa.int32()) for level, codes in enumerate(clusters)}
    if texts is not None:
        columns["text_sha256"] = pa.array([hashlib.sha256(text.encode()).hexdigest() for text in texts])
    table = pa.table(columns).replace_schema_metadata({
        "dare_job.schema_version": "4", "dare_job.encoder": encoder, "dare_job.encoder_sha256": sha256,
        "dare_job.dt": dt})
    return _write(table, out / "features" / f"entity={entity}" / f"dt={dt}")


def write_texts(out: Path, entity: str, dt: str, ids: list[str], texts: list[str | None],
                written: list[str] | None = None) -> Path:
    table = pa.table({"entity_id": ids, "knowledge": pa.array(texts, pa.string()),
                      "generated_dt": pa.array(written or [dt] * len(ids), pa.string())})
    return _write(table, out / "knowledge" / f"entity={entity}" / f"dt={dt}")


def _write(table: pa.Table, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "part-0.parquet")
    return folder
