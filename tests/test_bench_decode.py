"""The bench of decoding and the model it trains, on files of the real data's formats made here."""

import gzip
import json

import numpy as np
import profile_files
import pytest
import torch
from profile_files import MOVIES, USERS
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from dare_job.bench.cli import app
from dare_job.bench.decode import methods
from dare_job.bench.decode.compare import Options
from dare_job.bench.profiles import data, noise, texts, train, two_dates
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.measured import Measured
from dare_job.generate import baseline
from dare_job.training.batches import IGNORED


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty users with a profile and a history; user 7 of the profiles rated too little."""
    root = tmp_path_factory.mktemp("data")
    profile_files.write(root)
    return root


@pytest.fixture(scope="module")
def short():
    """Models of few tokens a text, trained on few."""
    with pytest.MonkeyPatch.context() as patch:
        profile_files.small_models(patch)
        yield train.Settings(steps=2, test_users=10, noise=1.0, threads=1)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


def test_profiles_are_joined_with_titles(folder):
    profiles = data.load(folder)
    assert [p.user for p in profiles] == [str(u) for u in range(USERS) if u != 7]
    with gzip.open(folder / "ml-1m/sequences_full.txt.gz", "rt") as file:
        first = file.readline().split()
    expected = [f"Film Number {MOVIES - int(item)}, Thé" for item in first[1:]]
    assert profiles[0].titles == tuple(expected) and profiles[0].text.startswith("The user")
    assert data.later(profiles[0]) == f"Movies: {'; '.join(expected[-data.TITLES:])}\nProfile:\n"
    earlier = data.earlier(profiles[0])
    assert expected[-1] not in earlier and expected[-1 - data.LATER] in earlier


def test_users_are_split_by_their_ids(folder):
    profiles = data.load(folder)
    learned, test = data.split(profiles, 10)
    assert len(test) == 10 and not {p.user for p in learned} & {p.user for p in test}
    fewer = data.split([p for p in profiles if p.user != learned[0].user], 10)[1]
    assert fewer == test
    with pytest.raises(ConfigError, match="39"):
        data.split(profiles, 39)


@pytest.mark.parametrize(("name", "text", "message"), [
    ("ml-1m/movies.dat", "1:Film:Drama\n", "movies.dat, line 1"),
    ("ml-1m/item_list.txt", "org_id remap_id\n7\n", "item_list.txt"),
    ("ml-1m/user_list.txt", "org_id remap_id\n1 5\n", "sequences_full.txt.gz, line 1"),
    ("ml-1m/user_list.txt", None, "user_list.txt cannot be read")])
def test_damaged_files_are_named(folder, tmp_path, name, text, message):
    for file in folder.rglob("*.*"):
        copy = tmp_path / file.relative_to(folder)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(file.read_bytes())
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        data.load(tmp_path)


def test_batches_ask_with_titles_and_want_the_text(folder):
    profiles = data.load(folder)
    tokenizer = train.train_tokenizer([x for p in profiles for x in (p.text, data.later(p))], 600, 512)
    batch, again = (next(train.batches(profiles, tokenizer, 3)) for _ in range(2))
    assert torch.equal(batch.tokens, again.tokens)
    wanted = batch.targets[0][batch.targets[0] != IGNORED]
    assert wanted[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(wanted[:-1]) in {p.text for p in profiles}
    asked = tokenizer.decode(batch.tokens[0][1: batch.tokens.shape[1] - len(wanted)])
    assert asked.startswith("Movies: ") or asked.startswith("Film") or ";" in asked


def test_a_model_is_trained_once_and_written_whole(folder, work, short, monkeypatch):
    path = train.model(folder, work, short)
    monkeypatch.setattr(train, "train", lambda *_: pytest.fail("trained again"))
    assert train.model(folder, work, short) == path
    quiet = train.model(folder, work, train.Settings(steps=2, test_users=10, noise=0.0))
    assert quiet != path and (quiet / "model.safetensors").exists()
    monkeypatch.setattr(train, "train", lambda *_: 1 / 0)
    before = set(work.glob("profiles-*"))
    with pytest.raises(ZeroDivisionError):
        train.model(folder, work, train.Settings(steps=2, test_users=10, seed=5))
    assert set(work.glob("profiles-*")) == before


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="steps"):
        train.Settings(steps=0)


def test_noise_is_as_large_as_asked_and_only_where_reserved(folder, short):
    profiles = data.load(folder)
    tokenizer = train.train_tokenizer([p.text for p in profiles], 600, 512)
    torch.manual_seed(0)
    network = noise.make(tokenizer)
    noise.reserve(network)
    batch = next(train.batches(profiles, tokenizer, 0))
    train._fit(network, iter([batch]), 1)  # reserved units stay without effect
    with torch.no_grad():
        quiet = noise._logits(network, batch)
        weight = network.model.layers[-1].mlp.down_proj.weight
        assert not weight[:, -noise.UNITS:].any() and weight[:, :-noise.UNITS].any()
        noise.perturb(network, [batch], 0.3, seed=1)
        added = (noise._logits(network, batch) - quiet).gather(1, quiet.topk(20).indices)
    spread = (added - added.mean(1, keepdim=True)).std().item()
    assert spread == pytest.approx(0.3, rel=0.3)


def test_texts_are_kept_and_equal_generate(folder, work, short):
    model = train.model(folder, work, short)
    prompts = {p.user: data.later(p) for p in data.load(folder)}
    found = texts.generate(model, work, prompts)
    assert list(found) == list(prompts)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for user, ids in list(texts.encode(model, prompts).items())[:3]:
        asked = torch.from_numpy(ids.astype(np.int64))[None]
        expected = network.generate(asked, attention_mask=torch.ones_like(asked))[0, len(ids):]
        assert found[user].tolist() == expected.tolist()
    again = texts.generate(model, work, prompts)
    assert all(np.array_equal(again[user], found[user]) for user in found)
    assert len(list(work.glob("texts-*"))) == 1


def test_distinct_and_accepted_can_be_counted_by_hand():
    one, two = np.array([5, 6, 7, 8], np.int32), np.array([5, 6, 7, 9], np.int32)
    assert texts.distinct([one, two, one, one]) == 0.5
    assert texts.accepted_per_step([one], [one, one]) == 3.0  # one step: three accepted
    assert texts.accepted_per_step([one], [np.array([1, 2, 3], np.int32)]) == 0.0


def test_recorded_profiles_are_cut_where_the_model_ends(folder, work, short):
    model = train.model(folder, work, short)
    found = texts.recorded(model, data.load(folder))
    assert set(map(len, found.values())) <= set(range(2, 41)) and len(found) == USERS - 1


def test_methods_draft_from_what_their_names_say(folder, work, short):
    dates = two_dates.prepare(folder, work, short, pool=20, rows=3)
    assert len(dates.pool) == 20 and not set(dates.pool) & set(dates.prompts) and len(dates.previous) == 10
    request = dates.requests(1)[0]
    assert [index.kind for index in request.pools] == ["own", "global"]
    assert methods._with_drafts(methods.STRICT, request) is request
    resd = methods._with_drafts(methods.RESD, request)
    assert [index.kind for index in resd.pools] == ["global"] and resd.previous_ids is None
    assert methods._with_drafts(methods.OWN_LOOKUP, request).pools == ()
    assert not methods.possible(methods.LOOKUP, 8) and methods.possible(methods.LOOKUP, 1)


def test_generate_gives_the_texts_that_are_compared(folder, work, short):
    dates = two_dates.prepare(folder, work, short, pool=20, rows=3)
    target, requests = Target.load(dates.model, device="cpu"), dates.requests(3)
    found = baseline.generate_greedy(target, requests, 2, 30)  # padded, with a smaller batch at the end
    for request, text in zip(requests, found, strict=True):
        asked = torch.from_numpy(request.prompt_ids.astype(np.int64))[None]
        expected = target.model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=30)
        assert text.tolist() == expected[0, asked.shape[1]:].tolist() and text.dtype == np.int32
    ends = target.generation_config.eos_token_id
    assert baseline._text(np.array([5, ends, 6, ends]), [ends]).tolist() == [5, ends]
    budget = methods.Budget(batch=2, nodes=4, tokens=30, threads=1)
    for method in (methods.GENERATE, methods.STRICT):
        once = methods.run_method(method, target, requests, budget, methods.Learned(method, target, budget))
        ((row, text),) = [x for x in once.texts[0].items() if x[0] == requests[0].id]
        assert len(once.texts[0]) == 3 and text.tolist() == found[0].tolist(), row


def test_a_row_differs_where_any_repeat_of_a_strict_method_does():
    def seen(*repeats):
        found = [Measured(4, 3, 1, seconds=[1.0], processor=[1.0],
                                  texts=[{row: np.array(text) for row, text in enumerate(texts)}])
                 for texts in repeats]
        return found[0] if len(found) == 1 else found[1].after(found[0])

    same = [[1, 2], [3, 4], [5]]
    found = {(methods.GENERATE, 1): seen(same, same), (methods.AUTOREGRESSIVE, 1): seen(same, same),
             (methods.STRICT, 8): seen(same, same)}
    assert methods.differing(found) == 0
    loose = seen([[9], [9], [9]])
    assert methods.differing(found | {(methods.RELAXED, 1): loose, (methods.LOOKUP, 1): loose}) == 0
    assert methods.differing(found | {(methods.STRICT, 8): seen([[1, 2], [3, 5], [5]], same)}) == 1
    both = seen(same, [[1], [3, 4], [6]])  # all of the engine agree, and are not generate
    assert (
        methods.differing(
            {
                (methods.GENERATE, 1): seen(same, same),
                (methods.AUTOREGRESSIVE, 1): both,
                (methods.STRICT, 1): both,
            }
        )
        == 2
    )


def test_targets_are_held_against_what_was_measured():
    rates = {methods.GENERATE: 100.0, methods.LOOKUP: 50.0, methods.AUTOREGRESSIVE: 110.0,
             methods.OWN_LOOKUP: 107.0, methods.STRICT: 225.0, methods.RELAXED: 260.0}
    rows = [{"method": method, "batch": batch, "tokens_per_s": rate, "ratio_to_generate": rate / 100,
             "ratio_to_baseline": rate / 110} for batch in (1, 4, 8) for method, rate in rates.items()
            if batch == 1 or method != methods.LOOKUP]
    found = {
        one["target"]: one for one in methods.targets(rows, {"distinct": 0.94, "accepted_ratio": 1.19})
    }
    assert not found["distinct texts, at least"]["met"]
    assert found["replay acceptance off recorded profiles', at most"]["met"]
    assert found["batch 1: dare strict over generate, at least"] == {
        "target": "batch 1: dare strict over generate, at least", "bound": 2.2, "measured": 2.25, "met": True}
    assert found["batch 8: dare strict over generate, at least"]["bound"] == 1.8
    assert not found["batch 1: relaxed over strict, at least"]["met"]
    assert not any(one["met"] for name, one in found.items() if "prompt lookup (engine) over" in name)
    assert found["batch 4: autoregressive over baseline, at least"]["measured"] == 1
    assert not any("(generate)" in name or "batch 4: dare strict over generate" in name for name in found)


@pytest.mark.release
@pytest.mark.parametrize("nodes", ["8,4", pytest.param("auto", marks=pytest.mark.release)])
def test_the_command_ends_with_its_figures(folder, work, short, nodes):
    result = CliRunner().invoke(app, [
        "decode", "--data", str(folder), "--work", str(work), "--batch", "1,3", "--nodes", nodes,
        "--rows", "4", "--repeats", "2", "--pool", "20", "--tokens", "12", "--steps", "2",
        "--noise", "1", "--test-users", "10"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    rows = found["rows"]
    assert [(row["method"], row["batch"]) for row in rows] == [
        (method, batch) for batch in (1, 3) for method in methods.METHODS if methods.possible(method, batch)]
    for row in rows:
        assert {"method", "batch", "tokens_per_s", "accepted_per_step", "target_steps",
                "ratio_to_generate", "ratio_by_processor"} <= set(row)
        assert row["tokens_per_s"] > 0
    by = {(row["method"], row["batch"]): row for row in rows}
    assert by[methods.GENERATE, 1]["ratio_to_generate"] == 1
    assert by[methods.GENERATE, 1]["accepted_per_step"] == 0
    assert by[methods.AUTOREGRESSIVE, 1]["target_steps"] > 0
    assert by[methods.STRICT, 1]["target_steps"] <= by[methods.AUTOREGRESSIVE, 1]["target_steps"]
    assert found["rows_that_differ"] == 0
    assert 0 < found["texts"]["distinct"] <= 1 and found["texts"]["accepted_real"] > 0


@pytest.mark.parametrize(("arguments", "message"), [
    ({"nodes": (16,)}, "--nodes"), ({"rows": 501}, "--rows 501"), ({"repeats": 0}, "--repeats 0"),
    ({"batch": (1, 0, 2)}, "--batch 0")])
def test_impossible_options_are_named(folder, arguments, message):
    with pytest.raises(ConfigError, match=message):
        Options(folder, **arguments)
