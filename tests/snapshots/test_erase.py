"""Erasing a user leaves no trace of it, keeps everything else, and can be killed at any change."""

import gc
import gzip
import json
import multiprocessing
import shutil
import zipfile
from datetime import date
from pathlib import Path

import kill_points
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from erased_folder import (
    DAYS,
    GONE,
    ITEMS,
    TEXT,
    USERS,
    check_erased,
    check_manifests,
    erase,
    knowledge,
    made,
    publish,
    row,
    values_of,
    write,
)
from typer.testing import CliRunner

from dare_job import cli, errors, schemas
from dare_job.cli.data import _print_erased
from dare_job.publish.erase import subjects
from dare_job.publish.erase.mentions import Mentions, is_distinctive
from dare_job.publish.features import ids as dense_ids
from dare_job.schemas import KNOWLEDGE
from dare_job.storage import atomic_folder, lock
from dare_job.tables import published
from dare_job.workspace import Workspace, write_json
from pools.index import Index


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


def test_nothing_of_a_user_is_left_and_all_else_stays(out):
    result = erase(out, f"user:{GONE}")
    check_erased(out)
    space, removed = Workspace(out, date.fromisoformat(DAYS[0])), result["removed"]
    assert result["resumed"] is False and result["erased"] == [f"user:{GONE}"] and not result["not_found"]
    assert removed["logs"] == 2 and removed["ids"] == 1 and removed["reports"] == 3
    manifest = published.read_manifest(space.knowledge("user"))
    assert manifest["counts"] | {"rows": 2, "written": 2, "carried": 0} == manifest["counts"]
    assert manifest["erased"]["rows"] == 1 and manifest["gates"]["short"]["first"] == [USERS[0], "else"]
    assert published.read_manifest(space.candidates())["counts"]["users"] == 2
    assert json.loads((space.work / "generate/hung/00000-1a.json").read_text())["ids"] == [USERS[0]]
    gate = pq.read_table(space.work / "gate/failing_rows.parquet")
    assert gate["entity_id"].to_pylist() == [USERS[0], ITEMS[0]]
    interactions = space.work / "input/interactions.parquet/part-0.parquet"
    assert pq.read_metadata(interactions).row_group(0).column(0).compression == "SNAPPY"
    page = (out / f"reports/dt={DAYS[1]}/index.html").read_text()
    assert f"user:{USERS[0]}" in page and not (out / "reports/dt=2025-12-01/index.html").exists()


def test_what_holds_texts_without_ids_is_deleted_and_the_date_can_go_on(out):
    erase(out, f"user:{GONE}")
    work = Workspace(out, date.fromisoformat(DAYS[1])).work
    assert not any((work / name).exists() for name in (
        "pools", "encode", "recommend", "generate/waves", "generate/cut", "generate/_done.json"))
    plan = json.loads((work / "generate/_cut.json").read_text())
    assert plan["fingerprint"] == "erased" and plan["token"] == "c"  # finished texts are kept by a new plan


@pytest.mark.parametrize(("name", "source", "raw"), [
    ("u1", "interactions.csv", "u1,a,1700000000000"),
    ("Jörg-1977", "p.jsonl", json.dumps({"user_id": "Jörg-1977", "item_id": "a"})),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("maria@example.com", "user_id=maria@example.com/p.jsonl", '{"item_id": "b", "timestamp": "now"}'),
        ("zoe@example.com", "q.jsonl", json.dumps({"review": "I am Zoe. " * 20, "user": "z"})[:200]),
        ('the "quoted" one', "interactions.csv", '"the ""quoted"" one",a,'),
        ("7f3c1b52-0a64-4c1e-9d0a-53c0ffee0001", "p.parquet",
         "{'user_id': b'\\x7f<\\x1bR\\nd', 'item_id': 'a'}"),
        ("12300000000000000", "p.parquet", "{'user_id': 1.23e+16, 'item_id': 'a'}")))])
def test_rejected_rows_and_logs_are_dropped_whole(out, name, source, raw):
    """However the input wrote the id: no search can know all its spellings."""
    space = Workspace(out, date.fromisoformat(DAYS[0]))
    rejects = space.work / "input/rejects.parquet"
    write(rejects / "part-1.parquet", [{"source": source, "line": 2, "reason": "r", "raw": raw}],
          schemas.REJECTS)
    write_json(space.logs / "worker.jsonl", {
        "event": f"failed: 3 of 9 rows are unusable: r (3 rows, first {source}:2: {raw[:60]!r})"})
    pages = {path: path.stat().st_mtime_ns for path in out.glob("reports/*/index.html")}
    result = erase(out, f"user:{name}")
    assert sorted(path.name for path in rejects.iterdir()) == ["part-0.parquet", "part-1.parquet"]
    assert pq.read_table(rejects).num_rows == 0 and pq.read_table(rejects).schema == schemas.REJECTS
    assert not list(out.rglob("*.jsonl")) and result["removed"]["logs"] == 3
    assert {path: path.stat().st_mtime_ns for path in pages} == pages  # nobody's rows were in them


@pytest.mark.parametrize("place", ["input/.users.parquet", "input/.copies/users.parquet",
                                   ".input.0a1b.staging/.query-users.parquet/part-0.parquet"])
def test_copies_of_input_tables_are_deleted_whole(out, place):
    """They have the input's own names of columns, and ids as numbers: no search finds 7 there."""
    work = Workspace(out, date.fromisoformat(DAYS[0])).work
    write(work / place, [{"customer": 7, "email": "someone@example.com"}])
    erase(out, "user:7")
    assert not (work / place).exists()


def test_pools_of_texts_that_no_row_has_any_more_are_deleted(out):
    """As after a run whose ``input.knowledge`` still had the text."""
    erase(out, f"user:{GONE}")
    pools = Workspace(out, date.fromisoformat(DAYS[1])).work / "pools"
    Index.build([np.array([1, 2, 3], np.int32)]).save(pools / "entity=user/global", {"name": "global"})
    assert erase(out, f"user:{GONE}")["removed"] == {"folders": 1} and not pools.exists()


def test_dense_ids_keep_their_numbers(out):
    erase(out, f"user:{GONE}")
    table = dense_ids.read(out / "features/ids/entity=user", min_rows=3)
    assert table["id"].to_pylist() == [1, 2, 3]
    first, masked, last = table["entity_id"].to_pylist()
    assert (first, last) == (USERS[0], USERS[2]) and masked.startswith("erased-")
    again = dense_ids.extended(out / "features/ids", "user", pa.array([GONE]), 3)
    assert again["id"].to_pylist() == [1, 2, 3, 4]  # who comes back is somebody new
    features = Workspace(out, date.fromisoformat(DAYS[0])).features("user")
    tables = [pq.read_table(path) for path in sorted(features.glob("*.parquet"))]
    assert pa.concat_tables(tables)["id"].to_pylist() == [1, 3]
    assert pq.read_schema(min(features.glob("*.parquet"))).metadata[b"dare_job.encoder"] == b"an encoder"
    assert (features / "_codebook-1.safetensors").read_bytes() == b"centroids"


def test_a_second_time_nothing_is_left_and_nothing_changes(out):
    erase(out, f"user:{GONE}")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    result = erase(out, f"user:{GONE}")
    assert result["removed"] == {} and result["searched"]["files"] == len(before)
    assert result["not_found"] == [f"user:{GONE}"]
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_an_item_goes_with_its_interactions_and_recommendations(out):
    gone = ITEMS[0]
    erase(out, f"item:{gone}")
    assert not [line for line in values_of(out).splitlines() if f'"{gone}"' in line and "title" not in line]
    space = Workspace(out, date.fromisoformat(DAYS[0]))
    lists = published.dataset(space.candidates(), schemas.CANDIDATES).to_table()
    assert lists["rank"].to_pylist() == [2, 2, 2]
    assert pq.read_table(space.work / "input/interactions.parquet").num_rows == 0
    assert published.dataset(space.knowledge("user")).count_rows() == 3


def test_a_user_and_an_item_of_the_same_id_are_two(tmp_path):
    """Also if the id is a number that stands everywhere, as in MovieLens."""
    out = made(tmp_path / "out", DAYS[:1], ["1", "2", "30"])
    space = Workspace(out, date.fromisoformat(DAYS[0]))
    shutil.rmtree(space.knowledge("item"))
    knowledge(space, "item", ["1", "2"])
    result = erase(out, "user:2", f"user:{GONE}")
    assert published.dataset(space.knowledge("user")).to_table()["entity_id"].to_pylist() == ["1", "30"]
    assert published.dataset(space.knowledge("item")).to_table()["entity_id"].to_pylist() == ["1", "2"]
    assert published.read_manifest(space.knowledge("user"))["gates"]["short"]["first"] == ["1", "else"]
    assert published.read_manifest(space.knowledge("item"))["gates"]["short"]["first"] == ["1", "2", "else"]
    assert result["by_type_only"] == ["user:2"]
    check_manifests(out)


def test_a_text_that_others_have_too_stays_theirs(out):
    space = Workspace(out, date.fromisoformat(DAYS[0]))
    shutil.rmtree(space.knowledge("item"))
    publish(space.knowledge("item"), [[row("i000001", DAYS[0]) | {"knowledge": TEXT}]], KNOWLEDGE, {
        "date": DAYS[0], "entity": "item", "counts": {"rows": 1}})
    erase(out, f"user:{GONE}")
    assert published.dataset(space.knowledge("item")).to_table()["knowledge"].to_pylist() == [TEXT]


def _gz(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))


def _zip(path: Path, text: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside.csv", text)


def _zipped_table(path: Path, text: str) -> None:
    _table(path.with_suffix(".table"), text)
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_suffix(".table"))
    path.with_suffix(".table").unlink()


def _table(path: Path, text: str) -> None:
    write(path, [{"anything": ["a", text]}])


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("kind, text", [
    (_zipped_table, GONE), (_gz, f"a,{GONE},b"), (Path.write_text, f"copied by hand: {GONE}"),
    *(pytest.param(*each, marks=pytest.mark.release) for each in (
        (_zip, f"x {TEXT}"), (_table, f"x {TEXT} y"), (_zip, f"a,{GONE},b"), (_table, GONE),
        (Path.write_text, json.dumps(TEXT))))])
def test_what_no_run_wrote_is_named_and_stays_until_it_is_removed(out, kind, text):
    kind(out / "mine.bin", text)
    with pytest.raises(errors.DataError, match=r"1 files still mention .*mine\.bin") as caught:
        erase(out, f"user:{GONE}")
    assert GONE not in str(caught.value) and TEXT not in str(caught.value)
    (out / "mine.bin").unlink()
    assert erase(out, f"user:{GONE}")["resumed"]
    check_erased(out)


def test_an_id_inside_a_longer_one_is_another(out):
    (out / "mine.txt").write_text(f"{GONE}8 and x{GONE} and {GONE}-1")
    erase(out, f"user:{GONE}")
    assert (out / "mine.txt").exists()


def test_a_copy_of_a_published_folder_is_erased_too(out):
    """As after a roll back, which moves the folders of a date below OUT."""
    away, space = out / "rolled-back/user/dt=2026-01-03", Workspace(out, date.fromisoformat(DAYS[1]))
    away.parent.mkdir(parents=True)
    space.knowledge("user").rename(away)
    space.work.rename(out / "rolled-back/work")
    erase(out, f"user:{GONE}")
    assert GONE not in values_of(out).replace(f"{GONE}8", "")
    assert json.loads((away / "_manifest.json").read_text())["counts"]["rows"] == 2
    assert not (out / "rolled-back/work/pools").exists()


@pytest.mark.release
@pytest.mark.usefixtures("forks")
def test_killed_at_any_change_the_same_command_finishes(tmp_path):
    """And readers see whole tables: at each moment a published folder fits its manifest."""
    out, trial = made(tmp_path / "out", DAYS[:1]), tmp_path / "trial"
    shutil.copytree(out, trial)
    labels = kill_points.undisturbed(trial, erase, trial, f"user:{GONE}")
    wanted = sorted({*range(0, len(labels), max(1, len(labels) // 20)), *(
        n for n, label in enumerate(labels) if label.split()[0] == "exchange" or "erasing.json" in label
        or label.startswith(f"rename _work/dt={DAYS[0]}/generate/entity=user"))})
    assert len(wanted) > 20
    for n in wanted:
        shutil.rmtree(trial)
        shutil.copytree(out, trial)
        kill_points.killed(n, trial, erase, trial, f"user:{GONE}")
        for path in trial.glob("[kfc]*/**/dt=????-??-??/_manifest.json"):
            files = json.loads(path.read_text())["files"]
            assert all((path.parent / name).stat().st_size == entry["bytes"] for name, entry in files.items())
        erase(trial, f"user:{GONE}")
        check_erased(trial, DAYS[:1])


@pytest.mark.usefixtures("forks")
def test_what_a_killed_erasure_began_is_finished_by_one_of_others(out):
    kill_points.killed("exchange", out, erase, out, f"user:{GONE}")
    result = erase(out, "user:nobody-known")
    assert result["resumed"] and result["erased"] == ["user:nobody-known", f"user:{GONE}"]
    check_erased(out)


def test_never_beside_another_command(out):
    before = values_of(out)
    with (lock.held(out / "_work" / f"dt={DAYS[1]}"),
          pytest.raises(errors.InfrastructureError, match=f"{DAYS[1]} is being written")):
        erase(out, f"user:{GONE}")
    with (lock.held_for_cleaning(out / "_work"),
          pytest.raises(errors.InfrastructureError, match="another command moves old dates away")):
        erase(out, f"user:{GONE}")
    assert values_of(out) == before


@pytest.mark.parametrize("names, message", [
    ([], "nothing to erase"), (["u1"], "write user:ID or item:ID"), (["user:"], "write user:ID"),
    (["user: "], "write user:ID"),
    (["group:1"], "'group:1' is not the name")])
def test_names_are_checked_before_anything_is_read(names, message):
    with pytest.raises(errors.ConfigError, match=message):
        subjects.parse(names)


def test_an_id_is_named_as_the_reader_reads_it():
    """With a blank after the colon, nobody was erased, and the command said otherwise."""
    names = ["user: 2024", " user:2025\u3000", "item:7.0", "user:a b", "user:None"]
    assert subjects.parse(names).names() == ["user:2024", "user:2025", "user:None", "user:a b", "item:7"]


def test_names_come_from_a_file_as_well(tmp_path):
    file = tmp_path / "gone.txt"
    file.write_text(f"user:{GONE}\n\n item:a:b \n")
    wanted = subjects.parse(["user:x"], file)
    assert wanted.names() == [f"user:{GONE}", "user:x", "item:a:b"]
    file.write_text("user:1\nu2\n")
    with pytest.raises(errors.ConfigError, match=r"gone\.txt, line 2: 'u2'"):
        subjects.parse([], file)
    with pytest.raises(errors.ConfigError, match="cannot be read"):
        subjects.parse([], tmp_path / "none.txt")


def test_the_command_says_what_it_did(out):
    done = CliRunner().invoke(cli.app, ["data", "erase", str(out), f"user:{GONE}"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output.splitlines()[-1])["removed"]["ids"] == 1
    check_erased(out)


def test_the_command_names_what_no_table_had(out, capsys):
    """A name with a mistake counted as erased."""
    result = erase(out, f"user:{GONE}", f"user:{GONE}1", "item:none")
    assert result["not_found"] == [f"user:{GONE}1", "item:none"]
    _print_erased(result | {"not_found": [f"user:{number}" for number in range(21)]})
    printed = capsys.readouterr().out
    assert "user:0 was in no table: check the spelling, unless it was erased before\n" in printed
    assert "user:20" not in printed and "1 more were in no table" in printed


def test_a_url_and_a_folder_of_something_else_are_refused(tmp_path):
    with pytest.raises(errors.DataError, match="is not the output folder of a run"):
        erase(tmp_path, "user:1")

    class Url:
        fs = None

        def __str__(self) -> str:
            return "s3://bucket/out"

    with pytest.raises(errors.ConfigError, match="s3://bucket/out: .* works on a local disk"):
        erase(Url(), "user:1")
    with pytest.raises(errors.ConfigError, match="is not a folder"):
        erase(tmp_path / "none", "user:1")


@pytest.mark.parametrize("name, distinctive", [
    ("u000007", True), ("alice@example.com", True), ("12345678", True), ("A1B2C", True),
    ("12", False), ("2026", False), ("drama", False), ("u1", False)])
def test_an_id_is_distinctive_if_it_stands_for_nothing_else(name, distinctive):
    assert is_distinctive(name) is distinctive


@pytest.mark.parametrize("content, found", [
    ("user:12 ", True), ('"user_id": "12"', True), ("user '12'", True), ('"entity_id": "12"', True),
    ("12 users", False), ("item:12", False), ("user:123", False), ('"users": 12', False),
    ("superuser:12", False)])
def test_a_short_id_counts_where_it_is_written_as_an_id(content, found):
    mentions = Mentions(subjects.parse(["user:12"]))
    assert bool(mentions.find(content.encode())) is found
