"""Non-finite keys and values fail the row that wrote them, and no other or later row."""

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, generate, prompts, tiny, write

from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from pools.tree import ROOT, DraftBatch

BAD, NEW = VOCABULARY - 1, 24  # a token that only failing rows have; new tokens


def _poisoned(name: str, value: float):
    """Return a model whose token BAD has a non-finite embedding, prompts without it, and their texts."""
    model = tiny(name, seed=1)
    with torch.no_grad():
        model.get_input_embeddings().weight[BAD] = value
        (model.lm_head.weight[BAD]).zero_()
    texts = [np.where(text == BAD, 5, text).astype(np.int32) for text in prompts()]
    return model, texts, [generate(model, text, max_new_tokens=NEW) for text in texts]


@pytest.fixture(scope="module", ids=str, params=[
    ("llama", np.nan), ("gemma2", np.inf), *(pytest.param(case, marks=pytest.mark.release)
                                             for case in (("mistral-window", np.nan), ("gpt2", np.inf)))])
def poisoned(request):
    return _poisoned(*request.param)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_failing_row_does_not_affect_later_rows(poisoned, batch_size):
    model, texts, expected = poisoned
    assert not any(BAD in text for text in expected)
    engine = Engine(Target(model, check=False), EngineSettings(max_new_tokens=NEW, batch_size=batch_size))
    bad = [np.full(35, BAD, np.int32), np.array([5, 6, BAD, 7, 8, 9], np.int32)]
    for _ in range(2):  # the second run reuses the cache of the first
        requests = [Request(-1 - i, text) for i, text in enumerate(bad)]
        requests += [Request(i, text) for i, text in enumerate(texts)]
        requests.insert(4, Request(-3, bad[0]))
        results = {result.id: result for result in engine.run(requests)}
        for row, text in enumerate(expected):
            assert results[row].error is None
            assert np.array_equal(results[row].token_ids, text)
        for i in (1, 2, 3):
            assert "finite" in results[-i].error and not len(results[-i].token_ids)


class Distractor:
    """Drafts the right text with a sibling BAD at every level, first or last in its tree."""

    def __init__(self, texts, bad_first: bool):
        self.texts, self.bad_first = texts, bad_first

    def draft(self, requests, context, lengths, budgets, depths, min_score=0.0):
        tokens, parents = np.zeros((len(requests), 6), np.int32), np.full((len(requests), 6), ROOT, np.int32)
        sizes = np.zeros(len(requests), np.int32)
        for row, request in enumerate(requests):
            if request.id % 2:  # every other row has drafts without BAD
                nodes, parent = [(7, ROOT)], 0
            else:
                nodes, parent = [(BAD, ROOT)] if self.bad_first else [(9, ROOT)], ROOT
            for token in self.texts[request.id][lengths[row] - len(request.prompt_ids):][:2]:
                nodes.append((int(token), parent if len(nodes) > 1 else ROOT))
                parent = len(nodes) - 1
            if not request.id % 2:
                nodes.append((BAD, parent))
            sizes[row] = min(len(nodes), budgets[row])
            for column, (token, up) in enumerate(nodes):
                tokens[row, column], parents[row, column] = token, up
        return DraftBatch(tokens, parents, sizes, None, None)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("bad_first", [True, False])
def test_a_non_finite_draft_costs_its_row_only_the_step(poisoned, batch_size, bad_first):
    model, texts, expected = poisoned
    results = write(Target(model, check=False), texts, Distractor(expected, bad_first),
                    batch_size=batch_size, nodes=6, max_new_tokens=NEW)
    for row, text in enumerate(expected):
        assert results[row].error is None
        assert np.array_equal(results[row].token_ids, text)
        assert results[row].target_steps < 18 or not row % 2, "a good row lost its drafts to a bad one"
