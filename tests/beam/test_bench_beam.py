"""The benchmark of beams: its figures on a few rows, and their definitions."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dare_job.bench.beam import compare, report
from dare_job.bench.beam.measure import Generated
from dare_job.bench.beam.methods import BEAM, DSBD, SEARCH, SINGLE, Grid, Way, ways
from dare_job.bench.cli import app
from dare_job.bench.sampling import curve
from dare_job.decode.settings import Beams
from dare_job.errors import ConfigError
from dare_job.evaluate.embedded import Tally


def run_result(tokens: int, steps: int, nats: float, queries: int = 4, true: int = 9) -> Generated:
    """Return four rows, alike but for noise in their likelihoods."""
    noise = np.array([-0.01, 0.01, -0.02, 0.02])
    return Generated(np.full(4, tokens), np.full(4, steps), np.full(4, tokens), np.full(4, queries * steps),
                     tokens * (nats + noise), [Tally(0, 0, 10, true)] * 4, 1.0, 1.0)


def test_methods():
    named = [way.name for way in ways(Grid(), Beams())]
    assert len(named) == len(set(named)) == 3 + 4 + 28 + 3 + 1
    assert sum(way.method == DSBD for way in ways(Grid(), Beams())) == 28
    fixed = [way for way in ways(Grid((4, 8), widths=(2, 4), fixed=True), Beams()) if way.method == DSBD]
    assert [(way.beams.width, way.beams.min_width, way.beams.draft_width) for way in fixed] == [
        (2, 2, 4), (2, 2, 8), (4, 4, 4), (4, 4, 8)]
    assert [way.name for way in fixed][::3] == ["DSBD W_S=4 W=2", "DSBD W_S=8 W=4"]
    for way in ways(Grid(), Beams(seed=3)):
        assert way.beams is None or way.beams.seed == 3
        assert way.method != SINGLE or way.beams.single_cache
        assert way.method != SEARCH or way.beams.warp.greedy


def test_equal_quality_is_no_worse_in_either_measure():
    plain = Way(BEAM, Beams(width=4, layers=0))
    given = {
        "fast and worse": (run_result(100, 25, -0.5), 1),
        "fast and false": (run_result(100, 25, -0.1, true=5), 2),
        "right": (run_result(100, 50, -0.1), 3),
        "slow": (run_result(100, 80, -0.05), 4),
    }
    compared, found = [plain], {plain.name: run_result(100, 100, -0.1)}
    for written, least in given.values():
        way = Way(DSBD, Beams(4, 4, least), drafted=True)
        compared.append(way)
        found[way.name] = written
    pair, = report.equal_quality(compared, found)
    assert pair["dsbd"] == compared[3].name and pair["fewer_forwards"] == 2 and pair["by_clock"] == 1
    met = report.targets([pair], "cpu")
    assert [one["met"] for one in met] == [True, pair["memory_bound"] >= 1.5]
    nothing, = report.equal_quality(compared[:2], found)
    assert [one["met"] for one in report.targets([pair], "cuda")][2:] == [False]  # the clock's
    assert nothing["dsbd"] is None and not any(one["met"] for one in report.targets([nothing], "cuda"))


def test_speed_is_charged_by_queries_and_drafts():
    plain, drafted = Way(BEAM, Beams(width=4, layers=0)), Way(DSBD, Beams(layers=3), drafted=True)
    once = run_result(100, 50, -0.1)
    assert report.step_ms(plain, once) == curve.target_ms(4)
    assert report.step_ms(drafted, once) > curve.target_ms(4) * 1.1
    assert report.tokens_per_s(plain, once) == pytest.approx(8000 * 2 / curve.target_ms(4))


def test_front():
    assert report.front([(1, 5), (2, 4), (3, 1), (2, 2), (1, 1)]) == [(1, 5), (2, 4), (3, 1)]


@pytest.mark.release
def test_the_command_prints_its_figures(tmp_path):
    """From scratch, on three rows."""
    figure = tmp_path / "quality.svg"
    shown = CliRunner().invoke(app, ["beam", "--quick", "--plot", str(figure)])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout.splitlines()[-1])
    assert {row["method"] for row in found["rows"]} >= {BEAM, DSBD, SINGLE, SEARCH, "sampling"}
    for row in found["rows"]:
        assert row["nats"] <= 0 <= row["true"] <= 1 and row["tokens_per_forward"] > 0.9
    assert found["layers"] and all(one["bound"] >= 1 for one in found["layers"])
    assert {one["plain"] for one in found["equal_quality"]} == {"beam sampling W=1", "beam sampling W=2"}
    assert figure.read_text().startswith("<svg") and "beam sampling W=2" in figure.read_text()


@pytest.mark.parametrize(("args", "message"), [
    (("--distribution", "top_k"), "beam.distribution"),
    (("--thresholds", "x"), "--thresholds 'x' is not a list of numbers"),
    (("--layers", "-1"), "beam.layers is -1"), (("--layers", "0"), "--layers is 0; it must be at least 1"),
    (("--temperature", "nan"), "--temperature: sample.temperature is nan"), (("--rows", "0"), "--rows is 0"),
    (("--tokens", "0"), "--tokens is 0"), (("--seed", "-1"), "--seed is -1"),
    (("--widths", ","), "--widths is empty"), (("--draft-widths", ""), "--draft-widths is empty"),
    (("--min-widths", "7,9"), "--min-widths: the smallest is 7, but the largest of --draft-widths is 6"),
    (("--widths", "2,65"), "--widths have no valid beams: beam.width is 65"),
    (("--draft-widths", "0,2"), "--draft-widths: 0 is among them"),
    (("--thresholds", "nan"), "have no valid beams: beam.threshold is nan"),
    (("--work", __file__), "--work .* is a file"), (("--plot", "/"), "--plot / cannot be written")])
def test_invalid_options_fail_before_training(args, message, monkeypatch):
    monkeypatch.setattr(compare.world, "prepare", lambda *_: pytest.fail("it came to the models"))
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, ["beam", *args], catch_exceptions=False)
