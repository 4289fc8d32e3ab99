"""Replaying recorded text: files, pools, peers, and figures that can be counted by hand."""

import csv
import gzip
import hashlib
import json
import shutil

import numpy as np
import pandas
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from dare_job.cli import app
from dare_job.data import recorded_texts as texts
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.replay.drafters import Published
from dare_job.evaluate.replay.measure import Calibration, accepted, ratio, replay
from dare_job.evaluate.replay.replay_texts import Options, run
from pools.index import Index
from pools.tree import ROOT

WORDS = ["the", "viewer", "likes", "quiet", "films", "about", "rivers", "and", "old", "towns", "more", "than",
         "loud", "ones"]


@pytest.fixture
def corpus(tmp_path):
    """40 texts of one pattern in every format, a tokenizer of whole words, groups, and the day before."""
    rng = np.random.default_rng(0)
    rows = [{"user": f"u{i}", "text": " ".join(WORDS[: 6 + i % 3] + list(rng.permutation(WORDS[9:])))}
            for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    with open(tmp_path / "a.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["user", "text"])
        writer.writeheader()
        writer.writerows(rows)
    pandas.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    pandas.DataFrame({"entity_id": [row["user"] for row in rows],
                      "group": [f"g{i % 2}" for i in range(40)]}).to_csv(tmp_path / "groups.csv")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="the"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def options(corpus, name: str = "a.jsonl", **more) -> Options:
    return Options(**{"text": [corpus / name], "column": "text", "tokenizer": [corpus / "tokenizer.json"],
                      "id_column": "user", "held_out": 8, "nodes": (4, 8), **more})


def test_every_format_gives_the_same_figures(corpus):
    found = [run(options(corpus, name)) for name in ("a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet")]
    figures = [[result["nodes"][nodes]["accepted_per_step"] for nodes in ("4", "8")] for result in found]
    assert figures[0] == figures[1] == figures[2] == figures[3] and figures[0][1] > figures[0][0] > 1
    first = found[0]
    assert (first["texts"], first["held_out"]) == (32, 8)
    low, high = first["nodes"]["8"]["ci95"]
    assert low <= first["nodes"]["8"]["accepted_per_step"] <= high
    assert {"p50_us", "p99_us", "cpu_p50_us", "nodes_used"} <= set(first["nodes"]["8"])
    assert first["build_tokens_per_s"] > 0 and first["bytes_per_token"] > 0 and first["open_ms"] > 0


def test_scores_are_compared_with_what_is_accepted(corpus):
    found = run(options(corpus))["nodes"]["8"]
    parts = found["calibration"]
    assert len(parts) == 10
    predicted = [part["predicted"] for part in parts]
    assert predicted == sorted(predicted) and 0 < predicted[0] < predicted[-1] <= 1
    accepted_nodes = sum(part["observed"] * part["nodes"] for part in parts)
    assert accepted_nodes == pytest.approx(found["accepted_per_step"] * found["steps"], rel=0.02)
    assert all(us > 0 for us in found["batch_us_per_row"].values())


def test_deciles_of_calibration():
    counted = Calibration()
    for i in range(100):
        counted.add(np.array([i / 100, 1 - i / 200], np.float32), [0] if i % 4 == 0 else [])
    parts = counted.deciles()
    assert [part["nodes"] for part in parts] == [20] * 10
    assert parts[0]["predicted"] == pytest.approx(0.095, abs=1e-4)
    assert parts[0]["observed"] == 0.25
    assert Calibration().deciles() == []


def test_ids_and_texts_are_read_as_they_are_written(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n007,NA\n7,None\n8,\n")
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "x"}\n{"id": 2, "text": "y"}\n{"text": null}\n')
    frame = pandas.DataFrame({"id": ["1", "2"], "text": ["x", "y"]}, index=[5, 5])
    frame.to_parquet(tmp_path / "a.parquet")
    assert texts.read(tmp_path / "a.csv", "text", "id") == texts.Texts(["007", "7"], ["NA", "None"])
    assert texts.read(tmp_path / "a.jsonl", "text", "id").ids == ["1", "2"]
    assert texts.read(tmp_path / "a.parquet", "text", "id") == texts.Texts(["1", "2"], ["x", "y"])
    assert texts.read(tmp_path / "a.parquet", "text").ids == ["0", "1"]
    for name in ("dt=2026-01-02", "dt=2026-01-02.bak", "dt=2026-01-1", "_temporary", ".hidden"):
        (tmp_path / "dates" / name).mkdir(parents=True)
        shutil.copy(tmp_path / "a.parquet", tmp_path / "dates" / name)
    assert texts.read(tmp_path / "dates", "text", "id") == texts.Texts(["1", "2"], ["x", "y"])


@pytest.mark.parametrize("content, message", [
    (gzip.compress(b'{"id": 1, "text": "x"}\n' * 900)[:-20], "cannot be read"),
    (gzip.compress(b"x" * 9000)[:20] + b"\0" * 40, "cannot be read"), (gzip.compress(b""), "has no rows"),
    (gzip.compress(b'{"text": "x"}\n{"id": 3, "text": "y"}\n'), "a row has text but no id")],
    ids=["cut", "garbled", "empty", "no id"])  # a name made of the bytes would hold the clock: gzip writes it
def test_files_that_cannot_be_read_are_named(tmp_path, content, message):
    (tmp_path / "cut.jsonl.gz").write_bytes(content)
    with pytest.raises(DataError, match=f"cut.jsonl.gz.*{message}"):
        texts.read(tmp_path / "cut.jsonl.gz", "text", "id")


def test_held_out_are_the_smallest_digests():
    ids = [f"u{i}" for i in range(50)]
    chosen = texts.held_out(ids, 7)
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in ids]
    assert {digests[i] for i in np.flatnonzero(chosen)} == set(sorted(digests)[:7])


def test_pools_nearer_than_everybody_are_used(corpus):
    alone = run(options(corpus))["nodes"]["8"]["accepted_per_step"]
    own = run(options(corpus, old=corpus / "a.csv", pool=("own", "group", "global"),
                      groups=corpus / "groups.csv"))
    assert own["nodes"]["8"]["accepted_per_step"] > alone  # each text's own old one is the text itself
    assert own["texts"] == 32  # the pool of everybody still lacks the held-out ids


def test_a_path_is_accepted_as_far_as_it_agrees():
    tree = ([5, 6, 7, 8], [ROOT, 0, ROOT, 1])
    assert len(accepted(*tree, np.array([5, 6, 8, 9]))) == 3
    assert len(accepted(*tree, np.array([7, 6]))) == 1
    assert accepted(*tree, np.array([9])) == []
    assert len(accepted(*tree, np.array([5, 6]))) == 2


def test_the_published_rule_keeps_the_most_frequent_of_the_longest_anchor():
    pool = Index.build([np.array(text) for text in ([1, 2, 3, 4], [1, 2, 3, 5], [9, 2, 7], [1, 2, 8])])
    drafter = Published(pool, nodes=3, depth=12)
    tokens, parents = drafter.draft(np.array([1, 2]), 2, 3)
    assert tokens.tolist() == [3, 8, 4] and parents.tolist() == [ROOT, ROOT, 0]
    tokens, _ = drafter.draft(np.array([6, 2]), 2, 3)  # only the last token occurs
    assert tokens.tolist()[0] == 3 and len(tokens) == 3
    assert len(drafter.draft(np.array([6]), 1, 3)[0]) == 0
    text = np.array([1, 2, 3, 4], np.int32)
    figures = replay([text], drafter, 3)
    assert figures["steps"] == 1 and figures["accepted_per_step"] == 2.0


def test_a_smaller_pool_is_a_sample_of_the_whole_one(corpus):
    found = run(options(corpus, pool_texts=(1, 3, 10**6)))
    by_size = {size: figures["8"]["accepted_per_step"] for size, figures in found["pool_texts"].items()}
    assert by_size["1000000"] == found["nodes"]["8"]["accepted_per_step"]
    assert by_size["1"] < by_size["3"] < by_size["1000000"]
    assert found["pool_texts"]["3"]["8"]["steps"] > found["nodes"]["8"]["steps"]


def test_peers_are_compared_in_pairs(corpus):
    found = run(options(corpus, against=("published",)))
    peer = found["against"]["published"]["nodes"]["8"]
    ours = found["nodes"]["8"]["accepted_per_step"]
    assert peer["ratio"] == pytest.approx(ours / peer["accepted_per_step"], abs=1e-3)
    assert peer["ratio_ci95"][0] <= peer["ratio"] <= peer["ratio_ci95"][1]
    same = np.array([[3, 2], [5, 4]])
    assert ratio(same, same) == {"ratio": 1.0, "ratio_ci95": [1.0, 1.0]}


@pytest.mark.parametrize("change, message", [
    ({"pool": ("near",)}, "--pool near: choose from own, group, global"),
    ({"pool": ("group",)}, "needs --groups"), ({"pool": ("own",)}, "needs --old"),
    ({"against": ("best",)}, "choose from published, arctic, n-gram"), ({"pool_texts": (-1,)}, "at least 0"),
    ({"nodes": (0,)}, "from 1 to 512"),
    ({"held_out": 40}, "below 40"), ({"column": "words"}, "no column words: use one of user, text"),
    ({"tokenizer": ["nowhere"]}, "neither tokenizer.json"), ({"text": ["nowhere.csv"]}, "cannot be read"),
    ({"text": ()}, "--text FILE is missing")])
def test_what_cannot_be_is_named(corpus, change, message):
    with pytest.raises((ConfigError, DataError), match=message):
        run(options(corpus, **change))


def test_the_command_ends_with_json(corpus):
    arguments = ["lab", "replay", "--text", corpus / "a.csv", "--column", "text", "--tokenizer", corpus,
                 "--held-out", "5", "--nodes", "4", "--against", "published"]
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    last = json.loads(done.stdout.splitlines()[-1])
    assert set(last["nodes"]) == {"4"} and "published" in last["against"]
