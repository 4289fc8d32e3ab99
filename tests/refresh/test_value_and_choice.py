"""The value of a row, its cost, the choice under a budget, and deadlines: pure functions."""

from datetime import UTC, datetime

import numpy as np
import pytest

from dare_job.config.refresh import RefreshSettings
from dare_job.refresh import choice
from dare_job.refresh.choice import NOT_SAMPLED, Budget, choose
from dare_job.refresh.value import AGE_PART, HALF_LIFE_DAYS, cost, new_share, value


def test_the_newest_interactions_weigh_most_and_a_history_that_is_all_new_counts_whole():
    shares = [new_share(new, 20) for new in range(21)]
    assert shares[0] == 0 and shares[20] == 1 and np.diff(shares, 2).max() < 0
    assert new_share(np.array([0.0, 3.0]), np.array([5.0, 3.0])).tolist() == [0, 1]


def test_value_grows_with_traffic_age_and_distance_falls_with_what_is_new_and_is_whole_without_a_text():
    age = 1 / (2 * AGE_PART)
    assert value(8, 0, HALF_LIFE_DAYS - 1, 0) == pytest.approx(3 * age) and value(8, 0, 0, 1) == 3
    assert value(8, 0.5, HALF_LIFE_DAYS - 1, 0, distance=0.6) == pytest.approx(3 * (0.3 + age))
    moved = {"no_text": 0, "distance": 0.5}
    assert value(0, 1, 0, **moved) < value(0, 0.5, 0, **moved) < value(0, 0.5, 1, **moved) < value(
        1, 0.5, 0, **moved)
    assert value(0, 0, -1, 0) == 0
    assert cost(100, 10) == 180


def test_the_budget_covers_the_best_rows_and_overdue_ones_beyond_it():
    tiers = np.array([choice.BY_VALUE, choice.NO_TEXT, choice.BY_VALUE, choice.OVERDUE])
    scores, hashes, tokens = np.array([5.0, 0.1, 9.0, 0.1]), np.arange(4), np.full(4, 10)

    def chosen(**budget):
        return choose(tiers, scores, hashes, np.full(4, NOT_SAMPLED), tokens, Budget(**budget)).tolist()

    assert chosen() == [True] * 4
    assert chosen(rows=0) == [False, False, False, True]
    assert chosen(rows=3) == [False, True, True, True]
    assert chosen(tokens=25) == [False, True, False, True]
    assert chosen(rows=2, tokens=1000) == [False, True, False, True]


def test_a_small_budget_is_not_for_the_sample_alone_and_the_sample_is_drawn_by_hash():
    """A tenth of the rows have no text, 2 % of the others are in the sample, and the budget covers 1 %."""
    generator, n = np.random.default_rng(0), 100_000
    scores, hashes = generator.lognormal(size=n), generator.integers(0, choice.HASHES, n)
    tiers, sample = np.full(n, choice.BY_VALUE), np.full(n, NOT_SAMPLED)
    tiers[: n // 10] = choice.NO_TEXT
    places = np.arange(n // 10, n, choice.SAMPLE_ONE_IN)
    sample[places] = generator.permutation(choice.HASHES)[: len(places)]
    chosen = choose(tiers, scores, hashes, sample, np.ones(n, int), Budget(rows=1000))
    sampled = chosen & (sample != NOT_SAMPLED)
    assert chosen.sum() == 1000 and sampled.sum() == 20 and (chosen & (tiers == choice.NO_TEXT)).sum() == 980
    assert sample[sampled].max() < np.sort(sample[places])[20]
    assert choose(tiers, scores, hashes, sample, np.ones(n, int), Budget()).all()


@pytest.mark.parametrize("rows", [1, 30, 1000, 30_000])
def test_rows_of_the_sample_that_it_does_not_write_compete_by_value(rows):
    generator, n = np.random.default_rng(1), 100_000
    scores, hashes, keys = generator.lognormal(size=n), *generator.integers(0, choice.HASHES, (2, n))
    sample = np.where(keys % choice.SAMPLE_ONE_IN == 0, keys, NOT_SAMPLED)
    tiers, ones = np.full(n, choice.BY_VALUE), np.ones(n, int)
    chosen = choose(tiers, scores, hashes, sample, ones, Budget(rows=rows))
    assert chosen.sum() == rows
    drawn = rows // choice.SAMPLE_ONE_IN
    best = np.argsort(-scores)[: rows - drawn]
    close = scores[best].min() * 1.02  # of bins of about 1 %
    assert chosen[scores >= close].all() and (chosen & (scores < scores[best].min() / 1.02)).sum() <= drawn
    assert (chosen & (scores < scores[best].min() / 1.02)).sum() >= 0.5 * drawn


def test_without_a_limit_the_whole_sample_is_written_also_where_all_other_rows_are_held_back():
    """Of 5,000 rows that ``min_days`` holds back, the 100 of the sample alone may be written."""
    keys, rows, nothing = np.arange(0, 5000, choice.SAMPLE_ONE_IN), np.ones(100), (0, 0)
    assert choice.sample_end(keys, rows, (100, 1000), nothing, Budget()) == choice.HASHES
    assert choice.sample_end(keys, rows, (100, 1000), nothing, Budget(rows=5000)) == keys[2]


def test_equal_scores_are_ordered_by_hash_and_the_choice_by_nothing_else():
    generator = np.random.default_rng(0)
    scores, hashes = np.ones(100), generator.permutation(100)
    tiers, tokens = np.full(100, choice.BY_VALUE), np.ones(100, int)
    nobody = np.full(100, NOT_SAMPLED)
    chosen = choose(tiers, scores, hashes, nobody, tokens, Budget(rows=30))
    assert set(hashes[chosen]) == set(range(30))
    order = generator.permutation(100)
    assert (choose(tiers, scores, hashes[order], nobody, tokens, Budget(rows=30)) == chosen[order]).all()


def test_bins_keep_the_order_of_scores_that_differ_by_more_than_a_percent():
    scores = 1.012 ** np.arange(-500, 500)
    assert (np.diff(choice.score_bin(scores)) < 0).all()
    assert choice.score_bin(np.array([0.0]))[0] < 4096 and choice.score_bin(np.array([1e15]))[0] > -4096


@pytest.mark.parametrize(("deadline", "start", "expected"), [
    ("05:00 Europe/Berlin", "2026-01-10T22:00", "2026-01-11T04:00"),
    ("05:00 Europe/Berlin", "2026-01-10T03:59", "2026-01-10T04:00"),
    ("05:00 UTC", "2026-01-10T05:00", "2026-01-11T05:00"),
    ("2026-01-09 05:00 UTC", "2026-01-10T05:00", "2026-01-09T05:00"),
    ("05:00 Europe/Berlin", "2026-03-28T22:00", "2026-03-29T03:00"),  # clocks are set forward
    ("02:30 Europe/Berlin", "2026-03-28T22:00", "2026-03-29T01:30"),  # and skip this time
    ("02:30 Europe/Berlin", "2026-10-24T22:00", "2026-10-25T00:30")])  # this one comes twice
def test_a_deadline_is_the_next_such_time_in_its_zone(deadline, start, expected):
    settings = RefreshSettings(deadline=deadline)
    found = settings.deadline_after(datetime.fromisoformat(start).replace(tzinfo=UTC))
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_a_limit_of_time_beside_others_does_not_change_the_choice():
    """Alone it does: without any limit, nothing is held back and no vectors are needed."""
    nothing, rows, time = {}, {"max_rows": 3}, {"deadline": "05:00 UTC"}
    choosing = [RefreshSettings(**values).choosing for values in (nothing, time, rows, rows | time)]
    assert choosing[2] == choosing[3] and choosing[0] != choosing[1] != choosing[2]


def test_a_budget_of_tokens_may_be_that_of_ten_million_rows():
    """Ten million texts of 600 tokens: more than 32 bits hold."""
    tiers, rows, tokens = np.full(2, choice.BY_VALUE), np.full(2, 5_000_000), np.full(2, 3_000_000_000)
    limit = RefreshSettings(max_tokens=5_999_999_999).max_tokens
    assert choice.cut(tiers, np.arange(2), rows, tokens, Budget(tokens=limit)) == 1
    assert choice.cut(tiers, np.arange(2), rows, tokens, Budget(tokens=limit + 1)) == 2


@pytest.mark.parametrize(("settings", "message"), [
    ({"deadline": "5 o'clock"}, "write a time and its time zone"),
    ({"deadline": "25:00 UTC"}, "not a valid time of day"),
    ({"deadline": "9999-12-31 23:59 America/New_York"}, "is outside the years 1 to 9999 in UTC"),
    ({"deadline": "0001-01-01 00:00 Asia/Tokyo"}, "is outside the years 1 to 9999 in UTC"),
    ({"deadline": "05:00 Berlin"}, "not a known time zone"),
    ({"min_days": 9, "max_days": 3}, "refresh.min_days = 9 is more than refresh.max_days = 3")])
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        RefreshSettings(**settings)
