"""What the log, the screen and the report say about a choice, and what another hour would buy."""

import pytest
from pyspark.sql import Row

from dare_job.refresh import chosen, words
from dare_job.refresh.value import AGE_PART, aged

CURVE = {"rows": [0, 2, 4], "cost": [0, 100, 300], "value": [0.0, 6.0, 10.0],
         "chosen_rows": 2, "chosen_cost": 100, "chosen_value": 6.0}


def record(chosen=0, copied=0, carried=None, value=0.0, left=0.0, ages=None):
    return {"chosen": chosen, "copied": copied, "carried": carried or {}, "value": value, "value_left": left,
            "ages": ages or {}}


def plan(user, item, curve=CURVE):
    return {"user": {"stale": user["chosen"] + user["copied"] + sum(user["carried"].values())},
            "item": {"stale": item["chosen"] + item["copied"] + sum(item["carried"].values())},
            "refresh": {"user": user, "item": item, "cut": None, "curve": curve}}


LEFT = record(2, 1, {"budget": 3, "few new interactions": 1}, 6.0, 3.0,
              {"no text": [1, 0], "7-14 days": [1, 1], "0 days": [0, 2], "1-2 days": [1, 1]})


def test_the_plan_says_what_is_shared_what_is_left_and_why():
    assert words.of_plan(plan(LEFT, record(1, 0, {"budget": 2}, 1.0, 2.0))) == (
        "1 row (10%) with the prompt of another row; 6 changed rows carried over (budget 5, few new "
        "interactions 1); 42% of the expected value is left for later runs")
    assert words.of_plan(plan(record(7), record(2), None)) == "" == words.of_plan({})
    failed = plan(record(7, carried={"failed": 1}, left=2.0), record(), None)
    assert words.of_plan(failed) == "1 changed row carried over (failed 1)"  # no budget, so no value


def test_ages_are_those_of_both_entity_types_and_rows_without_a_text_come_last():
    items = record(2, 0, {"budget": 1}, ages={"no text": [2, 0], "15-30 days": [0, 1]})
    assert words.of_choice({"user": LEFT, "item": items}) == (
        "Changed rows that are written, by the age of their text: 0 days: 0 of 2, 1-2 days: 1 of 2, "
        "7-14 days: 1 of 2, 15-30 days: 0 of 1, no text: 3 of 3")
    assert words.of_choice({"user": record(3, ages={"no text": [3, 0]}), "item": record()}) == ""


@pytest.mark.parametrize(("cost", "share"), [(0, 0), (50, 0.25), (100, 0.5), (200, 1), (1e9, 1)])
def test_more_cost_buys_a_share_of_the_value_that_is_left_by_the_curve(cost, share):
    assert words.more_value(CURVE, cost) == pytest.approx(share)


def test_what_no_time_can_buy_is_left_too():
    curve = CURVE | {"left_value": 8.0}  # 4 of them behind the chosen rows
    assert words.more_value(curve, 100) == pytest.approx(0.25) and words.more_value(curve, 1e9) == 0.5
    assert words.value_left(curve) == pytest.approx(8 / 14)


def test_a_run_that_stops_leaves_what_it_does_not_reach():
    curve = CURVE | {"left_value": 5.0}
    stopped = words.stopped(curve, 0.5)
    assert (stopped["chosen_rows"], stopped["chosen_cost"], stopped["chosen_value"]) == (1, 50, 3.0)
    assert stopped["left_value"] == 8.0 and words.value_left(stopped) == pytest.approx(8 / 11)
    assert words.more_value(stopped, 50) == pytest.approx(3 / 8)
    assert words.stopped(curve, 1.0) == curve


def test_where_nothing_is_left_more_buys_nothing():
    assert words.more_value(CURVE | {"chosen_cost": 300, "chosen_value": 9.999999}, 100) is None
    large = {"value": [0.0, 6e8, 1e9], "chosen_value": 1e9 - 0.5}  # sums in another order
    assert words.more_value(CURVE | large, 100) is None


def test_texts_that_are_worth_little_are_left_too():
    """As a few texts of yesterday whose histories have not moved."""
    curve = CURVE | {"value": [0.0, 0.0006, 0.001], "chosen_value": 0.0006, "left_value": 0.0004}
    assert words.more_value(curve, 100) == pytest.approx(0.5)
    assert words.value_left(curve) == pytest.approx(0.4)
    rows = [Row(reason=reason, age=1, rows=1, texts=1, cost=100, value=aged(1) / AGE_PART)
            for reason in ("chosen", "budget")]
    found = chosen._record(rows)
    assert found["value"] == found["value_left"] == pytest.approx(aged(1) / AGE_PART, rel=0.01)


def test_another_hour_is_worth_what_all_workers_write_in_it():
    assert words.one_more_hour(CURVE, 7200.0, 1) == pytest.approx(0.25)  # 100 in two hours
    assert words.one_more_hour(CURVE, 7200.0, 2) == pytest.approx(0.5)
    assert words.one_more_hour(CURVE, 7200.0, 1, cost=200) == pytest.approx(0.5)
    unknown = [(None, 7200.0, 1), (CURVE, 0.0, 1), (CURVE, None, 1), (CURVE, 7200.0, None)]
    assert [words.one_more_hour(*each) for each in unknown] == [None] * 4
    assert words.one_more_hour(CURVE, 7200.0, 1, cost=0) is None
    assert words.hour(0.254) == "Another hour of each worker would buy 25% of the value left"


def test_a_row_says_since_when_it_is_stale_and_why():
    row = {"stale_since": "2026-01-02", "carried_reason": "written recently", "unseen_interactions": 3}
    said = "stale since 2026-01-02, carried over (written recently)"
    assert words.of_row(row) == f"{said}, 3 unseen interactions"
    assert words.of_row(row | {"unseen_interactions": None}) == said
    assert words.of_row(row | {"stale_since": None, "carried_reason": None}) == ""
