"""Model names to folders, and fingerprints that change with what can change a text."""

import json
import os
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import pytest
from decode_models import tiny
from transformers import AutoConfig

from dare_job.errors import InfrastructureError, ModelError
from dare_job.models import files as models_files
from dare_job.models.files import fingerprint, resolve, tokenizer_hash, vocabulary


@pytest.fixture
def folder(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    return tmp_path


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """An empty cache of digests, on disk and in memory; large means from one byte."""
    path = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    monkeypatch.setattr(models_files, "_remembered", {})
    monkeypatch.setattr(models_files, "_LARGE", 1)
    monkeypatch.setattr(models_files, "_SETTLED_S", -1e9)
    return path / "dare-job" / "file-digests.json"


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that are read to be digested."""
    read, names = models_files.hashlib.file_digest, []
    monkeypatch.setattr(models_files.hashlib, "file_digest",
                        lambda stream, kind: names.append(Path(stream.name).name) or read(stream, kind))
    return names


def test_folders(folder):
    assert resolve(str(folder)) == folder
    for name in (str(folder / "other"), "./other", "~/a/b"):
        with pytest.raises(ModelError, match="does not exist"):
            resolve(name)


def test_hub_names_that_cannot_be_reached(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreachable(*args, **kwargs):
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(InfrastructureError, match="owner/model .*cannot be reached"):
        resolve("owner/model")


def test_fingerprint_follows_what_changes_a_text(folder):
    first, words = fingerprint(folder), tokenizer_hash(folder)
    (folder / "README.md").write_text("a note")
    assert (fingerprint(folder), tokenizer_hash(folder)) == (first, words)

    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**config, "repetition_penalty": 1.1}))
    second = fingerprint(folder)
    assert second != first and tokenizer_hash(folder) == words

    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    weights.write_bytes(content)
    third = fingerprint(folder)
    assert third != second

    (folder / "tokenizer.json").write_text('{"version": "1.1"}')
    assert fingerprint(folder) != third and tokenizer_hash(folder) != words


def test_folders_that_hold_no_model(tmp_path):
    with pytest.raises(ModelError, match="holds no config.json"):
        fingerprint(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        fingerprint(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no tokenizer"):
        tokenizer_hash(tmp_path)


def test_a_folder_of_gguf_files_gets_a_hint(tmp_path):
    (tmp_path / "small.Q4_K_M.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"model.name = .* holds 1 GGUF file and no config.json: name the "
                                         r"file itself: model.name = .*small.Q4_K_M.gguf"):
        resolve(str(tmp_path))
    with pytest.raises(ModelError, match="name one of its GGUF files"):
        fingerprint(tmp_path)


def test_a_hub_model_without_configuration_gets_a_hint(tmp_path, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **options: str(tmp_path))
    with pytest.raises(ModelError, match="owner/model has no config.json on the hub.*GGUF"):
        resolve("owner/model")


def test_an_adapter_of_the_hub_is_joined_with_its_base_model(tmp_path, monkeypatch):
    import huggingface_hub

    tiny("llama").save_pretrained(tmp_path / "base")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "owner/base", "revision": "v2"}))
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, revision, **options:
        asked.append((name, revision)) or str(tmp_path / name.rpartition("/")[2]))
    folder = resolve("owner/adapter")
    assert set(asked) == {("owner/adapter", None), ("owner/base", "v2")}
    names = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "adapter_config.json"} <= names


def test_every_byte_of_the_weights_counts(folder):
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes() + bytes(3 << 20))
    weights.write_bytes(content)
    first = fingerprint(folder)
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    os.utime(weights, (0, 0))
    assert fingerprint(folder) != first


def test_custom_code_counts(folder):
    first = fingerprint(folder)
    (folder / "modeling_x.py").write_text("x = 1")
    second = fingerprint(folder)
    (folder / "modeling_x.py").write_text("x = 2")
    assert len({first, second, fingerprint(folder)}) == 3


def test_an_unchanged_file_is_read_once(folder, cache, reads, monkeypatch):
    first = fingerprint(folder)
    assert "model.safetensors" in reads
    reads.clear()
    assert fingerprint(folder) == first and reads == []
    monkeypatch.setattr(models_files, "_remembered", {})  # as in a new process
    assert fingerprint(folder) == first and reads == []
    os.utime(folder / "model.safetensors", (1, 1))
    assert fingerprint(folder) == first and reads == ["model.safetensors"]
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


def test_a_change_behind_an_old_time_stamp_is_seen(folder):
    weights = folder / "model.safetensors"
    before, first = weights.stat(), fingerprint(folder)
    time.sleep(0.02)  # time stamps have ticks of some milliseconds
    with weights.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x7f")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fingerprint(folder) != first


def test_a_file_changed_just_now_is_not_remembered(folder, cache, monkeypatch):
    monkeypatch.setattr(models_files, "_SETTLED_S", 1e9)
    fingerprint(folder)
    assert not cache.exists() and models_files._remembered == {}


def test_links_are_followed_and_broken_ones_named(folder, tmp_path_factory, reads):
    blobs = tmp_path_factory.mktemp("blobs")
    first = fingerprint(folder)
    (folder / "model.safetensors").rename(blobs / "abc")
    (folder / "model.safetensors").symlink_to(blobs / "abc")
    assert fingerprint(folder) == first and reads[-1] == "abc"
    (blobs / "abc").unlink()
    with pytest.raises(ModelError, match="model.safetensors cannot be read"):
        fingerprint(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', '{"a": [1, 2, 3, 4, 5]}'])
def test_a_damaged_cache_is_ignored(folder, cache, content):
    cache.parent.mkdir()
    cache.write_text(content)
    first = fingerprint(folder)
    assert first == fingerprint(folder) and str(folder / "model.safetensors") in json.loads(cache.read_text())


def test_a_cache_folder_that_cannot_be_written(folder, cache, monkeypatch):
    first, written = fingerprint(folder), cache.read_text()
    monkeypatch.setattr(models_files, "_remembered", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "config.json"))  # no folder: nothing can be made there
    assert fingerprint(folder) == first
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent.parent))
    monkeypatch.setattr(models_files, "_remembered", {})
    monkeypatch.setattr(models_files.os, "replace", _no_space)
    os.utime(folder / "model.safetensors", (1, 1))
    assert fingerprint(folder) == first
    assert cache.read_text() == written


def _no_space(*_):
    raise OSError("no space left on device")


REPOSITORY = ["config.json", "model.safetensors", "pytorch_model.bin", "training_args.bin", "modeling_x.py",
              "tokenizer.model", "consolidated.safetensors", "consolidated.00.pth",
              "original/consolidated.00.safetensors", "onnx/config.json", "chat_template.jinja", "README.md"]
SAFE = {"config.json", "model.safetensors", "tokenizer.model", "chat_template.jinja"}


@pytest.mark.parametrize("files, trust, expected", [
    (REPOSITORY, False, SAFE),
    (REPOSITORY, True, SAFE | {"modeling_x.py"}),
    (REPOSITORY[:1] + REPOSITORY[2:], False, SAFE - {"model.safetensors"} | {"pytorch_model.bin"}),
])
def test_what_is_downloaded(tmp_path, monkeypatch, files, trust, expected):
    import huggingface_hub

    def download(name, revision, allow_patterns, ignore_patterns):
        assert (name, revision) == ("owner/model", "v2")
        for file in files:
            wanted = any(fnmatch(file, pattern) for pattern in allow_patterns)
            if wanted and not any(fnmatch(file, pattern) for pattern in ignore_patterns):
                (tmp_path / file).write_text("")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("owner/model@v2", trust) == tmp_path
    assert {file.name for file in tmp_path.iterdir()} == expected


def test_a_job_downloads_code_only_where_it_is_trusted(monkeypatch):
    from dare_job.config.settings import JobConfig
    from dare_job.job import Job
    from dare_job.models import files as models_files

    monkeypatch.setattr(models_files, "resolve", lambda name, trust_remote_code: (name, trust_remote_code))
    for trust in (True, False):
        settings = {"name": "owner/model@v2", "trust_remote_code": trust}
        job = Job(JobConfig.model_validate({"out": "o", "model": settings}), None, "run")
        assert job.model_path == ("owner/model@v2", trust)


@pytest.mark.parametrize("fields", [
    {"model_type": "llama", "vocab_size": 123}, {"model_type": "xlm", "n_words": 123},
    {"model_type": "gemma3", "text_config": {"vocab_size": 123}, "vocab_size": 77}],
    ids=lambda fields: fields["model_type"])
def test_the_vocabulary_is_that_of_the_text_model(tmp_path, fields):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert AutoConfig.from_pretrained(tmp_path).get_text_config(decoder=True).vocab_size == 123
    assert vocabulary(tmp_path) == 123


def test_an_unmistakable_vocabulary_is_read_without_torch(tmp_path):
    """A driver of Spark has no other use for torch."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 123}))
    script = ("import sys; from dare_job.models.files import vocabulary; "
             "print(vocabulary(sys.argv[1]), 'torch' in sys.modules)")
    out = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["123", "False"]


@pytest.mark.parametrize("config", ["[]", "{", '{"model_type": "none"}', '{"vocab_size": null}'])
def test_a_configuration_without_a_vocabulary_is_one_line(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelError, match="its configuration names no vocab_size"):
        vocabulary(tmp_path)
