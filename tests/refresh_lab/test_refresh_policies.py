"""Replayed nights: budgets hold, the choice is by score, and what a policy knows is what the world shows."""

from dataclasses import replace

import numpy as np
import pytest

from dare_job import prompts
from dare_job.data.sample_world.daily import profile_of_interests, simulate_daily
from dare_job.evaluate.refresh.nights import NONE, full_refresh, item_facts, kinds, moves
from dare_job.evaluate.refresh.policies import Budget, Policy, features, replay, simple, valued
from dare_job.evaluate.refresh.scores import Days, Scorer

FIRST, USERS = 5, 60


def words(texts):
    return [len(text.split()) for text in texts]


@pytest.fixture(scope="module")
def world():
    return simulate_daily(USERS, 40, 16, 0)


@pytest.fixture(scope="module")
def nights(world):
    vectors = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    return full_refresh(world, prompts.load(prompts.SAMPLE), vectors, words)


def test_nights_are_those_of_the_clicks(world, nights):
    shown = world.shown
    for night, user in ((3, 0), (9, 7), (15, 20)):
        mine = (shown.user == user) & shown.click & (shown.day <= night)
        titles = [world.catalogue.titles[item] for item in shown.item[mine][::-1][:20]]
        assert nights.clicks[night, user] == mine.sum()
        if titles:
            text = profile_of_interests(world.users.attributes[user], titles)
            assert nights.texts[nights.text[night, user]] == text
            assert nights.text_tokens[night, user] == len(text.split())
        else:
            assert nights.text[night, user] == NONE


def test_a_label_row_has_the_chance_of_its_own_click(world, nights):
    vectors = np.random.default_rng(0).normal(size=(len(nights.texts), 4)).astype(np.float32)
    scorer = Scorer(world, nights, vectors, Days(2, 12, 16), 2)
    label, chance = scorer.rows.label, scorer.chance
    for rows in (chance < 0.3, (chance >= 0.3) & (chance < 0.7), chance >= 0.7):
        error = np.sqrt((chance * (1 - chance))[rows].sum()) / rows.sum()
        assert rows.sum() > 100 and label[rows].mean() == pytest.approx(chance[rows].mean(), abs=4 * error)


def test_all_that_changed_serves_the_texts_of_a_full_refresh(nights):
    changed = replay(nights, FIRST, Policy("all", None), None, 0)
    night, user = np.nonzero(changed.written != NONE)
    assert np.array_equal(nights.text[changed.written[night, user], user], nights.text[night, user])
    assert changed.rows[FIRST:].sum() < replay(nights, 16, None, None, 0).rows[FIRST:].sum()


def test_frozen_texts_stay(nights):
    frozen = replay(nights, FIRST, None, None, 0)
    assert (frozen.written[FIRST:] == frozen.written[FIRST - 1]).all() and not frozen.rows[FIRST:].any()


@pytest.mark.parametrize("unit", ["rows", "tokens"])
def test_budgets_hold_and_are_used(nights, unit):
    everything = replay(nights, FIRST, Policy("all", None), None, 0)
    for policy in (*simple(nights), *valued(nights, 20)):
        replayed = replay(nights, FIRST, policy, Budget(unit, 0.4), 0)
        used, whole = getattr(replayed, unit)[FIRST:], getattr(everything, unit)[FIRST:]
        assert (used <= 0.4 * whole + 0.5).all(), policy.name
        assert used.sum() > 0.3 * whole.sum(), policy.name


def test_the_choice_is_by_score(nights):
    by_score = Policy("new", lambda night, written: features(nights, night, written, 20)["new"] + 1.0, True)
    replayed = replay(nights, FIRST, by_score, Budget("rows", 0.1), 0)
    before = replayed.written[FIRST - 1]
    score, chosen = by_score.score(FIRST, before), replayed.written[FIRST] == FIRST
    left = nights.changed(FIRST, before) & ~chosen
    assert chosen.any() and left.any() and score[chosen].min() >= score[left].max() * 0.989


def test_features_are_by_hand(nights):
    night, user = 12, int(np.argmax(nights.clicks[12] - nights.clicks[8]))
    written = np.full(USERS, 8, np.int32)
    found = features(nights, night, written, 20)
    new, shown = nights.clicks[12, user] - nights.clicks[8, user], min(nights.clicks[12, user], 20)
    assert found["new"][user] == pytest.approx((1 - 0.9 ** min(new, shown)) / (1 - 0.9 ** shown))
    assert found["age_days"][user] == 4 and found["no_text"][user] == 0
    assert found["missed"][user] == new and found["traffic"][user] == 0
    assert found["distance"][user] == nights.moved[12, user, min(new, 20)] > 0
    none = features(nights, night, np.full(USERS, NONE, np.int32), 20)
    assert np.array_equal(none["traffic"], nights.clicks[night])
    assert none["no_text"].all() and not none["distance"].any() and not none["age_days"].any()


def test_value_goes_by_attributes_and_its_comparison_by_other_vectors(world, nights):
    written = np.full(USERS, 8, np.int32)
    by_attributes = replace(nights, moved=moves(world, kinds(item_facts(world)), 20))
    found = {policy.name: policy.score(12, written) for policy in valued(by_attributes, 20, None, nights)}
    before = {policy.name: policy.score(12, written) for policy in valued(nights, 20)}
    assert np.array_equal(found["value, LightGCN vectors"], before["value"])
    assert not np.array_equal(found["value"], before["value"])


def test_items_of_the_same_mood_and_theme_do_not_move_a_history():
    made = kinds([{"mood": mood, "theme": theme} for mood, theme in ("ab", "ab", "ac", "dc")])
    unit = made / np.linalg.norm(made, axis=1, keepdims=True)
    assert (unit @ unit.T)[0].tolist() == pytest.approx([1, 1, 0.5, 0])


def test_a_choice_is_reproducible(nights):
    random = list(simple(nights))[1]
    a, b, c = (replay(nights, FIRST, random, Budget("rows", 0.2), seed).written for seed in (0, 0, 1))
    assert np.array_equal(a, b) and not np.array_equal(a, c)
