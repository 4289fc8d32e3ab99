"""Damaged files, made so on disk, under the real command: the file is named, and nothing is lost."""

import shutil

import pyarrow.parquet as pq
import pytest
from fault_nights import (
    BEFORE,
    NIGHT,
    committed,
    configured,
    last_line,
    planned,
    published,
    require_whole,
)

pytestmark = [pytest.mark.spark, pytest.mark.release]


def cut_short(path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:len(content) // 2])


def torn(path) -> None:
    """A page of a column that tells what is stale or past is another; beginning and end are right."""
    group = pq.read_metadata(path).row_group(0)
    (page,) = (column.data_page_offset for column in map(group.column, range(group.num_columns))
               if column.path_in_schema in ("text_key", "timestamp"))
    content = bytearray(path.read_bytes())
    content[page:page + 24] = b"\xff" * 24
    path.write_bytes(bytes(content))


def chunks(out) -> dict:
    return {name: file for name, file in committed(out).items() if "/generate/" in name}


def test_a_damaged_input_file_is_named_and_the_night_goes_on_once_it_is_whole(
        night, folders, tmp_path, dare_job):
    _, out = night
    world = shutil.copytree(folders.world, tmp_path / "world")
    options, before = configured(tmp_path, world, out), published(out)
    for damage in (cut_short, torn):
        shutil.copy(folders.world / "interactions.parquet", world)
        damage(world / "interactions.parquet")
        code, said = dare_job("run", *options)
        assert code == 4 and str(world / "interactions.parquet") in last_line(said), (damage, said)
        assert published(out) == before and committed(out) == {}
        assert not list((out / "knowledge").glob(f"*/dt={NIGHT}"))
    shutil.copy(folders.world / "interactions.parquet", world)
    assert dare_job("run", "--to", "plan", *options)[0] == 0
    assert planned(out) == planned(folders.undisturbed) and published(out) == before


def test_yesterdays_table_damaged_is_named_and_the_night_goes_on_once_it_is_restored(
        night, folders, dare_job):
    options, out = night
    (file,) = (out / "knowledge" / "entity=user" / f"dt={BEFORE}").glob("*.parquet")
    whole = file.read_bytes()
    for damage in (torn, cut_short):
        file.write_bytes(whole)
        damage(file)
        code, said = dare_job("run", *options)
        assert code == 4 and str(file.parent) in last_line(said), (damage, said)
        assert not list((out / "knowledge").glob(f"*/dt={NIGHT}"))
    file.write_bytes(whole)
    assert dare_job("run", "--to", "plan", *options)[0] == 0
    assert planned(out) == planned(folders.undisturbed)
    require_whole(out, folders.before, BEFORE)


def test_a_truncated_pool_costs_one_run_and_a_finished_chunk_cut_short_only_its_own_texts(
        finished, folders, dare_job):
    options, out = finished
    done, work = chunks(out), out / "_work" / f"dt={NIGHT}"
    chunk = sorted(work.glob("generate/entity=user/part-*"))[0]
    cut_short(chunk)
    cut_short(work / "pools" / "entity=user" / "global" / "suffixes.npy")
    code, said = dare_job("run", "--from", "generate", *options)
    assert code == 7 and "the next `dare-job run` builds them again" in last_line(said), said
    assert f"{chunk} cannot be read and is written again" in said
    assert dare_job("run", *options)[0] == 0
    assert {name for name, file in chunks(out).items() if done.get(name) != file} == {str(chunk)}
    require_whole(out, folders.undisturbed)
