"""The bench of a step's layers, at a small size."""

import json

import pytest
from typer.testing import CliRunner

from dare_job.bench.cli import app


@pytest.mark.slow
def test_each_way_is_timed_for_each_size():
    done = CliRunner().invoke(app, ["layers", "--layers", "512,1024", "--tokens", "1,3", "--heads", "4,2,32",
                                    "--queries", "2,1", "--columns", "64", "--repeats", "1"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert [(each["dtype"], each["tokens"]) for each in found["linear"]] == [
        (dtype, tokens) for dtype in ("float32", "bfloat16") for tokens in (1, 3)]
    assert all(each[way] > 0 for each in found["linear"] for way in ("torch", "compiled"))
    assert all(each["oneDNN"] > 0 for each in found["linear"] if each["dtype"] == "float32")
    assert len(found["attention"]) == 2 and all(each["compiled"] > 0 for each in found["attention"])


def test_numbers_that_do_not_pair_are_refused():
    done = CliRunner().invoke(app, ["layers", "--layers", "512"])
    assert done.exit_code and "--layers must have numbers from 1 on, 2 for each" in str(done.exception)
