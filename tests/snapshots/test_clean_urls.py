"""Published dates at a URL: clean removes what is old, never what a command reads, and can be cut off."""

import json
import re
import sys
from datetime import date

import pytest
from small_dates import publish

from dare_job import cli
from dare_job.errors import InfrastructureError
from dare_job.publish.snapshots import clean as snapshots_clean
from dare_job.publish.snapshots.clean import clean
from dare_job.publish.snapshots.history import history
from dare_job.storage import lock, paths, versions
from dare_job.workspace import Workspace

pytestmark = pytest.mark.spark
DAYS = [f"2026-01-{day:02d}" for day in range(1, 6)]


@pytest.fixture
def out_of(any_store, request, tmp_path):
    """Factory: an output with a number of published dates and their working files."""
    def make(count: int):
        folder = paths.path(f"{any_store}/{re.sub('[^a-z_]', '-', request.node.name)}")
        for day in DAYS[:count]:
            publish(tmp_path / "out", day, files={"part-00000.parquet": {}})
        paths.upload(tmp_path / "out", folder)
        return folder
    return make


def space(out, day: str) -> Workspace:
    return Workspace(out, date.fromisoformat(day))


def days(out) -> list[str]:
    """Dates of which anything is there; fails where a lock or a mark was left."""
    names = paths.listing(out)
    assert not [name for name in names if "_lock" in name or "_removed" in name]
    return sorted({name.partition("/dt=")[2].split("/")[0] for name in names})


@pytest.mark.slow
def test_a_date_that_is_being_written_and_what_it_reads_stay(out_of):
    out = out_of(5)
    with lock.held(space(out, DAYS[1]).work):
        found = clean(out, 2)
        reasons = {verdict["date"]: verdict["reason"] for verdict in found["kept"]}
        assert "is being written" in reasons[DAYS[1]] and "its texts are drafts for" in reasons[DAYS[0]]
        with (pytest.raises(InfrastructureError, match="another command moves old dates away"),
              lock.held_for_cleaning(out / "_work"), lock.held_for_cleaning(out / "_work")):
            pass
    assert days(out) == [*DAYS[:2], *DAYS[3:]]


@pytest.mark.slow
def test_the_newest_dates_stay_and_the_rest_goes_also_if_cut_off_between_hiding_and_deleting(
        out_of, monkeypatch):
    """At no moment is a date half there that could be taken for a published one, or for a cut-off run."""
    out = out_of(4)
    before = paths.listing(out)
    dry = clean(out, 2, dry_run=True)
    assert paths.listing(out).keys() == before.keys()
    with monkeypatch.context() as patched:
        patched.setattr(snapshots_clean, "delete_hidden", lambda space: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            clean(out, 2)
    assert space(out, "2026-02-01").published_dates() == DAYS[2:4]
    assert space(out, "2026-02-01").interrupted_dates() == []
    work = space(out, DAYS[0]).work
    paths.remove_below(work, [name for name in paths.listing(work) if "plan" in name])  # killed within
    found = clean(out, 5)
    assert [verdict["date"] for verdict in found["removed"]] == DAYS[:2] and days(out) == DAYS[2:4]
    stay = {name: entry["ETag"] for name, entry in before.items() if not re.search("dt=2026-01-0[12]", name)}
    assert {name: entry["ETag"] for name, entry in paths.listing(out).items()} == stay
    assert [verdict["date"] for verdict in dry["removed"]] == DAYS[:2]
    assert dry["bytes"] == sum(entry["size"] for name, entry in before.items() if name not in stay)
    assert [row["date"] for row in history(out)] == DAYS[2:4]


def test_a_hidden_date_that_is_written_anew_begins_from_nothing_old_and_stays(out_of, tmp_path):
    out = out_of(1)
    place = space(out, DAYS[0])
    snapshots_clean.hide(place)
    assert snapshots_clean.is_hidden(place) and not place.is_published(DAYS[0])
    place.clean_up()  # as a command on that date does first
    assert not snapshots_clean.is_hidden(place) and not paths.listing(place.knowledge("user"))
    publish(tmp_path / "again", DAYS[0], work=False)
    paths.upload(tmp_path / "again", out)
    assert place.is_published(DAYS[0])
    snapshots_clean.delete_hidden(place)
    assert place.is_published(DAYS[0]) and paths.listing(place.knowledge("user"))


def test_a_mark_beside_a_new_manifest_goes_when_that_is_settled(out_of):
    out = out_of(1)
    folder = space(out, DAYS[0]).knowledge("user")
    (folder / versions.REMOVED).write_text("{}")
    assert not versions.is_hidden(folder)
    versions.clean_up_snapshot(folder)
    assert not (folder / versions.REMOVED).exists() and (folder / "part-00000.parquet").exists()


def test_the_command_line_takes_a_url_and_names_a_folder_that_is_none(out_of, store, monkeypatch, capsys):
    out = out_of(3)
    def run(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dare-job", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    code, shown, _ = run("clean", "--keep", "2", "--out", out, "--json")
    found = json.loads(shown)
    assert code == 0 and found["out"] == str(out)
    assert [verdict["date"] for verdict in found["removed"]] == DAYS[:1] and days(out) == DAYS[1:3]
    code, _, shown = run("history", "--out", out / "none")
    assert code == 2 and f"{out / 'none'} is not a folder" in shown
    code, _, shown = run("history", "--out", "s3://nobody/x")
    assert code == 2 and "there is no bucket nobody" in shown
