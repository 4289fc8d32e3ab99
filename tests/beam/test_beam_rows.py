"""Rows of beams do not depend on their batch, and a row that fails affects no other row."""

import numpy as np
import pytest
import torch
from beam_models import near, write
from decode_models import prompts, tiny

from dare_job.decode.beam.engine import BeamEngine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import Beams, EngineSettings, Warp
from dare_job.errors import ConfigError, ModelError

BEAMS = Beams(4, 4, 1, threshold=0.7, layers=3, warp=Warp(0.7, top_k=40), seed=3)


@pytest.fixture(scope="module")
def models():
    return near("llama", 0.0, 0.8, eos=7), near("llama", 0.02, 0.8, eos=7)


@pytest.mark.parametrize("single", [False, True])
def test_a_text_does_not_depend_on_its_batch(models, single):
    target, draft = models
    beams = Beams(4, 4, 1, 0.7, 3, BEAMS.warp, seed=3, single_cache=single)
    texts = prompts()
    alone = write(target, texts, beams, draft, batch_size=1)
    together = write(target, texts, beams, draft, batch_size=4)
    for row, result in together.items():
        assert np.array_equal(result.token_ids, alone[row].token_ids), row
        assert np.array_equal(result.step_tokens, alone[row].step_tokens)
        assert result.beams.likelihoods == pytest.approx(alone[row].beams.likelihoods, abs=1e-4)
    assert sum(r.target_steps for r in together.values()) < sum(r.beams.layers for r in together.values())
    assert all(1 <= r.beams.width <= 4 for r in together.values())


@pytest.mark.slow
def test_texts_over_pages_are_those_without(models):
    """As on a GPU: target and draft model keep keys and values in pages."""
    target, draft = models
    expected = write(target, prompts(), BEAMS, draft)
    paged = [Target(model.model, paged=True) for model in models]
    assert all(model.paged is not None for model in paged)
    for row, result in write(paged[0], prompts(), BEAMS, paged[1]).items():
        assert np.array_equal(result.token_ids, expected[row].token_ids), row


def test_a_row_that_takes_too_long_is_ended(models):
    settings = EngineSettings(batch_size=2, max_new_tokens=30, row_timeout_s=1e-9)
    results = list(BeamEngine(models[0], settings, BEAMS).run(
        [Request(row, text) for row, text in enumerate(prompts())]))
    assert len(results) == len(prompts()) and {result.finish_reason for result in results} == {"timeout"}


def test_likelihoods_are_those_of_all_finished_texts(models):
    """Caches of beams that share nodes and were moved agree with a forward pass over each whole text."""
    target, draft = models
    for row, result in write(target, prompts(), BEAMS, draft).items():
        beams, start = result.beams, len(prompts()[row])
        assert len(beams.sequences) > 1 and list(beams.scores) == sorted(beams.scores, reverse=True)
        for text, likelihood, score in zip(beams.sequences, beams.likelihoods, beams.scores, strict=True):
            ids = torch.from_numpy(np.concatenate((prompts()[row], text)).astype(np.int64))[None]
            with torch.inference_mode(), target.as_transformers() as plain:
                logs = torch.log_softmax(plain(ids).logits[0].double(), -1)
            own = logs[start - 1 : -1].gather(1, ids[0, start:, None]).sum()
            assert likelihood == pytest.approx(float(own), abs=1e-3)
            assert score == pytest.approx(likelihood / len(text))


def test_rows_that_cannot_be_generated(models):
    target, _ = models
    results = write(target, [np.array([500], np.int32), prompts()[0]], BEAMS)
    assert "outside" in results[0].error and results[1].error is None


def test_nonfinite_target_logits(models):
    """A target with a non-finite embedding of a token in one prompt: only that row has an error."""
    model = tiny("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[9] = torch.nan
        model.get_output_embeddings().weight[9] = 0.0  # so that it is never among the most probable
    beams = Beams(3, layers=0, warp=Warp(top_k=4))
    results = write(Target(model, check=False), [np.array([9, 3], np.int32), prompts()[0] % 9 + 10], beams)
    assert "not finite" in results[0].error and results[1].error is None


def test_a_nonfinite_draft_model_changes_speed_only(models):
    target, _ = models
    broken = near("llama", 0.02, 0.8)
    with torch.no_grad():
        broken.model.get_input_embeddings().weight.fill_(torch.nan)
    results = write(target, prompts(), BEAMS, broken)
    assert all(r.error is None and r.accepted_tokens == 0 for r in results.values())


def test_a_draft_model_that_is_nonfinite_for_one_row(models):
    """That row continues without drafts, and leaves nothing in the cache for later rows of its slot."""
    target, _ = models
    broken = near("llama", 0.02, 0.8)
    with torch.no_grad():
        broken.model.get_input_embeddings().weight[9] = torch.nan
        broken.model.get_output_embeddings().weight[9] = 0.0
    texts = [np.array([9, 3], np.int32), *prompts((8, 8, 8, 8))]
    texts[1:] = [text % 9 + 10 for text in texts[1:]]
    beams = Beams(4, 4, 1, 0.7, 3, Warp(0.7, top_k=4), seed=3)
    results = write(target, texts, beams, broken, batch_size=1)
    assert all(r.error is None for r in results.values()) and results[0].accepted_tokens == 0
    assert sum(results[row].accepted_tokens > 0 for row in range(1, 5)) >= 2  # except rows that contain it


def test_rejected_settings():
    for wrong, names in ((dict(width=0), "beam.width"), (dict(min_width=5), "beam.min_width"),
                         (dict(threshold=1.5), "beam.threshold"), (dict(layers=-1), "beam.layers"),
                         (dict(distribution="top_k"), "beam.distribution"),
                         (dict(draft_distribution="x"), "beam.draft_distribution"),
                         (dict(min_width=3, draft_width=2), "beam.draft_width"),
                         (dict(draft_width=3, warp=Warp(0.0)), "beam.width")):
        with pytest.raises(ConfigError, match=names):
            Beams(**wrong)


@pytest.mark.parametrize("field", [{"repetition_penalty": 1.2}, {"no_repeat_ngram_size": 2},
                                   {"suppress_tokens": [3]}])
def test_unsupported_generation_config(field):
    model = tiny("llama")
    for name, value in field.items():
        setattr(model.generation_config, name, value)
    with pytest.raises(ModelError, match=next(iter(field))):
        BeamEngine(Target(model), EngineSettings(score="never"), BEAMS)
