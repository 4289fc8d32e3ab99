"""The timeline of stages and workers, the lengths of the texts, and what a run cost."""

import re

import numpy as np
import published
import pytest

from dare_job.publish.report import cost, format, highlights, lengths, nights, timeline
from dare_job.publish.report.collect import collect
from dare_job.publish.report.nights import Night

BEGAN = 1767312000.0


def night(**over) -> Night:
    manifest = {"counts": {"written": 40}, "totals": {"tokens": 9000}, "tokens_per_s": 100.0, "busy_s": 90.0,
                "baseline": {"tokens_per_s": 50.0}, **published.times(BEGAN), **over}
    return Night(published.DAY, {"user": manifest})


def bars(chart: str, name: str) -> list[tuple[float, float]]:
    """Start and width of the rectangles of a class."""
    found = re.findall(rf'<rect class="{name}" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', chart)
    return [(float(x), float(width)) for x, width in found]


def test_bars_lie_where_stages_and_workers_ran():
    found = timeline.of(night())
    px = (860 - 150 - 76) / 161  # of a second
    plan, generate, publish = bars(found.chart, "current")
    assert plan[0] == pytest.approx(150) and generate[0] == pytest.approx(150 + 30 * px, abs=2)
    assert generate[1] == pytest.approx(120 * px, abs=3) and publish[1] == pytest.approx(10 * px, abs=2)
    workers, tracks = bars(found.chart, "bar"), bars(found.chart, "track")
    assert len(workers) == 3 and len(tracks) == 2
    assert workers[0][0] == pytest.approx(150 + 40 * px, abs=2)
    assert "75 % decoding" in found.chart and "42 % decoding" in found.chart
    assert "host-a:11: shard 2" in found.chart
    assert (found.workers, found.shown_workers, found.pauses) == (2, 2, 0)
    assert found.began == "2026-01-02 00:00:00" and found.ended == "2026-01-02 00:02:41"
    assert found.decoding_share == pytest.approx(90 / 240)


def test_the_pause_before_a_run_is_started_again_is_left_out():
    stages = [{"stage": "plan", "start": BEGAN, "end": BEGAN + 100},
              {"stage": "generate", "start": BEGAN + 100, "end": BEGAN + 200},
              {"stage": "plan", "start": BEGAN + 86400, "end": BEGAN + 86410},
              {"stage": "generate", "start": BEGAN + 86410, "end": BEGAN + 86500}]
    found = timeline.of(night(stages=stages, workers={}, baseline_span=None))
    assert found.pauses == 1 and found.chart.count("mark high") == 1
    axis = timeline.Axis([(stage["start"], stage["end"]) for stage in stages])
    assert axis.total_s == 300 and axis.elapsed(BEGAN + 5000) == 200 and axis.elapsed(BEGAN + 86405) == 205
    assert len(bars(found.chart, "current")) == 4 and "190 s" not in found.chart and "3.2 min" in found.chart


def test_of_many_workers_the_busiest_the_least_busy_and_some_between_are_shown():
    spans = {f"h:{n}": [[BEGAN + 30, BEGAN + 31 + n, n, 1]] for n in range(100)}
    found = timeline.of(night(workers={"spans": spans, "slots": 100}))
    assert (found.workers, found.shown_workers) == (100, timeline.MAX_WORKERS)
    assert "h:99:" in found.chart and "h:0:" in found.chart


def test_older_manifests_have_no_timeline():
    assert timeline.of(night(stages=None)) is None and timeline.of(Night(published.DAY, {"user": {}})) is None


def test_workers_that_waited_need_attention():
    workers = {"workers": 8, "imbalance": 1.34, "waited_s": 3700.0, "spans": {}}
    (point,) = highlights._cost(night(workers=workers))
    assert (point.level, point.section) == ("warn", "timeline") and "busiest of 8 workers" in point.message
    assert list(highlights._cost(night())) == []


def test_cost_is_that_of_the_allocated_worker_time():
    found = cost.of(night())  # 2 slots for 120 s at 3 an hour, of which 90 s decoded
    assert found == cost.Cost(240.0, 0.375, pytest.approx(0.2), pytest.approx(5.0), pytest.approx(0.275))
    words = cost.words(found)
    assert "Cost: 0.20 for 4.0 min of allocated worker time, 38 % of it decoding; 5.00 per " in words
    assert words.endswith("autoregressive decoding would cost 0.28 (computed)")
    slower = cost.of(night(tokens_per_s=1000.0))
    assert slower.total == found.total and slower.autoregressive == pytest.approx((240 - 9 + 180) * 3 / 3600)


@pytest.mark.parametrize("over", [{"settings": {}}, {"settings": {"cost": {"per_gpu_hour": None}}},
                                  {"settings": None}, {"seconds": None}, {"workers": None}])
def test_without_a_price_or_times_there_is_no_cost(over):
    assert cost.of(night(**over)) is None


def test_older_manifests_count_the_workers_that_decoded():
    found = cost.of(night(workers={"workers": 3}, baseline=None))
    assert found.allocated_s == 360 and found.autoregressive is None


def test_amounts():
    assert [format.money(value) for value in (1240.5, 1, 0.2, 0.0314, 0.000314159, 0, None)] == [
        "1,240.50", "1.00", "0.20", "0.031", "0.00031", "0.00", "–"]


def test_lengths_of_this_run_and_of_the_date_before(tmp_path):
    before, words = published.day(1), "word " * 30
    old = [published.plain(f"u{n}", words, dt=before) for n in range(6)]
    old += [published.plain("older", "word", dt=published.day(2))]  # carried over: not in the outline
    published.publish(tmp_path, old, [], before, new_tokens=[0, 48])
    new = [published.plain(f"u{n}", "word " * 48, finish_reason="length") for n in range(2)]
    new += [published.plain(f"v{n}", "word " * (10 + n)) for n in range(6)] + [old[0]]
    published.publish(tmp_path, new, [], new_tokens=[0, 48])
    collected = [collect(nights.folder(tmp_path, entity, published.DAY), entity, published.DAY)
                 for entity in ("user", "item")]
    assert np.flatnonzero(collected[0].lengths).tolist() == [10, 11, 12, 13, 14, 15, 48]
    night, earlier = (nights.read(tmp_path, dt) for dt in (published.DAY, before))
    (found,) = lengths.of(tmp_path, night, earlier, collected)
    assert (found.entity, found.texts, found.longest, found.limit, found.cut_off) == ("user", 8, 48, 48, 0.25)
    assert (found.median, found.median_before) == (13, 30)
    assert found.chart.count('<rect class="bar"') == 4 and found.chart.count('class="outline"') == 1
    assert "max_new_tokens 48" in found.chart
    (alone,) = lengths.of(tmp_path, night, None, collected)
    assert alone.median_before is None and "outline" not in alone.chart
