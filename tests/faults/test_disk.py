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

pytestmark = pytest.mark.spark
FULL = {"plan": 24, "embed": 20, "pools": 48, "generate": 96, "publish": 24}  # KiB that are left


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def before(disk, folders, tmp_path, dare_job):
    """Factory: options of a command and its output, on the small disk, up to the stage before ``stage``."""
    def make(stage):
        out = shutil.copytree(folders.undisturbed, disk.folder / "out")
        for later in STAGES[STAGES.index(stage):-1]:
            shutil.rmtree(out / "_work" / f"dt={NIGHT}" / later)
        for entity in ENTITIES:
            shutil.rmtree(out / "knowledge" / f"entity={entity}" / f"dt={NIGHT}")
        options = configured(tmp_path, folders.world, out)
        if STAGES.index(stage) > STAGES.index("pools"):  # they are of a folder, and this one is a copy
            assert dare_job("run", "--from", "pools", "--to", "pools", *options)[0] == 0
        return options, out
    return make


@pytest.mark.parametrize("stage", FULL)
def test_a_full_disk_ends_a_stage_and_the_same_command_ends_the_night(
        disk, before, folders, dare_job, stage):
    options, out = before(stage)
    old, done = published(out), committed(out)
    disk.fill(FULL[stage] << 10)
    for _ in range(2):  # nobody has made room yet
        code, said = dare_job("run", *options)
        assert code == 5, said
        assert "No space left on device" in last_line(said) and str(out) in last_line(said)
        assert not list((out / "knowledge").glob(f"*/dt={NIGHT}"))
        assert published(out) == old and committed(out).items() >= done.items()
        left = [name for name in leftovers(out) if name.endswith("staging")]
        assert not left or stage == "pools", f"{left} take the room"  # pools: other tasks still end
        done = committed(out)
    if stage == "generate":
        assert any("entity=" in name and "/generate/" in name for name in done), "no chunk was kept"
    disk.free()
    code, said = dare_job("run", *options)
    assert code == 0, said
    assert committed(out).items() >= done.items() and published(out) == old
    require_whole(out, folders.undisturbed)


def test_a_read_only_output_is_one_line_and_can_still_be_read(disk, before, folders, dare_job):
    options, out = before("generate")
    old, done = published(out), committed(out)
    disk.read_only(True)
    try:
        code, said = dare_job("run", *options)
        assert code == 5 and "Read-only file system" in last_line(said), said
        assert dare_job("show", str(out), f"user:{min(rows(out, 'user', BEFORE))}")[0] == 0
        assert dare_job("history", "--out", str(out))[0] == 0
    finally:
        disk.read_only(False)
    assert published(out) == old and committed(out) == done
    assert dare_job("run", *options)[0] == 0
    require_whole(out, folders.undisturbed)
