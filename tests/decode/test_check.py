"""``dare-job check``: equal models pass; a difference is reported with row, position and logit gap."""

import json
import sys
from contextlib import nullcontext
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decode_models import tiny
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dare_job import cli
from dare_job.errors import ConfigError, DataError, ModelError
from dare_job.evaluate.check import _difference, _report, read_prompts, run_check

LETTERS = {letter: i + 2 for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz ABCDEFGHILMNOPRSTUVWX.,:;'")}


def _save(path, *name, model=None, **changes):
    (tiny(*name, **changes) if model is None else model).save_pretrained(path)
    inner = Tokenizer(models.WordLevel({**LETTERS, "[UNK]": 1}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]").save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return _save(tmp_path_factory.mktemp("model"), "mistral-window")


def _check(*args, **options):
    out = StringIO()
    return run_check(*args, **options, console=Console(file=out, width=200)), out.getvalue()


def test_an_equal_model(folder, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Write it"}\n\n{"prompt": "and again, longer"}\n')
    result, shown = _check(folder, file, 5, max_new_tokens=24)
    assert result["equal"] and result["rows"] == 5 and result["first_difference"] is None
    assert result["rows_that_differ"] == 0 and "another text" not in shown
    assert "MistralForCausalLM" in shown and "equal" in shown
    json.dumps(result)


def test_texts_that_would_be_cut_off_are_counted(folder):
    from dare_job.evaluate import check

    result, shown = _check(folder, None, 4, max_new_tokens=12)
    assert result["cut_off"] == 4 and "warning: 4 of 4 texts reach 12 tokens" in shown
    assert "Not checked" not in shown
    result, shown = _check(folder, None, 2)
    assert result["cut_off"] == 2 and "warning" not in shown and "Not checked" in shown
    target = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[7, 9]))
    assert check._cut_off(target, [np.array([3, 9]), np.array([3]), np.array([9, 3])], 2) == 1
    target.generation_config.eos_token_id = 3
    assert check._cut_off(target, [np.array([3, 9]), np.array([9, 3])], 2) == 1


def test_a_difference_is_reported(folder, monkeypatch):
    from dare_job.evaluate import check

    decode = check._decode

    def wrong(target, texts, expected, *settings):
        decoded = decode(target, texts, expected, *settings)
        decoded[2] = np.where(np.arange(len(decoded[2])) == 7, 3, decoded[2])
        return decoded

    monkeypatch.setattr(check, "_decode", wrong)
    result, shown = _check(folder, None, 4, max_new_tokens=12)
    first = result["first_difference"]
    assert not result["equal"] and (first["row"], first["position"], first["written"]) == (2, 7, 3)
    assert first["logit_gap"] > 0 and not first["near_tie"]
    assert "row 2, position 7" in shown and "1 of 4 rows have another text than generate's" in shown
    assert result["rows_that_differ"] == 1
    assert [one["rows_that_differ"] for one in result["by_batch"]] == [1, 1, 1, 1]


def test_prompts_files(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\n")
    assert [text for text, _ in read_prompts(file)] == ["one", "two"]
    file.write_text('{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert read_prompts(file) == [("a\u2028b", f"prompts file {file}, line 1")]
    for content, why in (
        ("", "has no prompt"), ("\n \n", "has no prompt"), ('{"text": 1}', "line 1: .*prompt"),
        ('{"prompt": "a"}\n\n{', "prompts.txt, line 3"), ('{"prompt": 5}', "line 1: .* is 5; "),
        ('{"prompt": "a"}\n{"prompt": ""}', "line 2: .* non-empty"), ('{"prompt": null}', "is null"),
        ('{"prompt": " "}', "line 1"), ('{"prompt": ["a"]}', "line 1"), ('{"prompt": "a"}\n5', "line 2"),
    ):
        file.write_text(content)
        with pytest.raises(DataError, match=why):
            read_prompts(file)
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts(tmp_path / "nothing")


def test_a_folder_without_tokenizer(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="tokenizer"):
        _check(str(tmp_path), None, 2)


def test_a_prompt_without_tokens_is_reported(folder, tmp_path, monkeypatch):
    from dare_job.evaluate import check

    monkeypatch.setattr(check, "prompt_ids", lambda tokenizer, text, template: np.zeros(0, np.int32))
    (tmp_path / "p.txt").write_text("\nword\n")
    with pytest.raises(DataError, match="p.txt, line 2: .* no token"):
        _check(folder, tmp_path / "p.txt", 1)


@pytest.mark.parametrize("context, room", [(32, None), (47, None), (48, 1), (60, 13)])
def test_short_contexts(tmp_path, monkeypatch, context, room):
    path = _save(tmp_path, "gpt2", n_positions=context)
    seen = _lengths(monkeypatch)
    if room is None:
        with pytest.raises(ModelError, match=f"is {context}: the context is too short to compare 48 tokens"):
            _check(path, None, 2)
        return
    result, shown = _check(path, None, 2)
    assert result["equal"] and max(seen) == room and f"context {context}, where texts end" in shown


def test_rotary_models_are_compared_beyond_their_context(tmp_path, monkeypatch):
    path = _save(tmp_path, "llama", max_position_embeddings=32)
    seen = _lengths(monkeypatch)
    result, shown = _check(path, None, 2)
    assert result["equal"] and max(seen) == 32 and "context 32, which texts may exceed" in shown


def _lengths(monkeypatch) -> list[int]:
    """Return a list that collects the lengths of compared prompts."""
    from dare_job.evaluate import check

    generate, seen = check._generate, []
    monkeypatch.setattr(check, "_generate", lambda target, prompt, new: (
        seen.append(len(prompt)), generate(target, prompt, new))[1])
    return seen


@pytest.mark.parametrize("dtype, share, equal", [
    ("bfloat16", 0.02, True), ("bfloat16", 0.04, False), ("float16", 0.003, True), ("float16", 0.005, False),
    ("float32", 0.001, False)])
def test_only_a_half_precision_model_may_differ_and_only_at_a_near_tie(dtype, share, equal):
    """The generated token's logit is ``share`` of the largest logit below that of ``generate``."""
    logits = torch.zeros(9)
    logits[4], logits[6] = 8.0, 8.0 * (1 - share)
    target = _fake(logits, logits)
    expected, written = [np.array([3, 4, 5])], np.array([3, 6, 5])
    found = _difference(target, [np.array([1, 2])], expected, written, 0, 1, 16, dtype)
    assert (found["position"], found["expected"], found["written"]) == (1, 4, 6)
    assert found["logit_gap"] == pytest.approx(8 * share, rel=1e-3) and found["near_tie"] == equal
    out = StringIO()
    _report(Console(file=out, width=200), [found], 1)
    assert "logit gap" in out.getvalue() and ("equal but for 1 near-ties" in out.getvalue()) == equal


def _fake(logits, cached):
    """A target whose forward pass gives ``logits``, and whose ``generate`` chose by ``cached``."""
    class Model:
        def __call__(self, input_ids, use_cache):
            return SimpleNamespace(logits=logits.expand(1, input_ids.shape[1], -1))

        def generate(self, ids, max_new_tokens, **options):
            return SimpleNamespace(logits=[cached[None]] * max_new_tokens)

    return SimpleNamespace(device="cpu", generation_config=SimpleNamespace(pad_token_id=None),
                           as_transformers=lambda: nullcontext(Model()))


@pytest.mark.parametrize("noise, near", [(0.1, False), (0.3, True)])
def test_near_ties_are_calibrated_against_transformers_itself(noise, near):
    """Its logits with a cache differ by ``noise`` from those without; the gap is 0.5."""
    logits = torch.zeros(9)
    logits[4], logits[6] = 8.0, 7.5
    target = _fake(logits, logits + noise * torch.nn.functional.one_hot(torch.tensor(2), 9))
    found = _difference(target, [np.array([1, 2])], [np.array([3, 4, 5])], np.array([3, 6, 5]), 0, 1, 16,
                        "bfloat16")
    assert found["near_tie"] == near and found["logit_gap"] == 0.5


def test_the_command_passes_its_options(folder, monkeypatch, capsys):
    code, out, err = _command(monkeypatch, capsys, "--model", folder, "--rows", "2", "--dtype", "bfloat16",
                              "--device", "cpu", "--chat-template", "never", "--trust-remote-code")
    result = json.loads(out.splitlines()[-1])
    assert code == 0 and result["equal"] and "in bfloat16 on cpu" in err
    assert _command(monkeypatch, capsys, "--model", folder, "--chat-template", "always")[0] == 2
    assert _command(monkeypatch, capsys, "--model", folder, "--dtype", "int8")[0] == 2

    seen = {}
    monkeypatch.setattr("dare_job.evaluate.check.run_check",
                        lambda **options: seen.update(options) or {"equal": True})
    _command(monkeypatch, capsys, "--model", "owner/model@v2", "--trust-remote-code")
    assert seen == {"model": "owner/model@v2", "prompts": None, "rows": 8, "dtype": "float32",
                    "device": "auto", "max_new_tokens": None, "chat_template": "auto",
                    "template_arguments": None, "trust_remote_code": True}


def test_a_wrong_prompts_file_gives_one_line(folder, tmp_path, monkeypatch, capsys):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": 5}\n')
    code, out, err = _command(monkeypatch, capsys, "--model", folder, "--prompt-file", str(file))
    assert (code, out) == (4, "") and "p.jsonl, line 1" in err.splitlines()[-1] and "Traceback" not in err


def test_what_is_told_of_a_model(folder, tmp_path):
    result, shown = _check(folder, None, 1)
    weights = sum(weight.nbytes for weight in tiny("mistral-window").parameters())
    token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, dimension, bytes
    assert (result["drafts"], result["dtype"], result["quantization"]) == ("tree", "float32", None)
    memory = result["memory"]
    assert weights <= memory["weights"] < weights + 1000 and memory["cache_per_token"] == token
    assert memory["tokens"] == 256 and memory["cache"]["32"] == 32 * 256 * token
    assert "drafts: trees of tokens" in shown and "memory, computed and not measured" in shown
    assert "32.8 kB for 1" not in shown and "65.5 kB for 1, 524 kB for 8" in shown
    json.dumps(result)


def test_what_is_honoured_of_the_generation_config(tmp_path):
    path = _save(tmp_path, "llama")
    _generation(tmp_path, eos_token_id=[7, 9], repetition_penalty=1.1, temperature=0.6, do_sample=True,
                pad_token_id=0, use_cache=True)
    result, shown = _check(path, None, 1)
    effects = result["generation_config"]
    assert effects["applied"] == {"eos_token_id": [7, 9], "repetition_penalty": 1.1}
    assert effects["without_effect"] == ["do_sample", "temperature"]
    assert "applied: eos_token_id = [7, 9], repetition_penalty = 1.1" in shown


def _generation(folder, **fields):
    (folder / "generation_config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("fields, message", [
    ({"stop_strings": ["x"]}, "generation_config.stop_strings is .*set decode.stop to these strings"),
    ({"num_beams": 4}, "generation_config.num_beams is 4"), ({"max_time": 1.0}, "generation_config.max_time"),
    ({"repetition_penalty": "high"}, "must be a number above 0"), ({"max_length": 0}, "whole number"),
    ({"exponential_decay_length_penalty": [3, 1.1]}, "needs an eos_token_id")])
def test_generation_settings_are_refused_before_weights_are_loaded(tmp_path, monkeypatch, fields, message):
    path = _save(tmp_path, "llama")
    _generation(tmp_path, **fields)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=message):
        _check(path, None, 1)


def test_a_failure_of_generate_is_one_line(folder, monkeypatch):
    def fail(*args, **options):
        raise ValueError("no such setting\nmore")

    monkeypatch.setattr("transformers.MistralForCausalLM.generate", fail)
    with pytest.raises(ModelError, match="transformers' generate fails with this model: ValueError: no such"):
        _check(folder, None, 1)


def test_a_tokenizer_of_another_model_is_named(tmp_path):
    path = _save(tmp_path, "llama", vocab_size=20)
    with pytest.raises(ModelError, match=r"built-in prompt 1: the tokenizer gives token \d\d, .* only 20"):
        _check(path, None, 1)


def test_a_vocabulary_padded_beyond_the_tokenizer(tmp_path):
    assert _check(_save(tmp_path, "llama", vocab_size=192), None, 2)[0]["equal"]


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ raise_exception('not here') }}", "{{ messages[9] ",
                                      "{% for x in messages %}{{ x.content + 1 }}{% endfor %}"])
def test_a_chat_template_that_fails_is_one_line(tmp_path, template):
    path = _save(tmp_path, "llama")
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match="chat template cannot be rendered: .*model.chat_template to never"):
        _check(path, None, 1)


def _command(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["dare-job", "check", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0, *capsys.readouterr()
