"""Small settings of a whole run, and readers of what it leaves."""

from pathlib import Path

import pyarrow.dataset as ds

NIGHT_1, NIGHT_2, NIGHT_3 = "2026-01-01", "2026-01-02", "2026-01-03"
QUANTILE = 0.6  # of the lengths of old texts, up to which a relaxed night does not verify strictly
LOST_USER, LONG_ITEM = "u-lost", "z-long"  # no history; a title of more tokens than the context


def settings(world: Path, out: Path, **sections) -> dict:
    """Small settings; a section given in ``sections`` is laid over it key by key."""
    base = {
        "out": str(out), "input": {"path": str(world)},
        "decode": {"max_new_tokens": 48, "batch_size": 8, "nodes": 12, "score": "always"},  # untimed
        "embed": {"epochs": 3, "dim": 8}, "group": {"target_size": 20},
        "spark": {"rows_per_commit": 5, "shards": 4}, "baseline": {"rows": 16},
        # texts of few tokens are cut off, and some are equal
        "gates": {"max_share": {"cut_off": None, "same_text": None}},
    }
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section} if isinstance(section, dict) else section
    return base


def relaxed(refresh_nights: int = 0) -> dict:
    """Sections of a rule that lets most of yesterday's tokens pass, up to a length."""
    verify = {"rule": "top_k", "k": 64, "length_quantile": QUANTILE, "refresh_nights": refresh_nights,
              "sample": 0}
    return {"verify": verify, "baseline": {"rows": 0}}


def snapshot(out: Path, entity: str, day: str) -> dict[str, dict]:
    """Rows of a published date by id; fails where an id is there twice."""
    folder = out / "knowledge" / f"entity={entity}" / f"dt={day}"
    rows = ds.dataset(folder, format="parquet").to_table().to_pylist()
    found = {row["entity_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Modification time and content of every Parquet file below a folder."""
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(folder.rglob("*.parquet")) if path.is_file()}


def text(identifier: str, words: str, day: str = NIGHT_2) -> dict:
    """A row of KNOWLEDGE that holds a text."""
    return {"entity_id": identifier, "knowledge": words, "token_ids": [1, 2], "tokens": 2, "target_steps": 1,
            "accepted_tokens": 0, "relaxed_tokens": 0, "finish_reason": "eos", "generated_dt": day,
            "source_run_id": f"run-{day}", "prompt_sha256": "s", "text_key": "k", "run_id": f"run-{day}"}


def leftovers(out: Path) -> list[str]:
    """Locks, and files and folders that are none of a finished output (Spark's checksums are)."""
    return [str(path.relative_to(out)) for path in sorted(out.rglob("*"))
            if path.name.startswith((".", "_lock")) and path.suffix != ".crc"]


def place(assignment, rank: int, before: int) -> tuple[int, int]:
    """(shard, position) of a row by the formula of ``PoolAssignment``."""
    last = len(assignment.shards) - 1
    part = (assignment.start + before) * assignment.parts // assignment.length - assignment.first
    part = min(max(part, 0), last)
    offset = assignment.head if part == 0 else assignment.tail if part == last else 0
    return assignment.shards[part], offset + rank
