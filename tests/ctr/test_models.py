"""Both models with and without texts: shapes, equal starts, what missing texts do, and that texts help."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ctr_tables import kinds, made
from sklearn.metrics import log_loss, roc_auc_score

from dare_job.evaluate.ctr import train
from dare_job.evaluate.ctr.inputs import BASE, Inputs, join
from dare_job.evaluate.ctr.knowledge import Knowledge
from dare_job.evaluate.ctr.models import Ctr
from dare_job.evaluate.ctr.options import MODELS
from dare_job.evaluate.ctr.train import TrainSettings, fit, tensors
from dare_job.training import loop as training_loop

QUICK = TrainSettings(epochs=2, batch_size=64)


def inputs(found, name="strict", clusters=False, seed=1) -> Inputs:
    tables = []
    for entity, entities in (("user", found.users), ("item", found.items)):
        number = np.array([int(name[1:]) for name in entities.ids])
        codes = np.stack([number % 2, number], 1).astype(np.int32) if clusters else None
        vectors = None if clusters else kinds(len(number), seed=seed)[number]
        tables.append(Knowledge(entity, "2025-12-31", list(entities.ids), vectors, codes,
                                np.zeros(len(number), np.int64), 0))
    return join(name, tables, found)


def batch(found, given, rows=16):
    return {name: column[:rows] for name, column in tensors(found, given).items()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["base", "vectors", "clusters"])
def test_a_batch_becomes_probabilities_and_every_weight_can_learn(model, kind):
    found = made()
    given = Inputs(BASE) if kind == "base" else inputs(found, clusters=kind == "clusters")
    network, rows = Ctr(model, found, given, 0), batch(found, given)
    probability = network(rows)
    assert probability.shape == (16,) and bool(((probability > 0) & (probability < 1)).all())
    torch.nn.functional.binary_cross_entropy(probability, rows["label"]).backward()
    unused = [name for name, weight in network.named_parameters()
              if weight.grad is None and ".none." not in name]
    assert not unused


@pytest.mark.parametrize("model", MODELS)
def test_sets_of_a_seed_start_alike_and_seeds_do_not(model):
    found = made()
    strict, relaxed = (Ctr(model, found, inputs(found, seed=seed), 7).state_dict() for seed in (1, 2))
    assert all(torch.equal(strict[name], relaxed[name]) for name in strict)
    base = Ctr(model, found, Inputs(BASE), 7).state_dict()
    alike = [name for name in base if "embed" in name or "attention" in name]
    assert alike and all(torch.equal(strict[name], base[name]) for name in alike)
    other = Ctr(model, found, inputs(found), 8).state_dict()
    assert any(not torch.equal(strict[name], other[name]) for name in strict)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_can_be_repeated_to_the_last_digit(model):
    found = made()
    runs = [fit(Ctr(model, found, inputs(found), 3), found, inputs(found), 3, QUICK) for _ in range(2)]
    assert (runs[0].auc, runs[0].logloss) == (runs[1].auc, runs[1].logloss)


def test_every_set_of_a_seed_sees_the_same_rows_in_the_same_order(monkeypatch):
    found, seen = made(), {}
    real = training_loop.fit
    for name, given in (("base", Inputs(BASE)), ("strict", inputs(found))):
        def recording(model, training, *arguments, name=name, **options):
            def batches(epoch):
                found = training.batches(epoch)
                seen.setdefault(name, []).append(torch.cat(found).tolist())
                return found

            return real(model, replace(training, batches=batches), *arguments, **options)

        monkeypatch.setattr(training_loop, "fit", recording)
        fit(Ctr("dcnv2", found, given, 3), found, given, 3, QUICK)
    assert seen["base"] == seen["strict"] and seen["base"][0] != seen["base"][1]
    assert sorted(seen["base"][0]) == found.rows["train"].tolist()


@pytest.mark.parametrize("model", MODELS)
def test_a_row_without_a_text_does_not_depend_on_what_others_wrote(model):
    found = made()
    given = inputs(found)
    network = Ctr(model, found, given, 0).eval()
    rows = batch(found, given)
    rows["text.user"] = torch.zeros_like(rows["text.user"])
    before = network(rows)
    network.text_user[1:] += 5
    assert torch.equal(before, network(rows))
    rows["text.user"] += 1
    assert not torch.equal(before, network(rows))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("model", "clusters"), [
    (MODELS[0], False), (MODELS[1], True),
    *(pytest.param(*each, marks=pytest.mark.release) for each in ((MODELS[0], True), (MODELS[1], False)))])
def test_texts_that_tell_the_kind_lift_auc(model, clusters):
    """Few rows a user: the base learns a user's kind slowly, the text says it."""
    found = made(users=400, items=40, rows=4000)
    settings = TrainSettings(epochs=4, batch_size=64, learning_rate=2e-3)
    given = inputs(found, clusters=clusters)
    base = fit(Ctr(model, found, Inputs(BASE), 0), found, Inputs(BASE), 0, settings)
    lifted = fit(Ctr(model, found, given, 0), found, given, 0, settings)
    assert lifted.auc > base.auc + 0.05


def test_the_average_of_weights_and_statistics_follows_its_formula():
    network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    average, expected = train.averaged(network, 0.25), None
    for step in range(4):
        with torch.no_grad():
            network[0].bias += 1
            network[1].running_mean += 2
            network[1].num_batches_tracked += 1
        average.update_parameters(network)
        now = torch.stack((network[0].bias.detach(), network[1].running_mean))
        keep = min(0.25, (1 + step) / (10 + step))  # 2/11, then 0.25
        expected = now if expected is None else keep * expected + (1 - keep) * now
    found = average.module
    assert torch.allclose(torch.stack((found[0].bias.detach(), found[1].running_mean)), expected)
    assert found[1].num_batches_tracked == 4 and network[0].bias != found[0].bias


def test_without_an_average_the_last_weights_count():
    network = torch.nn.Linear(2, 1)
    average = train.averaged(network, 0.0)
    for _ in range(3):
        with torch.no_grad():
            network.weight += 1
        average.update_parameters(network)
    assert torch.equal(average.module.weight, network.weight)


def test_the_figures_are_those_of_the_best_epoch_on_the_test_part():
    found, given = made(), Inputs(BASE)
    network = Ctr("din", found, given, 1)
    fitted = fit(network, found, given, 1, TrainSettings(epochs=6, batch_size=64, patience=2))
    rows = {name: column[found.rows["test"]] for name, column in tensors(found, given).items()}
    with torch.no_grad():
        probability = network.eval()(rows).double().numpy()
    label = found.label[found.rows["test"]]
    assert fitted.auc == pytest.approx(roc_auc_score(label, probability))
    assert fitted.logloss == pytest.approx(log_loss(label, probability))
    assert 1 <= fitted.epochs <= 6
