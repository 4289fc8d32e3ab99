"""Model names to folders, and fingerprints that change with what can change a text."""

import json

import pytest
from decode_models import tiny

from dare_job.errors import ModelError
from dare_job.model_files import fingerprint, resolve, tokenizer_hash


@pytest.fixture
def folder(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    return tmp_path


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
    with pytest.raises(ModelError, match="owner/model .*cannot be reached"):
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
    content[-1] ^= 1
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
