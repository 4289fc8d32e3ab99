"""Strict decoding writes what ``generate`` writes, token for token, for every architecture."""

import numpy as np
import pytest
from decode_models import ARCHITECTURES, generate, oracle, prompts, tiny, write

from dare_job.decode import Target


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
    # The right token is never the first sibling, so every accepted one is from a branch that is not.
    assert drafted >= 0.3 * emitted
