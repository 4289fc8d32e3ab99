"""clean removes what is old, never what a command reads, and can be killed at any change."""

import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from datetime import date
from pathlib import Path

import kill_points
import pytest
from small_dates import publish
from typer.testing import CliRunner

from dare_job import cli, errors, pipeline, workspace
from dare_job.config.settings import JobConfig
from dare_job.evaluate.ctr.knowledge import choose
from dare_job.job import Job
from dare_job.publish.report import nights
from dare_job.publish.report.nights import snapshot
from dare_job.publish.snapshots import clean as snapshots_clean
from dare_job.publish.snapshots.clean import clean
from dare_job.publish.snapshots.history import history
from dare_job.schemas import ENTITIES
from dare_job.storage import lock
from dare_job.tables.published import previous_folder
from dare_job.workspace import Workspace

DAYS = [f"2026-01-{day:02d}" for day in range(1, 7)]
HOLD = ("import sys; from pathlib import Path; from dare_job.storage import lock\n"
        "with lock.held(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()\n")


@pytest.fixture
def forks(monkeypatch):
    """Children are copies of this process: a server of those that run whole nights takes seconds to start.

    They collect no garbage of this process, of which Spark's Java would hear.
    """
    monkeypatch.setattr(kill_points, "_CONTEXT", multiprocessing.get_context("fork"))
    gc.freeze()
    yield


@pytest.fixture
def out(tmp_path):
    """Six published dates with working files."""
    for day in DAYS:
        publish(tmp_path / "out", day)
    return tmp_path / "out"


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def days(out: Path) -> list[str]:
    """Dates of which anything is there; fails where a hidden folder or a lock was left."""
    assert not [path for path in out.rglob("*") if path.name.startswith((".", "_lock"))]
    return sorted({path.name[3:] for path in out.rglob("dt=*")})


def kept(found: dict) -> dict[str, str]:
    return {verdict["date"]: verdict["reason"] for verdict in found["kept"]}


def job_of(out: Path, day: str) -> Job:
    return Job(JobConfig(out=str(out)), Workspace(out, date.fromisoformat(day)), f"run-{day}")


@pytest.fixture
def holder():
    """Factory: a process that holds a date's lock, as a command does, until the test ends or kills it."""
    running = []

    def start(out: Path, day: str) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", HOLD, str(out / "_work" / f"dt={day}")],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout.readline() == "held\n"
        return process
    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_the_newest_dates_stay_as_they_are_and_the_rest_goes(out):
    before = files(out)
    dry = clean(out, 3, dry_run=True)
    assert files(out) == before
    found = clean(out, 3)
    assert found == dry | {"dry_run": False}
    assert [verdict["date"] for verdict in found["removed"]] == DAYS[:3] and days(out) == DAYS[3:]
    stay = {name: content for name, content in before.items() if any(f"dt={day}" in name for day in DAYS[3:])}
    assert files(out) == stay
    assert found["bytes"] == sum(map(len, before.values())) - sum(map(len, stay.values()))
    assert set(kept(found).values()) == {"one of the 3 newest published dates"}
    assert clean(out, 3)["removed"] == []


@pytest.fixture
def on(monkeypatch):
    """Factory: lets ``clean`` take a day for today."""
    def on(day: str) -> None:
        monkeypatch.setattr(snapshots_clean, "_today", lambda: date.fromisoformat(day))
    return on


def test_dates_older_than_some_days_go_with_their_reports(out, on):
    for day in [*DAYS, "2025-12-24"]:
        (out / f"reports/dt={day}").mkdir(parents=True)
        (out / f"reports/dt={day}/index.html").write_text("a text")
    on("2026-01-08")
    before = files(out)
    dry = clean(out, None, dry_run=True, older_than=4)
    assert files(out) == before
    found = clean(out, None, older_than=4)
    assert found == dry | {"dry_run": False}
    assert {verdict["date"]: verdict["reason"] for verdict in found["removed"]} == dict.fromkeys(
        DAYS[:3], "more than 4 days before 2026-01-08")
    assert kept(found) == dict.fromkeys(DAYS[3:], "not more than 4 days before 2026-01-08")
    assert found["reports"] == ["2025-12-24", *DAYS[:3]] and days(out) == DAYS[3:]


def test_the_newest_date_is_never_too_old_nor_is_what_it_reads(out, on):
    on("2027-01-01")
    found = clean(out, None, older_than=30)
    assert kept(found)[DAYS[-1]] == "the newest published date"
    assert "may be run again" in kept(found)[DAYS[-2]] and days(out) == DAYS[-2:]


@pytest.mark.parametrize("keep, older_than, stay", [(5, 3, 4), (3, 4, 3), (6, 100, 6), (1, 0, 2)])
def test_with_both_rules_a_date_goes_by_either(out, on, keep, older_than, stay):
    on("2026-01-06")
    clean(out, keep, older_than=older_than)
    assert days(out) == DAYS[-stay:]


def test_reports_stay_if_dates_go_by_their_number(out):
    (out / f"reports/dt={DAYS[0]}").mkdir(parents=True)
    (out / f"reports/dt={DAYS[0]}/index.html").write_text("a text")
    assert clean(out, 2)["reports"] == [] and (out / f"reports/dt={DAYS[0]}/index.html").exists()


def test_a_rule_is_required(out):
    with pytest.raises(errors.ConfigError, match="--keep N, .* or --older-than DAYS"):
        clean(out, None)
    assert CliRunner().invoke(cli.app, ["clean", "--out", str(out), "--older-than", "-1"]).exit_code == 2
    done = CliRunner().invoke(cli.app, ["clean", "--out", str(out), "--older-than", "99999", "--dry-run"])
    assert done.exit_code == 0 and json.loads(done.output.splitlines()[-1])["removed"] == []


COPIES = ["dt=2026-01-06.bak", "dt=2026-01-06_old", "dt=latest", "dt=20260107", "dt=2026-1-7",
          "dt=2026-13-01", "dt=2026-01-06 (copy)", "dt="]


@pytest.mark.parametrize("copy", COPIES)
def test_a_folder_whose_name_is_no_date_is_no_date_anywhere(out, copy):
    published = [out / "knowledge" / f"entity={entity}" for entity in ENTITIES]
    for parent in [*published, *(out / "features" / f"entity={entity}" for entity in ENTITIES),
                   out / "candidates"]:
        shutil.copytree(published[0] / f"dt={DAYS[-1]}", parent / copy)
    shutil.copytree(out / "_work" / f"dt={DAYS[-1]}", out / "_work" / copy)
    os.rename(out / "candidates" / copy, out / "candidates" / f".{copy}.0a1b2c3d.removed")
    copies = {name: content for name, content in files(out).items()
              if f"{copy}/" in name or f"{copy}.0a1b2c3d" in name}
    tomorrow = Workspace(out, date(2026, 1, 7))
    assert tomorrow.previous("user").name == f"dt={DAYS[-1]}" and tomorrow.newest_date() == DAYS[-1]
    assert tomorrow.published_dates() == nights.dates(out) == DAYS and tomorrow.interrupted_dates() == []
    assert tomorrow.feature_dates("user") == [] and tomorrow.feature_source_date("user") is None
    assert [row["date"] for row in history(out)] == DAYS
    assert snapshot(out, "user", None).name == f"dt={DAYS[-1]}"
    assert choose(out, None, list(ENTITIES)) == (DAYS[-1], list(ENTITIES))
    job = Job(JobConfig(input={"knowledge": str(out / "knowledge")}, out=str(out.parent / "other")),
              Workspace(out.parent / "other", date(2026, 1, 7)), "run")
    assert previous_folder(job, "user").name == f"dt={DAYS[-1]}"
    clean(out, keep=1)
    left = files(out)
    assert {name: left.get(name) for name in copies} == copies, "a copy was removed or changed"
    assert f"knowledge/entity=user/dt={DAYS[-1]}/_manifest.json" in left, "the real date was removed"
    assert not any(f"dt={DAYS[0]}/" in name for name in left if name.startswith("knowledge"))


def test_what_a_further_run_of_the_newest_date_reads_stays(out):
    found = clean(out, 1)
    assert days(out) == DAYS[-2:] and "may be run again" in kept(found)[DAYS[-2]]


def test_a_date_that_is_being_written_and_what_it_reads_stay(out, holder):
    process = holder(out, DAYS[2])
    found = kept(clean(out, 2))
    assert f"is being written (process {process.pid} on " in found[DAYS[2]]
    assert f"its texts are drafts for {DAYS[2]}, which is being written" in found[DAYS[1]]
    process.kill()  # a run that ends so leaves its lock
    process.wait()
    assert list(kept(clean(out, 2))) == DAYS[4:] == days(out)


def test_a_date_between_the_old_ones_that_is_written_for_the_first_time_is_safe(out, holder):
    for entity in ("user", "item"):
        shutil.rmtree(out / f"knowledge/entity={entity}/dt={DAYS[3]}")
    holder(out, DAYS[3])
    assert list(kept(clean(out, 2))) == [DAYS[2], *DAYS[3:]]


def test_a_cut_off_run_keeps_its_texts_and_what_it_started_from(out):
    shutil.rmtree(out / f"knowledge/entity=item/dt={DAYS[2]}")  # killed between the two, or by hand
    found = kept(clean(out, 2))
    assert list(found) == [*DAYS[1:3], *DAYS[4:]]
    assert f"dare-job run --date {DAYS[2]}" in found[DAYS[2]] and "not published yet" in found[DAYS[1]]


@pytest.mark.parametrize("made", ["plan", "cut"])
def test_a_published_date_that_is_run_again_stage_by_stage_is_safe(out, made):
    """Between two stages nobody holds its lock; until publish has shown what they made, all stays."""
    space = Workspace(out, date.fromisoformat(DAYS[2]))
    plan, cut = space.work / "plan" / "_done.json", space.work / "generate" / "_cut.json"
    plan.write_text(json.dumps({"fingerprint": "p"}))
    cut.write_text(json.dumps({"fingerprint": "g", "shards": 1, "rows": 1, "kept": 0, "token": "c"}))
    for entity in ENTITIES:
        manifest = space.knowledge(entity) / "_manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"plan": "p", "cut": "c"}))
    assert DAYS[1] not in kept(clean(out, 2, dry_run=True))
    changed = plan if made == "plan" else cut
    changed.write_text(changed.read_text().replace('"p"', '"q"').replace('"c"', '"d"'))
    reasons = kept(clean(out, 2))
    again = "was run again and has not been published since"
    assert again in reasons[DAYS[2]]
    assert f"its texts are drafts for {DAYS[2]}, which {again}" in reasons[DAYS[1]]
    assert days(out) == [DAYS[1], DAYS[2], *DAYS[4:]]


def test_what_a_run_noted_to_read_stays_though_a_nearer_date_came_since(out, holder):
    Workspace(out, date.fromisoformat(DAYS[3])).logs.mkdir()
    (out / f"_work/dt={DAYS[3]}/logs/reads.json").write_text(json.dumps({"previous": DAYS[0]}))
    holder(out, DAYS[3])
    assert list(kept(clean(out, 2))) == [DAYS[0], *DAYS[2:]]


def test_a_command_stays_with_what_it_noted_whatever_is_published_meanwhile(out, tmp_path):
    job, apart = job_of(out, DAYS[3]), {day: tmp_path / day for day in DAYS[1:3]}
    for day, place in apart.items():
        hide(out, day, place)
    with pipeline._writing(job):
        for day, place in apart.items():
            for entity in ENTITIES:
                os.rename(place / entity, out / f"knowledge/entity={entity}/dt={day}")
            assert job.space.previous("user") == out / f"knowledge/entity=user/dt={DAYS[0]}"
        assert list(kept(clean(out, 1))) == [DAYS[0], *DAYS[2:]]  # the last one may be run again
        assert job.space.previous("item").exists()
    with pipeline._writing(job):
        assert job.space.previous("user").name == f"dt={DAYS[2]}"


def test_a_date_that_is_published_while_a_command_notes_what_it_reads_is_noted(out, tmp_path, monkeypatch):
    """A clean that looked before the note was there kept that date, and not the one before it."""
    job, apart = job_of(out, DAYS[3]), tmp_path / "apart"
    hide(out, DAYS[2], apart)
    write = workspace.write_json

    def late(path, value):
        if path.name == workspace.READ_DATES and apart.exists():
            for entity in ENTITIES:
                os.rename(apart / entity, out / f"knowledge/entity={entity}/dt={DAYS[2]}")
            apart.rmdir()
        write(path, value)

    monkeypatch.setattr(workspace, "write_json", late)
    with pipeline._writing(job):
        noted = json.loads((job.space.logs / workspace.READ_DATES).read_text())
        assert noted["previous"] == job.space.previous("user").name[3:] == DAYS[2]


def hide(out: Path, day: str, place: Path) -> None:
    """Take a date's texts away, and put them aside by entity type."""
    place.mkdir()
    for entity in ENTITIES:
        os.rename(out / f"knowledge/entity={entity}/dt={day}", place / entity)


def test_text_that_no_run_wrote_stays(out):
    foreign = out / f"knowledge/entity=user/dt={DAYS[0]}/_manifest.json"
    foreign.unlink()
    shutil.rmtree(out / f"_work/dt={DAYS[0]}")
    found = kept(clean(out, 2))
    assert "has no manifest" in found[DAYS[0]] and list(found) == [DAYS[0], *DAYS[4:]]


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_killed_at_any_change_the_next_one_finishes(tmp_path):
    """At no moment is a date that stays touched, nor one half there that could be taken for a cut-off run."""
    out, trial = tmp_path / "out", tmp_path / "trial"
    for day in DAYS[:3]:
        publish(out, day)
    shutil.copytree(out, trial)
    labels = kill_points.undisturbed(trial, clean, trial, 2)
    assert {"rename", "mkdir", "rmdir", "remove"} <= {label.split()[0] for label in labels}
    stay = {name: content for name, content in files(out).items()
            if any(f"dt={day}" in name for day in DAYS[1:])}
    for n, label in enumerate(labels):
        shutil.rmtree(trial)
        shutil.copytree(out, trial)
        kill_points.killed(n, trial, clean, trial, 2)
        assert Workspace(trial, date(2026, 2, 1)).interrupted_dates() == [], label
        clean(trial, 2)
        assert days(trial) == DAYS[1:3] and files(trial) == stay, label


@pytest.mark.usefixtures("forks")
def test_a_command_that_starts_meanwhile_waits_until_it_is_clear_what_goes(out, tmp_path):
    """It has its lock by then, but has not looked what it reads."""
    run = kill_points._CONTEXT.Process(target=_write, args=(out, DAYS[3], tmp_path / "go"))
    run.start()
    with lock.held_for_cleaning(out / "_work"):
        (tmp_path / "go").touch()
        lock_file = out / "_work" / f"dt={DAYS[3]}" / lock.NAME
        while run.is_alive() and not lock_file.exists():
            time.sleep(0.01)
        time.sleep(0.3)
        assert not (lock_file.parent / "logs").exists()
        with pytest.raises(errors.InfrastructureError, match="another command moves old dates away"):
            clean(out, 2)
    run.join()
    assert run.exitcode == 0 and (lock_file.parent / "logs" / "reads.json").exists()


def test_a_clean_that_was_killed_keeps_no_command_waiting(out):
    owner = {"pid": 2**22 + 1, "born": "1", "host": os.uname().nodename}
    (out / "_work" / lock.NAME).write_text(json.dumps(owner))
    began = time.monotonic()
    _write(out, DAYS[3])
    assert time.monotonic() - began < 5
    clean(out, 3)
    assert days(out) == DAYS[3:]


def _write(out: Path, day: str, go: Path | None = None) -> None:
    while go and not go.exists():
        time.sleep(0.005)
    with pipeline._writing(job_of(out, day)):
        pass


def _reading(out: Path, day: str, until: float) -> None:
    """Runs of a date, one after the other: each looks what it reads, and finds it there to its end."""
    while time.time() < until:
        job = job_of(out, day)
        with suppress(errors.InfrastructureError), pipeline._writing(job):  # its date is being moved away
            old = job.space.previous("user")
            for _ in range(20):
                assert old is None or all(next(job.space.knowledge(entity, old.name[3:]).glob("*.parquet"))
                                          for entity in ("user", "item"))
                time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_many_commands_and_cleans_at_once_never_lose_what_a_command_reads(tmp_path):
    """Dates are published again as they are removed, so that there is always something to remove."""
    out, until = tmp_path / "out", time.time() + 3
    for day in DAYS:
        publish(out, day)
    context = kill_points._CONTEXT
    readers = [context.Process(target=_reading, args=(out, day, until))
               for day in (DAYS[2], DAYS[3], DAYS[5])]
    for reader in readers:
        reader.start()
    removed = []
    while time.time() < until:
        removed += [verdict["date"] for verdict in clean(out, 1)["removed"]]
        for day in {DAYS[0], DAYS[1]} & set(removed):
            if not (out / f"knowledge/entity=user/dt={day}").exists():
                with suppress(errors.InfrastructureError), lock.held(out / "_work" / f"dt={day}"):
                    staged = publish(tmp_path / f"new{len(list(tmp_path.iterdir()))}", day)
                    for entity in ("user", "item"):
                        os.rename(staged.knowledge(entity), out / f"knowledge/entity={entity}/dt={day}")
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0, 0, 0]
    assert len(removed) > 4  # otherwise nothing was tried
