"""The simulation of a cluster: what it computes is checked on nights whose answer is known."""

import json

import numpy as np
import pandas as pd
import pytest
from profile_files import write as write_profiles
from typer.testing import CliRunner

from dare_job.bench.balance import by_rows, night
from dare_job.bench.balance.__main__ import app
from dare_job.bench.balance.cluster import Engine, schedule
from dare_job.bench.balance.night import Lengths


def test_the_next_shard_goes_to_the_slot_that_is_free_first():
    assert schedule([4, 3, 2, 2, 1], 2, [1, 1]).tolist() == [6, 6]
    assert schedule([4, 3, 2, 2, 1], 2, [1, 0.5]).tolist() == [8, 8]
    assert schedule([5], 3, [1, 1, 1]).tolist() == [5, 0, 0]


def test_an_engine_takes_a_forward_a_step_of_the_rows_in_its_slots():
    engine = Engine(batch_size=2, base_ms=10, row_ms=1, token_ms=0.5)
    ones = np.ones(4)
    seconds, busy = engine.seconds(ones * 2, np.array([4, 3, 2, 1]), np.array([5, 3, 2, 4]))
    # two rows for 5 steps (the second's slot is taken over after 3), then the last row alone for 4
    assert seconds == pytest.approx((4 * 2 * 0.5 + 5 * 12 + 4 * 11) / 1e3) and busy == 14 / 18
    longest_first, _ = engine.seconds(ones, np.array([1, 2, 3, 9]), np.array([1, 1, 1, 9]))
    assert longest_first < engine.seconds(ones, -np.array([1, 2, 3, 9]), np.array([1, 1, 1, 9]))[0]


def test_nights_are_skewed_and_old_lengths_tell_of_new_ones():
    one = night.draw(4000, 50, 1.0, Lengths(), np.random.default_rng(0))
    counts = np.sort(np.bincount(one.pool))
    assert counts[-1] > 10 * np.median(counts)
    both = one.old > 0
    assert 0.75 < both.mean() < 0.85 and one.new.max() <= night.MOST
    log = np.log(one.new[both] / one.old[both])
    assert 0.2 < log.std() < 0.35 and np.corrcoef(one.old[both], one.new[both])[0, 1] > 0.5
    assert (one.steps <= one.new).all() and (one.steps >= 1).all()


def test_the_way_before_splits_by_rows():
    placed = by_rows.place({("user", "a"): 400, ("user", "b"): 10, ("user", "c"): 12}, 2, 4)
    assert len(placed["user", "a"][0]) == 6 and placed["user", "b"][0] == placed["user", "c"][0]


def test_lengths_are_those_of_recorded_profiles(tmp_path):
    (tmp_path / "x").mkdir()
    write_profiles(tmp_path)
    for (name, column, key), words in zip(night.PAIRS, (10, 20), strict=True):
        pd.DataFrame({key: range(4), column: [" word" * words * (1 + n % 2) for n in range(4)]}).to_csv(
            tmp_path / name, index=False)
    found = night.recorded(tmp_path)
    assert found.spread == 0 and 15 < found.old.mean() < 40


def test_the_command_shows_that_cost_beats_rows(monkeypatch):
    monkeypatch.delenv("DARE_DATA", raising=False)
    done = CliRunner().invoke(app, ["--rows", "4000", "--seeds", "2"])
    assert done.exit_code == 0, done.output
    last = json.loads(done.output.splitlines()[-1])
    lines = {(line["executors"], line["cut"]): line for line in last["rows"]}
    assert last["slots"] == 8 and len(lines) == 4
    assert lines["alike", "by cost"]["worst"] < 1.15
    assert lines["alike", "by cost"]["seconds"] < lines["alike", "by rows"]["seconds"]
