"""Replay with prompts, token ids and several files, and SpecDecode-Bench's recordings."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pandas
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from dare_job.cli import app
from dare_job.data import recorded_texts as texts
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.replay import specdecode
from dare_job.evaluate.replay.drafters import NGram
from dare_job.evaluate.replay.measure import replay
from dare_job.evaluate.replay.replay_texts import Options, run

WORDS = [f"w{i}" for i in range(60)]


@pytest.fixture
def rows():
    """30 texts that copy their prompt, which no other text has, in reverse order of its halves."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 60, 12).tolist() for _ in range(30)]
    return [{"id": f"t{i}", "prompt": prompt, "text": prompt[6:] + prompt[:6] + [i % 7]}
            for i, prompt in enumerate(prompts)]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def options(*files: Path, **more) -> Options:
    return Options(**{"text": files, "id_column": "id", "held_out": 8, "nodes": (4,), **more})


def test_prompts_are_drafted_from(rows, tmp_path):
    file = write(tmp_path / "a.jsonl", rows)
    without = run(options(file))["nodes"]["4"]
    found = run(options(file, prompt_column="prompt"))["nodes"]["4"]
    assert found["tokens_per_step"] > 1.5 * without["tokens_per_step"]
    # without a prompt the first token is known, and no step has to generate it
    assert found["steps"] * found["tokens_per_step"] == pytest.approx(8 * 13, rel=1e-3)
    assert without["steps"] * without["tokens_per_step"] == pytest.approx(8 * 12, rel=1e-3)
    assert without["tokens_per_step"] <= 1 + without["accepted_per_step"]


@pytest.mark.parametrize(("row", "nodes", "drafted"), [
    ([1, 2, 3, 4, 9, 8, 2, 3, 4, 7, 1, 2, 3, 4], 2, [9, 8]),  # four tokens, before the nearer three
    ([5, 2, 3, 4, 9, 8, 2, 3, 4, 7, 1, 2, 3, 4], 5, [9, 8, 2, 3, 4]),  # the first of two places
    ([2, 3, 6, 3, 2, 3], 9, [6, 3, 2, 3]), ([1, 2, 3, 4, 3], 4, []), ([3, 3, 3], 4, [3]), ([3], 4, [])])
def test_n_grams_are_looked_up_from_four_tokens_to_two(row, nodes, drafted):
    tokens, parents = NGram().draft(np.array([*row, 77], np.int32), len(row), nodes)
    assert list(tokens) == drafted and list(parents) == list(range(-1, len(drafted) - 1))


def test_drafts_from_the_prompt_are_compared_with_n_grams(rows, tmp_path):
    found = run(options(write(tmp_path / "a.jsonl", rows), prompt_column="prompt", against=("n-gram",)))
    peer = found["against"]["n-gram"]["nodes"]["4"]
    assert 1 < peer["accepted_per_step"] <= found["nodes"]["4"]["accepted_per_step"]


def test_ids_text_and_several_files_are_one(rows, tmp_path):
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    words = [{**row, **{name: " ".join(WORDS[i] for i in row[name]) for name in ("prompt", "text")}}
             for row in rows]
    whole, words = write(tmp_path / "ids.jsonl", rows), write(tmp_path / "words.jsonl", words)
    pandas.DataFrame(rows).to_parquet(tmp_path / "ids.parquet")
    parts = [write(tmp_path / f"{i}.jsonl", rows[i * 15:][:15]) for i in range(2)]
    found = [run(options(*files, prompt_column="prompt", tokenizer=tokenizer))["nodes"]["4"]["steps"]
             for files, tokenizer in (([whole], ()), ([tmp_path / "ids.parquet"], ()), (parts, ()),
                                      ([words], [tmp_path / "tokenizer.json"]))]
    assert len(set(found)) == 1
    with pytest.raises(DataError, match="words.jsonl: column text has text.*--tokenizer"):
        run(options(words))
    with pytest.raises(DataError, match="duplicates"):
        run(options(*parts, parts[0]))
    assert run(options(*parts, id_column=None))["texts"] == 22


@pytest.mark.parametrize("text", [[1, -2], [1.5], [[1, 2]], [[1], [2, 3]], [2**31]])
def test_what_is_no_list_of_token_ids_is_named(tmp_path, text):
    file = write(tmp_path / "a.jsonl", [{"id": i, "text": text if i == 3 else [1]} for i in range(5)])
    with pytest.raises(DataError, match="a.jsonl: column text, row 3: not a list of token ids"):
        run(options(file, held_out=2))


def test_rows_without_text_are_left_out_and_prompts_may_be_empty(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"p": None, "t": [1]}, {"p": [2], "t": []}, {"p": [], "t": [3]}])
    read = texts.read(file, "t", None, "p")
    assert (read.ids, read.texts, read.prompts) == (["0", "2"], [[1], [3]], ["", []])


def test_other_methods_get_the_prompt(rows, tmp_path):
    file = write(tmp_path / "a.jsonl", rows)
    found = run(options(file, prompt_column="prompt", against=("published",), pool_texts=(0, 5)))
    assert found["against"]["published"]["nodes"]["4"]["tokens_per_step"] >= 1
    alone = found["pool_texts"]["0"]["4"]
    assert 1.5 < alone["tokens_per_step"] <= found["pool_texts"]["5"]["4"]["tokens_per_step"]


class Recorder:
    """Drafts the next token of the row, and keeps what it was told."""

    def start(self, number: int, row: np.ndarray, prompt: int) -> None:
        self.known, self.started = row[:max(1, prompt)].tolist(), (row.tolist(), prompt)

    def draft(self, row: np.ndarray, known: int, nodes: int):
        assert self.known == row[:known].tolist()
        return row[known:known + 1], [-1]

    def add(self, row: np.ndarray, before: int, known: int) -> None:
        self.known += row[before:known].tolist()


def test_a_drafter_knows_the_prompt_and_what_was_accepted():
    drafter, text, prompt = Recorder(), np.arange(5, 10), np.arange(3)
    figures = replay([text], drafter, 1, prompts=[prompt])
    assert drafter.started == ([0, 1, 2, 5, 6, 7, 8, 9], 3) and drafter.known == drafter.started[0]
    assert (figures["steps"], figures["tokens_per_step"]) == (3, round(5 / 3, 4))
    assert replay([text], drafter, 1)["tokens_per_step"] == 2.0  # four tokens after the first, in two steps


def recordings(folder: Path, rows: list[dict], change=lambda name, row: row) -> Path:
    """Two sets in the form of SpecDecode-Bench: the n-gram drafter gets 3 tokens each step, EAGLE up to 9."""
    folder.mkdir()
    for name in ("one", "two"):
        with gzip.open(folder / f"combined_{name}.jsonl.gz", "wt") as file:
            for row in rows:
                tokens = len(row["text"])
                line = {"id": row["id"], "prompt_token_ids": row["prompt"],
                        "generated_token_ids": row["text"],
                        "acc_ngram": {"acc_len": [min(3, tokens - at) for at in range(tokens)]},
                        "acc_eagle": {"acc_len": [min(9, tokens - at) for at in range(tokens - 1)]}}
                file.write(json.dumps(change(name, line)) + "\n")
    return folder


def test_recordings_of_specdecode_bench(rows, tmp_path):
    folder = recordings(tmp_path / "bench", rows)
    done = CliRunner().invoke(app, ["lab", "replay", "--specdecode", str(folder), "--nodes", "4,8",
                                    "--held-out", "8"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"one", "two"} and found["one"]["texts"] == 22
    one, whole = found["one"], write(tmp_path / "a.jsonl", rows)
    assert one["4"]["steps"] == run(options(whole, prompt_column="prompt"))["nodes"]["4"]["steps"]
    assert one["8"]["tokens_per_step"] >= one["4"]["tokens_per_step"] > 1.5
    assert one["ngram"]["tokens_per_step"] == round(13 / 5, 4)  # 3 + 3 + 3 + 3 + 1
    assert one["eagle"]["tokens_per_step"] == round(13 / 4, 4)  # at most 3 draft tokens: 4 + 4 + 4 + 1


def test_steps_by_recorded_lengths():
    assert specdecode.steps([6, 5, 4, 3, 2, 1], 6, nodes=5) == 1
    assert specdecode.steps([6, 5, 4, 3, 2, 1], 6, nodes=2) == 2
    assert specdecode.steps([1, 2], 4, nodes=5) == 3  # positions beyond the record: one token each
    assert specdecode.steps([], 3, nodes=5) == 3


def without_eagle(name: str, row: dict) -> dict:
    return {key: value for key, value in row.items() if key != "acc_eagle"}


def with_a_zero(name: str, row: dict) -> dict:
    return row | {"acc_ngram": {"acc_len": [2, 0]}}


@pytest.mark.parametrize(("change", "message"), [
    (without_eagle, "combined_one.jsonl.gz has no column acc_eagle"),
    (with_a_zero, "combined_one.jsonl.gz, row [0-9]+: acc_ngram.acc_len must be a list"),
    (lambda name, row: row | {"prompt_token_ids": "a"}, "column prompt_token_ids has text"),
    (lambda name, row: row | {"id": 1}, "duplicates")])
def test_recordings_that_are_not_valid_are_named(rows, tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        run(Options(specdecode=recordings(tmp_path / "bench", rows, change), held_out=8))


def test_recordings_that_are_missing_or_too_few_are_named(rows, tmp_path):
    with pytest.raises(DataError, match="no files combined_"):
        run(Options(specdecode=tmp_path))
    with pytest.raises(ConfigError, match="--held-out 100 must be above 0 and below 30"):
        run(Options(specdecode=recordings(tmp_path / "bench", rows)))
    with pytest.raises(ConfigError, match="--pool global alone"):
        run(Options(specdecode=tmp_path, pool=("own",)))


@pytest.mark.slow
@pytest.mark.skipif("DARE_DATA" not in os.environ, reason="needs the recordings in DARE_DATA")
def test_figures_of_the_real_recordings():
    found = run(Options(specdecode=Path(os.environ["DARE_DATA"]) / "specdecode-bench", nodes=(16,)))
    ngram = {name: round(figures["ngram"]["tokens_per_step"], 2) for name, figures in found.items()}
    eagle = {name: round(figures["eagle"]["tokens_per_step"], 2) for name, figures in found.items()}
    assert ngram == {"cnn": 1.39, "gsm8k": 1.18, "instructcoder": 1.91, "sharegpt": 1.4}
    assert eagle == {"cnn": 2.23, "gsm8k": 2.29, "instructcoder": 2.59, "sharegpt": 2.19}
    ours = {"cnn": 2.32, "gsm8k": 2.27, "instructcoder": 3.54, "sharegpt": 2.2}
    assert all(found[name]["16"]["tokens_per_step"] >= least for name, least in ours.items())
