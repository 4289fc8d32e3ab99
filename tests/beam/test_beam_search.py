"""At temperature 0 all finished beams are those of ``generate(num_beams=W, num_return_sequences=W)``, in
tokens and scores, drafted or not.
"""

import numpy as np
import pytest
import torch
from beam_models import near, write
from decode_models import prompts, tiny

from dare_job.decode.model.target import Target
from dare_job.decode.settings import Beams, Warp

GREEDY, PAD = Warp(temperature=0.0), 1


def beam_search_of_generate(target: Target, prompt: np.ndarray, width: int, new: int, **options):
    """Return tokens and scores of ``generate``, best first."""
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    with torch.inference_mode(), target.as_transformers() as plain:
        found = plain.generate(ids, num_beams=width, num_return_sequences=width, do_sample=False,
                               max_new_tokens=new, attention_mask=torch.ones_like(ids),
                               return_dict_in_generate=True, output_scores=True, pad_token_id=PAD, **options)
    return found.sequences[:, len(prompt):].numpy(), found.sequences_scores.tolist()


def assert_equal_to_generate(target, draft, beams, new=16, **options):
    texts = prompts((5, 17, 1, 30))
    results = write(target, texts, beams, draft, max_new_tokens=new,
                    **{"min_new_tokens": options.get("min_new_tokens", 0)})
    for row, prompt in enumerate(texts):
        result = results[row]
        texts_found, scores = beam_search_of_generate(target, prompt, beams.width, new,
                                                      length_penalty=beams.length_penalty, **options)
        assert result.error is None, result.error
        assert result.beams.scores == pytest.approx(scores, abs=2e-5)
        for found, tokens in zip(result.beams.sequences, texts_found, strict=True):
            assert np.array_equal(tokens[: len(found)], found), row
            assert (tokens[len(found):] == PAD).all()
        assert np.array_equal(result.token_ids, result.beams.sequences[0])
        assert result.step_tokens.sum() == len(result.token_ids)
        assert len(result.step_tokens) == result.target_steps + 1
    return results


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("drafted", [False, True], ids=["plain", "drafted"])
@pytest.mark.parametrize("name", [
    "llama", "qwen2", "gpt2", *(pytest.param(name, marks=pytest.mark.release)
                               for name in ("mistral-window", "gemma3"))])
def test_equal(name, drafted):
    target = near(name, 0.0, eos=7)
    draft = near(name, 0.01) if drafted else None
    for width in (2, 4):
        results = assert_equal_to_generate(target, draft, Beams(width, width + 2, layers=3, warp=GREEDY))
        if drafted:
            assert sum(r.target_steps for r in results.values()) < sum(
                r.beams.layers for r in results.values()) - len(results)


@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_length_penalty(penalty):
    beams = Beams(3, 5, layers=2, warp=GREEDY, length_penalty=penalty)
    assert_equal_to_generate(near("llama", 0.0, eos=[7, 11]), near("llama", 0.01), beams)


def test_minimum_length():
    target = near("llama", 0.0, eos=[7, 11, 13])
    assert_equal_to_generate(
        target, near("llama", 0.01), Beams(3, 5, layers=3, warp=GREEDY), min_new_tokens=9
    )


def test_draft_model_of_another_architecture():
    """With another width, depth and number of positions: its context ends before the target's text."""
    other = Target(tiny("gpt2", 3, n_positions=32))
    assert_equal_to_generate(near("llama", 0.0), other, Beams(3, 4, layers=3, warp=GREEDY))
