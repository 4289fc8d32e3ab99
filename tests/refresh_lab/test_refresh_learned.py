"""Coefficients: learned from rows with a known rule, kept in a file, and ranked."""

import json

import numpy as np
import pytest

from dare_job.errors import ConfigError
from dare_job.evaluate.refresh import learn
from dare_job.evaluate.refresh.learn import Moved
from dare_job.refresh import learned
from dare_job.refresh.learned import Coefficients

KNOWN = Coefficients(new=0.5, distance=2.0, age=0.0, constant=0.25, no_text=2.75)


def moved(rows: int = 2000, seed: int = 0) -> Moved:
    """Scores move by 0.5 new + 2 distance + noise, texts by the age alone."""
    rng = np.random.default_rng(seed)
    known = {"missed": rng.random(rows), "new": rng.random(rows), "distance": rng.random(rows),
             "age_days": rng.integers(0, 60, rows).astype(float), "no_text": np.zeros(rows)}
    scores = 0.5 * known["new"] + 2 * known["distance"] + rng.normal(0, 0.05, rows).clip(-0.1, 0.1) + 0.1
    scores[:100] = np.nan
    return Moved(rng.integers(4, size=rows), np.arange(rows), known, learned.aged(known["age_days"]), scores)


def test_coefficients_are_those_of_the_rule():
    found = learn.coefficients(moved())
    assert found.distance / found.new == pytest.approx(4.0, rel=0.05)
    assert found.age < 0.02 and found.no_text == pytest.approx(
        found.new + found.distance + found.age + found.constant)
    by_text = learn.coefficients(Moved(**vars(moved()) | {"scores": np.full(2000, np.nan)}))
    assert by_text.age > 10 * max(by_text.new, by_text.distance, by_text.constant)


def test_what_was_learned_ranks_rows_that_it_was_not_learned_from():
    found = learn.rankings(moved(seed=1), learn.coefficients(moved(seed=0)))
    assert found["value, learned"]["scores"]["spearman"] > 0.95
    assert found["value, learned"]["scores"]["caught"] > found["random"]["scores"]["caught"] + 0.1
    assert abs(found["random"]["scores"]["spearman"]) < 0.1
    assert found["oldest first"]["text"]["spearman"] == pytest.approx(1.0)


def test_a_ranking_by_hand():
    moves, night = np.array([4.0, 3.0, 2.0, 1.0] * 2), np.repeat([0, 1], 4)
    best = learn.ranking(moves, moves, night)
    assert best == {"spearman": pytest.approx(1.0), "caught": pytest.approx(8 / 20)}  # one row of four
    assert learn.ranking(-moves, moves, night) == {"spearman": pytest.approx(-1.0), "caught": 2 / 20}
    assert learn.ranking(np.ones(8), moves, night)["spearman"] == 0.0


def test_the_value_is_movement_weighted_by_traffic():
    found = learned.value(np.array([0.0, 3.0, 3.0]), np.array([0.0, 1.0, 1.0]), 0.0, np.array([0, 0, 1]), 0.5,
                          KNOWN)
    assert found.tolist() == pytest.approx([1.25, 2 * 1.75, 2 * 2.75])


def test_a_file_keeps_coefficients(tmp_path):
    file = tmp_path / "value.json"
    file.write_text(learned.document(KNOWN, {"caught": 0.5}))
    assert learned.read(file) == KNOWN


@pytest.mark.parametrize("content", [
    "{", "[]", '{"format": "other"}', json.dumps({"format": learned.FORMAT, "coefficients": {"new": 1}}),
    json.dumps({"format": learned.FORMAT, "coefficients": vars(KNOWN) | {"new": -1}}),
    json.dumps({"format": learned.FORMAT, "coefficients": vars(KNOWN) | {"new": "1"}}),
    json.dumps({"format": learned.FORMAT, "coefficients": vars(KNOWN)}).replace("0.5", "NaN")])
def test_another_file_is_refused_with_its_name(tmp_path, content):
    file = tmp_path / "value.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match="refresh.priority: .*value.json.*"):
        learned.read(file)
    with pytest.raises(ConfigError, match="lab refresh --save"):
        learned.read(tmp_path / "missing.json")
