"""The file layer at hdfs://: what readers see of a file, lost responses, empty folders, errors.

On this machine's disk in place of HDFS, and on a NameNode and a DataNode where DARE_HDFS_JARS names jars.
"""

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hdfs_server
import pyarrow.parquet as pq
import pytest

from dare_job.errors import InfrastructureError
from dare_job.models import embedded_path
from dare_job.schemas import ENTITIES
from dare_job.stages import plan
from dare_job.storage import conditional_write, errors, paths, versions
from dare_job.storage.local_copy import local_copy

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", params=hdfs_server.KINDS)
def url(request, spark, tmp_path_factory):
    with hdfs_server.running(request.param, spark, tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture
def folder(url, request):
    return paths.path(f"{url}/{request.node.originalname}")


@pytest.mark.slow
def test_a_plan_of_an_input_at_hdfs_is_that_of_a_disk(make_job, write_input, tmp_path, folder):
    world = write_input([("ann", "i1", 4.0, 1), ("ann", "i2", 5.0, 2), ("bob", "i2", 3.0, 3)],
                        [("ann", None), ("bob", None)], [("i1", "Toy Story", None), ("i2", "Heat", None)])
    paths.upload(world, folder)
    plans = {}
    for name, place in {"disk": str(world), "hdfs": str(folder)}.items():
        job = make_job({"input": {"path": place}, "out": str(tmp_path / name)})
        assert plan.run(job)["user"]["rows"] == 2
        plans[name] = [pq.read_table(job.space.stage("plan") / f"entity={entity}").sort_by("entity_id")
                       for entity in ENTITIES]
    assert plans["hdfs"][0].equals(plans["disk"][0]) and plans["hdfs"][1].equals(plans["disk"][1])
    assert "Toy Story" in plans["hdfs"][0]["prompt"][0].as_py()


def test_a_model_at_hdfs_is_copied_whole(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths.upload(Path(embedded_path()), folder)
    copy = local_copy(folder, "version", kept=True)
    copied, original = ({path.name: path.read_bytes()
                         for path in Path(root).iterdir()} for root in (copy, embedded_path()))
    assert copied == original and len(copied) > 3


def test_a_large_file_is_read_by_parts(folder):
    content = os.urandom(9 << 20)
    with paths.atomic_writer(folder / "large", "") as file:
        file.write(content)
    with (folder / "large").open("rb") as file:
        file.seek(8 << 20)
        assert file.read(10) == content[8 << 20:(8 << 20) + 10]
        file.seek(0)
        assert file.read() == content


def test_readers_of_a_file_that_is_replaced_read_one_content(folder):
    path, ended, contents_read = folder / "x.json", threading.Event(), set()
    contents = [bytes([65 + n]) * 5000 for n in range(12)]
    path.write_bytes(contents[0])

    def loop() -> None:
        while not ended.is_set():
            contents_read.add(path.read_bytes())

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(loop) for _ in range(2)]
        try:
            for content in contents[1:]:
                with paths.atomic_writer(path, "") as file:
                    file.write(content)
        finally:
            ended.set()
        for reader in readers:
            reader.result()
    assert contents_read <= set(contents) and paths.listing(folder).keys() == {"x.json"}


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_rename_whose_response_is_lost_was_done(folder, monkeypatch, overwrite):
    """The client sends the request again, and the NameNode no longer finds the source."""
    path = folder / f"lost-{overwrite}"
    client, rename = path.fs.client, path.fs.client.rename

    def twice(*arguments) -> None:
        rename(*arguments)
        rename(*arguments)

    monkeypatch.setattr(client, "rename", twice)
    path.fs.pipe_file(path.path, b"content", mode="overwrite" if overwrite else "create")
    assert path.read_bytes() == b"content"
    assert not conditional_write.create(path, b"content") and path.read_bytes() == b"content"


def test_a_write_that_fails_leaves_what_was_there(folder, monkeypatch):
    path = folder / "x"
    path.write_bytes(b"before")
    monkeypatch.setattr(path.fs.client, "rename", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        path.fs.pipe_file(path.path, b"after")
    assert path.read_bytes() == b"before" and paths.listing(folder).keys() == {"x"}


def test_a_listing_has_all_that_is_there_while_folders_in_it_are_removed(folder, monkeypatch):
    """A recursive listing of the client's own fails where a folder is gone when its turn comes."""
    for name in ("a/x", "b/y", "c/z"):
        (folder / name).write_text("x")
    client, list_status = folder.fs.client, folder.fs.client.list_status

    def removing(path, recursive=False):
        for status in list_status(path, recursive):
            yield status
            if status.path.endswith("/b"):
                client.delete(status.path, True)

    monkeypatch.setattr(client, "list_status", removing)
    assert paths.listing(folder).keys() == {"a/x", "c/z"}
    assert paths.listing(folder / "none") == {}


def test_a_folder_that_is_there_is_not_listed_as_empty(folder, monkeypatch):
    (folder / "x").write_text("x")
    client, list_status, failures = folder.fs.client, folder.fs.client.list_status, [1]

    def failing(path, recursive=False):
        if failures:
            failures.pop()
            raise FileNotFoundError(path)
        return list_status(path, recursive)

    monkeypatch.setattr(client, "list_status", failing)
    lists = [lambda: set(paths.listing(folder)), lambda: {path.name for path in folder.glob("*")},
             lambda: {path.name for path in folder.rglob("*")},
             lambda: {path.name for path in folder.iterdir()}]
    for names in lists:
        failures[:] = [1]
        assert names() == {"x"}
        failures[:] = [1] * 9
        with pytest.raises(OSError, match="listing its files failed"):
            names()
    failures.clear()
    assert not list((folder / "none").glob("*"))


@pytest.mark.parametrize("listing", [lambda folder: list(folder.glob("*/*")), paths.listing],
                         ids=["glob", "all"])
def test_a_namenode_that_fails_is_no_empty_folder(folder, listing, monkeypatch):
    (folder / "a" / "x").write_text("x")
    client, list_status = folder.fs.client, folder.fs.client.list_status

    def failing(path, recursive=False):
        if path.endswith("/a"):
            raise RuntimeError("the NameNode is in safe mode")
        return list_status(path, recursive)

    monkeypatch.setattr(client, "list_status", failing)
    with pytest.raises(OSError, match="safe mode"):
        listing(folder)


def test_a_stream_is_written_when_closed_but_not_after_an_error_or_when_dropped(folder, monkeypatch):
    path = folder / "x"
    with pytest.raises(ZeroDivisionError), path.open("wb") as file:
        file.write(b"half")
        1 / 0  # noqa: B018
    assert file.closed and not path.exists()
    file = path.open("wb")
    file.write(b"half")
    del file
    gc.collect()
    assert not path.exists()
    with path.open("wb") as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"
    file = path.open("wb")
    monkeypatch.setattr(path.fs.client, "create", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        file.close()
    assert file.closed and path.read_bytes() == b"whole"


def test_a_large_file_that_is_replaced_as_it_is_opened_has_one_size(folder, monkeypatch):
    path, contents = folder / "large", [os.urandom(size << 20) for size in (5, 6)]
    path.write_bytes(contents[0])
    client, read = path.fs.client, path.fs.client.read

    def replaced(name):
        path.write_bytes(contents[1])
        return read(name)

    with monkeypatch.context() as patch:
        patch.setattr(client, "read", replaced)
        file = path.open("rb")
    with file:
        assert file.read() == contents[1]


def test_cleaning_up_versions_removes_a_half_written_pointer(folder):
    for name in ("_current", "._current.0123456789ab.partial", "v-00000001/x", "v-00000002/x"):
        (folder / name).write_text("v-00000002")
    versions.clean_up(folder)
    assert paths.listing(folder).keys() == {"_current", "v-00000002/x"}


def test_folders_are_removed_with_their_last_file(folder):
    for name in ("a/b/c/x", "a/b/y", "d/z"):
        (folder / name).write_text("x")
    paths.remove_below(folder, ["a/b/c/x"])
    assert not (folder / "a/b/c").exists() and (folder / "a/b/y").exists()
    paths.remove_below(folder, ["a/b/y", "gone"])
    assert [path.name for path in folder.glob("*")] == ["d"]
    paths.remove_tree(folder)
    paths.remove_tree(folder)
    assert not folder.exists() and folder.parent.fs.exists("/")


def test_names_keep_characters_that_end_the_path_of_a_url(folder):
    path = folder / "a;b?c#d"
    path.fs.pipe_file(path.path, b"content")
    assert path.fs.cat_file(path.path) == b"content" and paths.listing(folder).keys() == {path.name}


def test_a_missing_file_is_reported_in_one_line(folder):
    for read in (folder.fs.cat_file, folder.fs.info, folder.fs.ls):
        with pytest.raises(FileNotFoundError) as missing:
            read((folder / "missing").path)
        assert "missing" in str(missing.value) and "\n" not in str(missing.value)


def test_a_refused_request_is_reported_in_one_line_and_is_no_missing_file(folder, monkeypatch):
    message = 'RPCError("org.apache.hadoop.ipc.RetriableException", "It is in safe mode.\\n\\tat org.apache'

    def refuse(*_):
        raise RuntimeError(message)

    monkeypatch.setattr(folder.fs.client, "get_file_info", refuse)
    with pytest.raises(OSError, match="safe mode"):
        folder.exists()
    with pytest.raises(InfrastructureError, match="out = hdfs:///.* cannot be used: .*safe mode") as refused:
        errors.check_access(folder, "out")
    assert "tat org" not in str(refused.value)
    monkeypatch.setattr(folder.fs.client, "get_file_info", lambda *_: 1 / 0)
    message = message.replace("RetriableException", "AccessControlException")
    monkeypatch.setattr(folder.fs.client, "get_file_info", refuse)
    with pytest.raises(InfrastructureError, match="permission denied"):
        errors.check_access(folder, "out")
