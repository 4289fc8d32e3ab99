"""Which dates are compared, and which statistics are unusual."""

import published
import pytest

from dare_job.errors import DataError
from dare_job.publish.report import nights, page
from dare_job.publish.report.nights import Night


def night(dt: str, **over) -> Night:
    manifest = {"counts": {"rows": 1000, "written": 100, "errors": 0}, "tokens_per_s": 500.0,
                "totals": {"tokens": 10_000, "target_steps": 2000, "accepted_tokens": 8000},
                "baseline": {"tokens_per_s": 200.0}}
    for name, value in over.items():
        group = next((group for group in ("counts", "totals") if name in manifest[group]), None)
        if group:
            manifest[group] = {**manifest[group], name: value}
        else:
            manifest[name] = value
    return Night(dt, {"user": manifest})


BEFORE = [night(published.day(n), accepted_tokens=8000 + 50 * n) for n in range(7, 0, -1)]


def test_cost_is_that_of_as_many_tokens_at_both_rates():
    found = night(published.DAY)
    assert (found.worker_s, found.autoregressive_s, found.speedup) == (20.0, 50.0, 2.5)
    without = night(published.DAY, baseline=None)
    assert without.worker_s == 20.0 and without.autoregressive_s is None and without.speedup is None


@pytest.mark.parametrize(("over", "names"), [
    ({}, set()), ({"accepted_tokens": 8300}, set()), ({"accepted_tokens": 4000}, {"accepted"}),
    ({"errors": 40}, {"errors"}), ({"errors": 2}, set()), ({"rows": 600}, {"rows"}),
    ({"tokens_per_s": 100.0}, {"tokens_per_s", "speedup"}), ({"written": 900}, {"written", "length"}),
])
def test_what_leaves_the_median_far_enough_is_unusual(over, names):
    assert {one.measure.name for one in nights.unusual(night(published.DAY, **over), BEFORE)} == names


def test_two_earlier_dates_are_too_few():
    odd = night(published.DAY, errors=900)
    assert nights.unusual(odd, BEFORE[-2:]) == [] and len(nights.unusual(odd, BEFORE[-3:])) == 1


def test_the_last_seven_published_dates_are_read_and_damaged_ones_left_out(tmp_path):
    for before in range(9):
        published.publish(tmp_path, [], [], published.day(before))
    assert [one.dt for one in nights.earlier(tmp_path, published.DAY)] == [
        published.day(n) for n in range(7, 0, -1)]
    for path in tmp_path.glob(f"knowledge/entity=user/dt={published.day(3)}/_manifest.json"):
        path.write_text("{")
    (tmp_path / "knowledge" / "entity=item" / f"dt={published.day(2)}" / "_manifest.json").unlink()
    assert [one.dt for one in nights.earlier(tmp_path, published.DAY)] == [
        published.day(n) for n in (8, 7, 6, 5, 4, 1)]


def test_a_date_that_is_not_published_is_refused_by_name(tmp_path):
    published.publish(tmp_path, [], [], published.day(1))
    with pytest.raises(DataError, match=f"no published user text of {published.DAY}.*{published.day(1)}"):
        nights.read(tmp_path, published.DAY)


def test_gates_become_rows():
    passed = {"rows": 4, "of": 90, "value": 0.05, "limit": 0.1, "failed": False, "first": ["a"], "why": None}
    rows = page.gate_rows(Night(published.DAY, {"item": {}, "user": {"gates": {
        "empty": passed, "short": passed | {"value": 0.09}, "loop": passed | {"value": 0.2, "failed": True},
        "length_ratio": passed | {"value": 1.2, "limit": 1.3}, "relaxed": passed | {"limit": None},
        "cut_off": passed | {"value": None, "why": "another model before"}}}}))
    by_check = {row["check"]: row for row in rows}
    assert {name: row["result"] for name, row in by_check.items()} == {
        "empty": "passed", "short": "near", "loop": "failed", "length_ratio": "passed", "relaxed": "off",
        "cut_off": "not checked"}
    assert (by_check["loop"]["value"], by_check["loop"]["limit"]) == ("20 %", "10 %")
    assert (by_check["length_ratio"]["value"], by_check["loop"]["ids"]) == ("1.20", ["a"])
    assert by_check["cut_off"]["more"] == "4 of 90 rows, another model before"
