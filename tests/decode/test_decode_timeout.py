"""A row whose forward passes take too long ends; other time does not count."""

import numpy as np
import pytest
from decode_models import generate, prompts, tiny

from dare_job.decode.engine import engine as engines
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError

LIMIT_S = 1.0


class Clock:
    """Replaces the module ``time``: time passes only where a test says so."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(engines, "time", clock)
    return clock


def engine(model, clock, limit_s: float | None = LIMIT_S, slow: frozenset = frozenset()) -> Engine:
    """Return an engine of three slots; a step takes 1 ms, and 0.2 s longer while it has a slow row."""
    made = Engine(Target(model, check=False), EngineSettings(
        batch_size=3, max_new_tokens=20, score="never", row_timeout_s=limit_s))
    forward = made._forward

    def timed(*args):
        clock.now += 0.201 if slow & set(made.active_ids()) else 0.001
        return forward(*args)

    made._forward = timed
    return made


def test_a_slow_row_ends_and_later_rows_are_generated(clock):
    model, texts = tiny("llama"), prompts((5, 9, 4, 7, 6, 8))
    requests = [Request(row, text, max_new_tokens=200 if row == 1 else None)
                for row, text in enumerate(texts)]
    found = {result.id: result for result in engine(model, clock, slow=frozenset([1])).run(requests)}
    assert sorted(found) == list(range(6))
    late = found.pop(1)
    assert late.finish_reason == "timeout" and 1 < len(late.token_ids) < 200
    assert late.error.startswith("timed out after 1.") and "decode.row_timeout_s = 1" in late.error
    for row, result in found.items():
        if result.finish_reason != "timeout":  # rows of its first steps were slowed down too
            assert result.token_ids.tolist() == generate(model, texts[row], max_new_tokens=20).tolist()
    assert sum(result.finish_reason == "length" for result in found.values()) >= 3


def test_a_slow_consumer_does_not_time_out_rows(clock):
    model, texts = tiny("llama"), prompts((5, 9, 4, 7, 6, 8))
    made = engine(model, clock)
    for result in made.run([Request(row, text) for row, text in enumerate(texts)]):
        clock.now += LIMIT_S
        assert result.finish_reason == "length"
    assert made.active_ids() == [] and 0 < made.clock_s < LIMIT_S


def test_without_a_limit_no_row_times_out(clock):
    (result,) = engine(tiny("llama"), clock, None, frozenset([0])).run([Request(0, prompts((5,))[0])])
    assert result.finish_reason == "length" and len(result.token_ids) == 20


@pytest.mark.parametrize("limit_s", [0, -1.0, np.nan])
def test_an_invalid_limit_is_named(limit_s):
    with pytest.raises(ConfigError, match="decode.row_timeout_s"):
        EngineSettings(row_timeout_s=limit_s)
