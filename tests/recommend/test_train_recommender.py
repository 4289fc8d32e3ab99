"""``recommender train`` and ``recommender evaluate``: what is learned and written, and how a run resumes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import torch
from recommend_world import ITEMS
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from dare_job.cli import app
from dare_job.decode.model import loading
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError, ModelError
from dare_job.models import embedded_path
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.vocabulary import Recommender
from dare_job.training import loop
from dare_job.training.checkpoint import Checkpoint
from dare_job.training.loop import Schedule, Training, fit
from dare_job.training.recommender import (
    evaluation,
    histories,
    network,
    sasrec,
)
from dare_job.training.recommender import (
    evaluation as recommender_evaluation,
)
from dare_job.training.recommender.sasrec import SasRec
from dare_job.training.recommender.sequences import read
from dare_job.training.recommender.settings import Settings
from dare_job.training.result import training_folder

SMALL = ["--width", "32", "--layers", "1", "--heads", "2", "--rate", "0.01", "--warmup", "10", "--history",
         "8", "--batch-tokens", "512"]


def _ran(*arguments):
    found = CliRunner().invoke(app, [*map(str, arguments)])
    if found.exception:
        raise found.exception
    return json.loads(found.stdout.splitlines()[-1])


def _train(world, to, *more):
    return _ran("recommender", "train", "--data", world.data, "--ids", world.ids_file, "--save", to,
                *SMALL, *more)


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """A recommender that has learned the ring."""
    folder = tmp_path_factory.mktemp("trained") / "recommender"
    return folder, _train(world, folder, "--epochs", 20, "--patience", 20, "--dropout", 0,
                          "--item-dropout", 0)


def test_the_ring_is_learned(world, trained):
    folder, record = trained
    assert min(record["training"]["validation"]) < 1
    found = _ran("recommender", "evaluate", "--data", world.data, "--ids", world.ids_file, "--recommender",
                 f"ours={folder}", "--k", "1,5", "--with-interacted")
    recall = {(row["method"], row["k"]): row for row in found["rows"] if row["metric"] == "recall"}
    assert found["users"] == 60 and recall["ours", 1]["mean"] > 0.3  # the best rule has 0.9
    assert recall["ours", 5]["minus"]["popularity"]["low"] > 0.3


def test_the_folder_is_one_of_hugging_face(world, trained):
    folder, _ = trained
    recommender, tokenizer = Recommender.open(folder), AutoTokenizer.from_pretrained(folder)
    model = loading.load(folder, "float32", False)
    assert model.config.vocab_size == len(tokenizer) == 4 + sum(world.ids.sizes)
    for row in (0, 17, 39):
        assert tokenizer.convert_ids_to_tokens(recommender.tokens[row].tolist()) == world.ids.tokens(row)
        assert tokenizer("".join(world.ids.tokens(row)))["input_ids"] == recommender.tokens[row].tolist()
    assert recommender.prompt([]) == [tokenizer.bos_token_id]
    assert recommender.prompt(range(20)) == [1, *recommender.tokens[12:20].reshape(-1).tolist()]
    assert not training_folder(folder).exists()


def test_sasrec_learns_the_ring_too(world):
    data = read(world.data, world.ids).leave_one_out()
    tests = data.tests()
    found = SasRec(ITEMS, sasrec.Settings(width=32, dropout=0.1, history=8, batch=64, epochs=40, rate=0.01))
    before = [history for history, _ in tests]
    lists = found.train(data, data.tests("valid")).lists(before, [row[:0] for row in before], 5)
    assert (
        len(tests) == 120
        and recommender_evaluation.recall(lists, [wanted for _, wanted in tests], 5).mean() > 0.5
    )


def test_both_baselines_on_the_same_users(world, monkeypatch):
    monkeypatch.setattr(evaluation, "Settings", partial(sasrec.Settings, width=8, epochs=1))
    found = _ran("recommender", "evaluate", "--data", world.data, "--ids", world.ids_file, "--baselines",
                 "popularity,sasrec", "--k", "5", "--split", "leave-one-out", "--users", 50)
    assert found["users"] == 50 and {row["method"] for row in found["rows"]} == {"popularity", "sasrec"}


@pytest.mark.parametrize("name", evaluation.BASELINES)
@pytest.mark.parametrize("seen", [False, True])
def test_seen_items_are_left_out_of_baselines_too(world, monkeypatch, name, seen):
    monkeypatch.setattr(evaluation, "Settings", partial(sasrec.Settings, width=8, epochs=1))
    lists = {}
    rows = evaluation._rows
    monkeypatch.setattr(evaluation, "_rows", lambda found, *rest: lists.update(found) or rows(found, *rest))
    _ran("recommender", "evaluate", "--data", world.data, "--ids", world.ids_file, "--baselines", name, "--k",
         30, *(["--with-interacted"] if seen else []))
    tests = read(world.data, world.ids).tests()
    held = [set(found.tolist()) & set(history.tolist())
            for (history, _), found in zip(tests, lists[name], strict=True)]
    assert len(lists[name]) == 60 and any(held) == seen
    most = ITEMS - max(len(set(history.tolist())) for history, _ in tests)
    assert all(len(set(found.tolist())) >= min(30, most) for found in lists[name])


def test_a_recommender_is_not_called_as_a_baseline(world, trained):
    with pytest.raises(ConfigError, match=r"--recommender popularity=\.\.\.: that is a baseline's name"):
        _ran("recommender", "evaluate", "--data", world.data, "--ids", world.ids_file, "--recommender",
             f"popularity={trained[0]}")


def test_lists_longer_than_all_items_are_refused(world):
    with pytest.raises(ConfigError, match=f"--k {ITEMS + 1}: .* has ids for only {ITEMS} items"):
        _ran("recommender", "evaluate", "--data", world.data, "--ids", world.ids_file, "--k",
             f"5,{ITEMS + 1}")


def test_seen_items_are_left_out(world, trained):
    recommender, data = Recommender.open(trained[0]), read(world.data, world.ids)
    target, tests = Target.load(trained[0]), data.tests()[:7]
    catalogue = Catalogue.build(world.ids, np.zeros(ITEMS))
    lists = evaluation.recommend(target, recommender, catalogue, tests, ITEMS, ITEMS)
    for (history, _), found in zip(tests, lists, strict=True):
        assert sorted(found) == sorted(set(range(ITEMS)) - set(history.tolist()))
    for width in (1, 6):  # as in the job, lists are full however long a history is
        few = evaluation.recommend(target, recommender, catalogue, tests, width, width)
        assert all(len(found) == width and not set(found) & set(history.tolist())
                   for (history, _), found in zip(tests, few, strict=True))


def test_fewer_beams_than_a_list_has_items_are_refused(world, trained):
    with pytest.raises(ConfigError, match="--beams 2 is below the largest --k, 5"):
        _ran("recommender", "evaluate", "--data", world.data, "--ids", world.ids_file, "--recommender",
             f"ours={trained[0]}", "--k", "1,5", "--beams", 2)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A small model that knows nothing of items, with the embedded model's tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("plain"), AutoTokenizer.from_pretrained(embedded_path())
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, tie_word_embeddings=True, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("lora", [0, 4])
def test_from_a_given_model(world, plain, tmp_path, lora):
    before = loading.load(plain, "float32", False)
    record = _train(world, tmp_path / "r", "--base", plain, "--lora", lora, "--epochs", 2,
                    "--dropout", 0)
    after = loading.load(tmp_path / "r", "float32", False)
    recommender = Recommender.open(tmp_path / "r")
    size = before.config.vocab_size
    assert recommender.first_code_token[0] >= size
    assert after.config.vocab_size >= recommender.tokens.max() + 1
    same = torch.equal(before.get_input_embeddings().weight, after.get_input_embeddings().weight[:size])
    assert same == bool(lora)
    first, other = (model.model.layers[0].mlp.up_proj.weight for model in (before, after))
    assert not torch.equal(first, other)
    assert min(record["training"]["validation"]) < np.log(after.config.vocab_size)


def test_a_history_that_the_positions_do_not_hold(world, plain, tmp_path):
    config = json.loads((plain / "config.json").read_text())
    shutil.copytree(plain, tmp_path / "short")
    (tmp_path / "short" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 24}))
    with pytest.raises(ConfigError, match="--history 8: .* 28 tokens, and the model has 24 .* at most 6"):
        _train(world, tmp_path / "r", "--base", tmp_path / "short")
    record = _train(world, tmp_path / "r", "--base", tmp_path / "short", "--history", 6, "--epochs", 1)
    assert record["settings"]["history"] == 6 and "width" not in record["settings"]


def test_low_rank_updates_need_a_model(world, tmp_path):
    with pytest.raises(ConfigError, match="--lora 4 updates an existing model: name it with --base"):
        _train(world, tmp_path / "r", "--lora", 4)
    with pytest.raises(ConfigError, match="--history is 0; it must be at least 1"):
        _train(world, tmp_path / "r", "--history", 0)


def test_trained_on_from_a_recommender(world, trained, tmp_path):
    record = _train(world, tmp_path / "r", "--base", trained[0], "--epochs", 1, "--rate", 1e-5,
                    "--warmup", 0)
    before, after = (one["training"]["validation"] for one in (trained[1], record))
    assert after[0] == pytest.approx(min(before), abs=0.2)
    assert len({Recommender.open(folder).first_code_token for folder in (tmp_path / "r", trained[0])}) == 1


def _work(model, recommender, world, stop_at=None):
    """Training of the ring; it ends like a killed process after some updates."""
    data, done = read(world.data, world.ids), [0]

    def loss(batch):
        done[0] += 1
        if done[0] == stop_at:
            raise KeyboardInterrupt
        return histories.next_token_loss(model, batch)

    held_out = histories.validation_batches(recommender, data.tests("valid"))
    return Training(
        lambda epoch: histories.epoch_batches(recommender, data.train, 256, 0.1,
                                              np.random.default_rng(epoch)),
        loss, lambda: float(np.mean([histories.next_token_loss(model, one).item() for one in held_out])))


@pytest.mark.slow
def test_a_killed_training_ends_in_the_same_weights(world, tmp_path):
    settings = Settings(width=16, layers=1, heads=2, dropout=0.3)
    schedule = Schedule(epochs=3, rate=0.01, weight_decay=0.1, warmup_steps=5, patience=3, save_every_s=0.0)

    def run(store, stop=None):
        model, _, recommender = network.new_model(world.ids, settings, tmp_path)
        with network.extra_dropout(model, settings.dropout):
            record = fit(model, _work(model, recommender, world, stop), schedule, store)
        return {name: weight.clone() for name, weight in model.named_parameters()}, record

    whole, record = run(None)
    for stop_at in (1, 9, 40):
        store = Checkpoint(tmp_path / f"state-{stop_at}", "this one")
        with pytest.raises(KeyboardInterrupt):
            run(store, stop_at)
        again, resumed = run(store)
        assert resumed["validation"] == record["validation"] and resumed["updates"] == record["updates"]
        assert all(torch.equal(again[name], weight) for name, weight in whole.items())
        assert Checkpoint(tmp_path / f"state-{stop_at}", "another").load() is None


@pytest.mark.parametrize(("keep_last", "epochs", "place"), [(False, 4, 1), (True, 5, 4)])
def test_early_stopping_keeps_the_best_weights_or_the_last(world, tmp_path, keep_last, epochs, place):
    model, _, _ = network.new_model(world.ids, Settings(width=16, layers=1, heads=2), tmp_path)
    figures, kept = iter([3.0, 1.0, 2.0, 2.5, 1.5]), []

    def figure():
        kept.append(model.lm_head.weight.clone())
        return next(figures)

    ids = torch.tensor([[1, 5, 6]])
    training = Training(lambda number: [ids], lambda batch: model(input_ids=batch, labels=batch).loss, figure)
    record = fit(model, training, Schedule(5, 0.01, 0.0, 1, patience=2, keep_last=keep_last))
    assert (record["epochs"], record["best_epoch"]) == (epochs, 2)
    assert torch.equal(model.lm_head.weight, kept[place])


def test_a_loss_that_is_no_number(world, tmp_path):
    model, _, _ = network.new_model(world.ids, Settings(width=16, layers=1, heads=2), tmp_path)
    weight = next(model.parameters())
    training = Training(lambda number: [0], lambda batch: weight.sum() * float("nan"), lambda: 0.0)
    with pytest.raises(ModelError, match="the loss of update 1 is not finite"):
        fit(model, training, Schedule(1, 0.01, 0.0, 1, 1))


def test_a_folder_of_something_else(world, trained, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not an earlier result"):
        _train(world, tmp_path / "r")
    assert (tmp_path / "r" / "thesis.txt").read_text() == "mine"
    shutil.copytree(trained[0], tmp_path / "model")
    with pytest.raises(ConfigError, match="--save .*model is the folder of --base"):
        _train(world, tmp_path / "model", "--base", tmp_path / "model")
    with pytest.raises(ConfigError, match="no recommender.json"):
        Recommender.open(tmp_path / "r")


def test_ids_of_another_model(trained, tmp_path):
    folder, _ = trained
    for name in ("config.json", "item_ids.json", "recommender.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    record = json.loads((tmp_path / "recommender.json").read_text())
    (tmp_path / "recommender.json").write_text(json.dumps({**record, "first_code_token": [4, 8, 99]}))
    with pytest.raises(ModelError, match="the largest item token is"):
        Recommender.open(tmp_path)
    (tmp_path / "recommender.json").write_text(json.dumps({**record, "first_code_token": [4, 8]}))
    with pytest.raises(ModelError, match="3 levels"):
        Recommender.open(tmp_path)


@pytest.mark.slow
def test_a_killed_process_goes_on(world, tmp_path, monkeypatch):
    """Killed with SIGKILL once it has a checkpoint, and started again: it resumes."""
    to = tmp_path / "r"
    state = training_folder(to) / "state.safetensors"
    command = [sys.executable, "-c", "from dare_job.training.loop import Schedule; "
               "made = Schedule.__init__; made.__defaults__ = (0.0, *made.__defaults__[1:]); "
               "from dare_job.cli import main; main()",
               "recommender", "train", "--data", str(world.data), "--ids", str(world.ids_file), "--save",
               str(to),
               *SMALL, "--epochs", "400", "--patience", "400"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not state.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL and not to.exists()
    assert load_file(state)  # whole
    seen = []
    kept = loop.fit

    def watching(model, training, schedule, checkpoint):
        seen.append(checkpoint.load())
        return kept(model, training, Schedule(1, schedule.rate, 0, 1, 1), checkpoint)

    monkeypatch.setattr("dare_job.training.recommender.train.fit", watching)
    _train(world, to, "--epochs", "400", "--patience", "400")
    assert seen[0] is not None and seen[0][1]["updates"] > 0 and os.listdir(to)
