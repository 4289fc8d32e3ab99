"""Inputs of the acceptance statistics (texts of a run and of the synthetic data set), and rates over large
vocabularies.
"""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from acceptance_models import last, tokenizer
from sampling_pairs import distance, exact_output
from transformers import AutoTokenizer

from dare_job import schemas
from dare_job.bench.profiles import drafter
from dare_job.decode.sampling.verify import Verifier
from dare_job.evaluate.acceptance import measure, texts
from dare_job.evaluate.acceptance import rates as node_rates
from dare_job.evaluate.acceptance import texts as acceptance_texts
from dare_job.evaluate.acceptance.optimum import optimum
from dare_job.models import embedded_path
from dare_job.models.files import tokenizer_hash
from dare_job.training.drafter.settings import Settings
from dare_job.training.drafter.train import network
from dare_job.workspace import MANIFEST

DT = "2026-01-02"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return an untrained draft model with the embedded model's tokens."""
    folder, words = tmp_path_factory.mktemp("small"), AutoTokenizer.from_pretrained(embedded_path())
    network(words, len(words), 1024, Settings(width=16, layers=1, heads=2)).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.mark.release
def test_the_sample_world_and_many_words(small):
    """No mean rate exceeds its optimum, and all rates of three candidates are exact."""
    found = last("--model", "embedded", "--draft", small, "--positions", 6, "--texts", 6,
                 "--temperature", "1", "--drafts", "3", "--seed", 1)
    assert found["positions"] == 6 and 1 < found["texts"] <= 6 and found["text"] is None
    rows = {(row["distribution"], row["verifier"]): row for row in found["rows"]}
    assert all(row["exact"] and row["rate"] <= row["optimum"] + 1e-9 for row in rows.values())
    assert 0 < rows["iid", "rrs"]["rate"] <= rows["iid", "k_seq"]["rate"]
    again = last("--model", "embedded", "--draft", small, "--positions", 6, "--texts", 6,
                 "--temperature", "1", "--drafts", "3", "--seed", 1)
    assert again == found


def test_texts_of_a_run(models, tmp_path):
    """With the prompts that remain; a text without a prompt starts with its own first token."""
    words, asked = tokenizer(), hashlib.sha256(b"a b").hexdigest()
    rows = [{"entity_id": name, "knowledge": text, "token_ids": ids, "finish_reason": "eos",
             "run_id": "run-1", "prompt_sha256": asked} for name, text, ids in
            (("u1", "c d", [4, 5, 1]), ("u2", "d", [5, 1]), ("u3", None, None))]
    for entity, written in (("user", rows), ("item", [])):
        folder = tmp_path / "knowledge" / f"entity={entity}" / f"dt={DT}"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(written, schemas.KNOWLEDGE), folder / "part-0.parquet")
        (folder / MANIFEST).write_text(json.dumps({"tokenizer": tokenizer_hash(models / "target")}))
    plan = tmp_path / "_work" / f"dt={DT}" / "plan" / "entity=user"
    plan.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([{"entity_id": "u1", "prompt": "a b", "prompt_sha256": asked,
                                          "stale": True, "strict": False, "interactions": 3}], schemas.PLAN),
                   plan / "part-0.parquet")
    found = texts.read(str(tmp_path), "knowledge", None, words, models / "target", 10, 0)
    assert {row.name: (row.prompt.tolist(), row.text.tolist()) for row in found} == {
        "user:u1": ([2, 3], [4, 5, 1]), "user:u2": ([0], [5, 1])}
    assert len(texts.read(str(tmp_path), "knowledge", None, words, models / "target", 1, 0)) == 1


def test_places_are_tokens_of_the_texts_each_once():
    rows = [texts.Row(str(n), np.zeros(2, np.int64), np.arange(n), True) for n in (3, 1, 6)]
    every = acceptance_texts.sample_positions(rows, 100, 0)
    assert [part.tolist() for part in every] == [[0, 1, 2], [0], [0, 1, 2, 3, 4, 5]]
    some = acceptance_texts.sample_positions(rows, 4, 0)
    assert sum(map(len, some)) == 4
    assert all(set(one) <= set(whole) for one, whole in zip(some, every, strict=True))


def test_a_text_is_truncated_to_the_context():
    rows = [texts.Row("a", np.zeros(3, np.int64), np.arange(9), True),
            texts.Row("b", np.zeros(8, np.int64), np.arange(2), True)]
    assert [(row.name, len(row.text)) for row in texts.truncate(rows, 8)] == [("a", 5)]
    assert texts.truncate(rows, None) == rows


@pytest.mark.parametrize("rule", ["rrs", "naive", "greedy"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_few_tokens_with_nearly_all_draft_mass(rule, n, monkeypatch):
    """The remaining mass of q is far below the rounding error of 1 minus their sum."""
    rng = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(12, generator=rng)
    logits[:2] += torch.tensor([60.0, 42.0])
    p, q = torch.softmax(3 * torch.randn(12, generator=rng), -1), torch.softmax(logits, -1)
    _, expected = exact_output(Verifier(rule, "without_replacement", n), p, q)
    monkeypatch.setattr(node_rates, "_MAX_TUPLES", 0)
    found = node_rates.rate(rule, "without_replacement", p, q, n, samples=400)
    assert found.exact or (rule, n) == ("greedy", 4)
    assert abs(found.value - expected) <= 5 * found.error + 1e-9


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_every_rule_at_low_temperatures(n):
    """With a few probable tokens and many improbable ones, no rate exceeds its optimum."""
    rng = torch.Generator().manual_seed(n)
    target, draft = torch.randn((2, 500), generator=rng)
    for temperature in (0.02, 0.1, 0.3):
        cell_places = [acceptance_texts.Positions(0, 3 * target[None], 3 * (target + draft / 2)[None])]
        cells = measure.cells([temperature], [n])
        measure.fill(cells, cell_places, 1, 200, 0)
        for cell in cells:
            for rule, (value,) in cell.rates.items():
                assert 0 <= value <= cell.optima[0] + (0.1 if rule in cell.estimated else 1e-9), (cell, rule)


@pytest.mark.parametrize(("rule", "distribution"), [("priority", "iid"), ("k_seq", "iid"), ("rrs", "iid"),
                                           ("rrs", "without_replacement"), ("greedy", "greedy")])
@pytest.mark.parametrize("rare", [1e-5, 1e-17, 1e-35])
def test_drafts_that_are_rare_under_the_target(rule, distribution, rare):
    p = torch.tensor([0.7, 0.3, 2 * rare, rare, rare, 0.0])
    q = torch.tensor([0.0, rare, 0.5, 0.3, 0.2, rare])
    for n in (2, 3):
        found, accepted = exact_output(Verifier(rule, distribution, n), p, q)
        assert distance(found, p) < 1e-12 and accepted <= optimum(distribution, p, q, n) + 1e-12


def test_a_draft_model_of_profiles(tmp_path):
    import profile_files

    profile_files.write(tmp_path)
    settings = Settings(width=8, layers=1, heads=1, steps=2, rows=10, context=448)
    folder = drafter.drafter(tmp_path, tmp_path, embedded_path(), 5, settings)
    assert drafter.drafter(tmp_path, tmp_path, embedded_path(), 5, settings) == folder
    assert (folder / "model.safetensors").is_file()
    path = drafter.texts(tmp_path, tmp_path, 5)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 5 and all(row["prompt"].startswith("Movies: ") and row["text"] for row in rows)
