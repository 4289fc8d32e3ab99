"""`dare-job data prepare movielens-10m` on a small ml-10m.zip: labels, windows, halves, splits, messages."""

import hashlib
import json
import shutil
from collections import defaultdict

import pyarrow.parquet as pq
import pytest
from paper_files import MOVIES, prepare, ratings, table, ten_million, text_file

from dare_job.config.settings import HistorySettings
from dare_job.data.history import user_histories, window_size
from dare_job.data.paper import Options, conversion
from dare_job.errors import DataError
from dare_job.evaluate.ctr import examples, source
from dare_job.observe import progress
from dare_job.spark.tables import read_parquet
from dare_job.stages import plan

ROWS = ratings()
PARTS = ("train", "valid", "test")
HISTORIES = defaultdict(list)  # of each user, in the order of the job's own histories
for _row in sorted(ROWS, key=lambda row: (row[3], row[1])):
    HISTORIES[_row[0]].append(_row)

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return ten_million(tmp_path_factory.mktemp("ml-10m"), ROWS)


@pytest.fixture(scope="module")
def result(spark, original):
    """The output folder of one run, and its standard output and standard error."""
    out = original.parent / "out"
    code, printed, err = prepare("movielens-10m", "--input", original, "--save", out, "--sample", 5)
    assert code == 0, err
    return out, printed, err


def test_counts_are_printed_beside_the_papers_and_kept_with_options_and_sources(result, original):
    out, printed, err = result
    said = json.loads(printed.splitlines()[-1])
    kept = json.loads((out / "_manifest.json").read_text())
    assert said == {"out": str(out), **kept}
    users, items = len(HISTORIES), len({row[1] for row in ROWS})
    counts = kept["counts"]
    assert (counts["users"], counts["items"], counts["interactions"]) == (users, items, len(ROWS))
    assert kept["ratio"]["interactions"] == round(len(ROWS) / 10_000_000, 4)
    for words in ("about 72,000", "about 10,000", "about 10,000,000", f"{len(ROWS):,}", "invalid lines: 0"):
        assert words in err
    assert kept["sources"] == [{"name": "ml-10m.zip", "bytes": original.stat().st_size,
                                "sha256": hashlib.sha256(original.read_bytes()).hexdigest()}]
    assert (kept["options"]["positive"], kept["options"]["min_user"], kept["core_rounds"]) == (4.0, 1, [])
    assert all(sentence in err for sentence in kept["assumed"])


def test_the_downstream_check_takes_labels_and_parts_as_they_are(result):
    out, *_ = result
    counts = json.loads((out / "_manifest.json").read_text())["ctr"]
    found = source.load(str(out), min_rating=1)  # the folder's own labels count
    rows = found.interactions
    assert len(rows) == len(ROWS) and ((rows["rating"] >= 4) == rows["label"]).all()
    made = examples.make(found, None, length=3)
    for part, chosen in made.rows.items():
        assert (len(chosen), made.label[chosen].sum()) == (counts[part]["rows"], counts[part]["positive"])
        assert made.second[chosen].min() == counts[part]["first_second"]
    clicked = {(user, item) for user, item, rating, _ in ROWS if rating >= 4}
    user, item = made.users.ids[made.user - 1], made.items.ids
    before = [(who, item[one - 1]) for who, shown in zip(user, made.history, strict=True)
              for one in shown if one]
    assert before and set(before) <= clicked


def test_the_tables_have_their_schemas_and_nothing_else_is_left(result):
    out, *_ = result
    names = {"interactions": conversion.INTERACTIONS, "users": conversion.USERS, "items": conversion.ITEMS,
             **{f"ctr/{part}": conversion.CTR for part in PARTS}}
    for name, schema in names.items():
        assert pq.read_schema(out / f"{name}.parquet").equals(schema)
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        "_manifest.json", *(f"{name}.parquet" for name in names)}
    assert not list(out.parent.glob(".*"))


def test_windows_are_the_first_and_the_last_m_and_old_knows_no_future(result):
    out, *_ = result
    found = defaultdict(list)
    for row in table(out, "interactions"):
        found[row["user_id"]].append(row)
    window = {row["user_id"]: (row["interactions"], row["window"]) for row in table(out, "users")}
    assert found.keys() == HISTORIES.keys()
    for user, rows in found.items():
        n, m = len(rows), window_size(len(rows), 0.7)
        assert [(user, row["item_id"], row["rating"], row["timestamp"]) for row in rows] == HISTORIES[user]
        assert [row["place"] for row in rows] == list(range(1, n + 1))
        assert window[user] == (n, m)
        assert [row["old"] for row in rows] == [place <= m for place in range(1, n + 1)]
        assert [row["new"] for row in rows] == [place > n - m for place in range(1, n + 1)]
        later = [row["timestamp"] for row in rows if not row["old"]]
        assert all(row["timestamp"] <= min(later, default=row["timestamp"]) for row in rows if row["old"])


def test_items_are_halved_and_samples_drawn_from_the_new_half(result):
    out, *_ = result
    items, users = table(out, "items"), table(out, "users")
    existing = {row["item_id"] for row in items if row["existing"]}
    assert len(items) == 16 and len(existing) == 8
    test = {row["item_id"] for row in items if row["test"]}
    assert len(test) == 5 and not test & existing
    chosen = [row for row in users if row["test"]]
    assert len(chosen) == 5 and all(row["window"] < row["interactions"] for row in chosen)
    titles = {row["item_id"]: row["title"] for row in items}
    assert (titles["2"], titles["3"]) == ("Les Misérables (1995)", "Amélie: \"Poulain\" (2001)")


def test_labelled_rows_are_strictly_later_than_the_old_window_and_split_by_time(result):
    out, printed, _ = result
    parts = {part: table(out, f"ctr/{part}") for part in PARTS}
    expected, tied = set(), 0
    for rows in HISTORIES.values():
        m = window_size(len(rows), 0.7)
        expected |= {row for row in rows[m:] if row[3] > rows[m - 1][3]}
        tied += sum(row[3] == rows[m - 1][3] for row in rows[m:])
    found = [row for part in PARTS for row in parts[part]]
    assert {(row["user_id"], row["item_id"], row["rating"], row["timestamp"]) for row in found} == expected
    assert len(found) == len(expected) and tied > 0
    said = json.loads(printed.splitlines()[-1])["ctr"]
    assert said["tied_left_out"] == tied
    assert {row["label"] for row in found if row["rating"] == 3.5} == {0}
    assert {row["label"] for row in found if row["rating"] in (4.0, 4.5)} == {1}
    assert all(row["label"] == (row["rating"] >= 4) for row in found)
    times = {part: [row["timestamp"] for row in rows] for part, rows in parts.items()}
    assert max(times["train"]) < min(times["valid"]) and max(times["valid"]) < min(times["test"])
    assert (said["train_until"], said["valid_until"]) == (max(times["train"]), max(times["valid"]))
    assert [said[part]["rows"] for part in PARTS] == [len(parts[part]) for part in PARTS]
    assert 0.7 < len(times["train"]) / len(found) < 0.9


@pytest.mark.slow
def test_the_same_seed_makes_the_same_files_whatever_bad_lines_there_are(result, tmp_path, monkeypatch):
    """Also from a file in Latin-1. Bad lines and progress are said."""
    for name in ("_SILENT_S", "_POLL_S", "EVERY_S"):
        monkeypatch.setattr(progress, name, 0.01)
    out, *_ = result
    path = ten_million(tmp_path, ROWS, more=["1::2::six::978300275", "only::two"], encoding="latin-1")
    code, _, err = prepare("movielens-10m", "--input", path, "--save", tmp_path / "out", "--sample", 5)
    assert code == 0 and "prepare movielens-10m: reading the original files, " in err
    assert f"invalid lines: 2 (the first: ratings.dat:{len(ROWS) + 1}, rating is not a number)" in err
    files = [path.relative_to(out) for path in out.rglob("*.parquet")]
    assert len(files) == 6
    assert all((out / name).read_bytes() == (tmp_path / "out" / name).read_bytes() for name in files)
    before, after = (json.loads((folder / "_manifest.json").read_text())
                     for folder in (out, tmp_path / "out"))
    assert {name for name in before if before[name] != after[name]} == {"input", "sources"}


@pytest.mark.slow
def test_another_seed_makes_other_halves_and_a_split_by_user_shares_none(result, original, tmp_path):
    """Here with one label alone, which is said."""
    other = tmp_path / "other"
    code, _, err = prepare("movielens-10m", "--input", original, "--save", other, "--sample", 5, "--seed", 1,
                           "--split", "user", "--valid-share", 0.2, "--test-share", 0.2, "--positive", 0.5)
    assert code == 0 and "without AUC because all labels are equal: train, valid, test" in err
    halves = [{row["item_id"] for row in table(folder, "items") if row["existing"]}
              for folder in (result[0], other)]
    assert halves[0] != halves[1]
    users = [{row["user_id"] for row in table(other, f"ctr/{part}")} for part in PARTS]
    assert all(users) and not users[0] & users[1] | users[0] & users[2] | users[1] & users[2]
    assert sum(len(table(other, f"ctr/{part}")) for part in PARTS) == sum(
        len(table(result[0], f"ctr/{part}")) for part in PARTS)


@pytest.mark.slow
def test_the_job_reads_it_and_cuts_the_same_windows(result, spark, make_job):
    out, *_ = result
    job = make_job({"input": {"path": str(out)}}, day="2002-01-01")
    record = plan.run(job)
    counts = record["input"]
    assert (counts["format"], counts["interactions"], counts["broken"]) == ("parquet", len(ROWS), 0)
    assert (record["user"]["rows"], record["item"]["rows"]) == (len(HISTORIES), 16)
    assert record["user"]["errors"] == record["item"]["errors"] == 0
    read = [read_parquet(spark, job.space.stage("input") / f"{name}.parquet")
            for name in ("interactions", "items")]
    for name in ("old", "new"):
        settings = HistorySettings(window=name, share=0.7, max_items=500)
        marked = defaultdict(list)
        for row in table(out, "interactions"):
            marked[row["user_id"]] += [row["item_id"]] if row[name] else []
        assert {row["user_id"]: [event["item_id"] for event in row["history"]]
                for row in user_histories(*read, settings).collect()} == marked


@pytest.mark.slow
def test_files_that_do_not_serve_are_named_with_the_fix(tmp_path, original):
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    commas = ten_million(wrong, [], more=["1,2,3.5,978300275"] * 30)
    single = text_file(tmp_path / "ratings.dat", ["1::2::5::978300275"])
    folder = tmp_path / "folder"
    folder.mkdir()
    text_file(folder / "ratings.dat", ["1::2::5::978300275"])
    sequences = tmp_path / "sequences"  # of ML-1M: neither ratings nor times
    sequences.mkdir()
    text_file(sequences / "movies.dat", MOVIES)
    text_file(sequences / "user_list.txt", ["org_id remap_id", "1 0"])
    text_file(sequences / "item_list.txt", ["org_id remap_id", "1 0", "2 1"])
    text_file(sequences / "sequences_full.txt", ["0 0 1"])
    for path, message in (
            (tmp_path / "none.zip", "--input {}: no such file or folder; give ml-10m.zip or a folder with"),
            (single, "--input {} is not ml-10m.zip or a folder with ratings.dat and movies.dat"),
            (folder, "is not a complete MovieLens set: movies.dat is missing (found ratings.dat)"),
            (commas, "30 of 30 rows of interactions are unusable, more than input.max_reject_share = 0.01: "
                     "expected 4 fields, found 1 (30 rows, first ratings.dat:1: '1,2,3.5,978300275')"),
            (sequences, "none of 2 interactions can be used: 2 have no rating")):
        code, printed, err = prepare("movielens-10m", "--input", path, "--save", tmp_path / "out")
        assert (code, printed) == (4, "") and message.format(path) in err
        assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_impossible_options_are_named_before_anything_is_read(tmp_path, original):
    there = tmp_path / "there"
    there.mkdir()
    text_file(there / "mine.txt", ["keep"])
    for arguments, message in (
            (["--save", there], f"--save {there} is not empty: choose another folder, or remove it first"),
            (["--save", there / "mine.txt"], "mine.txt is a file"),
            (["--save", tmp_path / "o", "--history-share", 0.5], "--history-share 0.5 must be over 0.5"),
            (["--save", tmp_path / "o", "--valid-share", 0.5, "--test-share", 0.5], "nothing to train on"),
            (["--save", tmp_path / "o", "--set", "spark.mastr=x"], "unknown key spark.mastr")):
        code, _, err = prepare("movielens-10m", "--input", original, *arguments)
        assert code == 2 and message in err
    assert (there / "mine.txt").read_text() == "keep\n"


@pytest.mark.slow
def test_filters_and_splits_that_leave_nothing_say_so(tmp_path, original, result, spark):
    out = tmp_path / "out"
    code, _, err = prepare("movielens-10m", "--input", original, "--save", out, "--min-item", 1000)
    assert code == 4 and not out.exists()
    assert f"none of {len(ROWS)} interactions remains with --min-user 1 and --min-item 1000: lower" in err
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(result[0] / "interactions.parquet", begun)
    with pytest.raises(DataError, match="the test part of the split by time is empty"):
        conversion._Preparation(begun, Options(out, test_share=0.0), spark)._ctr()
