"""`dare-job ctr` from end to end on small inputs: its last line, its messages, its exit codes."""

import gzip
import importlib
import json
import sys
import zipfile

import numpy as np
import pytest
from ctr_tables import DAY_S, FIRST, kinds, source, write_features, write_texts

from dare_job import cli

DT = "2025-12-31"
QUICK = ("--seeds", "2", "--epochs", "1", "--batch", "64", "--device", "cpu")


@pytest.fixture(autouse=True)
def quiet_loggers(fresh_loggers):
    """Each run makes its own log lines."""


def ctr(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``dare-job ctr``."""
    monkeypatch.setattr(sys, "argv", ["dare-job", "ctr", *map(str, arguments)])
    code = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def split_data(tmp_path):
    """A folder like ml-1m-ctr: three files with labels and ids of their own."""
    rows = source(rows=1500).interactions.rename(columns={"user_id": "uid", "item_id": "iid"})
    rows["title"] = "Title " + rows["iid"]
    folder = tmp_path / "data"
    folder.mkdir()
    for name, part in (("train", rows[:1000]), ("valid", rows[1000:1200]), ("test", rows[1200:])):
        part.to_csv(folder / f"{name}.csv.gz", index=False)
    return folder


@pytest.fixture
def out(tmp_path):
    """Features of all users and items, strict; beside it the same, a little off, as relaxed."""
    for name, noise in (("strict", 0), ("relaxed", 1e-3)):
        for entity, count in (("user", 60), ("item", 40)):
            vectors = kinds(count) + noise * np.random.default_rng(0).normal(size=(count, 4))
            numbers = np.arange(count)
            write_features(tmp_path / name, entity, DT, [f"{entity[0]}{n}" for n in numbers],
                           vectors, [numbers % 2, numbers])
    return tmp_path


def test_sets_are_compared_and_the_last_line_is_json(monkeypatch, capsys, split_data, out):
    code, printed, err = ctr(
        monkeypatch, capsys, "--data", split_data, "--knowledge", f"strict={out / 'strict'}",
        "--knowledge", f"relaxed={out / 'relaxed'}", "--knowledge", f"cluster={out / 'strict'}",
        "--equivalent", "strict,relaxed", "--margin", "0.5", *QUICK)
    assert code == 0, err
    found = json.loads(printed.strip().splitlines()[-1])
    assert [(row["model"], row["knowledge"]) for row in found["rows"]] == [
        (model, name) for model in ("din", "dcnv2") for name in ("base", "strict", "relaxed", "cluster")]
    for row in found["rows"]:
        low, high = row["auc_ci95"]
        assert low <= row["auc_mean"] <= high and row["seeds"] == 2 and row["logloss_mean"] > 0
        assert row["auc_mean"] == pytest.approx(np.mean(row["auc"]), abs=1e-5)
        assert (row["lift"] is None) == (row["knowledge"] == "base")
    assert [(pair["model"], pair["pair"]) for pair in found["equivalence"]] == [
        ("din", ["strict", "relaxed"]), ("dcnv2", ["strict", "relaxed"])]
    assert found["data"]["rows"] == {"train": 1000, "valid": 200, "test": 300}
    assert found["texts"]["strict"]["user"]["label_rows_with_text"] == 1.0
    assert "dcnv2 cluster seed 1: AUC" in err
    assert "strict and relaxed are" in err and printed.count("\n") == 1
    assert "--seeds 2: with fewer than 5, intervals are wide" in err


def test_a_leak_ends_the_command_and_names_the_way_out(monkeypatch, capsys, split_data, tmp_path):
    write_features(tmp_path / "late", "user", "2026-01-09", [f"u{u}" for u in range(60)], kinds(60))
    late = "--knowledge", tmp_path / "late"
    code, printed, err = ctr(monkeypatch, capsys, "--data", split_data, *late, *QUICK)
    assert code == 4 and printed == ""
    assert "label rows would use a user's text" in err and "--labels-from 2026-01-10" in err
    code, printed, err = ctr(monkeypatch, capsys, "--data", split_data, *late, "--labels-from", "2026-01-10",
                             "--ctr-model", "dcnv2", *QUICK)
    assert code == 0, err
    assert json.loads(printed.strip().splitlines()[-1])["data"]["first_label"] >= "2026-01-10"


def test_one_unnamed_output_and_one_model_are_enough_and_ids_that_the_data_lacks_are_counted(
        monkeypatch, capsys, split_data, tmp_path):
    write_features(tmp_path / "some", "item", DT, ["i1", "i2", "elsewhere"], kinds(3))
    write_features(tmp_path / "some", "user", DT, ["u1"], kinds(1))
    code, printed, err = ctr(monkeypatch, capsys, "--data", split_data, "--knowledge", tmp_path / "some",
                             "--ctr-model", "dcnv2", "--entities", "item", *QUICK)
    assert code == 0, err
    found = json.loads(printed.strip().splitlines()[-1])
    assert [(row["model"], row["knowledge"]) for row in found["rows"]] == [
        ("dcnv2", "base"), ("dcnv2", "knowledge")]
    assert list(found["texts"]["knowledge"]) == ["item"]
    counts = found["texts"]["knowledge"]["item"]
    assert counts["unknown_ids"] == 1 and 0 < counts["label_rows_with_text"] < 0.2
    assert "with ids that are not in the data: 1" in err


def other_ids(out):
    write_features(out, "user", DT, ["u1"], kinds(1))
    write_features(out, "item", DT, ["x", "y"], kinds(2))


def other_date(out):
    write_features(out, "item", "2025-12-30", ["i1"], kinds(1))


def other_size(out):
    write_features(out, "user", DT, ["u1"], kinds(1, 6))
    write_features(out, "item", DT, ["i1"], kinds(1, 6))


def other_encoder(out):
    for entity in ("user", "item"):
        write_features(out, entity, DT, [f"{entity[0]}1"], kinds(1), encoder="test 2")


@pytest.mark.parametrize("write, code, message", [
    (other_ids, 4, "relaxed: none of its 2 item ids is in the data (first: ['x', 'y']; the data has ['i0'"),
    (other_date, 4, "different dates (strict 2025-12-31, relaxed 2025-12-30)"),
    (other_size, 4, "item 4 numbers of test 1; relaxed: user 6 numbers of test 1, item 6 numbers"),
    (other_encoder, 4, "relaxed: user 4 numbers of test 2")])
def test_sets_that_cannot_be_compared_are_refused(monkeypatch, capsys, split_data, out, tmp_path, write, code,
                                                  message):
    write(tmp_path / "other")
    sets = "--knowledge", f"strict={out / 'strict'}", "--knowledge", f"relaxed={tmp_path / 'other'}"
    found, printed, err = ctr(monkeypatch, capsys, "--data", split_data, *sets, "--equivalent",
                              "strict,relaxed", *QUICK)
    assert (found, printed) == (code, "") and message in err and "Traceback" not in err


@pytest.mark.parametrize("arguments, message", [
    (["--ctr-model", "deepfm"], "--ctr-model 'deepfm': choose from din, dcnv2"),
    (["--equivalent", "base,other"], "unknown set other; choose from base"),
    (["--equivalent", "base"], "write two names"),
    (["--knowledge", "=x"], "write NAME=OUT"),
    (["--knowledge", "a=x", "--knowledge", "a=y"], "the name 'a' is given twice"),
    (["--knowledge", "base=x"], "that is the name of the model without texts"),
    (["--labels-from", "soon"], "--labels-from 'soon' is not a date"),
    (["--entities", "users"], "--entities 'users'"),
    (["--margin", "0"], "--margin 0 must be above 0"),
    (["--seeds", "1"], "--seeds")])
def test_impossible_options_exit_with_2(monkeypatch, capsys, split_data, arguments, message):
    code, printed, err = ctr(monkeypatch, capsys, "--data", split_data, *arguments)
    assert (code, printed) == (2, "") and message in err


@pytest.mark.parametrize("content, message", [
    ("uid,iid,label\n1,1,1\n", "has no column timestamp"),
    ("uid,iid,label,timestamp\n1,1,1,5\n1,2,3,6\n", "line 3: label must be 0 or 1"),
    ("uid,iid,label,timestamp\n1,,1,5\n", "line 2: label must be 0 or 1, and uid, iid and timestamp"),
    ("uid,iid,label,timestamp\n1,1,1,5\n1,2,0,2001-01-01\n", "line 3: label must be 0 or 1, and"),
    ("uid,iid,label,timestamp\n1,1,1,5\n1,2,0,inf\n", "line 3"),
    ("uid,iid,label,timestamp\n1,1,1,5\n1,2,click,6\n", "line 3: label must be 0 or 1"),
    (None, "train.csv.gz cannot be read")])
def test_a_broken_split_names_file_and_line(monkeypatch, capsys, split_data, content, message):
    path = split_data / "train.csv.gz"
    path.write_bytes(b"no gzip" if content is None else gzip.compress(content.encode()))
    code, _, err = ctr(monkeypatch, capsys, "--data", split_data)
    assert code == 4 and message in err and "train.csv.gz" in err


def test_without_the_extra_the_message_says_how_to_install_it(monkeypatch, capsys, split_data):
    monkeypatch.setitem(sys.modules, "torch_rechub.basic.features", None)
    for name in ("comparison", "models"):
        monkeypatch.delitem(sys.modules, f"dare_job.evaluate.ctr.{name}", raising=False)
    code, _, err = ctr(monkeypatch, capsys, "--data", split_data)
    assert code == 2 and "torch_rechub is missing; run `make install EXTRAS=ctr`" in err
    monkeypatch.undo()
    importlib.import_module("dare_job.evaluate.ctr.models")


def test_the_sample_world_needs_no_files(monkeypatch, capsys):
    code, printed, err = ctr(monkeypatch, capsys, "--data", "sample", "--ctr-model", "dcnv2", "--seeds", "2",
                             "--epochs", "1", "--device", "cpu")
    assert code == 0, err
    assert json.loads(printed.strip().splitlines()[-1])["data"]["users"] == 400


@pytest.mark.slow
@pytest.mark.spark
def test_movielens_in_its_zip_is_read_by_the_jobs_reader(monkeypatch, capsys, spark, tmp_path):
    rows = source(rows=1200).interactions
    ratings = ["userId,movieId,rating,timestamp"] + [
        f"{row.user_id[1:]},{row.item_id[1:]},{4.5 if row.label else 2.0},{row.timestamp}"
        for row in rows.itertuples()]
    movies = ["movieId,title,genres"] + [f'{i},"Story, The {i} (1995)",Drama|Comedy' for i in range(40)]
    path = tmp_path / "ml.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ml/movies.csv", "\n".join(movies) + "\n")
        archive.writestr("ml/ratings.csv", "\n".join(ratings) + "\n")
    write_features(tmp_path / "out", "user", "2026-01-08", [str(u) for u in range(60)], kinds(60))
    code, printed, err = ctr(monkeypatch, capsys, "--data", path, "--knowledge", tmp_path / "out",
                             "--ctr-model",
                             "dcnv2", *QUICK)
    assert code == 0, err
    found = json.loads(printed.strip().splitlines()[-1])
    labelled = rows[rows["timestamp"] >= FIRST + 8 * DAY_S]
    assert found["data"]["first_label"] >= "2026-01-09"  # the day after the texts'
    assert sum(found["data"]["rows"].values()) == len(labelled)
    assert found["data"]["clicks"] == pytest.approx(labelled["label"].mean(), abs=1e-4)


def test_texts_without_features_are_encoded_here(monkeypatch, capsys, split_data, tmp_path):
    """The packaged encoder, really: two kinds of texts, a handful of different ones."""
    words = ("loves quiet films about the sea", "wants fast films about machines")
    write_texts(tmp_path / "out", "user", DT, [f"u{u}" for u in range(60)], [words[u % 2] for u in range(60)])
    code, printed, err = ctr(monkeypatch, capsys, "--data", split_data, "--knowledge", tmp_path / "out",
                             "--ctr-model", "dcnv2", *QUICK)
    assert code == 0, err
    assert "encoding 2 texts with embedded" in err
    assert json.loads(printed.strip().splitlines()[-1])["texts"]["knowledge"]["user"]["texts"] == 60


def test_an_encoder_that_is_not_there_is_named(monkeypatch, capsys, split_data, tmp_path):
    write_texts(tmp_path / "out", "user", DT, ["u1"], ["text"])
    (tmp_path / "empty").mkdir()
    code, _, err = ctr(monkeypatch, capsys, "--data", split_data, "--knowledge", tmp_path / "out",
                       "--encoder", str(tmp_path / "empty"), *QUICK)
    assert code == 6 and "--encoder" in err and "cannot be loaded" in err
