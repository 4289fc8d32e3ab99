"""Faults of an encoder are reported in one line, and never become vectors."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from encoders import EMBEDDINGS, in_pickle, tiny_bert, with_dense, without_numbers
from safetensors.torch import load_file, save_file

from dare_job.errors import InfrastructureError, ModelError
from dare_job.models import files
from dare_job.publish.features import encode_tasks, encoder_files
from dare_job.publish.features.encode_tasks import EncodeTask
from dare_job.publish.features.encoder import Encoder

ST_FILES = ("modules.json", "config_sentence_transformers.json")  # of sentence-transformers, at the top


@pytest.fixture
def bert(tmp_path):
    return tiny_bert(tmp_path / "bert")


def change(file: Path, **fields) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def truncate(bert: Path) -> None:
    file = bert / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def run_code(bert: Path) -> None:
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(bert / "ran"),)

    torch.save({EMBEDDINGS: Evil()}, in_pickle(bert / "model.safetensors"))


@pytest.mark.parametrize(("damage", "message"), [
    (truncate, "SafetensorError: "),
    (lambda bert: change(bert / "config.json", intermediate_size=8), "weights do not match config.json"),
    (lambda bert: change(bert / "config.json", model_type="none"), "model type `none`"),
    (lambda bert: in_pickle(bert / "model.safetensors").write_bytes(b"no"), "pytorch_model.bin: damaged"),
    (run_code, "pytorch_model.bin: damaged, or not only tensors.* convert the weights to safetensors")])
def test_an_encoder_that_cannot_be_loaded_is_told(bert, damage, message):
    damage(bert)
    with pytest.raises(ModelError, match=f"^encoder {bert} cannot be loaded: .*{message}"):
        Encoder(bert, "cpu", batch_size=2)
    assert not (bert / "ran").exists()


@pytest.mark.parametrize("kept", ["safetensors", "pickle", "prefixed", "subfolder"])
def test_weights_that_its_files_lack_are_no_random_numbers(bert, kept):
    file = bert / "model.safetensors"
    weights = load_file(file)
    if kept == "prefixed":
        weights = {f"bert.{name}": tensor for name, tensor in weights.items()}
    save_file(weights, file, {"format": "pt"})
    Encoder(bert, "cpu", 8)  # all are there
    layer = next(name for name in weights if name.endswith("layer.1.attention.self.query.weight"))
    save_file({name: tensor for name, tensor in weights.items() if name != layer}, file, {"format": "pt"})
    if kept == "pickle":
        in_pickle(file)
    if kept == "subfolder":
        whole = with_dense(bert.parent / "whole", bert)
        (whole / "0_Transformer").mkdir()
        for path in [path for path in whole.iterdir() if path.is_file() and path.name not in ST_FILES]:
            path.rename(whole / "0_Transformer" / path.name)
        modules = json.loads((whole / "modules.json").read_text())
        modules[0]["path"] = "0_Transformer"
        (whole / "modules.json").write_text(json.dumps(modules))
        shutil.copy(file, whole / "0_Transformer" / file.name)
        bert = whole
    with pytest.raises(ModelError, match=r"lacks weights, .*: encoder.layer.1.attention.self.query.weight$"):
        Encoder(bert, "cpu", 8)


def test_without_tokenizer_or_with_a_slow_one_there_are_no_windows(bert):
    (bert / "tokenizer.json").rename(bert / "other")
    with pytest.raises(ModelError, match="bert contains no tokenizer"):
        encoder_files.fingerprint(bert)
    (bert / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    with pytest.raises(ModelError, match=r"bert has no tokenizer\.json \(a fast tokenizer\)"):
        Encoder(bert, "cpu", batch_size=2)


def test_a_window_without_room_for_a_token_is_refused(tmp_path):
    with pytest.raises(ModelError, match="reads at most 2 tokens, and 2 of them are .* no token is left"):
        Encoder(tiny_bert(tmp_path / "two", positions=2), "cpu", batch_size=2)
    three = Encoder(tiny_bert(tmp_path / "three", positions=3), "cpu", batch_size=2)
    assert three.encode(["war films"]).windows == 2


def test_the_text_whose_vector_is_no_number_is_named(bert):
    without_numbers(bert, "war")
    encoder = Encoder(bert, "cpu", batch_size=2)
    assert encoder.encode(["old films", "love"]).vectors.shape == (2, 16)
    with pytest.raises(ModelError, match="bert returns NaN or Inf for the text 'war films'") as found:
        encoder.encode(["old films", "love", "war films"])
    assert found.value.exit_code == 6


def test_files_that_do_not_belong_together_are_told(bert, tmp_path):
    odd = with_dense(tmp_path / "odd", bert, reads=12)
    with pytest.raises(ModelError, match="odd cannot encode: RuntimeError: .* do not match each other"):
        Encoder(odd, "cpu", batch_size=2).encode(["war films"])
    change(bert / "config.json", vocab_size=6)
    weights = load_file(bert / "model.safetensors")
    weights[EMBEDDINGS] = weights[EMBEDDINGS][:6].clone()
    save_file(weights, bert / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="bert cannot encode: IndexError"):
        Encoder(bert, "cpu", batch_size=2).encode(["war films"])


def test_a_host_with_another_encoder_is_named(bert):
    print_ = encoder_files.fingerprint(bert)
    wanted = EncodeTask(str(bert), None, print_, "cpu", torch.get_num_threads(), 2)
    assert encode_tasks.loaded(wanted).encode(["war"]).vectors.shape == (1, 16)
    change(bert / "config.json", hidden_dropout_prob=0.2)
    encode_tasks._load.cache_clear()
    files.require_same_files.cache_clear()
    with pytest.raises(ModelError, match="the model in .*bert differs from the driver's .* spark.ship=auto"):
        encode_tasks.loaded(wanted)


SHORT = """
import resource, sys
import pyarrow as pa
from dare_job.publish.features import encode_tasks
from dare_job.publish.features.encoder import Encoder
encoder = Encoder(sys.argv[1], "cpu", batch_size=256)
encoder.encode(["war films"])
text = " ".join(["war"] * 500)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
encode_tasks.encoded(encoder, [text] * 256)
"""


def test_memory_that_ran_out_is_told_as_such(bert, monkeypatch):
    encoder = Encoder(bert, "cpu", batch_size=2)

    def full(texts):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory")

    monkeypatch.setattr(encoder, "encode", full)
    with pytest.raises(InfrastructureError, match="encoding failed: RuntimeError: .*not enough memory.*lower "
                                                  "encode.batch_size to use less memory"):
        encode_tasks.encoded(encoder, ["war films"])


@pytest.mark.slow
def test_too_large_a_batch_is_told_as_such(tmp_path):
    """256 texts of 502 tokens, 512 float32 each: 251 MiB at once, of 200 that are left."""
    bert = tiny_bert(tmp_path / "bert", positions=512, dim=512)
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", SHORT, str(bert)], capture_output=True,
                           text=True, check=False,
                           env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"})
    assert "dare_job.errors.InfrastructureError: " in found.stderr, found.stderr
    last = found.stderr.strip().splitlines()[-1]
    assert "encoding failed: RuntimeError: " in last and "lower encode.batch_size to use less memory" in last
