"""The embedded model: its files, its tokenizer, what it writes; and that the training script runs."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare_job import prompts
from dare_job.data.sample_world.catalogue import MOOD_OF, THEME_OF
from dare_job.data.sample_world.simulate import DAYS, item_examples, simulate, user_examples
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.embedded import Generated, Tally, accepted_per_step, generate, tally
from dare_job.models import embedded_path
from dare_job.training import loop
from dare_job.training.embedded import corpus, train
from pools.draft import DraftSettings
from pools.index import Index

USERS, OTHERS, ITEMS, SEED = 80, 150, 12, 11  # worlds below 1,000,000 were never trained on
SPARE_USERS = 40  # some have no history
# Accepted a step with 16 nodes, by longest context, of profiles that an 8B Llama 3 wrote for ML-1M users:
#   python -m dare_job.evaluate.embedded --reference $DARE_DATA
REAL_PROFILES = {2: 2.73, 12: 3.94}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(embedded_path())


@pytest.fixture(scope="module")
def world():
    return simulate(USERS + OTHERS + SPARE_USERS, 300, SEED)


@pytest.fixture(scope="module")
def examples(world):
    known = prompts.load(prompts.SAMPLE)
    return list(user_examples(world, known, DAYS))[:USERS], list(item_examples(world, known, DAYS))[:ITEMS]


@pytest.fixture(scope="module")
def others(world, examples):
    """Other users, as of the day before."""
    after = examples[0][-1].row
    before = user_examples(world, prompts.load(prompts.SAMPLE), DAYS - 1)
    found = [x for x in before if x.row > after][:OTHERS]
    assert len(found) == OTHERS
    return found


@pytest.fixture(scope="module")
def target():
    return Target.load(embedded_path())


@pytest.fixture(scope="module")
def profiles(target, tokenizer, examples):
    return _write(target, tokenizer, examples[0])


@pytest.fixture(scope="module")
def descriptions(tokenizer, examples):
    return generate(_plain_model(), tokenizer, [x.prompt for x in examples[1]])


def _plain_model():
    return AutoModelForCausalLM.from_pretrained(embedded_path(), dtype=torch.float32).eval()


def _write(target, tokenizer, examples) -> list[Generated]:
    """The model's greedy texts. The grammar's text of each user drafts, which changes the time alone."""
    texts = tokenizer([x.text for x in examples], add_special_tokens=False)["input_ids"]
    rows = tokenizer([x.prompt for x in examples])["input_ids"]
    settings = EngineSettings(rule="strict", max_new_tokens=320, batch_size=32, nodes=16, depth=16)
    engine = Engine(target, settings, RetrievalDrafter(DraftSettings(depth=16)))
    requests = (Request(i, np.array(rows[i], np.int32), (Index.build([texts[i] + [tokenizer.eos_token_id]]),))
                for i in range(len(rows)))
    written = {result.id: result for result in engine.run(requests)}
    out = []
    for i in range(len(rows)):
        ended = written[i].finish_reason == "eos"
        kept = written[i].token_ids.tolist()[: -1 if ended else None]
        out.append(Generated(tokenizer.decode(kept), tuple(kept), ended))
    return out


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


def test_profiles_name_what_the_prompt_shows(profiles, examples):
    total = sum((tally(g.text, x.titles) for g, x in zip(profiles, examples[0], strict=True)), Tally())
    assert total.titles >= 4 * USERS
    assert total.titles_shown >= 0.8 * total.titles
    assert total.statements_true >= 0.9 * total.statements
    assert len({g.text for g in profiles}) >= 0.95 * USERS
    assert all(g.ended for g in profiles)


def test_the_engine_wrote_what_generate_writes(profiles, tokenizer, examples):
    rows = [0, USERS // 2, USERS - 1]
    assert generate(_plain_model(), tokenizer, [examples[0][r].prompt for r in rows]) == [
        profiles[r] for r in rows]


@pytest.mark.release
def test_profiles_repeat_those_of_others_as_real_ones_do(profiles, others, target, tokenizer):
    pool = [g.token_ids for g in _write(target, tokenizer, others)]
    for context, real in REAL_PROFILES.items():
        accepted = accepted_per_step([g.token_ids for g in profiles], pool, nodes=16, context=context)
        assert accepted == pytest.approx(real, rel=0.3)


def test_descriptions_name_the_title_and_true_facts(descriptions, examples):
    total = sum((tally(g.text, x.titles) for g, x in zip(descriptions, examples[1], strict=True)), Tally())
    assert total.titles_shown >= ITEMS - 1
    assert total.statements_true >= 0.9 * total.statements
    assert all(g.ended for g in descriptions)


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


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")
def test_training_script_makes_a_loadable_model_and_the_same_one_again(tmp_path, monkeypatch, capsys):
    """Of little text, a drill and a batch of texts. Again: in another process, where sets have another order.
    """
    smaller = {"_TOKENIZER_WORLDS": 1, "_BATCH_TOKENS": 512, "DRILL_STEPS": 1}
    script = ("import typer; from dare_job.training.embedded import train; "
              f"vars(train).update({smaller}); typer.run(train.train)")
    first = subprocess.run([sys.executable, "-c", script, "--steps", "2", "--save", tmp_path / "a"],
                           capture_output=True, text=True, check=True).stdout
    for name, value in smaller.items():
        monkeypatch.setattr(train, name, value)
    for folder, start in (("b", None), ("c", tmp_path / "a")):
        train.train(tmp_path / folder, 2, start=start)
    records = [json.loads(line) for line in (first + capsys.readouterr().out).splitlines()]
    assert [line["steps"] for line in records] == [2, 2, 2]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert model.dtype == torch.bfloat16 or model.dtype == torch.float32
    assert AutoTokenizer.from_pretrained(tmp_path / "a").eos_token_id == model.generation_config.eos_token_id
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in "abc"]
    assert weights[0] == weights[1] != weights[2]


def test_the_rate_rises_and_falls_by_steps():
    assert loop.rate_factor(0, 10_000) == pytest.approx(0.01)
    assert loop.rate_factor(99, 100_000) == pytest.approx(1.0, abs=1e-4)
    assert loop.rate_factor(10_000, 10_000) == pytest.approx(0.02)


def test_copying_is_drilled_first_and_now_and_then(tokenizer):
    work = train.schedule(corpus.worlds(prompts.load(prompts.SAMPLE), 0), tokenizer, seed=0, drills=2)
    kinds = [kind for kind, _ in itertools.islice(work, 12)]
    assert kinds == ["drill"] * 2 + ["text"] * 8 + ["drill", "text"]
