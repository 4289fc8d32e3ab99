"""What differs between a disk and an object store: names, whole files, versions of folders, local copies."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.cli.output import writing
from dare_job.errors import ConfigError, InfrastructureError, ModelError
from dare_job.models import embedded_path
from dare_job.models import files as models_files
from dare_job.pipeline import STAGES
from dare_job.schemas import KNOWLEDGE
from dare_job.storage import atomic_folder, conditional_write, local_copy, paths, versions
from dare_job.tables import published as tables_published
from dare_job.workspace import Workspace, committing, done_record, is_done, write_json


@pytest.fixture
def folder(store, request):
    return paths.path(f"{store}/{re.sub('[^a-z_]', '-', request.node.name)}")


@pytest.mark.slow
def test_local_runs_import_nothing_of_urls(tmp_path):
    """Neither the packages of stores nor what Spark reads from them; transformers may import botocore."""
    write_json(tmp_path / "x.json", {"a": 1})
    code = f"""
import importlib, sys
for name in ("pipeline", "cli", "publish.snapshots.diff", "publish.snapshots.clean", "publish.report.page",
             "observe.progress", *(f"stages.{{stage}}" for stage in {STAGES})):
    importlib.import_module(f"dare_job.{{name}}")
from dare_job.storage import paths
paths.file_versions(list(paths.path({str(tmp_path)!r}).iterdir()))
print(*{{"upath", "s3fs", "aiobotocore", "hdfs_native", "dare_job.spark.remote_tables"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_local_paths_are_those_of_pathlib():
    for text in ("out", "/data/o[1]", "a:b/c"):
        assert paths.path(text) == Path(text)
    assert paths.path("~/x") == Path.home() / "x"
    assert paths.path("file:///data/my%20folder") == Path("/data/my folder")


@pytest.mark.parametrize(("text", "said"), [
    ("ftp://host/x", "out: ftp:// is not supported; valid: a path, file://, s3://, hdfs://"),
    ("file://elsewhere/x", "out: file://elsewhere/x names the host elsewhere"),
    ("s3:///x", "out = s3:///x: write s3://BUCKET/folder"),
    ("s3://b/x*", "out = s3://b/x*: wildcards"),
    ("hdfs://name:8020/x", "out = hdfs://name:8020/x: write hdfs:///folder; HADOOP_CONF_DIR")])
def test_a_url_that_cannot_be_used_is_named_with_its_setting(text, said):
    with pytest.raises(ConfigError) as caught:
        paths.path(text, "out")
    assert str(caught.value).startswith(said)


def test_hdfs_without_a_cluster_says_where_one_is_named(monkeypatch):
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="out = hdfs:///x: .*; HADOOP_CONF_DIR must name the folder of"):
        paths.path("hdfs:///x", "out")


@pytest.mark.parametrize("text", [
    "s3://AKIAKEY:hush@bucket/x", "s3://hush@bucket/x", "hdfs://me:hush@name/x", "s3://bucket/x?signature=hush"])
def test_a_secret_in_a_url_is_refused_and_not_repeated(text):
    with pytest.raises(ConfigError, match="remove user, password and query") as caught:
        paths.path(text, "input.path")
    assert "hush" not in str(caught.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match="out: s3:// needs the package s3fs: run `make install EXTRAS=s3`"):
        paths.path("s3://bucket/x", "out")
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(ConfigError, match="out: hdfs:// needs the package hdfs_native: .*EXTRAS=hdfs"):
        paths.path("hdfs:///x", "out")


@pytest.mark.spark
def test_a_missing_bucket_and_missing_credentials_are_named(store, tmp_path, monkeypatch):
    with (pytest.raises(ConfigError, match="out = s3://nobody/x: there is no bucket nobody"),
          writing(paths.path("s3://nobody/x"))):
        pass
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(paths, "_STORES", {"s3": ("s3fs", {"skip_instance_cache": True})})
    with (pytest.raises(InfrastructureError, match="out = s3://night/x .*no credentials were found"),
          writing(paths.path(f"{store}/x"))):
        pass


@pytest.mark.spark
def test_a_file_is_there_whole_or_as_it_was(folder):
    path = folder / "a b" / "x.json"
    with pytest.raises(RuntimeError), paths.atomic_writer(path, "") as file:
        file.write(b"half")
        raise RuntimeError
    assert not path.exists()
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), paths.arrow_sink(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert json.loads(path.read_text()) == {"a": 1}


@pytest.mark.spark
def test_of_many_that_create_a_file_one_succeeds(folder):
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda n: conditional_write.create(folder / "lock", b"%d" % n), range(8)))
    assert sum(made) == 1 and (folder / "lock").read_bytes() == b"%d" % made.index(True)
    version = paths.version_of(folder / "lock")
    with ThreadPoolExecutor(8) as threads:
        made = list(
            threads.map(
                lambda n: conditional_write.compare_and_swap(folder / "lock", version, b"1%d" % n), range(8)
            )
        )
    assert sum(made) == 1 and (folder / "lock").read_bytes() == b"1%d" % made.index(True)
    (folder / "lock").unlink()
    assert not conditional_write.compare_and_swap(folder / "lock", version, b"gone")


@pytest.mark.spark
def test_a_stage_is_the_version_before_or_the_new_one(folder):
    place = Workspace(folder, date(2026, 1, 2))
    for number in (1, 2):
        with committing(place.stage("plan"), f"f{number}", {"number": number}) as staging:
            (staging / "entity=user" / f"part-{number}.parquet").write_text("rows")
            if number == 2:
                assert is_done(place.stage("plan"), "f1") and done_record(place.stage("plan"))["number"] == 1
                assert [path.name for path in paths.visible_files(place.stage("plan"))] == ["part-1.parquet"]
        assert is_done(place.stage("plan"), f"f{number}")
    assert [path.name for path in paths.visible_files(place.stage("plan"))] == ["part-2.parquet"]
    with pytest.raises(RuntimeError), committing(place.stage("plan"), "f3", {}) as staging:
        (staging / "part-3.parquet").write_text("rows")
        raise RuntimeError
    assert is_done(place.stage("plan"), "f2")
    atomic_folder.clean_up_below(place.work)
    left = [name for name in paths.listing(place.work) if "part-" in name]
    assert len(left) == 1 and left[0].endswith("part-2.parquet")
    (place.stage("plan") / "entity=user" / "part-2.parquet").unlink()
    assert not is_done(place.stage("plan"), "f2")


def published(folder, name: str, ids: list[str]) -> None:
    """Files and manifest as a publication writes them."""
    rows = pa.Table.from_pylist([{"entity_id": id_, "run_id": name} for id_ in ids], schema=KNOWLEDGE)
    with paths.arrow_sink(folder / f"part-{name}.parquet") as sink:
        pq.write_table(rows, sink)
    write_json(folder / "_manifest.json", {"files": {f"part-{name}.parquet": {}}})


@pytest.mark.spark
def test_readers_of_a_date_that_is_published_again_see_one_publication(folder):
    """One that loops while another writes, five times over."""
    place, ended, seen = folder / "dt=2026-01-02", threading.Event(), set()

    def loop() -> None:
        while not ended.is_set():
            try:
                rows = tables_published.dataset(place).to_table(columns=["entity_id", "run_id"]).to_pylist()
            except (FileNotFoundError, OSError):
                continue  # of the publication before, deleted meanwhile: list again
            seen.add((len(rows), *{row["run_id"] for row in rows}))

    published(place, "0", ["a", "b"])
    reader = threading.Thread(target=loop)
    reader.start()
    for number in range(1, 6):
        published(place, str(number), ["a", "b"])
        atomic_folder.replace(place, place)
    time.sleep(0.2)
    ended.set()
    reader.join()
    assert seen <= {(2, str(number)) for number in range(6)} and (2, "5") in seen
    assert sorted(paths.listing(place)) == ["_manifest.json", "part-5.parquet"]


@pytest.mark.spark
def test_a_folder_is_copied_once_a_version(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("manifest.json", "deep/tokens.npy"):
        (folder / name).write_bytes(name.encode())
    with ThreadPoolExecutor(4) as threads:
        copies = set(threads.map(lambda _: local_copy.local_copy(folder, "1"), range(4)))
    (copy,) = copies
    assert (copy / "deep" / "tokens.npy").read_bytes() == b"deep/tokens.npy"
    (folder / "manifest.json").write_bytes(b"other")
    assert local_copy.local_copy(folder, "1") == copy
    other = local_copy.local_copy(folder, "2")
    assert (other / "manifest.json").read_bytes() == b"other" and (copy / "manifest.json").exists()
    os.utime(copy, (1, 1))
    local_copy.local_copy(folder, "2")
    assert not copy.exists() and other.exists()
    assert not [path for path in copy.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.spark
def test_a_copy_that_is_cut_off_is_none(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (folder / "tokens.npy").write_bytes(b"0123456789")
    monkeypatch.setattr(local_copy, "_get", lambda folder, into, file: (into / file.name).write_bytes(b"012"))
    with pytest.raises(InfrastructureError, match="tokens.npy was truncated or changed during the download"):
        local_copy.local_copy(folder, "1")
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert (local_copy.local_copy(folder, "1") / "tokens.npy").read_bytes() == b"0123456789"


@pytest.mark.spark
def test_a_model_at_a_url_is_the_same_model(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths.upload(Path(embedded_path()), folder)
    copy = models_files.resolve(str(folder))
    assert models_files.fingerprint(copy) == models_files.fingerprint(embedded_path())
    assert models_files.resolve(str(folder)) == copy
    with pytest.raises(ModelError, match="model.name = s3://.*/none: no model there"):
        models_files.resolve(str(folder / "none"))


@pytest.mark.spark
def test_nothing_is_left_by_a_missing_folder(folder):
    assert paths.listing(folder / "none") == {}
    assert atomic_folder.current(folder / "none").name == "v-00000000"
    paths.remove_tree(folder / "none")
    versions.clean_up(folder / "none")
