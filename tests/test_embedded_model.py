"""The embedded model: its files, its tokenizer, what it writes; and that the training script runs."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare_job import prompts
from dare_job.data.world.simulate import DAYS, item_examples, simulate, user_examples
from dare_job.data.world.words import MOOD_OF, THEME_OF
from dare_job.model import embedded_path
from dare_job.model.evaluate import Tally, generate, tally
from dare_job.model.replay import accepted_per_step

USERS, ITEMS, SEED = 24, 12, 11


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(embedded_path())


@pytest.fixture(scope="module")
def examples():
    world, kar = simulate(USERS + 2, 300, SEED), prompts.load("kar")
    return list(user_examples(world, kar, DAYS))[:USERS], list(item_examples(world, kar, DAYS))[:ITEMS]


@pytest.fixture(scope="module")
def written(tokenizer, examples):
    model = AutoModelForCausalLM.from_pretrained(embedded_path(), dtype=torch.float32).eval()
    return [generate(model, tokenizer, [x.prompt for x in part]) for part in examples]


def test_size_and_files():
    files = {path.name: path.stat().st_size for path in embedded_path().iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "README.md"} <= set(files)
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(files)
    assert sum(files.values()) <= 16 * 2**20


def test_any_text_makes_the_round_trip(tokenizer):
    for text in ("Toy Story (1995)", "  spaces\n\tand tabs ", "naïve Amélie 天空の城 🙂", "\x00\x7f"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_tokens_of_prompt_and_text_do_not_merge(tokenizer, examples):
    for example in (*examples[0][:5], *examples[1][:5]):
        prompt = tokenizer(example.prompt)["input_ids"]
        text = tokenizer(example.text, add_special_tokens=False)["input_ids"]
        assert tokenizer(example.prompt + example.text)["input_ids"] == prompt + text
        assert prompt[0] == tokenizer.bos_token_id


def test_title_words_are_single_tokens(tokenizer):
    for word in (*MOOD_OF, *THEME_OF):
        assert len(tokenizer.encode(f" {word}", add_special_tokens=False)) == 1


def test_profiles_name_what_the_prompt_shows(written, examples):
    total = sum((tally(g.text, x.titles) for g, x in zip(written[0], examples[0], strict=True)), Tally())
    assert total.titles >= 4 * USERS
    assert total.titles_shown >= 0.9 * total.titles
    assert total.statements_true >= 0.9 * total.statements
    assert len({g.text for g in written[0]}) >= 0.95 * USERS
    assert all(g.ended for g in written[0])


def test_descriptions_name_the_title_and_true_facts(written, examples):
    total = sum((tally(g.text, x.titles) for g, x in zip(written[1], examples[1], strict=True)), Tally())
    assert total.titles_shown >= ITEMS - 1
    assert total.statements_true >= 0.9 * total.statements
    assert all(g.ended for g in written[1])


def test_tally_sees_wrong_titles_and_wrong_facts():
    text = "The newest choice is Silent Harbor, eerie from the first scene. It is Silent Harbor in Oslo."
    assert tally(text, ["Silent Harbor"]) == Tally(titles=2, titles_shown=1, statements=1, statements_true=0)
    assert tally("Silent Harbor is melancholic, about the sea.", ["Silent Harbor"]) == Tally(1, 1, 2, 2)


def test_replay_counts_by_hand():
    """The pool's text equals the replayed one: after the first token the tree holds all that follows."""
    text = [5, 6, 7, 8, 9]
    assert accepted_per_step([text], [text], nodes=16, context=2) == 4.0
    assert accepted_per_step([text], [[1, 2, 3]], nodes=16, context=2) == 0.0
    assert accepted_per_step([np.array([5, 6, 7])], [[5, 6, 1]], nodes=16, context=2) == 1.0


@pytest.mark.filterwarnings("ignore")
def test_training_script_makes_a_loadable_model(tmp_path):
    command = [sys.executable, "-m", "dare_job.model.train", "--out", str(tmp_path), "--minutes", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["steps"] >= 1
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.dtype == torch.bfloat16 or model.dtype == torch.float32
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token_id == model.generation_config.eos_token_id
