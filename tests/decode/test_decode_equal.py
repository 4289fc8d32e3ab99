"""Strict decoding generates the text of ``generate``, token for token, for every architecture."""

import numpy as np
import pytest
import torch
from decode_models import ARCHITECTURES, generate, oracle, prompts, tiny, write

from dare_job.decode.model.target import Target


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_strict_equals_generate(name):
    model = tiny(name)
    texts = prompts()
    expected = [generate(model, prompt) for prompt in texts]
    assert len({token for text in expected for token in text}) > 20, "the model says too little to test with"
    target = Target(model)
    emitted = drafted = 0
    for batch_size, nodes in ((1, 0), (3, 0), (1, 15), (3, 15), (8, 31)):
        drafter = oracle(expected, seed=nodes) if nodes else None
        results = write(target, texts, drafter, batch_size=batch_size, nodes=nodes)
        for row, text in enumerate(expected):
            assert results[row].error is None
            assert np.array_equal(results[row].token_ids, text), f"row {row} at {batch_size} x {nodes}"
        if nodes:
            emitted += sum(len(r.token_ids) for r in results.values())
            drafted += sum(r.accepted_tokens for r in results.values())
    # The right token is never the first sibling, so no accepted token is on the first branch.
    assert drafted >= 0.3 * emitted


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gemma2", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision(name, dtype):
    """bfloat16, which numpy and numba lack, and float16: drafts change a text at most at ties of logits."""
    target, texts = Target(tiny(name, dtype=dtype)), prompts()
    plain = write(target, texts, None, batch_size=3, nodes=0)
    expected = [plain[row].token_ids for row in range(len(texts))]
    results = write(target, texts, oracle(expected), batch_size=3, nodes=15)
    assert not any(result.error for result in (*plain.values(), *results.values()))
    same = sum(np.array_equal(results[row].token_ids, text) for row, text in enumerate(expected))
    assert same >= len(texts) / 2 and sum(result.accepted_tokens for result in results.values()) > 0
