"""Log-probabilities along branches equal those of each sequence alone, and flow back into the weights."""

import numpy as np
import torch
from recommend_world import some_ids, untrained

from dare_job.training.align.branches import NEVER, log_probabilities

HISTORIES = [np.array(row, np.int64) for row in ([], [3], [1, 2, 3, 4])]


def test_equal_to_one_sequence_after_the_other():
    ids = some_ids()
    model, recommender = untrained(ids)
    codes = torch.from_numpy(ids.codes[np.arange(15).reshape(3, 5)].astype(np.int64))
    found = log_probabilities(model, recommender, HISTORIES, codes)
    assert found.shape == (3, 5, 3, max(ids.sizes)) and (found[:, :, 0, 4:] == NEVER).all()
    for user, branch in np.ndindex(3, 5):
        prompt = recommender.prompt(HISTORIES[user])
        tokens = recommender.tokens[user * 5 + branch].tolist()
        with torch.no_grad():
            logs = model(torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
        for level, (first, size) in enumerate(zip(recommender.first_code_token, ids.sizes, strict=True)):
            due = logs[len(prompt) - 1 + level, first:first + size]
            torch.testing.assert_close(found[user, branch, level, :size], due, atol=1e-4, rtol=1e-4)
    found.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_ids_of_one_level():
    ids = some_ids(items=6, sizes=(7,))
    model, recommender = untrained(ids)
    codes = torch.from_numpy(ids.codes[None, :2].astype(np.int64))
    assert log_probabilities(model, recommender, [np.array([1])], codes).shape == (1, 2, 1, 7)
