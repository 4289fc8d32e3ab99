"""The batched beam search says what ``generate`` says under its constraint, and what enumeration says."""

import itertools
import math

import numpy as np
import pytest
import torch
from recommend_world import some_ids, untrained

from dare_job.recommend.train import beams
from dare_job.recommend.train.table import CodeTable

HISTORIES = [np.array(row, np.int64) for row in ([], [3], [1, 2, 3, 4], list(range(12)))]


def _sequence_score(model, recommender, history, row):
    prompt = recommender.prompt(history)
    logs = model(torch.tensor([prompt + recommender.tokens[row].tolist()])).logits[0].double().log_softmax(-1)
    return sum(logs[len(prompt) - 1 + level, token].item()
               for level, token in enumerate(recommender.tokens[row].tolist()))


@torch.no_grad()
def test_wide_beams_are_the_enumeration():
    ids = some_ids(items=12, sizes=(2, 3, 3))
    model, recommender = untrained(ids)
    table = CodeTable.of(ids)
    found = beams.search([(model, recommender)], [1.0], table, HISTORIES, 18)[-1]
    lists = beams.items(found, table, [history[:0] for history in HISTORIES], 99)
    for history, listed, scores in zip(HISTORIES, lists, found.scores, strict=True):
        due = {row: _sequence_score(model, recommender, history, row) for row in range(len(ids.items))}
        assert sorted(listed.tolist()) == list(range(12))
        said = [due[row] for row in listed if row != 11]  # 11 shares the id of 0
        assert said == sorted(said, reverse=True)
        np.testing.assert_allclose(scores[scores > -math.inf], said, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("width", [1, 3, 7])
def test_equals_generate(width):
    ids = some_ids()
    model, recommender = untrained(ids, seed=3)
    table = CodeTable.of(ids)
    known = {tuple(row) for row in recommender.tokens.tolist()}
    found = beams.search([(model, recommender)], [1.0], table, HISTORIES, width)[-1]
    for place, history in enumerate(HISTORIES):
        prompt = recommender.prompt(history)
        length = len(prompt)

        def allowed(_, tokens, start=length):
            said = tuple(tokens[start:].tolist())
            return sorted({row[len(said)] for row in known if row[:len(said)] == said})

        out = model.generate(torch.tensor([prompt]), num_beams=width, num_return_sequences=width,
                             do_sample=False, max_new_tokens=3, min_new_tokens=3,
                             prefix_allowed_tokens_fn=allowed,
                             length_penalty=0.0, pad_token_id=0, eos_token_id=None)
        said = [tuple(row) for row in out[:, len(prompt):].tolist()]
        ours = [tuple(np.add(codes, recommender.first_code_token).tolist()) for codes in
                found.codes[place].tolist()]
        assert ours == said


def test_parts_of_the_scores_add_up():
    ids = some_ids()
    found = beams.search([untrained(ids)], [1.0], CodeTable.of(ids), HISTORIES, 5)
    for level, one in enumerate(found):
        assert one.codes.shape == (4, one.scores.shape[1], level + 1)
        torch.testing.assert_close(one.steps.sum(-1), one.scores, atol=1e-5, rtol=0)


def test_a_mixture_lies_between_its_models():
    ids = some_ids()
    scorers, table = [untrained(ids, 0), untrained(ids, 5, width=8, layers=1)], CodeTable.of(ids)
    alone = [beams.search([one], [1.0], table, HISTORIES, 6)[0] for one in scorers]
    same = beams.search(scorers, [0.0, 1.0], table, HISTORIES, 6)[0]
    assert (same.codes == alone[1].codes).all()
    mixed = beams.search(scorers, [0.3, 0.7], table, HISTORIES, 4)[0]
    for user, code in itertools.product(range(4), range(4)):
        parts = [one.scores[user, one.codes[user, :, 0] == code].exp().item() for one in alone]
        total = mixed.scores[user, mixed.codes[user, :, 0] == code].exp().item()
        assert total == pytest.approx(0.3 * parts[0] + 0.7 * parts[1], abs=1e-6)


def test_shared_ids_expand_in_popularity_order():
    ids = some_ids()
    times = np.zeros(len(ids.items), int)
    assert next(rows for rows in CodeTable.of(ids, times).owners if 0 in rows) == (0, 39)
    times[39] = 1
    assert next(rows for rows in CodeTable.of(ids, times).owners if 0 in rows) == (39, 0)
