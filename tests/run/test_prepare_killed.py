"""`dare-job data prepare`, SIGKILLed in its steps: what is there afterwards is whole, or is not there."""

import kill_points
import pytest
from paper_files import prepared, ratings, table, ten_million
from test_run_killed import command

pytestmark = pytest.mark.spark
POINTS = (r"mkdir .*/ctr$", r"rename .*\.staging -> out$")  # three tables are there; all that will be


def test_a_killed_preparation_leaves_nothing_that_looks_whole(spark, tmp_path):
    root, rows = tmp_path / "data", ratings()
    root.mkdir()
    path = ten_million(tmp_path, rows)
    line = ["data", "prepare", "movielens-10m", "--input", str(path), "--save", str(root / "out")]
    java = spark.sparkContext._gateway.gateway_parameters
    given = (root, command, (str(java.port), java.auth_token), line)
    for at in POINTS:
        kill_points.killed(at, *given)
        left = [path.name for path in root.iterdir()]
        assert len(left) == 1 and left[0].startswith(".out.")  # of this one alone
    prepared(*line[2:])
    assert [path.name for path in root.iterdir()] == ["out"]
    assert len(table(root / "out", "interactions")) == len(rows)
