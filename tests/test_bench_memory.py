"""The bench of resident memory, at a small size."""

import json

import pytest
from typer.testing import CliRunner

from dare_job.bench.cli import app


@pytest.mark.release
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_capacity_is_measured_in_its_own_process(dtype):
    done = CliRunner().invoke(app, ["memory", "--capacity", "64,16", "--rows", "4", "--tokens", "6",
                                    "--batch", "2", "--nodes", "3", "--dtype", dtype])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])["results"]
    assert [each["capacity"] for each in found] == [64, 16]
    for each in found:
        assert 0 < each["before_mib"] < each["ready_mib"] < each["loaded_mib"]
        assert 0 < each["weights_mib"] < each["loaded_mib"]
        assert len(each["decoding_mib"]) == 4 and min(each["decoding_mib"]) > each["before_mib"]
        assert max(each["decoding_mib"]) <= each["peak_mib"] + 1
        assert each["tokens_per_cpu_s"] > 0 and 0 <= each["cache_mib"] < each["weights_mib"]
