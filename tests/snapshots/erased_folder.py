"""An output folder of two dates with all that an erasure finds, and what must be left of it."""

import hashlib
import json
from datetime import date
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dare_job import schemas
from dare_job.publish.erase import erasure, subjects
from dare_job.publish.gate import findings
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.tables import chunk_files, published
from dare_job.workspace import Workspace, write_json
from pools.index import Index

DAYS = ["2026-01-02", "2026-01-03"]
GONE, TEXT = "u000007", "Likes quiet westerns, and hardly anything else."
USERS = ["u000001", GONE, "u000012"]
ITEMS = ["i000001", "i000007"]


def text_of(name: str, day: str) -> str:
    return TEXT if name == GONE else f"{name} likes {day}, with <b>&</b> \"quotes\"."


def row(name: str, day: str) -> dict:
    return {"entity_id": name, "knowledge": text_of(name, day), "token_ids": [1, 2, 3], "tokens": 3,
            "finish_reason": "eos", "generated_dt": day, "source_run_id": f"run-{day}", "target_steps": 2,
            "guarded_tokens": 0, "run_id": f"run-{day}", "prompt_sha256": "p", "text_key": "k"}


def write(path: Path, rows: list[dict], schema: pa.Schema | None = None, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, **options)


def publish(folder: Path, tables: list[list[dict]], schema: pa.Schema, manifest: dict) -> None:
    """A published folder with one file for each of ``tables``, and its manifest."""
    files = {}
    for number, rows in enumerate(tables):
        path = folder / f"part-0a0b0c0d-{number:05d}.parquet"
        if schema is KNOWLEDGE:
            path.parent.mkdir(parents=True, exist_ok=True)
            chunk_files.write(path, rows, 1.5)
        else:
            write(path, rows, schema, row_group_size=2)
        files[path.name] = {"rows": len(rows), "bytes": path.stat().st_size,
                            "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    write_json(folder / "_manifest.json", manifest | {"files": files})


def knowledge(space: Workspace, entity: str, names: list[str]) -> None:
    first = {"rows": 2, "of": 3, "value": 0.1, "limit": 0.2, "first": [*names[:2], "else"],
             "failed": False, "why": None}
    publish(space.knowledge(entity), [[row(name, space.dt) for name in names[:2]],
                                      [row(name, space.dt) for name in names[2:]]], KNOWLEDGE, {
        "date": space.dt, "entity": entity, "run_id": f"run-{space.dt}", "published": "2026-01-02T03:00:00",
        "schema_version": 3, "gates": {"short": first}, "seconds": {"plan": 1.0}, "tokenizer": "t",
        "model": {"name": "m"}, "prompts": {"user": "u", "item": "i"}, "baseline": None, "tokens_per_s": 2.0,
        "settings": {},
        "counts": {"rows": len(names), "written": len(names), "carried": 0, "errors": 0, "without_text": 0,
                   "guarded": 0, "skipped_fresh": 0, "pending": 0},
        "totals": {"tokens": 3 * len(names), "target_steps": 6, "accepted_tokens": 3, "scored_tokens": 0,
                   "relaxed_tokens": 0, "slot_steps": 8.0}})


def features(space: Workspace, names: list[str]) -> None:
    rows = [{"entity_id": name, "id": number, "vector": [float(number), 0.5], "cluster_0": 0,
             "text_sha256": hashlib.sha256(text_of(name, space.dt).encode()).hexdigest()}
            for number, name in enumerate(names, 1)]
    schema = schemas.features(2, 1).with_metadata({"dare_job.encoder": "an encoder"})
    publish(space.features("user"), [rows[:2], rows[2:]], schema,
            {"date": space.dt, "entity": "user", "ids": len(names),
             "counts": {"rows": len(names), "reused": 1}})
    (space.features("user") / "_codebook-1.safetensors").write_bytes(b"centroids")
    write(space.out / "features/ids/entity=user/ids.parquet",
          [{"entity_id": name, "id": number} for number, name in enumerate(names, 1)], schemas.IDS)


def candidates(space: Workspace, names: list[str]) -> None:
    rows = [{"user_id": name, "rank": rank, "item_id": item, "score": -1.0, "source": "model", "run_id": "r"}
            for name in names for rank, item in enumerate(ITEMS, 1)]
    publish(space.candidates(), [rows], schemas.CANDIDATES, {
        "date": space.dt, "counts": {"rows": len(rows), "users": len(names), "errors": 0, "popular": 0,
                                     "searched": len(names)}})


def work(space: Workspace, users: list[str]) -> None:
    """Working files of a date as the stages leave them, with pools and an index of a wave."""
    at, names = space.work, {"user": users, "item": ITEMS}
    write(at / "input/interactions.parquet/part-0.parquet", [
        {"user_id": name, "item_id": ITEMS[0], "rating": 4.0, "timestamp": 1} for name in users],
        schemas.INTERACTIONS, compression="snappy")
    (at / "input/interactions.parquet/.part-0.parquet.crc").write_bytes(b"crc\0")
    write(at / "input/users.parquet/part-0.parquet", [
        {"user_id": name, "attributes": [("age", "30")]} for name in users], schemas.USERS)
    write(at / "input/items.parquet/part-0.parquet", [
        {"item_id": name, "title": name, "attributes": []} for name in ITEMS], schemas.ITEMS)
    write(at / "input/rejects.parquet/part-0.parquet", [
        {"source": "ratings.csv", "line": line, "reason": "no rating", "raw": raw}
        for line, raw in enumerate((f"{GONE},i1,,1", f"{GONE}8,i1,,1", f'{{"user": "{GONE}"}}'))],
        schemas.REJECTS)
    for entity in ENTITIES:
        rows = [{"entity_id": name, "prompt": f"What does {name} like?", "stale": True, "strict": False,
                 "interactions": 3} for name in names[entity]]
        routes = [{"entity_id": name, "pool": "global", "pool_kind": "global", "reason": "r"}
                  for name in names[entity]]
        write(at / f"plan/entity={entity}/part-0.parquet", rows, schemas.PLAN)
        write(at / f"plan/copies/entity={entity}/part-0.parquet", [
            {"entity_id": name, "text_of": before, "written_rank": 1}
            for before, name in pairwise(names[entity])], schemas.COPIES)
        write(at / f"embed/entity={entity}/part-0.parquet", [
            {"entity_id": name, "vector": [1.0]} for name in names[entity]], schemas.VECTORS)
        write(at / f"route/entity={entity}/part-0.parquet", routes, schemas.ROUTES)
        (at / f"generate/entity={entity}").mkdir(parents=True)
        chunk_files.write(at / f"generate/entity={entity}/part-00000-00000.parquet",
                          [row(name, space.dt) for name in names[entity]], 2.5, maker={"worker": "w"})
    write(at / "group/labels-user.parquet", [{"entity_id": name, "label": 1} for name in users])
    write(at / "generate/cut/part-0.parquet", [
        {"entity": "user", "entity_id": name, "prompt": f"What does {name} like?", "wave": 1}
        for name in users])
    write_json(at / "generate/_cut.json", {"token": "c", "fingerprint": "f", "shards": 1, "rows": 5,
                                           "kept": 0, "waves": [[5, 1]]})
    write_json(at / "generate/_done.json", {"fingerprint": "f", "rows": 5})
    (at / "generate/hung").mkdir()
    write_json(at / "generate/hung/00000-1a.json", {"cut": "c", "ids": [GONE, users[0]], "why": "w"})
    write_json(at / "plan/_done.json", {"fingerprint": "p", "_files": 4})
    write(at / "gate/failing_rows.parquet", [
        {"entity": entity, "entity_id": name, "check": "short", "value": 1.0, "text": text_of(name, space.dt)}
        for entity, name in (("user", GONE), ("user", users[0]), ("item", ITEMS[0]))], findings.ROWS)
    write_json(at / "gate/_done.json", {"fingerprint": "g", "user": {"short": {"first": [GONE]}}, "item": {}})
    for pool in ("pools/entity=user/global", "generate/waves/entity=user/wave-2"):
        Index.build([np.array([1, 2, 3], np.int32)]).save(at / pool, {"name": "global"})
    write(at / "encode/1a/entity=user/vectors/part-0.parquet", [
        {"text_sha256": hashlib.sha256(TEXT.encode()).hexdigest(), "vector": [1.0]}])
    write(at / "recommend/1a/users/rows/part-0.parquet", [
        {"user_id": name, "chunk": 0, "history": ITEMS} for name in users])
    (at / "logs").mkdir()
    write_json(at / "logs/reads.json", {"previous": None, "features": [None, None]})
    (at / "logs/run.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (
        {"event": "the model is loaded"}, {"event": f"rows being decoded: {users[0]}, {GONE}"},
        {"event": "row given up", "entity_id": GONE}, {"event": f"written: {TEXT}"}, {"event": "ended"})))


def made(out: Path, days=DAYS, users=USERS) -> Path:
    for day in days:
        space = Workspace(out, date.fromisoformat(day))
        knowledge(space, "user", users)
        knowledge(space, "item", ITEMS)
        candidates(space, users)
        work(space, users)
        features(space, users)
        (out / f"reports/dt={day}").mkdir(parents=True)
        (out / f"reports/dt={day}/index.html").write_text(f'<bdi class="id">user:{GONE}</bdi> {TEXT}')
    (out / "reports/dt=2025-12-01").mkdir()
    (out / "reports/dt=2025-12-01/index.html").write_text(f'<bdi class="id">user:{GONE}</bdi> of old')
    return out


def erase(out: Path, *names: str) -> dict:
    return erasure.erase(out, subjects.parse(names))


def values_of(out: Path) -> str:
    """All that is in the files of a folder, tables as text: the test's own search."""
    parts = []
    for path in sorted(out.rglob("*")):
        parts.append(str(path.relative_to(out)))
        if path.suffix == ".parquet":
            parts += [json.dumps(value, default=str, ensure_ascii=False)
                      for value in pq.read_table(path, partitioning=None).to_pylist()]
        elif path.is_file():
            parts.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(parts)


def check_manifests(out: Path) -> None:
    """Every manifest names exactly the files of its folder, with their rows, sizes and digests."""
    for path in out.rglob("_manifest.json"):
        manifest = json.loads(path.read_text())
        assert sorted(manifest["files"]) == sorted(file.name for file in path.parent.glob("*.parquet"))
        for name, entry in manifest["files"].items():
            content = (path.parent / name).read_bytes()
            assert entry["bytes"] == len(content)
            assert entry["sha256"] == hashlib.sha256(content).hexdigest()
            assert entry["rows"] == pq.read_metadata(path.parent / name).num_rows
        assert manifest["counts"]["rows"] == sum(entry["rows"] for entry in manifest["files"].values())


def check_erased(out: Path, days=DAYS) -> None:
    found = values_of(out).replace(f"{GONE}8", "")
    assert GONE not in found and TEXT not in found
    assert hashlib.sha256(TEXT.encode()).hexdigest() not in found
    check_manifests(out)
    left = [path for path in out.rglob("*") if path.name.startswith((".", "_lock", "erasing"))]
    assert not left, left
    for day in days:
        space = Workspace(out, date.fromisoformat(day))
        rows = published.dataset(space.knowledge("user")).to_table().to_pylist()
        assert [each["entity_id"] for each in rows] == [USERS[0], USERS[2]]
        assert published.dataset(space.knowledge("item")).count_rows() == len(ITEMS)
        assert published.dataset(space.candidates(), schemas.CANDIDATES).count_rows() == 4
        chunk = space.work / "generate/entity=user/part-00000-00000.parquet"
        assert chunk_files.read_totals(chunk).rows == pq.read_metadata(chunk).num_rows == 2
        assert chunk_files.read_records(chunk)["maker"] == {"worker": "w"}
        assert chunk_files.read_totals(chunk).busy_s == 2.5
