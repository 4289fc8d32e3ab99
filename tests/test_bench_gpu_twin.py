"""The counts of ``bench gpu --twin``."""

import json

import numpy as np
import pytest
import torch

from dare_job.bench import roofline
from dare_job.bench.gpu import twin
from dare_job.decode.engine.latency import LatencyCurve

CURVE = LatencyCurve.of(json.loads(twin.CURVE.read_text(encoding="utf-8"))["latency_ms"], "the curve")


def test_the_curve_is_the_published_line():
    assert CURVE.ms(32, 4) == pytest.approx(7.09 + 0.021 * 128 + 3.9e-5 * 32 * roofline.CONTEXT, abs=1e-3)


@pytest.mark.slow
def test_counts_of_one_row_are_within_the_targets_and_do_not_vary():
    first, again = (twin.passes(1, CURVE) for _ in range(2))
    assert first == again
    assert first["prompt_passes"] == first["texts"] and first["tree_passes"] > 100
    assert first["eager_shapes"] <= 3 and first["padded_share"] < 0.1 and 1 <= first["kv_ratio"] < 1.15
    assert first["accepted_per_step"] > 2


@pytest.mark.parametrize("rule", ["strict", "relaxed", "entropy"])
def test_a_step_waits_once(rule):
    assert twin.waits(3, rule) == 1


def test_a_wait_is_counted():
    with twin.Waits() as counter:
        torch.ones(3).sum().item()
        assert torch.ones(1) > 0
        torch.ones(3) + np.ones(3)
    assert counter.count == 2


@pytest.mark.release
def test_all_batch_sizes_are_within_the_targets(capsys):
    found = twin.measure()
    assert found["padded_share"] < 0.1 and found["kv_ratio"] < 1.15 and found["syncs_per_strict_step"] == 1
    assert found["eager_shapes"] <= 9
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["batch"] for line in lines] == [1, 32, 128] and found["rows"] == lines
