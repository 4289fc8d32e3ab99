"""``bench run-pools`` on the users of a published date."""

import json

import pyarrow.parquet as pq
import pytest
import yaml
from run_helpers import NIGHT_1, NIGHT_2, settings
from typer.testing import CliRunner

from dare_job.bench.cli import app
from dare_job.bench.pools import of_run
from dare_job.errors import ConfigError, DataError
from dare_job.tables import published

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def config(nights, tmp_path_factory):
    path = tmp_path_factory.mktemp("run-pools") / "settings.yaml"
    path.write_text(yaml.safe_dump(settings(nights.world, nights.out)))
    return path


def texts(nights, dt):
    table = published.dataset(nights.out / "knowledge" / "entity=user" / f"dt={dt}").to_table(
        columns=["entity_id", "token_ids"]).to_pylist()
    return {row["entity_id"]: row["token_ids"] for row in table}


def test_texts_of_both_dates_are_those_of_the_run(nights, job_of, tmp_path):
    dates = of_run.read(job_of(nights.out, NIGHT_2), tmp_path, 3, 20)
    before, today = texts(nights, NIGHT_1), texts(nights, NIGHT_2)
    assert len(dates.prompts) == 3 and len(dates.pool) == 20 and not set(dates.prompts) & set(dates.pool)
    assert {user: text.tolist() for user, text in (dates.previous | dates.pool).items()} == {
        user: before[user] for user in dates.previous | dates.pool}
    assert {user: text.tolist() for user, text in dates.texts.items()} == {
        user: today[user] for user in dates.texts}
    penalized = of_run.read(job_of(nights.out, NIGHT_2, decode={"repetition_penalty": 1.5}), tmp_path, 3, 20)
    assert any(text.tolist() != today[user] for user, text in penalized.texts.items())
    with pytest.raises(DataError, match="users"):
        of_run.read(job_of(nights.out, NIGHT_2), tmp_path, 3, 200)


def test_users_are_as_near_as_the_vectors_of_the_earlier_date(nights, job_of, tmp_path):
    folder = nights.out / "_work" / f"dt={NIGHT_1}" / "embed" / "entity=user"
    known = {row["entity_id"]: row["vector"] for row in pq.read_table(folder).to_pylist()}
    found = of_run._vectors(job_of(nights.out, NIGHT_2), [*known, "nobody"])
    assert known and not found.pop("nobody").any()
    assert {user: vector.tolist() for user, vector in found.items()} == known


def test_every_block_is_measured_and_strict_texts_do_not_differ(config, tmp_path):
    with pytest.raises(ConfigError, match="--sizes 20 must be above 0 and below --pool 20"):
        of_run.Options(config=[config], date=NIGHT_2, pool=20, sizes=(20,), group=5)
    refused = CliRunner().invoke(app, ["run-pools", "--config", str(config), "--date", NIGHT_2, "--nodes=0"])
    assert refused.exit_code == 2 and "--nodes" in refused.output
    done = CliRunner().invoke(app, [
        "run-pools", "--config", str(config), "--date", NIGHT_2, "--rows", "2", "--pool", "20",
        "--sizes", "5", "--group", "5", "--tokens", "12", "--nodes", "4", "--work", str(tmp_path),
        "--set", "decode.repetition_penalty=1.5"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert {row["block"] for row in found["rows"]} == {"size-5", "size-20", "sources", "rules"}
    strict = [row for row in found["rows"] if row["rule"] == "strict"]
    assert strict and all(row["differ"] == 0 for row in strict)
    assert max(row["accepted_per_step"] for row in strict) > 0 and found["dtype"] == "float32"
    assert found["repetition_penalty"] == 1.5 and 0 < found["copied_share"] < 1
    assert "Rules of verification (figure 5, table 8)" in done.stdout
