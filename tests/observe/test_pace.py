"""Rates and time left of resumed runs, of waves, and during pauses."""

import pytest

from dare_job.observe.progress import Pace


def test_rows_of_an_earlier_run_do_not_count_for_the_pace():
    pace = Pace()
    pace.begin(0, 9_000, 90_000)
    assert pace.rates(5) is None and pace.left_s(5, 1_000) is None
    pace.note(10, 9_100, 91_500)
    assert pace.rates(10) == (10, 150) and pace.left_s(10, 900) == 90


def test_a_pause_makes_the_end_come_later():
    pace = Pace()
    pace.begin(0, 0, 0)
    pace.note(10, 100, 100)
    assert pace.left_s(10, 100) == 10
    pace.note(100, 100, 100)
    assert pace.left_s(100, 100) == 100


def test_the_pace_of_late_counts_and_not_that_of_hours_ago():
    pace = Pace()
    pace.begin(0, 0, 0)
    for second in range(0, 4_000, 10):  # ten rows a second, then one
        pace.note(second, min(second, 1_000) * 10 + max(0, second - 1_000), 0)
    assert pace.rates(3_990)[0] == pytest.approx(1, rel=0.01)


def test_a_wave_goes_at_the_pace_of_the_one_before_until_it_has_rows_of_its_own():
    pace = Pace()
    pace.begin(0, 0, 0)
    pace.note(100, 50, 500)
    pace.begin(130, 50, 500)  # the index of the wave's texts took half a minute
    assert pace.rates(140) == (pytest.approx(50 / 130), pytest.approx(500 / 130))
    pace.note(150, 450, 4_500)
    assert pace.rates(150) == (20, 200)


def test_tokens_have_a_rate_before_the_first_row_is_finished():
    pace = Pace()
    pace.begin(0, 0, 0)
    pace.note(10, 0, 300)
    assert pace.rates(10) == (0, 30) and pace.left_s(10, 100) is None
    pace.note(20, 10, 700)
    assert pace.rates(20)[1] == 35 and pace.left_s(20, 100) == 200
    pace.begin(30, 10, 700)
    pace.note(40, 10, 900)
    assert pace.rates(40) == (pytest.approx(10 / 30), 20)  # rows of the part before, tokens of this one
