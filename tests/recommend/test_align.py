"""``dare-job align``: what it learns from, what it gains, and that it is taken up again after a kill."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from recommend_world import some_ids, untrained
from typer.testing import CliRunner

from dare_job.cli import app
from dare_job.errors import ConfigError
from dare_job.recommend.ids.vocabulary import Recommender
from dare_job.recommend.train import beams
from dare_job.recommend.train.align import command, lessons, measure
from dare_job.recommend.train.align.objective import objective
from dare_job.recommend.train.align.settings import LOSSES, Settings
from dare_job.recommend.train.command import training_folder
from dare_job.recommend.train.table import CodeTable

IDS = some_ids()
TABLE = CodeTable.of(IDS)
EXAMPLES = [(np.array([user, user + 1, user + 2]), user + 3) for user in range(20)]
HISTORIES = [history for history, _ in EXAMPLES]


def _made(**settings):
    chosen = Settings(**{"k": 3, "beams": 6, **settings})
    target, draft = untrained(IDS, 0), untrained(IDS, 5, width=8, layers=1)
    return target, draft, chosen, lessons.make(target, draft, TABLE, EXAMPLES, chosen)


def test_lessons_are_the_targets_beams():
    target, _, _, found = _made(loss="r")
    best = beams.search([target], [1.0], TABLE, HISTORIES, 3)[-1]
    assert (found.codes[:, :3] == best.codes).all() and found.counted.all()
    assert (found.codes[:, 3] == torch.from_numpy(IDS.codes[[row for _, row in EXAMPLES]])).all()
    said = found.log_p.float().gather(-1, found.codes.long()[..., None])[..., 0][:, :3]
    torch.testing.assert_close(said, best.steps, atol=0.02, rtol=1e-3)
    torch.testing.assert_close(found.log_p_k[:, 0], best.steps[:, 2])
    torch.testing.assert_close(found.log_p_k[:, 0], found.log_p_k[:, 3])


def test_lessons_of_s_are_the_mixtures_beams():
    target, draft, _, found = _made(loss="s", mix=0.3)
    mixed = beams.search([target, draft], [0.3, 0.7], TABLE, HISTORIES, 3)[-1]
    assert (found.codes[:, :3] == mixed.codes).all()
    assert (found.codes[:, :3] != _made(loss="r")[3].codes[:, :3]).any()


def test_lessons_of_every_step():
    target, _, _, found = _made(loss="r", all_steps=True)
    steps = beams.search([target], [1.0], TABLE, HISTORIES, 3)
    assert found.codes.shape == (20, 3 * 3 + 1, 3)
    for step, beam in enumerate(steps):
        rows = slice(3 * step, 3 * step + 3)
        assert (found.codes[:, rows, :step + 1] == beam.codes).all()
        assert found.counted[:, rows].sum((0, 1)).tolist() == [60 * (level <= step) for level in range(3)]
    assert _made(loss="r", top_one=True)[3].codes.shape == (20, 2, 3)


def test_fewer_items_than_k():
    ids = some_ids(items=5, sizes=(2, 3))
    scorer, table = untrained(ids), CodeTable.of(ids)
    chosen = Settings(loss="s", k=7, beams=9)
    found = lessons.make(scorer, scorer, table, [(np.array([0]), 1)], chosen)
    assert found.counted[0, :7].all(1).sum() == 4  # items with ids of their own
    assert objective(scorer, table, [np.array([0])], found, chosen).isfinite()


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_goes_down(loss):
    target, draft, chosen, found = _made(loss=loss)
    optimizer = torch.optim.AdamW(draft[0].parameters(), 0.01)
    told = []
    for _ in range(15):
        optimizer.zero_grad()
        told.append(objective(draft, TABLE, HISTORIES, found, chosen))
        told[-1].backward()
        optimizer.step()
    assert told[-1] < told[0] - 0.01


def test_switches_change_the_objective():
    target, draft, chosen, found = _made(loss="s")
    told = {name: objective(draft, TABLE, HISTORIES, found, replace(chosen, **change)).item()
            for name, change in (("s", {}), ("no density", {"density": False}), ("alpha", {"alpha": 0.5}),
                                 ("unconstrained", {"constrained": False}))}
    assert len(set(told.values())) == 4
    recommending = objective(draft, TABLE, HISTORIES, found, replace(chosen, alpha=0.0)).item()
    assert recommending == pytest.approx(
        objective(draft, TABLE, HISTORIES, found, replace(chosen, loss="sft")).item())


def test_accepted_steps_by_hand():
    wanted = [torch.tensor([[0, 1], [0, 1], [2, -1]]), torch.tensor([[5, 6], [5, 6], [7, 8]])]
    drafted = [torch.tensor([[1, 0, 3], [1, 3, 2], [3, 2, 9]]),
               torch.tensor([[6, 5, 0], [6, 5, 0], [7, 0, 0]])]
    assert measure.accepted_steps(wanted, drafted).tolist() == [2, 0, 1]
    target, *_ = _made()
    mine = measure.prefixes(target, TABLE, HISTORIES, 3)
    assert (measure.accepted_steps(mine, measure.prefixes(target, TABLE, HISTORIES, 8)) == 2).all()


def _ran(*arguments):
    found = CliRunner().invoke(app, [*map(str, arguments)])
    if found.exception:
        raise found.exception
    return json.loads(found.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def pair(world, tmp_path_factory):
    """Folders of a target that has learned the ring, and of a draft that has learned less of it."""
    folder = tmp_path_factory.mktemp("pair")
    for name, width, epochs in (("target", 32, 12), ("draft", 16, 4)):
        _ran("train-recommender", "--data", world.data, "--ids", world.ids_file, "--to", folder / name,
             "--width", width, "--layers", 1, "--heads", 2, "--rate", 0.01, "--warmup", 5, "--history", 8,
             "--epochs", epochs, "--batch-tokens", 512)
    return folder


def _align(world, pair, to, *more):
    return _ran("align", "--data", world.data, "--target", pair / "target", "--draft", pair / "draft",
                "--to", to, "--k", 5, "--beams", 8, "--examples", 300, "--held-out", 100, "--epochs", 3,
                "--warmup", 5, "--rate", 0.01, *more)


@pytest.mark.parametrize("loss", ["s", "r", "seqkd"])
def test_more_steps_are_accepted(world, pair, tmp_path, loss):
    found = _align(world, pair, tmp_path / "aligned", "--loss", loss, "--dropout", 0)
    steps = found["accepted_steps"]
    assert steps["after"] >= steps["before"] + (0.1 if loss in "sr" else 0) and found["loss"] == loss
    assert Recommender.open(tmp_path / "aligned").first_code_token == Recommender.open(
        pair / "draft").first_code_token
    assert not training_folder(tmp_path / "aligned").exists()


def test_alpha_is_searched_on_the_same_lessons(world, pair, tmp_path):
    kept = tmp_path / "lessons.safetensors"
    found = _align(world, pair, tmp_path / "a", "--loss", "r", "--search-alpha", "--epochs", 1,
                   "--lessons", kept)
    assert list(found["alphas"]) == ["0.1", "0.3", "0.5", "0.7", "0.9"]
    assert found["accepted_steps"]["after"] == max(found["alphas"].values())
    written = kept.stat().st_mtime_ns
    again = _align(world, pair, tmp_path / "b", "--loss", "r", "--alpha", found["settings"]["alpha"],
                   "--epochs", 1, "--lessons", kept)
    assert kept.stat().st_mtime_ns == written
    assert again["accepted_steps"]["after"] == found["accepted_steps"]["after"]


def test_a_killed_alignment_goes_on(world, pair, tmp_path, monkeypatch):
    whole = _align(world, pair, tmp_path / "whole")
    kept, steps = command.objective, [0]

    def dying(*arguments):
        steps[0] += 1
        if steps[0] == 15:
            raise KeyboardInterrupt
        return kept(*arguments)

    monkeypatch.setattr(command, "objective", dying)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        _align(world, pair, tmp_path / "killed")
    assert not (tmp_path / "killed").exists() and training_folder(tmp_path / "killed").is_dir()
    monkeypatch.setattr(lessons, "make", lambda *arguments: pytest.fail("the lessons are there"))
    again = _align(world, pair, tmp_path / "killed")
    assert steps[0] < 15 + whole["training"]["updates"]
    assert again["training"]["validation"] == whole["training"]["validation"]
    whole, killed = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert whole == killed


def test_other_ids_are_refused(world, pair, tmp_path):
    ids = replace(world.ids, codes=world.ids.codes[::-1].copy())
    ids.save(tmp_path / "ids.json")
    _ran("train-recommender", "--data", world.data, "--ids", tmp_path / "ids.json",
         "--to", tmp_path / "other", "--width", 16, "--layers", 1, "--heads", 2, "--epochs", 1)
    with pytest.raises(ConfigError, match="other item ids"):
        _ran("align", "--data", world.data, "--target", pair / "target", "--draft", tmp_path / "other",
             "--to", tmp_path / "x")
    with pytest.raises(ConfigError, match="below --k"):
        _align(world, pair, tmp_path / "x", "--k", 50)
