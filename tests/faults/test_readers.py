"""Readers in processes of their own, looping over the table while a date is published again and again."""

import multiprocessing
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fault_nights import BEFORE, NIGHT, rows

from dare_job.spark import chunks
from dare_job.tables import ENTITIES

pytestmark = pytest.mark.spark
_CONTEXT = multiprocessing.get_context("spawn")
VERSIONS = ("Version-A.", "Version-B.", "Version-C.", "Version-D.")


def read_on(table: Path, sizes: dict[str, int], stop, answers) -> None:
    """Read the whole table until told to stop; answers with what was seen, or with what was wrong."""
    seen, reads, late = [], 0, 0
    answers.put("ready")
    while not stop.is_set():
        try:
            dataset = ds.dataset(table, format="parquet", partitioning="hive")
            found = dataset.to_table(columns=["entity_id", "knowledge", "dt", "generated_dt"])
        except FileNotFoundError:  # listed before, opened after: said in docs/architecture.md
            late += 1
            continue
        for day in (BEFORE, NIGHT):
            part = found.filter(pc.equal(pc.cast(found["dt"], "string"), day))
            ids = part["entity_id"].to_pylist()
            if not ids and day == NIGHT:
                seen.append(None)
                continue
            new = part.filter(pc.equal(part["generated_dt"], NIGHT))["knowledge"].to_pylist()
            versions = {text.rpartition(" ")[2] for text in new if text}
            if len(ids) != len(set(ids)) or len(ids) != sizes[day] or len(versions) > 1:
                answers.put(f"dt={day}: {len(ids)} rows, {len(set(ids))} ids, {versions}")
                return
            if day == NIGHT:
                seen.extend(versions)
        reads += 1
    answers.put((reads, late, list(dict.fromkeys(seen))))


def write_version(out: Path, version: str) -> None:
    """Let tonight's rows end with a word, as if the model had written them so."""
    for path in out.glob(f"_work/dt={NIGHT}/generate/entity=*/part-*.parquet"):
        table = pq.read_table(path)
        words = [None if text is None else f"{text.partition(' Version-')[0]} {version}"
                 for text in table["knowledge"].to_pylist()]
        place = table.schema.get_field_index("knowledge")
        chunks.write(path, table.set_column(place, table.schema.field(place), [words]))


def test_a_reader_never_sees_a_part_or_a_mix_of_a_date(folders, night, night_of):
    _, out = night
    night_of(folders.world, out, stages=("plan", "embed", "group", "route", "pools", "generate"))
    sizes = {entity: len(rows(folders.undisturbed, entity)) for entity in ENTITIES}
    assert sizes == {entity: len(rows(out, entity, BEFORE)) for entity in ENTITIES}
    stop, answers = _CONTEXT.Event(), _CONTEXT.Queue()
    readers = [_CONTEXT.Process(target=read_on, args=(
        out / "knowledge" / f"entity={entity}", dict.fromkeys((BEFORE, NIGHT), sizes[entity]), stop, answers))
        for entity in ENTITIES]
    for reader in readers:
        reader.start()
    assert [answers.get(timeout=300) for _ in readers] == ["ready", "ready"]
    try:
        for version in VERSIONS:
            write_version(out, version)
            night_of(folders.world, out, stages=("gate", "publish"))
    finally:
        stop.set()
    found = [answers.get(timeout=120) for _ in readers]
    for reader in readers:
        reader.join(60)
    assert all(isinstance(one, tuple) for one in found), found
    for reads, _, seen in found:
        assert reads > 2 * len(VERSIONS), found
        assert len(seen) > 2, f"saw only {seen}"
        assert [version for version in (None, *VERSIONS) if version in seen] == seen, "went back"
