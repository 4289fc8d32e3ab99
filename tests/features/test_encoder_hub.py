"""What is downloaded of an encoder on the hub: all that it takes; pickles where there is nothing else."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from encoders import in_pickle, tiny_bert, with_dense
from huggingface_hub.utils import filter_repo_objects

from dare_job.publish.features import encoder_files
from dare_job.publish.features.encoder import Encoder

TEXTS = ["war films", "never quiet"]
OTHERS = ("onnx/model.onnx", "openvino/pytorch_model.bin", "training_args.bin", "2_Dense/optimizer.bin",
          "modeling.py")


@pytest.fixture
def repository(tmp_path):
    """A whole repository: an encoder of three modules, and files that nobody needs."""
    folder = with_dense(tmp_path / "repository", tiny_bert(tmp_path / "bert"))
    for name in OTHERS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("none of this")
    return folder


@pytest.fixture
def hub(tmp_path, repository, monkeypatch):
    """Stands for the hub: what the patterns choose of the repository is laid beside it."""
    import huggingface_hub

    cache = tmp_path / "cache"

    def download(name, revision, allow_patterns, ignore_patterns):
        assert (name, revision) == ("owner/encoder", "v2")
        files = [file for file in repository.rglob("*") if file.is_file()]
        names = [file.relative_to(repository).as_posix() for file in files]
        patterns = {"allow_patterns": allow_patterns, "ignore_patterns": ignore_patterns}
        for file in filter_repo_objects(names, **patterns):
            (cache / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / file, cache / file)
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return cache


def in_subfolder(repository: Path) -> None:
    """The layout of older encoders: the transformer in a folder of its own."""
    inner = repository / "0_Transformer"
    inner.mkdir()
    for file in [*repository.glob("*.json"), *repository.glob("*.safetensors")]:
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(inner / file.name)
    modules = json.loads((repository / "modules.json").read_text())
    modules[0]["path"] = inner.name
    (repository / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(("older", "pickled"), [
    (False, []), (False, ["2_Dense"]), (False, [".", "2_Dense"]), (True, []), (True, ["0_Transformer"]),
    (True, ["0_Transformer", "2_Dense"])])
def test_an_encoder_arrives_whole(repository, hub, older, pickled):
    wanted = Encoder(repository, "cpu", batch_size=2).encode(TEXTS).vectors
    if older:
        in_subfolder(repository)
    for module in ["0_Transformer" if older else ".", "2_Dense"]:
        weights = repository / module / "model.safetensors"
        if module in pickled:
            in_pickle(weights)
        else:
            (repository / module / "pytorch_model.bin").write_text("the same again, for older versions")
    folder = encoder_files.resolve("owner/encoder@v2")
    assert folder == hub and wanted.shape == (2, 8)
    assert {file.relative_to(hub).parent.as_posix() for file in hub.rglob("*.bin")} == set(pickled)
    assert not any((hub / name).exists() for name in OTHERS)
    np.testing.assert_array_equal(Encoder(folder, "cpu", batch_size=2).encode(TEXTS).vectors, wanted)
    binary = {file.parent.name for file in encoder_files.files(folder) if file.suffix == ".bin"}
    assert binary == {hub.name if module == "." else module for module in pickled}
