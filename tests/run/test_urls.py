"""The whole job on an object store: input, output and old text at s3://, through a real S3 API."""

import html
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3_server
import yaml
from run_helpers import NIGHT_1, NIGHT_2, settings
from standalone import ROOT

from dare_job import cli, errors, pipeline, workspace
from dare_job.errors import InfrastructureError
from dare_job.publish.gate import scan
from dare_job.publish.report import show_text
from dare_job.schemas import ENTITIES
from dare_job.stages import publish
from dare_job.storage import atomic_folder, paths
from dare_job.tables import chunk_files, published

pytestmark = [pytest.mark.spark, pytest.mark.slow]
_DEADLINE_S = 240
_LIMIT = 12  # rows of the run that is killed
_TEXT = ("knowledge", "token_ids", "error", "text_key", "prompt_sha256", "finish_reason", "generated_dt",
         "pool")


@pytest.fixture(scope="module")
def at_url(store, nights):
    """URLs of the input, uploaded, and of an output folder that is not there."""
    paths.upload(nights.world, paths.path(f"{store}/world"))
    return f"{store}/world", paths.path(f"{store}/out/nightly")


@pytest.fixture(scope="module")
def job_at(at_url, job_of):
    world, out = at_url
    return lambda day, **sections: job_of(out, day, input={"path": world}, **sections)


@pytest.fixture(scope="module")
def runs(job_at):
    return [pipeline.run(job_at(night)) for night in (NIGHT_1, NIGHT_2)]


def rows(out, entity: str, day: str) -> dict[str, dict]:
    found = published.dataset(out / "knowledge" / f"entity={entity}" / f"dt={day}").to_table().to_pylist()
    by_id = {row["entity_id"]: row for row in found}
    assert len(by_id) == len(found)
    return by_id


def test_texts_are_those_of_a_local_run(runs, nights, at_url):
    _, out = at_url
    for night in (NIGHT_1, NIGHT_2):
        for entity in ENTITIES:
            ours, local = rows(out, entity, night), rows(nights.out, entity, night)
            assert ours.keys() == local.keys() and len(ours) >= 25
            for id_, row in ours.items():
                assert {name: row[name] for name in _TEXT} == {name: local[id_][name] for name in _TEXT}
    assert [run["written"] for run in runs] == [nights.first["written"], nights.second["written"]]
    assert runs[1]["out"] == str(out) and runs[1]["accepted_per_step"] > 0.5


def test_a_second_run_writes_nothing(runs, job_at):
    def versions() -> dict[str, str]:
        found = paths.listing(job_at(NIGHT_2).space.out)
        return {name: entry["ETag"] for name, entry in found.items()
                if "generate" not in name and "/logs/" not in name}

    before = versions()
    again = pipeline.run(job_at(NIGHT_2))
    assert again["written"] == runs[1]["written"] and versions() == before


def test_nothing_is_left_but_the_output(runs, at_url):
    _, out = at_url
    names = list(paths.listing(out))
    assert not [name for name in names if "_lock" in name or "/." in name]
    for night in (NIGHT_1, NIGHT_2):
        for entity in ENTITIES:
            folder = f"knowledge/entity={entity}/dt={night}/"
            named = json.loads((out / folder / "_manifest.json").read_text())["files"]
            assert sorted(name for name in names if name.startswith(folder)) == sorted(
                [f"{folder}_manifest.json", *(folder + name for name in named)])
        for stage in ("input", "plan", "pools", "generate"):
            start = f"_work/dt={night}/{stage}/v-"
            assert len({name.split("/")[3] for name in names if name.startswith(start)}) == 1


def test_each_night_has_a_report_with_the_numbers_of_its_run(runs, nights, at_url):
    out = at_url[1]
    for night, summary in zip((NIGHT_1, NIGHT_2), runs, strict=True):
        page = workspace.report_page(out, night).read_text(encoding="utf-8")
        seen = html.unescape(" ".join(re.sub(r"<[^>]+>", " ", page.partition("<body>")[2]).split()))
        assert f"{summary['written']} generated in this run" in seen
        assert f"Accepted per step {summary['accepted_per_step']:.2f}" in seen
    assert f"../dt={NIGHT_1}/index.html" in page and '<mark class="draft">' in page
    local = workspace.report_page(nights.out, NIGHT_2).read_text(encoding="utf-8")
    assert router(page) == router(local) and "<td" in router(page)


def router(page: str) -> str:
    """What the report says of the pools that the router chose."""
    return re.search(r'<section id="router".*?</section>', page, re.DOTALL)[0].partition("<h3>")[0]


def test_history_and_diff_say_what_they_say_of_a_disk(runs, nights, at_url, monkeypatch, capsys):
    def said(*arguments) -> dict:
        monkeypatch.setattr(sys, "argv", ["dare-job", *map(str, arguments), "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return json.loads(capsys.readouterr().out)

    timed = {"accepted_per_step", "tokens_per_s", "baseline_tokens_per_s", "ratio", "seconds", "published",
             "changes"}
    dates = [[{name: value for name, value in row.items() if name not in timed}
              for row in said("history", "--out", out)["dates"]] for out in (at_url[1], nights.out)]
    assert dates[0] == dates[1] and [row["status"] for row in dates[0]] == ["published"] * 2
    ours, local = (said("diff", NIGHT_1, NIGHT_2, "--out", out) for out in (at_url[1], nights.out))
    for entity in ENTITIES:
        assert all(ours[entity][name] == local[entity][name] for name in ("counts", "lengths", "examples"))


def test_what_workers_say_and_how_busy_they_were_is_kept(runs, at_url):
    out = at_url[1]
    logs = out / "_work" / f"dt={NIGHT_2}" / "logs"
    lines = [json.loads(line) for file in logs.glob(f"run-{NIGHT_2}.*.jsonl")
             for line in file.read_text().splitlines()]
    assert {"the model is loaded", "the shard is finished"} <= {line["event"] for line in lines}
    assert {line["run_id"] for line in lines} == {f"run-{NIGHT_2}"}
    found = published.read_manifest(out / "knowledge" / "entity=user" / f"dt={NIGHT_2}")
    assert found["workers"]["workers"] >= 1 and found["workers"]["hangs"] == 0
    assert set(found["seconds"]) == set(pipeline.STAGES[:-1])  # all before it is published


def test_a_failed_gate_names_the_rows_and_leaves_what_is_published(runs, at_url, job_at, monkeypatch):
    monkeypatch.setattr(scan, "MIN_FAILING_ROWS", 1)
    out = at_url[1]
    before = published.read_manifest(out / "knowledge" / "entity=user" / f"dt={NIGHT_2}")
    shut = job_at(NIGHT_2, gates={"max_share": {"cut_off": 0.0}})
    for stage in ("gate", "publish"):
        with pytest.raises(errors.ThresholdError, match="texts are cut off") as caught:
            pipeline.run_stage(shut, stage)
    named = re.search(r"The rows are in (s3://\S+\.parquet)\.", str(caught.value))[1]
    with paths.arrow_source(paths.path(named)) as source:
        listed = pq.read_table(source)
    assert "cut_off" in listed["check"].to_pylist() and len(listed) >= 1
    with pytest.raises(errors.DataError, match="run `dare-job run --from gate --date "):
        pipeline.run_stage(job_at(NIGHT_2), "publish")
    pipeline.run_stage(job_at(NIGHT_2), "gate")
    pipeline.run_stage(job_at(NIGHT_2), "publish")
    assert published.read_manifest(out / "knowledge" / "entity=user" / f"dt={NIGHT_2}") == before


def test_a_text_is_shown(runs, at_url, capsys):
    out = at_url[1]
    drafted = next(id_ for id_, row in rows(out, "user", NIGHT_2).items() if row["accepted_tokens"])
    show_text.show_text(str(out), f"user:{drafted}", NIGHT_2)
    shown = capsys.readouterr().out
    assert f"user:{drafted}" in shown and "accepted per step" in shown and ": at least " in shown


def test_old_text_and_model_come_from_urls_too(runs, at_url, store, job_of, tmp_path, monkeypatch):
    """The first night's snapshots as old text of a local output; the model at a URL."""
    from pathlib import Path

    from dare_job.models import embedded_path

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths.upload(Path(embedded_path()), paths.path(f"{store}/model"))
    sections = {"input": {"path": at_url[0], "knowledge": f"{at_url[1]}/knowledge"},
                "model": {"name": f"{store}/model"}}
    for stage in ("plan", "embed", "group", "route", "pools"):
        report = pipeline.run_stage(job_of(tmp_path / "out", NIGHT_2, **sections), stage)
    assert report["user"]["from"] == f"{at_url[1]}/knowledge/entity=user/dt={NIGHT_1}"
    assert report["user"]["texts"] >= 25


@pytest.mark.release
def test_a_killed_run_is_refused_company_and_goes_on(at_url, store, job_of, nights, tmp_path):
    """By the command line: killed with its Java once chunks are committed; then the same date again."""
    world, out = at_url[0], paths.path(f"{store}/out/killed")
    sections = {"decode": {"max_new_tokens": 48, "batch_size": 1, "nodes": 0}, "baseline": {"rows": 0},
                "spark": {"master": "local[2]", "conf": {"spark.driver.memory": "1g"}, "rows_per_commit": 3}}
    config = settings(nights.world, tmp_path / "unused", **sections)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(config))
    job = job_of(out, NIGHT_1, _LIMIT, input={"path": world}, **sections)
    run = subprocess.Popen(
        [sys.executable, "-m", "dare_job", "run", "--config", str(tmp_path / "job.yaml"), "--date", NIGHT_1,
         "--input", world, "--out", str(out), "--limit", str(_LIMIT)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + _DEADLINE_S
    try:
        while len(chunk_keys()) < 3:
            assert run.poll() is None, run.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(InfrastructureError, match=f"process {run.pid} on .*_lock"):
            pipeline.run_stage(job, "publish")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    before = {key: paths.version_of(paths.path(f"{store}/{key}")) for key in chunk_keys()}
    report = pipeline.run_stage(job, "generate")
    after = {key: paths.version_of(paths.path(f"{store}/{key}")) for key in chunk_keys()}
    assert before.items() <= after.items() and 0 < report["written_now"] < report["rows"]
    pipeline.run_stage(job, "gate")
    pipeline.run_stage(job, "publish")
    for entity in ENTITIES:
        ours, local = rows(out, entity, NIGHT_1), rows(nights.out, entity, NIGHT_1)
        assert len(ours) >= _LIMIT
        assert all(row["knowledge"] == local[id_]["knowledge"] for id_, row in ours.items())


def chunk_keys() -> list[str]:
    return [key for key in s3_server.keys(f"out/killed/_work/dt={NIGHT_1}/generate/") if "/part-0" in key]


def write_version(out, version: str) -> None:
    """Let tonight's texts end with a word, as if the model had written them so."""
    generated = atomic_folder.current(out / "_work" / f"dt={NIGHT_2}" / "generate")
    for path in (generated / "entity=user").glob("part-*"):
        with paths.arrow_source(path) as source:
            table = pq.read_table(source)
        words = [None if text is None else f"{text.partition(' Version-')[0]} {version}"
                 for text in table["knowledge"].to_pylist()]
        place = table.schema.get_field_index("knowledge")
        column = pa.array(words, pa.string())
        chunk_files.write(path, table.set_column(place, table.schema.field(place), column))


def read_on(program, size: int, stop: threading.Event, seen: list) -> None:
    """Read as the document says until told to stop; ``seen``: the versions read, last what was wrong."""
    while not stop.is_set():
        found: dict = {}
        try:
            exec(program, found)
        except FileNotFoundError as error:
            now = json.loads(found["s3"].cat(f"{found['folder']}/_manifest.json"))["files"]
            if found.get("names", now) == now:
                seen.append(f"{error}, which the manifest names")
                return
            continue  # replaced since the manifest was read
        table = found["table"].to_pylist()
        versions = {row["knowledge"].rpartition(" ")[2] for row in table
                    if row["generated_dt"] == NIGHT_2 and row["knowledge"]}
        if len({row["entity_id"] for row in table}) != size or len(table) != size or len(versions) != 1:
            seen.append(f"{len(table)} rows of {size}, versions {versions}")
            return
        seen += versions


@pytest.mark.release
def test_a_reader_of_the_manifest_never_sees_a_part_or_a_mix_of_a_date(runs, at_url, job_at, monkeypatch):
    """The document's own program, over and over, while a date of several files is published again."""
    monkeypatch.setattr(publish, "_ROWS_PER_FILE", 8)
    out, named = at_url[1], ("Version-A.", "Version-B.", "Version-C.")
    document = (ROOT / "docs" / "how-to" / "object-stores.md").read_text(encoding="utf-8")
    block, = (found for found in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "names" in found)
    ours = f"{str(out).partition('://')[2]}/knowledge/entity=user/dt={NIGHT_2}"
    program = compile(re.sub(r'folder = ".*"', f'folder = "{ours}"', block), "urls.md", "exec")
    size, stop, seen = len(rows(out, "user", NIGHT_2)), threading.Event(), []
    write_version(out, named[0])
    for stage in ("gate", "publish"):
        pipeline.run_stage(job_at(NIGHT_2), stage)
    reader = threading.Thread(target=read_on, args=(program, size, stop, seen))
    reader.start()
    try:
        for version in named[1:]:
            write_version(out, version)
            for stage in ("gate", "publish"):
                pipeline.run_stage(job_at(NIGHT_2), stage)
        deadline = time.monotonic() + _DEADLINE_S
        while reader.is_alive() and named[-1] not in seen and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        stop.set()
        reader.join()
    manifest = published.read_manifest(out / "knowledge" / "entity=user" / f"dt={NIGHT_2}")
    assert len(manifest["files"]) > 3
    assert list(dict.fromkeys(seen)) == list(named) and len(seen) > 2 * len(named), seen
