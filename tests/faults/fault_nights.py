"""A small night, what it leaves, and its commands as an operator would give them."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import yaml

from dare_job.schemas import ENTITIES

ROOT = Path(__file__).parents[2]
BEFORE, NIGHT, AFTER = "2026-01-01", "2026-01-02", "2026-01-03"
STAGES = ("plan", "embed", "group", "route", "pools", "generate", "gate", "publish")  # those before encode
TOO_LONG = ("z-long-0", "z-long-1", "z-long-2")  # items of NIGHT whose titles the model cannot read
PATIENCE_S = 900  # of a command; only a machine that hangs takes so long


@dataclass(frozen=True)
class Folders:
    """A world, an output with the date before published, and one where NIGHT is, undisturbed."""

    world: Path
    before: Path
    undisturbed: Path


def settings(world: Path, out: Path, **sections) -> dict:
    """Small settings, one row at a time and a file a row; ``sections`` lie over them key by key."""
    base = {
        "out": str(out), "input": {"path": str(world)},
        "decode": {"max_new_tokens": 32, "batch_size": 2, "nodes": 8, "hang_timeout_s": 600},
        "embed": {"epochs": 2, "dim": 8}, "group": {"target_size": 8}, "baseline": {"rows": 0},
        "spark": {"rows_per_commit": 1, "shards": 4, "conf": {"spark.driver.memory": "1g"}},
        # texts of few tokens are cut off, and some are equal
        "gates": {"max_share": {"cut_off": None, "same_text": None}},
        "limits": {"max_error_share": 0.5},
    }
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section} if isinstance(section, dict) else section
    return base


def configured(folder: Path, world: Path, out: Path, day: str = NIGHT, **sections) -> list[str]:
    """Options of a command on ``out``, whose settings are written to ``folder``."""
    (folder / "job.yaml").write_text(yaml.safe_dump(settings(world, out, **sections)))
    return ["--config", str(folder / "job.yaml"), "--date", day]


def popen(*arguments: str, **variables: str) -> subprocess.Popen:
    """Start ``dare-job ARGUMENTS`` in a session of its own; standard error is kept."""
    return subprocess.Popen(
        [sys.executable, "-m", "dare_job", *arguments], cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "SPARK_LOCAL_IP": "127.0.0.1", **variables})


def command(*arguments: str, **variables: str) -> tuple[int, str]:
    """``dare-job ARGUMENTS`` to its end: exit code, standard error."""
    process = popen(*arguments, **variables)
    said = process.communicate(timeout=PATIENCE_S)[1]
    return process.returncode, said


def last_line(said: str) -> str:
    """The one line by which a command says why it ended."""
    lines = [line for line in said.splitlines() if line.startswith("dare-job: ")]
    assert len(lines) == 1 and "Traceback" not in said, said[-4000:]
    return lines[0]


def rows(out: Path, entity: str, day: str = NIGHT) -> dict[str, dict]:
    """A published date's rows by id; fails where an id is there twice."""
    folder = out / "knowledge" / f"entity={entity}" / f"dt={day}"
    table = ds.dataset(sorted(map(str, folder.glob("*.parquet"))), format="parquet").to_table().to_pylist()
    found = {row["entity_id"]: row for row in table}
    assert len(found) == len(table), f"{folder} holds an id twice"
    return found


def texts(out: Path, day: str = NIGHT) -> dict[tuple[str, str], tuple]:
    """What a date says: text, token ids and error by entity type and id."""
    return {(entity, name): (row["knowledge"], row["token_ids"], row["error"])
            for entity in ENTITIES for name, row in rows(out, entity, day).items()}


def planned(out: Path, day: str = NIGHT) -> list[dict]:
    """A date's plan: its rows by entity type and id."""
    return [row for entity in ENTITIES for row in pq.read_table(
        out / "_work" / f"dt={day}" / "plan" / f"entity={entity}").sort_by("entity_id").to_pylist()]


def require_whole(out: Path, undisturbed: Path, day: str = NIGHT) -> None:
    """Fail unless a date says in ``out`` what it says elsewhere, and nothing unfinished is left there.

    Ids, texts and errors, the counts of its manifests, and its files by the checksums that these name.
    """
    assert texts(out, day) == texts(undisturbed, day)
    for entity in ENTITIES:
        folder, other = (at / "knowledge" / f"entity={entity}" / f"dt={day}" for at in (out, undisturbed))
        found, wanted = (json.loads((at / "_manifest.json").read_text()) for at in (folder, other))
        assert found["counts"] == wanted["counts"]
        assert found["files"].keys() == {file.name for file in folder.glob("*.parquet")}
        for name, file in found["files"].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == file["sha256"], folder / name
            assert pq.read_metadata(folder / name).num_rows == file["rows"], folder / name
    assert leftovers(out) == []


def checksums(*folders: Path) -> dict[str, tuple[int, str]]:
    """Modification time and SHA-256 of every file below some folders, hidden ones left out."""
    return {str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
            for folder in folders for path in sorted(folder.rglob("[!.]*")) if path.is_file()}


def published(out: Path, day: str = BEFORE) -> dict[str, tuple[int, str]]:
    return checksums(*(out / "knowledge" / f"entity={entity}" / f"dt={day}" for entity in ENTITIES))


def committed(out: Path, day: str = NIGHT) -> dict[str, tuple[int, str]]:
    """What is finished for good: tables and indexes of finished stages, and chunks of generate."""
    work = out / "_work" / f"dt={day}"
    ready = [work / stage for stage in ("input", *STAGES[:5]) if (work / stage / "_done.json").exists()]
    chunks = {name: found for name, found in checksums(*(work / "generate" / f"entity={entity}"
                                                         for entity in ENTITIES)).items()
              if Path(name).name.startswith("part-")}
    return checksums(*ready) | chunks


def leftovers(out: Path) -> list[str]:
    """Locks, and files and folders that are none of a finished output (Spark's checksums are)."""
    return [str(path.relative_to(out)) for path in sorted(out.rglob("*"))
            if path.name.startswith((".", "_lock")) and path.suffix != ".crc"]
