"""``recommender align``: what it learns from, what it gains, and that it continues after a kill."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from recommend_world import some_ids, untrained
from typer.testing import CliRunner

from dare_job.cli import app
from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.trie import NONE, Trie, Vocabulary
from dare_job.errors import ConfigError, ModelError
from dare_job.recommend.vocabulary import Recommender
from dare_job.training.align import alignment, teacher_paths
from dare_job.training.align import teacher_paths as align_settings
from dare_job.training.align.branches import MixedTopK, log_probabilities, search_engine, top_k_search
from dare_job.training.align.objective import objective
from dare_job.training.align.settings import LOSSES, Settings
from dare_job.training.result import training_folder

IDS = some_ids()
VIEW = Vocabulary(Trie.from_codes(IDS.codes), [0] * IDS.length)
TRIE = VIEW.trie
EXAMPLES = [(np.array([user, user + 1, user + 2]), user + 3) for user in range(20)]
HISTORIES = [history for history, _ in EXAMPLES]


def _made(**settings):
    chosen = Settings(**{"k": 3, "beams": 6, **settings})
    target, draft = untrained(IDS, 0), untrained(IDS, 5, width=8, layers=1)
    by = search_engine(target), search_engine(draft, trained=True)
    return by, draft, chosen, teacher_paths.make(*by, TRIE, EXAMPLES, chosen)


def _codes(search, recommender, other=None):
    """Of each step the codes (20, 3, level) of its beams."""
    queries = [Query(recommender.prompt(history), draft_prompt=other.prompt(history) if other else ())
            for history in HISTORIES]
    found = search.search(queries).prefixes
    return [torch.from_numpy(TRIE.prefixes(found[:, level], level + 1)) for level in range(3)]


def _sums(scorer, codes):
    """Log-probabilities (20, S, L) of each code behind those before it, one sequence after the other."""
    model, recommender = scorer
    found = []
    for history, rows in zip(HISTORIES, codes, strict=True):
        ids = torch.tensor([recommender.prompt(history) + (one + torch.tensor(
            recommender.first_code_token)).tolist() for one in rows])
        with torch.no_grad():
            logs = model(ids).logits.log_softmax(-1)[:, -4:-1]
        found.append(logs.gather(-1, ids[:, -3:, None])[..., 0])
    return torch.stack(found)


def test_teacher_paths_are_the_targets_beams():
    (target, _), _, _, found = _made(loss="r")
    best = _codes(top_k_search(target, TRIE, 3), target[1])[-1]
    assert (found.codes[:, :3] == best).all() and found.counted.all()
    assert (found.codes[:, 3] == torch.from_numpy(IDS.codes[[row for _, row in EXAMPLES]])).all()
    log_p = found.log_p.float().gather(-1, found.codes.long()[..., None])[..., 0][:, :3]
    steps = _sums(untrained(IDS, 0), best)
    assert (steps.sum(-1).diff(dim=1) < 1e-5).all()  # the best first
    torch.testing.assert_close(log_p, steps, atol=0.02, rtol=1e-3)
    torch.testing.assert_close(found.log_p_k[:, 0], steps[:, 2], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.log_p_k[:, 0], found.log_p_k[:, 3])


def test_teacher_paths_of_s_are_the_mixtures_beams():
    (target, draft), _, _, found = _made(loss="s", mix=0.3)
    mixed = _codes(MixedTopK(target, draft, 0.3, TRIE, 3), target[1], draft[1])[-1]
    assert (found.codes[:, :3] == mixed).all()
    of_p = _made(loss="r")[3]
    assert (found.codes[:, :3] != of_p.codes[:, :3]).any() and (found.log_p_k == of_p.log_p_k).all()


def test_beams_of_a_mixture_are_the_best_of_all_ids():
    ids = some_ids(items=12, sizes=(2, 3, 3))
    scorers, trie = [untrained(ids, 0), untrained(ids, 5, width=8, layers=1)], Trie.from_codes(ids.codes)
    paths = torch.from_numpy(trie.paths(np.arange(trie.leaves))).long()
    by = [search_engine(scorer, trained=True) for scorer in scorers]
    queries = [Query(scorers[0][1].prompt(HISTORIES[2]), draft_prompt=scorers[1][1].prompt(HISTORIES[2]))]
    for share in (0.0, 0.3, 1.0):
        with torch.no_grad():
            steps = [log_probabilities(*scorer, [HISTORIES[2]], paths[None])[0].gather(
                -1, paths[..., None])[..., 0].exp() for scorer in scorers]
        due = (share * steps[0] + (1 - share) * steps[1]).log().sum(-1).sort(descending=True)
        found = MixedTopK(*by, share, trie, 99).search(queries)
        assert found.leaves[0].tolist() == due.indices.tolist()
        torch.testing.assert_close(torch.from_numpy(found.scores[0]), due.values, atol=1e-4, rtol=1e-4)


def test_teacher_paths_of_every_step():
    (target, _), _, _, found = _made(loss="r", all_steps=True)
    steps = _codes(top_k_search(target, TRIE, 3), target[1])
    assert found.codes.shape == (20, 3 * 3 + 1, 3)
    for step, beam in enumerate(steps):
        rows = slice(3 * step, 3 * step + 3)
        assert (found.codes[:, rows, :step + 1] == beam).all() and not found.codes[:, rows, step + 1:].any()
        last = torch.nn.functional.pad(beam[:, 2:], (0, 2 - step))
        due = _sums(untrained(IDS, 0), last)[:, :, :step + 1].expand(-1, 3, -1)
        torch.testing.assert_close(found.log_p_k[:, rows, :step + 1], due, atol=1e-4, rtol=1e-4)
        assert found.counted[:, rows].sum((0, 1)).tolist() == [60 * (level <= step) for level in range(3)]
    assert _made(loss="r", top_one=True)[3].codes.shape == (20, 2, 3)


def test_fewer_items_than_k():
    ids = some_ids(items=5, sizes=(2, 3))
    scorer, view = untrained(ids), Vocabulary(Trie.from_codes(ids.codes), [0, 0])
    chosen, by = Settings(loss="s", k=7, beams=9), search_engine(scorer, trained=True)
    found = teacher_paths.make(by, by, view.trie, [(np.array([0]), 1)], chosen)
    assert found.counted[0, :7].all(1).sum() == 4  # items with ids of their own
    assert objective(scorer, view, [np.array([0])], found, chosen).isfinite()


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_goes_down(loss):
    _, draft, chosen, found = _made(loss=loss)
    optimizer = torch.optim.AdamW(draft[0].parameters(), 0.01)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        losses.append(objective(draft, VIEW, HISTORIES, found, chosen))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.01


def test_switches_change_the_objective():
    _, draft, chosen, found = _made(loss="s")
    losses = {name: objective(draft, VIEW, HISTORIES, found, replace(chosen, **change)).item()
            for name, change in (("s", {}), ("no density", {"density": False}), ("alpha", {"alpha": 0.5}),
                                 ("unconstrained", {"constrained": False}))}
    assert len(set(losses.values())) == 4
    recommending = objective(draft, VIEW, HISTORIES, found, replace(chosen, alpha=0.0)).item()
    assert recommending == pytest.approx(
        objective(draft, VIEW, HISTORIES, found, replace(chosen, loss="sft")).item())


def test_accepted_steps_by_hand():
    wanted = np.array([[[0, 1], [5, 6]], [[0, 1], [5, 6]], [[2, NONE], [7, 8]]])
    drafted = np.array([[[1, 0, 3], [6, 5, 0]], [[1, 3, 2], [6, 5, 0]], [[3, 2, 9], [7, 0, 0]]])
    assert align_settings.accepted_steps(wanted, drafted).tolist() == [2, 0, 1]
    (target, _), *_ = _made()
    mine = align_settings.best_prefixes(target, TRIE, HISTORIES, 3)
    assert (
        align_settings.accepted_steps(mine, align_settings.best_prefixes(target, TRIE, HISTORIES, 8)) == 2
    ).all()


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
        _ran("recommender", "train", "--data", world.data, "--ids", world.ids_file, "--save", folder / name,
             "--width", width, "--layers", 1, "--heads", 2, "--rate", 0.01, "--warmup", 5, "--history", 8,
             "--epochs", epochs, "--batch-tokens", 512)
    return folder


def _align(world, pair, to, *more):
    return _ran("recommender", "align", "--data", world.data, "--recommender", pair / "target", "--draft",
                pair / "draft",
                "--save", to, "--k", 5, "--beams", 8, "--examples", 300, "--held-out", 100, "--epochs", 3,
                "--warmup", 5, "--rate", 0.01, *more)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["s", "r", "seqkd"])
def test_more_steps_are_accepted(world, pair, tmp_path, loss):
    found = _align(world, pair, tmp_path / "aligned", "--loss", loss, "--dropout", 0)
    steps = found["accepted_steps"]
    assert steps["after"] >= steps["before"] + (0.1 if loss in "sr" else 0) and found["loss"] == loss
    assert Recommender.open(tmp_path / "aligned").first_code_token == Recommender.open(
        pair / "draft").first_code_token
    assert not training_folder(tmp_path / "aligned").exists()


@pytest.mark.slow
def test_alpha_is_searched_on_the_same_teacher_paths(world, pair, tmp_path):
    kept = tmp_path / "paths.safetensors"
    found = _align(world, pair, tmp_path / "a", "--loss", "r", "--alpha", "search", "--epochs", 1,
                   "--teacher-paths", kept)
    assert list(found["alphas"]) == ["0.1", "0.3", "0.5", "0.7", "0.9"]
    assert found["accepted_steps"]["after"] == max(found["alphas"].values())
    written = kept.stat().st_mtime_ns
    again = _align(world, pair, tmp_path / "b", "--loss", "r", "--alpha", found["settings"]["alpha"],
                   "--epochs", 1, "--teacher-paths", kept)
    assert kept.stat().st_mtime_ns == written
    assert again["accepted_steps"]["after"] == found["accepted_steps"]["after"]


@pytest.mark.slow
def test_a_killed_alignment_goes_on(world, pair, tmp_path, monkeypatch):
    whole = _align(world, pair, tmp_path / "whole")
    kept, steps = alignment.objective, [0]

    def dying(*arguments):
        steps[0] += 1
        if steps[0] == 15:
            raise KeyboardInterrupt
        return kept(*arguments)

    monkeypatch.setattr(alignment, "objective", dying)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        _align(world, pair, tmp_path / "killed")
    assert not (tmp_path / "killed").exists() and training_folder(tmp_path / "killed").is_dir()
    monkeypatch.setattr(teacher_paths, "make", lambda *arguments: pytest.fail("the teacher paths were saved"))
    again = _align(world, pair, tmp_path / "killed")
    assert steps[0] < 15 + whole["training"]["updates"]
    assert again["training"]["validation"] == whole["training"]["validation"]
    whole, killed = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert whole == killed


def test_other_ids_are_refused(world, pair, tmp_path):
    ids = replace(world.ids, codes=world.ids.codes[::-1].copy())
    ids.save(tmp_path / "ids.json")
    _ran("recommender", "train", "--data", world.data, "--ids", tmp_path / "ids.json",
         "--save", tmp_path / "other", "--width", 16, "--layers", 1, "--heads", 2, "--epochs", 1)
    with pytest.raises(ConfigError, match="other item ids"):
        _ran("recommender", "align", "--data", world.data, "--recommender", pair / "target", "--draft",
             tmp_path / "other",
             "--save", tmp_path / "x")
    with pytest.raises(ConfigError, match="below --k"):
        _align(world, pair, tmp_path / "x", "--k", 50)


def test_a_draft_without_a_tokenizer_is_refused_before_any_lesson(world, pair, tmp_path, monkeypatch):
    draft = tmp_path / "draft"
    shutil.copytree(pair / "draft", draft)
    for path in draft.glob("token*"):
        path.unlink()
    monkeypatch.setattr(alignment.teacher_paths, "make", lambda *_: pytest.fail("teacher paths were made"))
    with pytest.raises(ModelError, match="--draft .*draft: its tokenizer cannot be read"):
        _ran("recommender", "align", "--data", world.data, "--recommender", pair / "target", "--draft",
             draft, "--save",
             tmp_path / "aligned")


@pytest.mark.parametrize(("name", "message"), [
    ("target", "--save .*target is the folder of --recommender"),
    ("draft", "--save .*draft is the folder of --draft"),
    ("other", r"--save .*other is not an earlier result .*training\.json: recommender\)")])
def test_no_other_model_is_replaced(world, pair, tmp_path, name, message):
    shutil.copytree(pair, tmp_path, dirs_exist_ok=True)
    shutil.copytree(pair / "draft", tmp_path / "other")
    before = (tmp_path / name / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match=message):
        _align(world, tmp_path, tmp_path / name)
    assert (tmp_path / name / "model.safetensors").read_bytes() == before


def test_an_earlier_alignment_is_replaced(world, pair, tmp_path):
    made = [_align(world, pair, tmp_path / "aligned", "--epochs", 1, "--seed", seed) for seed in (0, 1)]
    record = json.loads((tmp_path / "aligned" / "training.json").read_text())
    assert [one["kind"] for one in made] == ["aligned draft"] * 2 and record["settings"]["seed"] == 1


def test_teacher_paths_of_other_data_are_not_replaced(world, pair, tmp_path):
    ids, kept = tmp_path / "ids.json", tmp_path / "paths.safetensors"
    shutil.copy(world.ids_file, ids)
    with pytest.raises(ConfigError, match=r"--teacher-paths .*ids\.json exists and was made from other data"):
        _align(world, pair, tmp_path / "a", "--teacher-paths", ids)
    _align(world, pair, tmp_path / "a", "--teacher-paths", kept, "--epochs", 1)
    before = kept.read_bytes()
    with pytest.raises(ConfigError, match="exists and was made from other data, models or"):
        _align(world, pair, tmp_path / "b", "--teacher-paths", kept, "--epochs", 1, "--examples", 200)
    assert kept.read_bytes() == before and ids.read_bytes() == world.ids_file.read_bytes()
