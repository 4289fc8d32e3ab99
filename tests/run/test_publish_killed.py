"""A kill at every single change of a file while a date is published, and published again."""

import json
import os
import shutil
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import kill_points
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from run_helpers import leftovers, text

from dare_job import pipeline
from dare_job.config.settings import JobConfig
from dare_job.job import Job
from dare_job.publish.report import show_text
from dare_job.schemas import ENTITIES, KNOWLEDGE, PLAN
from dare_job.stages import gate, publish
from dare_job.storage import atomic_folder, lock
from dare_job.tables import parts, published, stage_inputs
from dare_job.workspace import Workspace, write_json

BEFORE, DAY, AFTER = "2026-01-01", "2026-01-02", "2026-01-03"
IDS = ["a", "b", "c"]


def job_of(out: Path, day: str = DAY, run_id: str = "run-2") -> Job:
    config = JobConfig.model_validate({"out": str(out), "gates": {"max_share": {"short": None}}})
    job = Job(config, Workspace(out, date.fromisoformat(day)), run_id)
    job.__dict__["model_hash"] = "model-1"
    return job


def prepare(out: Path, words: str) -> None:
    """Plan and rows of a finished stage generate, which the gate let through, and the date before."""
    space = job_of(out).space
    for entity in ENTITIES:
        plan = [{"entity_id": name, "stale": True, "strict": False, "interactions": 1} for name in IDS]
        rows = [text(name, words, DAY) | {"retrieval_ms": 0.1, "decode_ms": 1.0} for name in IDS]
        old = [text(name, "old", BEFORE) for name in IDS]
        for folder, schema, content in ((space.stage("plan") / f"entity={entity}", PLAN, plan),
                                        (space.stage("generate") / f"entity={entity}", KNOWLEDGE, rows),
                                        (space.knowledge(entity, BEFORE), KNOWLEDGE, old)):
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(content, schema=schema), folder / "part-0.parquet")
        write_json(space.knowledge(entity, BEFORE) / "_manifest.json", {"run_id": "run-1"})
    counts = dict.fromkeys(ENTITIES, {"rows": len(IDS), "errors": 0})
    write_json(space.stage("plan") / "_done.json",
               {"fingerprint": "p", "model": "model-1", "before": {},
                "input": {"broken": 0, "duplicates": 0, "up_to_date": 1, "users": 1, "items": 1},
                "refresh": {"cut": None, "sample_end": None, "curve": None,
                           **dict.fromkeys(ENTITIES, {"texts": {"rows": len(IDS)}})}, **counts})
    write_json(space.stage("generate") / "_done.json",
               {"fingerprint": "g", "rows": 2 * len(IDS), "errors": 0, "tokens_per_s": 1.0, "baseline": None,
                "waves": {"user": [], "item": []}, "beams": None, "busy_s": 1.0, "workers": None})
    gate.run(job_of(out))


def publish_once(out: Path, at_once: bool = True, run_id: str = "run-2", change=setattr) -> None:
    """`dare-job run --from publish` without Spark, which would only write the same two files."""
    def write(table, folder, prefix, *_, **__):
        cuts = (table.slice(0, 2), table.slice(2))
        return [parts._write(folder / f"{prefix}-{n:05d}.parquet", cut) for n, cut in enumerate(cuts)]

    def rows(job, entity):
        return published.dataset(stage_inputs.generated_folder(job, entity)).to_table()

    change(publish, "_snapshot", rows)
    change(parts, "write_parts", write)
    change(atomic_folder, "GRACE_S", 0)
    if not at_once:
        change(atomic_folder, "_exchange", lambda one, other: False)
    pipeline.run_stage(job_of(out, DAY, run_id), "publish")


def seen(out: Path) -> dict[str, str | None]:
    """What a reader finds of the date: each entity type's words, which all rows must share, or None."""
    found = dict.fromkeys(ENTITIES)
    for entity in ENTITIES:
        folder = out / "knowledge" / f"entity={entity}" / f"dt={DAY}"
        if folder.exists():
            rows = ds.dataset(folder, format="parquet").to_table().sort_by("entity_id").to_pylist()
            assert [row["entity_id"] for row in rows] == IDS
            (found[entity],) = {row["knowledge"] for row in rows}
            listed = published.read_manifest(folder)["files"]
            assert {path.name: path.stat().st_size for path in folder.glob("*.parquet")} == {
                name: file["bytes"] for name, file in listed.items()}
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Output folders about to be published, published again, and given a baseline measured later."""
    first, again = tmp_path_factory.mktemp("first") / "out", tmp_path_factory.mktemp("again") / "out"
    prepare(first, "first")
    shutil.copytree(first, again)
    kill_points.undisturbed(again, publish_once, again)
    assert seen(again) == dict.fromkeys(ENTITIES, "first")
    measured = tmp_path_factory.mktemp("measured") / "out"
    shutil.copytree(again, measured)  # with the times of its files, which tell that the rows are the same
    record = measured / "_work" / f"dt={DAY}" / "generate" / "_done.json"
    write_json(record, json.loads(record.read_text()) | {"baseline": {"tokens_per_s": 4.0}})
    prepare(again, "second")
    return {"first": first, "again": again, "measured": measured}


@pytest.mark.slow
@pytest.mark.parametrize(("which", "at_once", "since", "states"), [
    ("first", True, "", [(None, None), ("first", None), ("first", "first")]),
    ("again", True, "_manifest", [("first", "first"), ("second", "first"), ("second", "second")]),
    ("again", False, "retired", [("first", "first"), (None, "first"), ("second", "first"), ("second", None),
                                 ("second", "second")]),
    ("measured", True, "_manifest", [("first", "first")]),
], ids=["first", "again", "again-by-two-renames", "measured"])
def test_killed_at_any_change(prepared, which, at_once, since, states, tmp_path, monkeypatch):
    """Each entity type is there whole, and the next run completes both; only two renames can hide one."""
    if which == "again" and at_once and not can_exchange(tmp_path):
        pytest.skip("this filesystem cannot exchange two folders")
    shutil.copytree(prepared[which], tmp_path / "trial")
    labels = kill_points.undisturbed(tmp_path / "trial", publish_once, tmp_path / "trial", at_once,
                                     copies=tmp_path / "killed")
    words = states[-1][0]
    begins = next(n for n, label in enumerate(labels) if since in label)
    points = [n for n, label in enumerate(labels) if n >= begins and not label.startswith("sync")]
    found = []
    for n in points:
        out = tmp_path / "killed" / str(n)
        found.append(tuple(seen(out).values()))
        publish_once(out, at_once, change=monkeypatch.setattr)
        assert seen(out) == dict.fromkeys(ENTITIES, words), labels[n]
        assert leftovers(out) == [], labels[n]
        manifests = [published.read_manifest(job_of(out).space.knowledge(entity)) for entity in ENTITIES]
        assert {bool(manifest["baseline"]) for manifest in manifests} == {which == "measured"}
    assert len(points) > 4 and list(dict.fromkeys(found)) == states


@pytest.mark.parametrize("at_once", [True, False])
def test_who_opened_a_folder_just_before_still_lists_its_files(prepared, at_once, tmp_path, monkeypatch):
    """Without it a reader takes the emptied folder of a replaced snapshot for a date without rows."""
    out, listed = tmp_path / "out", []
    shutil.copytree(prepared["again"], out)
    folders = [out / "knowledge" / f"entity={entity}" / f"dt={DAY}" for entity in ENTITIES]
    names = [sorted(os.listdir(folder)) for folder in folders]
    opened = [os.open(folder, os.O_RDONLY) for folder in folders]
    monkeypatch.setattr(atomic_folder, "time", SimpleNamespace(sleep=lambda seconds: listed.append(
        (seconds, [sorted(os.listdir(place)) for place in opened]))))  # of swap alone
    publish_once(out, at_once, change=monkeypatch.setattr)
    assert listed == [(atomic_folder.GRACE_S, names)]
    assert [os.listdir(place) for place in opened] == [[], []] and leftovers(out) == []
    assert seen(out) == dict.fromkeys(ENTITIES, "second")
    for place in opened:
        os.close(place)


def can_exchange(folder: Path) -> bool:
    for name in ("one", "other"):
        (folder / name).mkdir()
    return atomic_folder._exchange(folder / "one", folder / "other")


@pytest.mark.parametrize("entity", ENTITIES)
def test_a_date_that_two_renames_hid_is_shown_again(prepared, entity, tmp_path, capsys):
    """By the next night's run or by `show`, but not under the hands of who is writing it."""
    out = tmp_path / "out"
    shutil.copytree(prepared["again"], out)
    kill_points.killed(rf"rename .*staging -> .*entity={entity}/dt=", out, publish_once, out, False)
    tomorrow = job_of(out, AFTER)
    assert seen(out)[entity] is None and tomorrow.space.previous("user").name == f"dt={BEFORE}"
    shutil.copytree(out, tmp_path / "shown")
    (out / "_work" / f"dt={DAY}" / "_lock").unlink()
    with lock.held(out / "_work" / f"dt={DAY}"):
        atomic_folder.recover(out)
        assert seen(out)[entity] is None
    with pipeline._writing(tomorrow):
        assert seen(out)[entity] == "first"
        assert {tomorrow.space.previous(name).name for name in ENTITIES} == {f"dt={DAY}"}
        assert tomorrow.space.interrupted_dates() == []
    show_text.show_text(tmp_path / "shown", f"{entity}:a", DAY)
    assert "first" in capsys.readouterr().out


def test_a_publication_cut_off_between_users_and_items_is_named_the_next_night(prepared, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(prepared["again"], out)
    names = {path.name for path in out.glob(f"knowledge/entity=*/dt={DAY}/*.parquet")}
    kill_points.killed("exchange .*entity=item", out, publish_once, out, True, "run-3")
    tomorrow = job_of(out, AFTER).space
    assert tuple(seen(out).values()) == ("second", "first") and tomorrow.interrupted_dates() == [DAY]
    kill_points.undisturbed(out, publish_once, out, True, "run-3")
    assert tomorrow.interrupted_dates() == []
    assert names.isdisjoint(path.name for path in out.glob(f"knowledge/entity=*/dt={DAY}/*.parquet"))
