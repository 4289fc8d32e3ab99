"""ALiBi in draft trees: biases by position in the text, not by cache column.

``test_decode_equal`` compares texts.
"""

import numpy as np
import pytest
import torch
import transformers as hf
from decode_models import tiny

from dare_job.decode.model import alibi
from dare_job.decode.model.target import Target
from dare_job.errors import ModelError

NAMES = ["bloom", "mpt", "falcon_alibi"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_trees_have_the_logits_of_their_paths(name, dtype):
    """By the trial at loading. Bloom and Falcon round biases in bfloat16, and positions with them."""
    assert Target(tiny(name, dtype=dtype)).drafts == "tree"


@pytest.mark.parametrize("name", NAMES)
def test_biases_by_column_are_detected(name, monkeypatch):
    monkeypatch.setattr(alibi, "_visible", torch.ones_like)
    with pytest.raises(ModelError, match="differ from a forward pass without one"):
        Target(tiny(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_its_own_after_a_forward_pass(name):
    target, ids = Target(tiny(name), check=False), np.zeros((1, 3), np.int64)
    parts = list(target.model.modules())
    before = [dict(vars(part)) for part in parts]
    target.prefill(target.new_cache(1), np.array([0]), ids, np.array([3]))
    with pytest.raises(AttributeError):
        target.prefill(None, np.array([0]), ids, np.array([3]))
    assert [vars(part) for part in parts] == before


@pytest.mark.parametrize("base", [hf.BloomForCausalLM, hf.MptForCausalLM])
def test_other_code_with_alibi_has_no_trees(base):
    """Code of a model's repository, which may compute biases in any way."""
    model = tiny({hf.BloomForCausalLM: "bloom", hf.MptForCausalLM: "mpt"}[base])
    model.__class__ = type("RemoteForCausalLM", (base,), {"__module__": "transformers_modules.remote"})
    with pytest.raises(ModelError, match="RemoteForCausalLM is not supported: ALiBi derives positions"):
        Target(model)
