"""`dare-job data prepare`, SIGKILLed in its steps: what is there afterwards is whole, or is not there."""

import kill_points
import pytest
from paper_files import prepared, ratings, table, ten_million
from test_run_killed import command

pytestmark = pytest.mark.spark


@pytest.mark.release
@pytest.mark.parametrize("at", [
    pytest.param(r"mkdir .*/ctr$", id="three tables are there", marks=pytest.mark.release),
    pytest.param(r"rename .*\.staging -> out$", id="all that will be is there")])
def test_a_killed_preparation_leaves_nothing_that_looks_whole(spark, tmp_path, at):
    root, rows = tmp_path / "data", ratings()
    root.mkdir()
    path = ten_million(tmp_path, rows)
    line = ["data", "prepare", "movielens-10m", "--input", str(path), "--save", str(root / "out")]
    java = spark.sparkContext._gateway.gateway_parameters
    given = (root, command, (str(java.port), java.auth_token), line)
    kill_points.killed(at, *given)
    (left,) = root.iterdir()
    assert left.name.startswith(".out.")
    prepared(*line[2:])
    assert [path.name for path in root.iterdir()] == ["out"]
    assert len(table(root / "out", "interactions")) == len(rows)
