"""Latency curves, the cost of a step, and the waves of a first run, for ``dare-job tune``."""

import json
from pathlib import Path

import numpy as np
import pytest

from dare_job.bench import roofline
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.errors import DataError
from dare_job.evaluate.replay import budgets, tuned
from dare_job.evaluate.replay.batched import Rate, ratio_interval
from dare_job.evaluate.replay.trials import Objective, Point, Trial

SHIPPED = Path(__file__).parents[1] / "conf" / "latency"
FLAT = LatencyCurve.of({"1": {"1": 20.0, "65": 20.0}, "8": {"1": 20.0, "65": 20.0}}, "flat")


@pytest.mark.parametrize("text, message", [
    ("{", "is not JSON"), ("[]", "has no latency curve"), ("{}", "has no latency curve"),
    ('{"8": {"1": 1}}', "has no latency curve"),
    ('{"latency_ms": {"8": {}}}', "batch 8 has no curve"),
    ('{"latency_ms": {"8": 3}}', "batch 8 has no curve"),
    ('{"latency_ms": {"many": {"1": 1}}}', "batch: 'many' is not a number"),
    ('{"latency_ms": {"8": {"0": 1}}}', "queries: '0' is not a number"),
    ('{"latency_ms": {"8": {"1": "fast"}}}', "1 queries: 'fast' is not a time"),
    ('{"latency_ms": {"8": {"1": -1}}}', "-1 is not a time"),
    ('{"latency_ms": {"8": {"1": NaN}}}', "nan is not a time"),
    ('{"latency_ms": {"8": {"4": 1}}}', "batch 8 lacks 1 query per row")])
def test_a_wrong_latency_file_is_refused(tmp_path, text, message):
    (tmp_path / "l.json").write_text(text)
    with pytest.raises(DataError, match=message) as found:
        budgets.read_curve(tmp_path / "l.json")
    assert "l.json" in str(found.value)


def test_a_curve_is_linear_between_its_points_and_never_falls(tmp_path):
    table = {"1": {"1": 10, "5": 9, "9": 18}, "9": {"1": 26, "9": 42}}
    (tmp_path / "l.json").write_text(json.dumps({"latency_ms": table}))
    curve = budgets.read_curve(tmp_path / "l.json")
    assert [curve.ms(1, q) for q in (1, 5, 7, 9)] == [9, 9, 13.5, 18]
    assert curve.ms(9, 5) == 34 and curve.ms(5, 1) == 17.5 and curve.ms(5, 5) == 21.5
    assert (curve.batches, curve.common_queries) == ([1, 9], 9)


def test_a_step_costs_its_forward_and_the_drafting_of_its_rows():
    some = Trial(3.0, 50.0, np.array([[3, 1]]))
    assert Objective(FLAT, None, 1).tokens_per_s(8, 32, some) == pytest.approx(8 * 4e3 / 20.4)
    assert Objective(FLAT, (100.0, 1.0), 1).tokens_per_s(1, 32, some) == pytest.approx(4e3 / 20.132)
    assert Objective(FLAT, None, 4).step_ms(8, 32, 50.0) == 20.4  # too few nodes for a second thread
    assert Objective(FLAT, None, 4).step_ms(8, 64, 50.0) == 20.2
    assert Objective(FLAT, None, 1).tokens_per_s(8, 0, some) == 32e3 / 20


def test_an_interval_of_times_in_one_ratio_is_that_ratio():
    point = Point(("global",), 31, 12, None)
    drafted = Rate(point, "auto", 1.5, 100.0, np.array([4.0, 8.0, 12.0]))
    plain = Rate(point, 0, 0.0, 40.0, 2.5 * drafted.text_ms)
    assert ratio_interval(drafted, drafted) == [1.0, 1.0]
    assert ratio_interval(drafted, plain) == pytest.approx([2.5, 2.5])


def test_waves_save_steps_as_counted_by_hand():
    accepted = {0: 0.0, 100: 1.0, 1000: 3.0}
    assert tuned.total_steps(1000, 10, accepted, ()) == 10000
    assert tuned.total_steps(1000, 10, accepted, (100,)) == 1000 + 9000 / 2
    assert tuned.total_steps(400, 10, accepted, (100,)) == pytest.approx(  # a wave takes an eighth
        500 + 3500 / (1 + np.log(51) / np.log(101)))
    found = tuned.recommend(10000, 10, accepted)
    assert found["sizes"] and found["steps"] < found["steps_without"] == 100000
    assert tuned.recommend(10000, 10, {0: 2.0, 100: 2.0})["sizes"] == []


def test_shipped_curves_are_those_of_the_formula(tmp_path):
    roofline.main(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert set(names) < {path.name for path in SHIPPED.iterdir()}  # beside them, one that was measured
    assert all((tmp_path / name).read_text() == (SHIPPED / name).read_text() for name in names)
    small = roofline.forward_ms(roofline.H100, roofline.MISTRAL, 1, 1, 0)
    assert small == pytest.approx(2 * 7.24e9 / 3.35e12 * 1e3)  # bound by memory
    large = roofline.forward_ms(roofline.A100, roofline.MISTRAL, 256, 64, 0)
    assert large == pytest.approx(256 * 64 * (2 * 7.24e9 + 4 * 32 * 4096 * 64) / 312e12 * 1e3)
