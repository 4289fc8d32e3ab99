"""Warping equals the logits processors of transformers, in the order in which ``generate`` applies them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from dare_job.decode.sampling.warp import warp
from dare_job.decode.settings import MIN_TEMPERATURE, Warp
from dare_job.errors import ConfigError

WIDTH = 12
MODEL = GPT2LMHeadModel(GPT2Config(vocab_size=WIDTH, n_embd=8, n_layer=1, n_head=1, n_positions=32)).eval()


def processors(chosen: Warp):
    """Return the logits processors that ``generate`` builds from the settings."""
    config = GenerationConfig(**chosen.generate_arguments(), pad_token_id=0)
    return MODEL._get_logits_processor(config, input_ids_seq_length=4)


wanted_settings = st.builds(
    Warp, temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]), top_k=st.sampled_from([None, 0, 1, 3, 50]),
    top_p=st.sampled_from([None, 1.0, 0.9, 0.5, 0.01]), min_p=st.sampled_from([None, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.sampled_from([{}, {3: 2.0}, {0: -1.5, 11: 0.25}]))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(chosen=wanted_settings, seed=st.integers(0, 10_000), ties=st.booleans(), banned=st.booleans())
def test_equal_to_generate(chosen, seed, ties, banned):
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn((3, WIDTH), generator=rng)
    if ties:
        logits = logits.round()
    if banned:
        logits[:, 5:8] = -math.inf
    text_tokens = torch.randint(0, WIDTH + 2, (3, 4), generator=rng)
    scores = processors(chosen)(text_tokens, logits.clone())
    expected = torch.softmax(scores, -1)
    if chosen.greedy:
        expected = torch.nn.functional.one_hot(scores.argmax(-1), WIDTH).float()
    probabilities, finite = warp(logits, chosen, text_tokens)
    assert finite.all() and probabilities.dtype == torch.float32
    torch.testing.assert_close(probabilities, expected, rtol=0, atol=0)


def test_shorter_text():
    """Nodes with texts of different lengths give the same result as alone."""
    rng = torch.Generator().manual_seed(1)
    logits, chosen = torch.randn((2, WIDTH), generator=rng), Warp(repetition_penalty=2.0)
    both, _ = warp(logits, chosen, torch.tensor([[3, 3, 7], [4, -1, -1]]))
    for row, text in enumerate(([3, 7], [4])):
        alone, _ = warp(logits[row : row + 1], chosen, torch.tensor([text]))
        assert both[row].equal(alone[0])


@pytest.mark.parametrize("chosen", [Warp(), Warp(temperature=0), Warp(top_p=0.5), Warp(top_k=2, min_p=0.1)])
def test_nonfinite_logits(chosen):
    """Such a node is reported and has no probabilities; other nodes are unaffected."""
    logits = torch.randn((6, WIDTH), generator=torch.Generator().manual_seed(2))
    logits[1, 4], logits[2, 4], logits[3], logits[4, :-1] = math.nan, math.inf, -math.inf, -math.inf
    probabilities, finite = warp(logits, chosen)
    assert finite.tolist() == [True, False, False, False, True, True]
    assert (probabilities[1:4] == 0).all()
    for row in (0, 4, 5):
        assert probabilities[row].equal(warp(logits[row : row + 1], chosen)[0][0])
    assert probabilities[4].equal(torch.eye(WIDTH)[-1])


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", True),
    ("temperature", "hot"), ("temperature", 1e-40), ("temperature", 9e-7), ("temperature", None),
    ("top_p", 1.2), ("top_p", -0.1), ("min_p", 2), ("min_p", math.nan), ("repetition_penalty", 0),
    ("repetition_penalty", -1.0), ("repetition_penalty", 1e-40), ("repetition_penalty", 1001.0)])
def test_bad_settings(name, value):
    with pytest.raises(ConfigError, match=name):
        Warp(**{name: value})


@pytest.mark.parametrize("penalty", [1e-3, 1e3])
@pytest.mark.parametrize("bias", [-1e4, 1e4])
def test_extreme_settings_stay_finite(penalty, bias):
    chosen = Warp(temperature=MIN_TEMPERATURE, repetition_penalty=penalty, logit_bias={3: bias})
    logits = 1e4 * torch.randn((4, WIDTH), generator=torch.Generator().manual_seed(3))
    probabilities, finite = warp(logits, chosen, torch.arange(WIDTH).expand(4, -1))
    assert (
        finite.all()
        and probabilities.isfinite().all()
        and torch.allclose(probabilities.sum(-1), torch.ones(4))
    )


def test_bad_inputs():
    with pytest.raises(ConfigError, match="logit_bias names token 12, but the vocabulary has 12"):
        warp(torch.zeros((1, WIDTH)), Warp(logit_bias={12: 1.0}))
    with pytest.raises(ConfigError, match="repetition_penalty needs"):
        warp(torch.zeros((1, WIDTH)), Warp(repetition_penalty=1.1))
