"""Airflow runs the nightly DAG on a local Spark: wrong settings, a kill, a second run, a failed gate."""

import json
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from airflow_home import DEADLINE_S, NIGHT, NIGHTLY, STAGES, TASKS, chunks, files, small, wait, webhook

from dare_job.storage import lock

pytestmark = pytest.mark.spark


@pytest.mark.release
def test_a_wrong_setting_fails_the_first_stage_at_once_and_is_told(airflow, world, tmp_path):
    with webhook() as (connection, posted):
        settings = small(world, tmp_path / "out", notify="told", params={"set": ["decode.batch_size=0"]})
        home = airflow(settings, AIRFLOW_CONN_TOLD=connection)
        said = home.run("dags", "test", NIGHTLY, NIGHT, succeeds=False)
    tasks = home.tasks()
    assert tasks["plan"] == ("failed", 1)  # of three
    assert {tasks[name][0] for name in (*STAGES[1:], "notify", "ended")} == {"upstream_failed"}
    assert len(posted) == 1
    text = posted[0]["text"]
    assert "plan exited with code 2 (settings): " in text and "decode.batch_size" in text
    assert "hook-3141" not in said  # the address is a secret


@pytest.mark.release
def test_a_killed_stage_is_tried_again_and_goes_on_where_it_stopped(killed, world):
    home, out, posted = killed.home, killed.out, killed.posted
    tasks = home.tasks()
    assert set(tasks) == set(TASKS)
    assert tasks.pop("generate") == ("success", 2)
    assert tasks.pop("encode") == tasks.pop("recommend") == ("skipped", 1)  # no model of theirs
    assert {tasks.pop(name)[0] for name in ("texts_over", "ended")} == {"success"}  # nothing is run there
    assert set(tasks.values()) == {("success", 1)}
    assert killed.before.items() <= chunks(out).items()
    assert len(posted) == 1 and f"{NIGHT} is published in {out}: 24 users (24 generated" in posted[0]["text"]
    assert posted[0]["text"].endswith(f". Report: {out}/reports/dt={NIGHT}/index.html")
    assert ids(out, "user") == sorted(ds.dataset(world / "users.parquet").to_table()["user_id"].to_pylist())


@pytest.mark.release
def test_the_same_night_again_waits_for_a_lock_and_writes_nothing_but_what_is_new(killed, recommender):
    home, out, posted = killed.home, killed.out, killed.posted
    written, published = chunks(out), files(out / "knowledge")
    more = {"set": [*home.settings["params"]["set"], "encode.model=embedded",
                    f"recommend.model={recommender}", "recommend.k=3"]}
    with lock.held(out / "_work" / f"dt={NIGHT}"):  # another dare-job is running
        run = home.start("dags", "test", NIGHTLY, NIGHT, "--conf", json.dumps(more))
        refused = "plan exited with code 5 (Java, Spark, disk or device): another"
        wait(lambda: refused in home.said(), "a refused plan", home, run)
    assert run.wait(DEADLINE_S) == 0, home.said()[-6000:]
    assert chunks(out) == written and files(out / "knowledge") == published
    assert "(40 of 40 rows were already there)" in home.said().rpartition("exited with code 5")[2]
    tasks = home.tasks()
    assert tasks["encode"] == tasks["recommend"] == ("success", 1) and tasks["ended"][0] == "success"
    said = [json.loads(extra) for (extra,) in home.rows("select extra from asset_event order by id")]
    assert [(one["date"], one["out"]) for one in said] == [(NIGHT, str(out))] * 4
    assert said[0]["counts"]["user"]["rows"] == 24 and said[2]["counts"]["user"]["encoded"] == 24
    assert (said[3]["counts"]["users"], said[3]["counts"]["errors"]) == (24, 0)
    assert lists(out) == {user: [1, 2, 3] for user in ids(out, "user")}
    assert ids(out, "user", "features") == ids(out, "user")
    assert len(posted) == 2  # publishing a date again sends the message again


@pytest.mark.release
def test_a_failed_gate_ends_the_run_for_good_and_leaves_what_is_published(killed, recommender):
    home, out, posted = killed.home, killed.out, killed.posted
    published = files(out / "knowledge")
    strict = {"set": [*home.settings["params"]["set"], "gates.max_share.cut_off=0.0",
                      f"recommend.model={recommender}", "recommend.k=2"]}
    home.run("dags", "test", NIGHTLY, NIGHT, "--conf", json.dumps(strict), succeeds=False)
    tasks = home.tasks()
    assert tasks["generate"] == ("success", 1) and tasks["gate"] == ("failed", 1)  # of three
    assert {tasks[name][0] for name in ("publish", "encode", "notify", "ended")} == {"upstream_failed"}
    assert files(out / "knowledge") == published
    assert tasks["recommend"] == ("success", 1)  # recommendations do not depend on texts
    assert lists(out) == {user: [1, 2] for user in ids(out, "user")}
    assert home.rows("select count(*) from asset_event") == [(5,)]
    assert len(posted) == 3
    for words in ("gate exited with code 3 (quality gate): ",
                  "nothing was published", "more than gates.max_share.cut_off = 0.0", "failing_rows.parquet"):
        assert words in posted[2]["text"]


def ids(out: Path, entity: str, tables: str = "knowledge") -> list[str]:
    folder = out / tables / f"entity={entity}" / f"dt={NIGHT}"
    table = ds.dataset(folder, format="parquet").to_table(columns=["entity_id"])
    return sorted(table["entity_id"].to_pylist())


def lists(out: Path) -> dict[str, list[int]]:
    """Ranks of each user's list."""
    folder = out / "candidates" / f"dt={NIGHT}"
    found: dict[str, list[int]] = {}
    for row in ds.dataset(folder, format="parquet").to_table(columns=["user_id", "rank"]).to_pylist():
        found.setdefault(row["user_id"], []).append(row["rank"])
    return {user: sorted(ranks) for user, ranks in found.items()}
