"""Every field of a generation config is applied as in ``generate``, has no effect, or is rejected by name."""

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, generate, oracle, prompts, tiny, write
from transformers import EncoderRepetitionPenaltyLogitsProcessor, GenerationConfig

from dare_job.decode.engine import generation_config
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ModelError

MODEL, TEXTS, NEW = tiny("qwen2", seed=3), prompts((5, 17, 1, 30, 9)), 28
PLAIN = [generate(MODEL, text, max_new_tokens=NEW) for text in TEXTS]
COMMON = [int(token) for token in np.bincount(np.concatenate(PLAIN)).argsort()[::-1][:6]]


def test_every_field_is_classified_once():
    tables = (
        generation_config.LENGTHS,
        generation_config.NATIVE,
        generation_config.PROCESSORS,
        generation_config.WITHOUT_EFFECT,
        set(generation_config.REJECTED),
    )
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert fields <= set(names), f"new fields to classify: {sorted(fields - set(names))}"


def _configured(**fields):
    model = tiny("qwen2", seed=3)
    model.generation_config = GenerationConfig(pad_token_id=0, **fields)
    return model


@pytest.mark.parametrize("fields", [
    {"repetition_penalty": 1.05},
    {"repetition_penalty": 3.0},
    {"repetition_penalty": 0.7, "min_new_tokens": 12, "eos_token_id": COMMON[:2]},
    {"eos_token_id": COMMON[0]},
    {"eos_token_id": COMMON[:3], "min_new_tokens": 10},
    {"eos_token_id": COMMON[:3], "min_length": 25},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[COMMON[0]], [COMMON[1], COMMON[2]]], "eos_token_id": 1},
    {"suppress_tokens": COMMON},
    {"begin_suppress_tokens": [int(text[0]) for text in PLAIN]},
    {"forced_bos_token_id": 7},
    {"forced_eos_token_id": 1, "eos_token_id": 1},
    {"sequence_bias": [[[COMMON[3]], 1.5], [[COMMON[0], COMMON[1]], -4.0]]},
    {"exponential_decay_length_penalty": (5, 1.3), "eos_token_id": 1},
    {"encoder_repetition_penalty": 1.5},
    {"encoder_no_repeat_ngram_size": 1},
    {"remove_invalid_values": True, "renormalize_logits": True},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "suppress_tokens": COMMON[:2]},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "eos_token_id": COMMON[:2], "min_new_tokens": 9},
], ids=lambda fields: "+".join(fields))
@pytest.mark.fast_cases(7)
def test_applied_as_in_generate(fields):
    model = _configured(**fields)
    expected = [generate(model, text, max_new_tokens=NEW) for text in TEXTS]
    if set(fields) - {"forced_bos_token_id", "remove_invalid_values", "renormalize_logits"}:
        changed = [not np.array_equal(a, b) for a, b in zip(expected, PLAIN, strict=True)]
        assert any(changed), "without effect here"
    target = Target(model, check=False)
    for nodes in (0, 15):
        results = write(target, TEXTS, oracle(expected) if nodes else None, nodes=nodes, max_new_tokens=NEW)
        for row, text in enumerate(expected):
            assert np.array_equal(results[row].token_ids, text), row
    assert sum(r.accepted_tokens for r in results.values()) > 20


def _before_5_19(self, input_ids, scores):
    """The penalty of older releases, which applies only to as many rows as prompt ids."""
    score = torch.gather(scores, 1, self.encoder_input_ids)
    score = torch.where(score < 0, score * self.penalty, score / self.penalty)
    return scores.scatter(1, self.encoder_input_ids, score)


@pytest.mark.parametrize("older", [False, True])
def test_the_prompt_penalty_applies_to_every_prefix(monkeypatch, older):
    if older:
        monkeypatch.setattr(EncoderRepetitionPenaltyLogitsProcessor, "__call__", _before_5_19)
    rules = generation_config.read_rules(GenerationConfig(encoder_repetition_penalty=1.5))
    prompt = torch.tensor([[3, 5, 5, 8]])
    found = generation_config.processors(rules, MODEL, prompt, 40, 0)
    rng = torch.Generator().manual_seed(0)
    for count in (3, 1, 7):
        ids = torch.randint(VOCABULARY, (count, 9), generator=rng)
        scores = torch.randn((count, VOCABULARY), generator=rng)
        expected = scores.clone()
        tokens = expected[:, [3, 5, 8]]
        expected[:, [3, 5, 8]] = torch.where(tokens < 0, tokens / 1.5, tokens * 1.5)
        assert torch.allclose(found(ids, scores), expected)


@pytest.mark.parametrize("fields", [{}, {"max_new_tokens": 13}, {"max_length": 33}])
def test_length_of_the_config_if_nothing_else_is_set(fields):
    model = _configured(**fields)
    expected = [generate(model, text, max_new_tokens=None) for text in TEXTS]
    results = write(Target(model, check=False), TEXTS, oracle(expected), max_new_tokens=None)
    for row, text in enumerate(expected):
        assert np.array_equal(results[row].token_ids, text)


def test_sampling_fields_do_not_matter():
    model = _configured(do_sample=True, temperature=0.7, top_k=20, top_p=0.8)
    results = write(Target(model, check=False), TEXTS, oracle(PLAIN), max_new_tokens=NEW)
    assert all(np.array_equal(results[row].token_ids, text) for row, text in enumerate(PLAIN))


REJECTABLE = {
    "max_time": 1.0, "stop_strings": ["."], "num_beams": 4, "num_beam_groups": 2, "num_return_sequences": 2,
    "use_mtp": True, "token_healing": True, "guidance_scale": 1.5, "watermarking_config": {"bias": 2.0},
    "penalty_alpha": 0.6, "dola_layers": "low", "constraints": [1], "force_words_ids": [[1]],
    "cache_implementation": "quantized",
}


@pytest.mark.parametrize("field", generation_config.REJECTED)
def test_rejected_by_name(field):
    model = _configured()
    setattr(model.generation_config, field, REJECTABLE[field])
    with pytest.raises(ModelError, match=f"generation_config.{field} is"):
        Engine(Target(model, check=False), EngineSettings())


@pytest.mark.parametrize(("field", "value"), [
    ("repetition_penalty", "1.1"), ("repetition_penalty", -1.0), ("repetition_penalty", 0),
    ("repetition_penalty", float("nan")), ("repetition_penalty", 1e-50),
    ("encoder_repetition_penalty", True), ("eos_token_id", "2"),
    ("eos_token_id", [1, -1]), ("eos_token_id", 2.0), ("max_new_tokens", "5"), ("max_length", -1),
    ("min_new_tokens", 1.5), ("no_repeat_ngram_size", "2"),
])
def test_an_invalid_value_is_rejected_by_name(field, value):
    config = GenerationConfig()
    setattr(config, field, value)
    with pytest.raises(ModelError, match=f"generation_config.{field} is .*{value}.*; it must be"):
        generation_config.read_rules(config)


def test_an_unknown_field_of_a_new_release_is_rejected(monkeypatch):
    original = GenerationConfig.__init__

    def newer(self, **kwargs):
        original(self, **kwargs)
        self.brand_new = getattr(self, "brand_new", None)

    monkeypatch.setattr(GenerationConfig, "__init__", newer)
    config = GenerationConfig()
    config.brand_new = 3
    with pytest.raises(ModelError, match="brand_new"):
        generation_config.read_rules(config)


def test_vocabulary_is_wide_enough_for_the_tests():
    assert len(set(np.concatenate(PLAIN))) > 20 and max(COMMON) < VOCABULARY


def test_a_length_penalty_without_an_end_of_text_is_rejected_by_name():
    model = tiny("llama")
    model.generation_config.exponential_decay_length_penalty = (3, 1.5)
    with pytest.raises(ModelError, match="exponential_decay_length_penalty needs an eos_token_id"):
        Engine(Target(model, check=False), EngineSettings())
