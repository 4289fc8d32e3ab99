"""``python -m dare_job.bench dare``: from nothing to the tables, on a handful of rows."""

import json
import sys
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare_job.bench.cli import app
from dare_job.bench.dare import indexes, measure, models, tables
from dare_job.bench.dare.cells import Options
from dare_job.cli import run_app
from dare_job.models import embedded_path
from dare_job.prompts.sets import HistoryItem
from dare_job.schemas import ENTITIES

SMALL = ("--data", "sample", "--rows", "2", "--users", "12", "--items", "6", "--steps", "1", "--repeats", "1",
         "--architectures", "mistral", "--prompts", "kar,once", "--max-new-tokens", "12")
FIGURES = {"data", "architecture", "prompts", "side", "batch", "nodes", "method", "tokens_per_s", "ratio",
           "ratio_range", "ratio_by_processor", "accepted_per_step", "steps", "scored_share",
           "retrieval_us_per_step", "retrieval_ms_per_text", "rows", "tokens", "relaxed_share",
           "distinct_share", "ended_share", "differ_from_autoregressive", "groups", "old_texts"}


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``python -m dare_job.bench dare``."""
    monkeypatch.setattr(sys, "argv", ["bench", "dare", *arguments])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("bench-dare")


@pytest.fixture(scope="module")
def sample(work):
    return tables.load("sample", 24, work)


@pytest.mark.release
def test_a_run_from_nothing_ends_with_every_cell_and_goes_on_where_it_stopped(monkeypatch, capsys, work):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # one: others use the processor too
    code, out, err = run(monkeypatch, capsys, *SMALL, "--work", str(work))
    assert code == 0, err
    lines = json.loads(out.splitlines()[-1])["rows"]
    cells = Counter((line["prompts"], line["side"], line["batch"]) for line in lines)
    assert cells == {(*cell, batch): 4 for batch in (1, 8)
                     for cell in (("kar", "user"), ("kar", "item"), ("once", "user"), ("once", "item"))}
    for line in lines:
        assert set(line) == FIGURES and line["rows"] == 2 and line["tokens_per_s"] > 0
        if line["method"] != "dare relaxed":
            assert line["differ_from_autoregressive"] == 0 and line["relaxed_share"] == 0
        if line["method"] == measure.PLAIN:
            assert line["ratio"] == line["ratio_by_processor"] == 1
            assert line["accepted_per_step"] == line["scored_share"] == 0
        else:
            assert (line["retrieval_us_per_step"] > 0) == (line["steps"] > 0)  # 0: the old text held
    users = [line for line in lines if line["side"] == "user" and line["batch"] == 1]
    steps = {line["method"]: line["steps"] for line in users}
    assert steps["resd"] < steps[measure.PLAIN] and steps["dare strict"] < steps[measure.PLAIN]
    assert all(title in out for title in ("Table 2", "Tables 4 and 7"))

    def again(*_):
        raise AssertionError("was there")
    monkeypatch.setattr(measure, "cell", again)
    monkeypatch.setattr(models, "_train", again)
    code, repeated, err = run(monkeypatch, capsys, *SMALL, "--work", str(work))
    assert code == 0 and json.loads(repeated.splitlines()[-1])["rows"] == lines, err


@pytest.mark.parametrize("arguments, message", [
    (("--architectures", "llama,rnn"), "rnn cannot be measured; choose from llama, qwen2, mistral"),
    (("--prompts", "kat"), "no prompt set kat; choose from"),
    (("--nodes", "8"), "as many node budgets as batch sizes"),
    (("--rows", "0"), "--rows is 0"),
    (("--data", "ml-2m"), "ml-2m unknown; choose from ml-1m, sample"),
    (("--data", "ml-1m"), "needs the variable DARE_DATA"),
])
def test_impossible_options_exit_with_2_and_name_the_fix(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.delenv("DARE_DATA", raising=False)
    code, out, err = run(monkeypatch, capsys, "--work", str(tmp_path), *arguments)
    assert code == 2 and out == "" and message in " ".join(err.split())


@pytest.mark.parametrize("name", models.SHAPES)
def test_a_grown_model_computes_what_the_embedded_one_does(name):
    source = AutoModelForCausalLM.from_pretrained(embedded_path(), dtype=torch.float32).eval()
    ids = torch.randint(3, source.config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.allclose(models.grown(name).eval()(ids).logits, source(ids).logits, atol=1e-4)
    assert models.grown(name).config.model_type == name


def test_the_windows_are_the_first_and_last_m_of_n(sample):
    long = max(sample.histories, key=lambda user: len(sample.histories[user]))
    recent = sample.histories[long][-29:]
    old, new = sample.window(long, "old"), sample.window(long, "new")
    assert len(recent) == 29 and old == recent[:20] and new == recent[-20:]
    assert sample.known(long) == [item for item, _ in sample.histories[long]][:-9]


def test_test_users_are_asked_by_their_new_window_and_test_items_have_no_old_text(sample, work):
    kar = models.find(["kar"])[0]
    users, items = (tables.prompts_of(sample, kar, side, 5, 6, work) for side in ("user", "item"))
    assert len(users.new) == len(items.new) == 5 and len(users.old) == 24 and len(items.old) == 6
    assert all(prompt != users.old[user] for user, prompt in users.new.items())
    assert not set(items.old) & sample.new_items and set(items.new) <= sample.new_items


def test_users_draft_from_clusters_and_items_from_categories(sample, work):
    pool_of = indexes.pools_of(sample, work)
    assert set(pool_of["user"]) == set(sample.users) and set(pool_of["item"]) == set(sample.items)
    assert {kind for _, kind in pool_of["user"].values()} == {"collaborative"}
    assert 1 < len(set(pool_of["user"].values())) <= indexes.CLUSTERS
    assert {kind for _, kind in pool_of["item"].values()} == {"attribute"}


def test_the_embedded_models_set_is_a_row_only_where_it_is_asked_for():
    assert [prompts.name for prompts in models.find([])] == ["kar", "once", "rlmrec", "trawl"]
    assert [prompts.name for prompts in models.find(["sample"])] == ["sample"]


def test_prompts_and_texts_fit_the_models(sample, work):
    """Of every prompt set; with the longest histories that the tests show."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    capacity = models.grown("mistral").config.max_position_embeddings - Options.max_new_tokens
    for prompts in models.find([]):
        for side in ENTITIES:
            rows = tables.prompts_of(sample, prompts, side, 24, 100, work)
            lengths = [len(ids) for ids in tokenizer([*rows.old.values(), *rows.new.values()])["input_ids"]]
            assert max(lengths) < capacity, (prompts.name, side, max(lengths))


def test_examples_hold_both_sides_of_every_prompt_set():
    prompt_sets = models.find([])
    examples = next(models.examples(prompt_sets, 0))
    for prompts in prompt_sets:
        for side, first in (("user", prompts.user({}, [HistoryItem("X")])), ("item", prompts.item("X", {}))):
            assert any(example.entity == side and example.prompt.splitlines()[0] == first.splitlines()[0]
                       for example in examples), (prompts.name, side)


def test_ml_1m_is_read_by_the_jobs_own_reader(monkeypatch, tmp_path, spark):
    folder = tmp_path / "data" / "ml-1m"
    folder.mkdir(parents=True)
    films = "".join(f"{i}::Film {i} (1990)::Drama\n" for i in range(1, 9))
    ratings = [f"{user}::{i}::4::{900_000_000 + i}\n" for user, most in ((1, 6), (2, 3))
               for i in range(1, most + 1)]
    (folder / "movies.dat").write_text(films, "latin-1")
    (folder / "users.dat").write_text("1::F::1::10::48067\n2::M::56::16::70072\n", "latin-1")
    (folder / "ratings.dat").write_text("".join(ratings), "latin-1")
    monkeypatch.setenv("DARE_DATA", str(tmp_path / "data"))
    assert tables.default() == "ml-1m"
    data = tables.load("ml-1m", 10, tmp_path / "work")
    assert set(data.users) == {"1"} and len(data.items) == 8 and len(data.new_items) == 4  # 2 has too few
    assert [item for item, _ in data.histories["1"]] == [str(i) for i in range(1, 7)]
    assert dict(data.users["1"])["gender"] == "female"
