"""Erasing where folders of the output are links: through them, or with an error that names the link."""

import gc
import multiprocessing
import os
from pathlib import Path

import kill_points
import pytest
from erased_folder import DAYS, GONE, check_erased, erase, made, values_of

from dare_job import errors
from dare_job.publish.erase.search import files_below
from dare_job.storage import atomic_folder


@pytest.fixture
def forks(monkeypatch):
    """Children are copies of this process, which start in no time and collect none of its garbage."""
    monkeypatch.setattr(kill_points, "_CONTEXT", multiprocessing.get_context("fork"))
    gc.freeze()
    yield


@pytest.fixture(autouse=True)
def no_grace(monkeypatch):
    """No reader is listing the folders that these tests replace."""
    monkeypatch.setattr(atomic_folder, "GRACE_S", 0.0)


@pytest.fixture
def out(tmp_path):
    return made(tmp_path / "out")


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", [
    "_work", f"_work/dt={DAYS[0]}/generate", "knowledge", "features/ids/entity=user",
    *(pytest.param(name, marks=pytest.mark.release)
      for name in (f"_work/dt={DAYS[0]}", f"_work/dt={DAYS[0]}/pools",
                   f"knowledge/entity=user/dt={DAYS[0]}", f"reports/dt={DAYS[0]}"))])
def test_a_folder_on_another_disk_is_erased_through_its_link(out, tmp_path, name):
    """Nothing was removed there, and the search found nothing."""
    link, real = out / name, tmp_path / "disk" / Path(name).name
    real.parent.mkdir()
    link.rename(real)
    link.symlink_to(real)
    erase(out, f"user:{GONE}")
    assert link.is_symlink() == real.exists() == (not name.endswith("pools"))
    if real.exists():
        assert list(real.parent.iterdir()) == [real]
        link.unlink()
        real.rename(link)
    check_erased(out)


@pytest.mark.usefixtures("forks")
def test_what_a_killed_erasure_left_on_another_disk_is_removed(out, tmp_path):
    link, real = out / f"knowledge/entity=user/dt={DAYS[0]}", tmp_path / "disk" / f"dt={DAYS[0]}"
    real.parent.mkdir()
    link.rename(real)
    link.symlink_to(real)
    kill_points.killed("exchange", out, erase, out, f"user:{GONE}")
    erase(out, f"user:{GONE}")
    assert list(real.parent.iterdir()) == [real]


def test_links_that_the_search_cannot_follow_are_named(out, tmp_path):
    """A disk that is not mounted counted as searched."""
    before = values_of(out)
    (out / "latest.html").symlink_to(out / f"reports/dt={DAYS[1]}/index.html")
    (out / "again").symlink_to(out)
    (tmp_path / "copy.csv").write_text(GONE)
    for target in (tmp_path / "missing", tmp_path / "copy.csv"):
        (out / "old").symlink_to(target)
        with pytest.raises(errors.DataError, match="old is a link to .*, which is not a folder that exists"):
            erase(out, f"user:{GONE}")
        (out / "old").unlink()
    (out / "latest.html").unlink()
    (out / "again").unlink()
    assert values_of(out) == before
    (out / "latest.html").symlink_to(out / f"reports/dt={DAYS[1]}/none.html")
    assert erase(out, f"user:{GONE}")["removed"]["rows"]


def test_a_folder_that_cannot_be_read_is_named(out, monkeypatch):
    scandir = os.scandir

    def refusing(path):
        if str(path).endswith("knowledge"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(errors.DataError, match="knowledge cannot be read"):
        files_below(out)
