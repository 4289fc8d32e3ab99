"""A disk that is really full, or really read-only, under a stage: one line, code 5, and nothing is lost."""

import shutil

import pytest
from fault_nights import (
    BEFORE,
    NIGHT,
    STAGES,
    committed,
    configured,
    last_line,
    leftovers,
    published,
    require_whole,
    rows,
)
from small_disk import small_disk

from dare_job.schemas import ENTITIES

pytestmark = [pytest.mark.spark, pytest.mark.release]
FULL = {"plan": 24, "embed": 20, "pools": 48, "generate": 96, "publish": 24}  # KiB that are left


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def copied(disk, folders, tmp_path):
    """Options of a command and its output, on the small disk: the input of NIGHT is read, and no more."""
    out = shutil.copytree(folders.undisturbed, disk.folder / "out")
    for stage in STAGES[:-1]:
        shutil.rmtree(out / "_work" / f"dt={NIGHT}" / stage)
    for entity in ENTITIES:
        shutil.rmtree(out / "knowledge" / f"entity={entity}" / f"dt={NIGHT}")
    # one shard: each of its failed attempts costs a new worker that loads the model
    return configured(tmp_path, folders.world, out, spark={"shards": 1}), out


def test_a_full_disk_ends_each_stage_and_the_same_command_ends_the_night(disk, copied, folders, dare_job):
    options, out = copied
    old = published(out)
    for stage, left_kib in FULL.items():
        if stage != STAGES[0]:
            assert dare_job("run", "--to", STAGES[STAGES.index(stage) - 1], *options)[0] == 0
        done = committed(out)
        disk.fill(left_kib << 10)
        for _ in range(2 if stage == "publish" else 1):  # nobody has made room yet
            code, said = dare_job("run", *options)
            assert code == 5, (stage, said)
            assert "No space left on device" in last_line(said) and str(out) in last_line(said), stage
            assert not list((out / "knowledge").glob(f"*/dt={NIGHT}"))
            assert published(out) == old and committed(out).items() >= done.items(), stage
            left = [name for name in leftovers(out) if name.endswith("staging")]
            assert not left or stage == "pools", f"{left} take the room"  # pools: other tasks still end
        if stage == "generate":
            assert len(committed(out)) > len(done), "no chunk was kept"
            done = committed(out)
        disk.free()
    code, said = dare_job("run", *options)
    assert code == 0, said
    assert committed(out).items() >= done.items() and published(out) == old
    require_whole(out, folders.undisturbed)


def test_a_read_only_output_is_one_line_and_can_still_be_read(disk, copied, folders, dare_job):
    options, out = copied
    old, done = published(out), committed(out)
    disk.read_only(True)
    try:
        code, said = dare_job("run", *options)
        assert code == 5 and "Read-only file system" in last_line(said), said
        assert dare_job("show", str(out), f"user:{min(rows(out, 'user', BEFORE))}")[0] == 0
        assert dare_job("history", "--out", str(out))[0] == 0
    finally:
        disk.read_only(False)
    assert published(out) == old and committed(out) == done and leftovers(out) == []
    assert dare_job("run", "--to", "embed", *options)[0] == 0
