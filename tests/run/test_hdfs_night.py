"""A whole small night at hdfs://: input, model's text and output, and what may happen to it."""

import json
import socket
import subprocess
import sys
import threading
import time

import hdfs_server
import pyarrow.parquet as pq
import pytest
from run_helpers import NIGHT_1, NIGHT_2

from dare_job import pipeline, workspace
from dare_job.errors import InfrastructureError
from dare_job.publish.snapshots.clean import clean
from dare_job.publish.snapshots.history import history
from dare_job.schemas import ENTITIES
from dare_job.storage import atomic_folder, lock, paths
from dare_job.tables import chunk_files, published
from dare_job.workspace import MANIFEST

pytestmark = [pytest.mark.spark, pytest.mark.release]
_SMALL = {"decode": {"max_new_tokens": 12}, "baseline": {"rows": 0}}
_LIMIT = 8


@pytest.fixture(scope="module", params=hdfs_server.KINDS)
def place(request, spark, tmp_path_factory):
    with hdfs_server.running(request.param, spark, tmp_path_factory.mktemp("hdfs")) as url:
        yield paths.path(url)


@pytest.fixture(scope="module")
def job_at(place, world, job_of):
    paths.upload(world, place / "world")
    return lambda day: job_of(place / "out", day, _LIMIT, input={"path": str(place / "world")}, **_SMALL)


@pytest.fixture(scope="module")
def runs(job_at):
    return [pipeline.run(job_at(night)) for night in (NIGHT_1, NIGHT_2)]


def rows(out, entity: str, day: str) -> list[dict]:
    return published.dataset(out / "knowledge" / f"entity={entity}" / f"dt={day}").to_table().to_pylist()


def test_two_nights_are_written_and_nothing_else_is_left(runs, place, tmp_path, job_of):
    out = place / "out"
    local = pipeline.run(job_of(tmp_path, NIGHT_1, _LIMIT, **_SMALL))
    assert runs[0]["written"] == local["written"] and runs[1]["written"] > 0
    ours, theirs = ({row["entity_id"]: row["knowledge"] for row in rows(at, "user", NIGHT_1)}
                    for at in (out, tmp_path))
    assert ours == theirs
    names = list(paths.listing(out))
    assert not [name for name in names if "_lock" in name or "/." in name]
    assert [row["date"] for row in history(out)] == [NIGHT_1, NIGHT_2]
    assert "generated in this run" in workspace.report_page(out, NIGHT_2).read_text(encoding="utf-8")


def test_a_second_run_writes_nothing(runs, job_at, place):
    def versions() -> dict[str, str]:
        return {name: entry["ETag"] for name, entry in paths.listing(place / "out").items()
                if "generate" not in name and "/logs/" not in name}

    before = versions()
    assert pipeline.run(job_at(NIGHT_2))["written"] == runs[1]["written"] and versions() == before


def write_version(out, version: str) -> None:
    """Let tonight's texts end with a word, as if the model had written them so."""
    generated = atomic_folder.current(out / "_work" / f"dt={NIGHT_2}" / "generate")
    for path in (generated / "entity=user").glob("part-*"):
        with paths.arrow_source(path) as source:
            table = pq.read_table(source)
        words = [text and f"{text.partition(' Version-')[0]} {version}"
                 for text in table["knowledge"].to_pylist()]
        column = table.schema.get_field_index("knowledge")
        chunk_files.write(path, table.set_column(column, table.schema.field(column), [words]))


def read_on(folder, stop: threading.Event, seen: list) -> None:
    """As docs/how-to/object-stores.md says: the manifest's files; ``seen``: versions, last what was wrong."""
    while not stop.is_set():
        names = json.loads((folder / MANIFEST).read_text())["files"]
        try:
            table = [row for name in names for row in pq.read_table((folder / name).open("rb")).to_pylist()]
        except FileNotFoundError:
            if names != json.loads((folder / MANIFEST).read_text())["files"]:
                continue
            raise
        found = {row["knowledge"].rpartition(" ")[2] for row in table
                 if row["generated_dt"] == NIGHT_2 and row["knowledge"]}
        seen += found if len(found) == 1 else [f"a mix: {found}"]


def test_a_reader_sees_one_publication_while_the_date_is_published_again(runs, job_at, place):
    out, named, seen, stop = place / "out", ("Version-A.", "Version-B.", "Version-C."), [], threading.Event()
    write_version(out, named[0])
    for stage in ("gate", "publish"):
        pipeline.run_stage(job_at(NIGHT_2), stage)
    folder = out / "knowledge" / "entity=user" / f"dt={NIGHT_2}"
    reader = threading.Thread(target=read_on, args=(folder, stop, seen))
    reader.start()
    try:
        for version in named[1:]:
            write_version(out, version)
            for stage in ("gate", "publish"):
                pipeline.run_stage(job_at(NIGHT_2), stage)
        deadline = time.monotonic() + 20
        while reader.is_alive() and named[-1] not in seen and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        stop.set()
        reader.join()
    assert list(dict.fromkeys(seen)) == list(named), seen


def test_a_living_lock_stops_a_stage_and_a_dead_one_does_not(runs, job_at):
    job = job_at(NIGHT_2)
    with lock.held(job.space.work), pytest.raises(InfrastructureError, match="process .* on .*_lock"):
        pipeline.run_stage(job_at(NIGHT_2), "publish")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    owner = {"pid": ended.pid, "born": "1", "host": socket.gethostname(), "since": "then"}
    (job.space.work / lock.NAME).write_text(json.dumps(owner))
    pipeline.run_stage(job, "publish")
    assert not (job.space.work / lock.NAME).exists()


def test_clean_leaves_no_folder_of_what_goes(runs, place):
    """The newest date reads the one before, so a third is published, of copies."""
    out = place / "out"
    for name in paths.listing(out):
        if f"dt={NIGHT_1}" in name and "/logs/" not in name:
            for older in ("2025-12-30", "2025-12-31"):
                (out / name.replace(NIGHT_1, older)).write_bytes((out / name).read_bytes())
    found = clean(out, 2)
    assert [verdict["date"] for verdict in found["removed"]] == ["2025-12-30", "2025-12-31"]
    for pattern in (*(f"knowledge/entity={entity}/*" for entity in ENTITIES), "_work/*"):
        assert [path.name for path in sorted(out.glob(pattern))] == [f"dt={NIGHT_1}", f"dt={NIGHT_2}"]
