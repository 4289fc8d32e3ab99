"""Tokens per step of rows without a previous text: what a run records, and which rate a later plan uses."""

from types import SimpleNamespace

import pytest

from dare_job.config.decoding import DecodeSettings
from dare_job.config.settings import JobConfig
from dare_job.refresh import acceptance
from dare_job.refresh.acceptance import ENOUGH_STEPS, Rates
from dare_job.stages import plan
from pools import router

FEW, MANY = ENOUGH_STEPS - 1, ENOUGH_STEPS
SUMS = {("c-1", "collaborative"): (MANY, 5 * MANY), ("c-2", "collaborative"): (FEW, 2 * FEW),
        ("a-1", "attribute"): (FEW, 3 * FEW), (None, None): (1, 1)}


def recorded(sums, date="2026-01-08", mode="dare"):
    return acceptance.record(sums, date, mode)


def test_a_pool_and_a_kind_count_only_with_enough_steps_and_all_rows_together_always_do():
    record = recorded(SUMS)
    assert record["kinds"] == {"collaborative": [MANY + FEW, 5 * MANY + 2 * FEW],
                               "attribute": [FEW, 3 * FEW], "none": [1, 1]}
    found = acceptance.rates(record, "dare", 4.0)
    steps, tokens = MANY + 2 * FEW + 1, 5 * MANY + 5 * FEW + 1
    assert found == Rates(pytest.approx(tokens / steps),
                          {"collaborative": pytest.approx((5 * MANY + 2 * FEW) / (MANY + FEW))},
                          {"c-1": 5.0}, "2026-01-08")


@pytest.mark.parametrize("record", [
    None, {}, recorded({}), recorded({("g", "global"): (FEW, 9 * FEW)}),
    recorded({("g", "global"): (MANY, 9 * MANY)}, mode="resd")])
def test_without_enough_steps_of_the_same_mode_the_default_holds(record):
    assert acceptance.rates(record, "dare", 4.0) == Rates(4.0)


def test_only_so_many_pools_are_recorded_and_those_with_the_most_steps(monkeypatch):
    monkeypatch.setattr(acceptance, "MAX_POOLS", 2)
    sums = {(f"c-{n}", "collaborative"): (MANY + steps, 2 * MANY) for n, steps in enumerate((1, 7, 7, 9, 3))}
    assert list(recorded(sums)["pools"]) == ["c-3", "c-1"]


def test_a_run_with_few_new_rows_keeps_the_earlier_record_of_its_mode():
    before, few = recorded({("g", "global"): (MANY, 1)}), recorded({("g", "global"): (FEW, 1)}, "2026-01-09")
    many = recorded({("g", "global"): (MANY, 1)}, "2026-01-09")
    assert acceptance.newest(few, before) == before == acceptance.newest(None, before)
    assert acceptance.newest(many, before) == many and acceptance.newest(few, None) == few
    assert acceptance.newest(few, before | {"mode": "resd"}) == few
    assert acceptance.newest(many, few) == many and acceptance.newest(None, None) is None


def test_chunks_are_added_up_by_pool():
    parts = [{"c-1": ["collaborative", 5, 10], "": [None, 2, 2]}, {}, {"c-1": ["collaborative", 1, 7]}]
    assert acceptance.total(parts) == {("c-1", "collaborative"): (6, 17), (None, None): (2, 2)}


@pytest.mark.parametrize(("decode", "rate"), [
    ({}, 4.0), ({"nodes": 0}, 1.0), ({"mode": "autoregressive"}, 1.0), ({"mode": "beam"}, 4.0)])
def test_without_any_measurement_a_step_emits_one_token_unless_drafts_are_verified(decode, rate):
    assert acceptance.default_rate(DecodeSettings(**decode)) == rate


@pytest.mark.parametrize(("sections", "unlike"), [
    ({}, {}), ({"router": {"min_interactions": 0, "user": "attribute"}}, {}),
    ({"router": {"user": "global"}}, {}), ({"embed": {"vectors": {"item": "v.parquet"}}}, {"group": None}),
    ({"decode": {"mode": "resd"}}, {"override": "global"})])
def test_the_kind_of_pool_that_the_plan_expects_is_the_one_of_the_router(spark, sections, unlike):
    config = JobConfig(**sections)
    cases = [(count, attributes) for count in (0, 4, 5)
             for attributes in (None, {}, {"traffic": "9"}, {"age": "30"}, {"age": "30", "traffic": "9"})]
    rows = spark.createDataFrame([(place, *case) for place, case in enumerate(cases)],
                                 "place int, interactions int, attributes map<string, string>")
    kind = plan._pool_kind(SimpleNamespace(config=config), "user")
    found = [row.kind for row in rows.select("place", kind.alias("kind")).orderBy("place").collect()]
    assert found == [router.route(
        "user", count, unlike.get("group", "g") if count else None,
        "a" if attributes and "age" in attributes else None, config.router.min_interactions,
        unlike.get("override", config.router.user)).pool_kind for count, attributes in cases]
