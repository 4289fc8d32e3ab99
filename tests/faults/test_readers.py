"""Readers in processes of their own, looping over the table while a date is published again and again."""

import multiprocessing
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fault_nights import BEFORE, NIGHT, rows

from dare_job.schemas import ENTITIES
from dare_job.storage import atomic_folder
from dare_job.tables import chunk_files

pytestmark = pytest.mark.spark
_CONTEXT = multiprocessing.get_context("spawn")
VERSIONS = ("Version-A.", "Version-B.", "Version-C.")
GAP_S = 0.3  # between users and items that are shown


def versions_of(table) -> set[str]:
    """The versions that the texts of NIGHT in a table end with."""
    texts = table.filter(pc.equal(table["generated_dt"], NIGHT))["knowledge"].to_pylist()
    return {text.rpartition(" ")[2] for text in texts if text}


def read_on(table: Path, sizes: dict[str, int], stop, answers) -> None:
    """Read the whole table until told to stop; answers with what was seen, or with what was wrong."""
    seen, reads, late = [], 0, 0
    answers.put("ready")
    while not stop.is_set():
        try:
            dataset = ds.dataset(table, format="parquet", partitioning="hive")
            found = dataset.to_table(columns=["entity_id", "knowledge", "dt", "generated_dt"])
        except FileNotFoundError:  # listed before, opened after: said in docs/explanation/architecture.md
            late += 1
            continue
        for day in (BEFORE, NIGHT):
            part = found.filter(pc.equal(pc.cast(found["dt"], "string"), day))
            ids = part["entity_id"].to_pylist()
            if not ids and day == NIGHT:
                seen.append(None)
                continue
            versions = versions_of(part)
            if len(ids) != len(set(ids)) or len(ids) != sizes[day] or len(versions) > 1:
                answers.put(f"dt={day}: {len(ids)} rows, {len(set(ids))} ids, {versions}")
                return
            if day == NIGHT:
                seen.extend(versions)
        reads += 1
    answers.put((reads, late, list(dict.fromkeys(seen))))


def read_pairs(knowledge: Path, stop, answers) -> None:
    """Read NIGHT's users and items as docs/explanation/faults.md says; answers as ``read_on``."""
    seen, reads, mixed = [], 0, 0
    answers.put("ready")
    while not stop.is_set():
        try:
            folders = [ds.dataset(knowledge / f"entity={entity}" / f"dt={NIGHT}", format="parquet")
                       for entity in ENTITIES]
            if not all(folder.files for folder in folders):  # this process stood still while it listed
                continue
            tables = [folder.to_table(columns=["run_id", "knowledge", "generated_dt"]) for folder in folders]
        except FileNotFoundError:  # not published yet, or listed before and opened after
            time.sleep(0.01)
            continue
        if len({run for table in tables for run in table["run_id"].to_pylist()}) > 1:
            mixed += 1
            continue
        versions = set().union(*map(versions_of, tables))
        if len(versions) > 1:
            answers.put(f"users and items of {versions}")
            return
        seen.extend(versions)
        reads += 1
    answers.put((reads, mixed, list(dict.fromkeys(seen))))


def answering(read, *arguments) -> None:
    """Run a reader; what it raises is its answer."""
    try:
        read(*arguments)
    except Exception as error:
        arguments[-1].put(f"{type(error).__name__}: {error}")


def write_version(out: Path, version: str) -> None:
    """Let tonight's rows end with a word, as if the model had written them so."""
    for path in out.glob(f"_work/dt={NIGHT}/generate/entity=*/part-*.parquet"):
        table = pq.read_table(path)
        words = [None if text is None else f"{text.partition(' Version-')[0]} {version}"
                 for text in table["knowledge"].to_pylist()]
        place = table.schema.get_field_index("knowledge")
        column = pa.array(words, pa.string())  # all of them null in a chunk without a text
        chunk_files.write(path, table.set_column(place, table.schema.field(place), column))


@pytest.fixture
def slow_to_show(monkeypatch):
    """Between users and items that are shown some time passes."""
    put = atomic_folder._move_into_place

    def put_and_wait(new, old) -> bool:
        replaced = put(new, old)
        if old.parent.name == f"entity={ENTITIES[0]}" and old.name == f"dt={NIGHT}":
            time.sleep(GAP_S)
        return replaced

    monkeypatch.setattr(atomic_folder, "_move_into_place", put_and_wait)


@pytest.mark.release
def test_a_reader_never_sees_a_part_or_a_mix_of_a_date(folders, finished, night_of, slow_to_show):
    _, out = finished
    sizes = {entity: {day: len(rows(out, entity, day)) for day in (BEFORE, NIGHT)} for entity in ENTITIES}
    for entity in ENTITIES:
        shutil.rmtree(out / "knowledge" / f"entity={entity}" / f"dt={NIGHT}")
    stop, answers, of_pairs = _CONTEXT.Event(), _CONTEXT.Queue(), _CONTEXT.Queue()
    reading = [(read_on, out / "knowledge" / f"entity={entity}", sizes[entity], stop, answers)
               for entity in ENTITIES]
    reading.append((read_pairs, out / "knowledge", stop, of_pairs))
    readers = [_CONTEXT.Process(target=answering, args=arguments) for arguments in reading]
    queues = [answers, answers, of_pairs]
    for reader in readers:
        reader.start()
    assert [queue.get(timeout=300) for queue in queues] == ["ready"] * 3
    try:
        for version in VERSIONS:
            write_version(out, version)
            night_of(folders.world, out, stages=("gate", "publish"), run_id=version)
    finally:
        stop.set()
    found = [queue.get(timeout=120) for queue in queues]
    for reader in readers:
        reader.join(60)
    assert all(isinstance(one, tuple) for one in found), found
    for reads, _, seen in found:
        assert reads > 2 * len(VERSIONS), found
        assert len(seen) > 2, f"saw only {seen}"
        assert [version for version in (None, *VERSIONS) if version in seen] == seen, "went back"
    assert found[-1][1], "users and items of two runs were never there to be told apart"
