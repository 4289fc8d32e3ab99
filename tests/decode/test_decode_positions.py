"""Which position encodings continue beyond max_position_embeddings, and where others end."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decode_models import assert_written, generate, generate_now, oracle, prompts, tiny, write
from transformers import GenerationConfig

from dare_job.decode.engine import generation_config, request_checks
from dare_job.decode.model import support
from dare_job.decode.model.target import Target
from dare_job.decode.settings import EngineSettings

CONTEXT, NEW = 40, 48
SHORT = dict(max_position_embeddings=CONTEXT)
SCALED = {"factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 20}
FIXED = {
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
    "llama3": {"rope_type": "llama3", **SCALED, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", **SCALED},
}
BY_LENGTH = {
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}, CONTEXT),
    "longrope": ({"rope_type": "longrope", **SCALED, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
                 SCALED["original_max_position_embeddings"]),
}


@pytest.mark.parametrize("kind", FIXED)
def test_rotary_types_with_fixed_angles_continue(kind):
    model, texts = tiny("llama", **SHORT, rope_parameters=FIXED[kind]), prompts((25, 5, 39))
    expected = [generate(model, text, max_new_tokens=NEW) for text in texts]
    target = Target(model)
    assert (target.traits.context, target.traits.max_length) == (CONTEXT, None)
    assert_written(write(target, texts, oracle(expected), max_new_tokens=NEW), expected)


@pytest.mark.parametrize("kind", BY_LENGTH)
def test_rotary_types_that_change_with_the_length_end_where_they_change(kind, caplog):
    """``generate`` continues with different angles; the engine stops there and logs a warning."""
    rope, context = BY_LENGTH[kind]
    model, texts = tiny("llama", **SHORT, rope_parameters=rope), prompts((12, 5, context, context + 1))
    expected = [generate(model, text, max_new_tokens=context + 1 - len(text)) for text in texts[:3]]
    target = Target(model)
    assert (target.traits.context, target.traits.max_length) == (context, context + 1)
    request_checks._warn.cache_clear()
    with caplog.at_level(logging.WARNING, "dare_job"):
        results = write(target, texts, oracle(expected), max_new_tokens=NEW)
    reason = f"original context of its {kind} rotary positions"
    assert [record.message for record in caplog.records if record.name == "dare_job"] == [
        f"texts are limited to {context + 1} tokens including the prompt: {reason} is {context}"]
    assert f"{reason} is {context}" in results[3].error
    assert_written(results, expected)
    with target.as_transformers():  # a text beyond the context changes the model's angles: the longest first
        for prompt, text in zip(texts[2::-1], expected[::-1], strict=True):
            assert np.array_equal(text, generate_now(model, prompt, max_new_tokens=NEW)[: len(text)])


def test_layers_may_have_different_rotary_types():
    ropes = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
             "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}
    assert Target(tiny("gemma3", **SHORT, rope_parameters=ropes), check=False).traits.max_length is None
    ropes["full_attention"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}
    model = tiny("gemma3", **SHORT, rope_parameters=ropes)
    assert Target(model, check=False).traits.max_length == CONTEXT + 1


@pytest.mark.parametrize("shape", [(CONTEXT, 8), (1, 1, CONTEXT + 2, 8)])
def test_a_table_of_angles_in_a_models_own_code_is_a_limit(shape):
    model = tiny("llama", **SHORT)
    model.model.layers[0].self_attn.register_buffer("cos_cached", torch.zeros(shape))
    assert Target(model, check=False).traits.max_length == CONTEXT + 1
    model = tiny("llama", max_position_embeddings=32)  # equal to the width of its embedding
    assert Target(model, check=False).traits.max_length is None


def test_a_model_without_a_context_has_no_limit():
    context, _, longest = support._lengths(tiny("llama"), SimpleNamespace(model_type="llama"))
    assert (context, longest) == (None, None)
    rules = generation_config.read_rules(GenerationConfig())
    assert generation_config.limits(rules, EngineSettings(max_new_tokens=None), 70, None, None) == (90, 0)
