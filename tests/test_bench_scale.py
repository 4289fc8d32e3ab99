"""The scale bench runs every stage on a small world and says what each took."""

import json

import pytest

from dare_job.bench.scale import command, indexes
from dare_job.bench.scale.command import STEPS, exponents
from dare_job.pipeline import STAGES

FIRST = "plan of the first night"


@pytest.mark.spark
def test_a_stage_is_measured_with_java_and_its_workers_and_not_again(tmp_path, capsys):
    arguments = ["--users", "2000", "--work", str(tmp_path), "--driver-memory", "1g", "--until", FIRST]
    command.main(arguments)
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])["sizes"]["2000"]
    assert list(found) == ["(world)", FIRST] and f"| {FIRST} |" in printed
    assert found["(world)"]["report"]["items"] == 200 and found["(world)"]["java_mib"] == 0
    assert found[FIRST]["seconds"] > 1 and found[FIRST]["cpu_s"] > 1
    assert found[FIRST]["java_mib"] > 100 and found[FIRST]["python_mib"] > 50
    assert found[FIRST]["memory_mib"] <= found[FIRST]["java_mib"] + found[FIRST]["python_mib"] + 1
    assert found[FIRST]["report"]["user"] == {"rows": 2000, "stale": 2000, "errors": 0}
    command.main(arguments)  # what was measured is not measured again
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["sizes"]["2000"] == found


@pytest.mark.slow
@pytest.mark.spark
def test_a_whole_night_is_measured_stage_by_stage(tmp_path, capsys):
    command.main(["--users", "2000", "--work", str(tmp_path), "--driver-memory", "1g"])
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])["sizes"]["2000"]
    assert [step for step in STEPS if step in found] == list(STEPS) and set(STAGES) - {"pools"} <= set(STEPS)
    for step in STEPS:
        assert found[step]["seconds"] > 0.1 and found[step]["cpu_s"] > 0.1 and found[step]["memory_mib"] > 50
    assert found["plan"]["report"]["user"] == {"rows": 2000, "stale": 40, "errors": 0}
    assert found["publish"]["report"]["user"]["counts"]["carried"] == 1960
    assert found["publish"]["report"]["item"]["counts"]["written"] == 4
    assert "| plan |" in printed and found["disk_mib"] > 0
    assert not any(path.is_dir() for path in (tmp_path / "users-2000").iterdir())


def test_a_step_that_fails_is_named_with_its_log(tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"plan-of-the-first-night\.log: .*7k"):
        command.main(["--users", "100", "--work", str(tmp_path), "--master", "7k"])


def test_exponents_are_those_of_the_growth():
    def cost(users):
        return {"plan": {"seconds": users / 1e4, "cpu_s": 3e-9 * users ** 2, "memory_mib": 500}}

    found = exponents({users: cost(users) for users in (10_000, 1_000_000, 100_000)})
    assert found == {"plan": {pair: {"seconds": 1.0, "cpu_s": 2.0, "memory_mib": 0.0}
                              for pair in ("10000-100000", "100000-1000000")}}


def test_recombined_texts_are_made_of_recorded_pieces():
    import numpy as np

    texts = indexes.recombined([np.arange(1000), np.arange(5000, 5100)], texts=50, tokens=70)
    assert [text.size for text in texts] == [70] * 50
    for text in texts:
        steps = np.diff(text.reshape(-1)[:60].reshape(3, indexes.PIECE), axis=1)
        assert ((steps == 1) | (steps == 4001)).all()
