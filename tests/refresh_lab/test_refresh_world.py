"""The daily world: reproducible, with users of all kinds, whose clicks follow interests that move."""

import numpy as np
import pytest

from dare_job.data.sample_world.catalogue import MOODS
from dare_job.data.sample_world.daily import (
    MOVES,
    VISITS,
    prevailing,
    profile_of_interests,
    profile_of_values,
    simulate_daily,
)

PERSON = {"gender": "female", "age": "25-34", "occupation": "nurse"}


@pytest.fixture(scope="module")
def world():
    return simulate_daily(300, 60, 40, 1)


def test_same_seed_same_world(world):
    again, other = simulate_daily(300, 60, 40, 1), simulate_daily(300, 60, 40, 2)
    assert all(np.array_equal(a, b) for a, b in zip(vars(world.shown).values(), vars(again.shown).values(),
                                                    strict=True))
    assert len(other.shown.user) != len(world.shown.user)


def test_users_come_as_often_as_their_kind(world):
    days = np.zeros((300, 40), bool)
    days[world.shown.user, world.shown.day] = True
    for kind, chance in enumerate(VISITS.values()):
        of_kind = days[world.users.visits == kind]
        assert of_kind.mean() == pytest.approx(chance, abs=5 * np.sqrt(chance / of_kind.size))
    assert (np.diff(world.shown.second) >= 0).all() and 0.1 < world.shown.click.mean() < 0.6


def test_interests_stay_or_move_as_their_kind(world):
    """The moods clicked in the first days come back in the last days, most for those whose interests stay."""
    shown, common = world.shown, {}
    mood = world.catalogue.mood[shown.item]
    def counts(days):
        return np.stack([np.bincount(mood[(shown.user == user) & shown.click & days], minlength=len(MOODS))
                         for user in range(300)]).astype(float)
    early, late = counts(shown.day < 8), counts(shown.day >= 32)
    usable = (early.sum(1) > 4) & (late.sum(1) > 4)
    cosine = (early * late).sum(1) / (np.linalg.norm(early, axis=1) * np.linalg.norm(late, axis=1)).clip(1)
    for kind, name in enumerate(MOVES):
        common[name] = cosine[usable & (world.users.moves == kind)].mean()
    assert common["stays"] > common["drifts"] + 0.1 and common["stays"] > common["jumps"] + 0.1


def test_newer_values_prevail_and_all_facts_are_stated():
    assert prevailing(["a", "b", "b", "c"]) == ["b", "a", "c"]
    assert prevailing(["a"] + ["b"] * 2 + ["c"] * 30)[0] == "c"
    text = profile_of_interests(PERSON, ["Silent Harbor", "Faded Anchor", "Golden House"])
    assert "melancholic" in text and "joyful" in text and "the sea" in text and "Silent Harbor" in text
    assert text == profile_of_interests(PERSON, ["Silent Harbor", "Faded Anchor", "Golden House"])


def test_profiles_of_other_data():
    text = profile_of_values(["A", "B"], ["drama", ""])
    assert text == "This person mostly chooses drama. The newest choices are A; B."
    assert profile_of_values(["A"], [""]) == "The newest choices are A."
