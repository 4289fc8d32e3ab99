"""``dare-job check``: equal models pass, a wrong one is named with row, position and logit gap."""

import json
from io import StringIO

import numpy as np
import pytest
from decode_models import tiny
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dare_job.check import read_prompts, run_check
from dare_job.errors import DataError, ModelError

LETTERS = {letter: i + 2 for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz ABCDEFGHILMNOPRSTUVWX.,:;'")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny("mistral-window").save_pretrained(path)
    inner = Tokenizer(models.WordLevel({**LETTERS, "[UNK]": 1}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]").save_pretrained(path)
    return str(path)


def _check(*args, **options):
    out = StringIO()
    return run_check(*args, **options, console=Console(file=out, width=200)), out.getvalue()


def test_an_equal_model(folder, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Write it"}\n\n{"prompt": "and again, longer"}\n')
    result, shown = _check(folder, file, 5, max_new_tokens=24)
    assert result["equal"] and result["rows"] == 5 and result["first_difference"] is None
    assert {batch: set(curve) for batch, curve in result["latency_ms"].items()} == {
        "1": {"1", "4", "16", "64"}, "8": {"1", "4", "16", "64"}}
    assert "MistralForCausalLM" in shown and "equal" in shown and "milliseconds" in shown
    json.dumps(result)


def test_a_difference_is_named(folder, monkeypatch):
    from dare_job import check

    write = check._write

    def wrong(target, texts, expected, *settings):
        written = write(target, texts, expected, *settings)
        written[2] = np.where(np.arange(len(written[2])) == 7, 3, written[2])
        return written

    monkeypatch.setattr(check, "_write", wrong)
    result, shown = _check(folder, None, 4, max_new_tokens=12)
    first = result["first_difference"]
    assert not result["equal"] and (first["row"], first["position"], first["written"]) == (2, 7, 3)
    assert first["logit_gap"] > 0 and not first["near_tie"]
    assert "row 2, position 7" in shown


def test_prompts_files(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\n")
    assert read_prompts(file) == ["one", "two"]
    for content, why in (("", "holds no prompt"), ('{"text": 1}', "prompt"), ('{"prompt": "a"}\n{', "line")):
        file.write_text(content)
        with pytest.raises(DataError, match=why):
            read_prompts(file)
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts(tmp_path / "nothing")


def test_a_folder_without_tokenizer(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="tokenizer"):
        _check(str(tmp_path), None, 2)
