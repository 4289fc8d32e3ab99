"""Compiled attention: that of torch's function, for trees and rows of different lengths."""

import numpy as np
import pytest
import torch
from decode_models import assert_written, generate, oracle, prompts, tiny, write
from torch.nn.functional import scaled_dot_product_attention

from dare_job.decode.model import compiled_attention, llama_forward, prepacked, vectors
from dare_job.decode.model.compiled_attention import attend, supports
from dare_job.decode.model.target import Target

TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("heads", "groups", "dim"), [(9, 3, 64), (4, 4, 32), (14, 1, 32)])
@pytest.mark.parametrize("lengths", [(1, 2, 3), (15, 16, 17), (300, 20, 37), (33,)])
def test_a_row_sees_what_its_mask_shows_whatever_memory_holds_beside_it(lengths, heads, groups, dim, dtype):
    rng, rows, columns = torch.Generator().manual_seed(0), len(lengths), max(lengths)
    counts = [min(length, 1 + 5 * row) for row, length in enumerate(lengths)]
    starts = np.concatenate(([0], np.cumsum(counts)))
    query = torch.randn(int(starts[-1]), heads, dim, generator=rng).to(dtype)
    keys, values = (torch.randn(rows, groups, columns + 5, dim, generator=rng).to(dtype)[:, :, :columns]
                    for _ in range(2))
    low = torch.finfo(dtype).min
    mask = torch.full((rows, 1, max(counts), columns), low, dtype=dtype)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        seen = torch.rand(count, length, generator=rng) < 0.7
        seen[:, -1] = True
        mask[row, 0, :count, :length] = torch.zeros(count, length).masked_fill(~seen, low).to(dtype)
        keys[row, :, length:] = torch.nan
        values[row, :, length:] = torch.nan
    result = attend(query, keys, values, mask, 0.3, starts)
    for row, (length, start, end) in enumerate(zip(lengths, starts[:-1], starts[1:], strict=True)):
        expected = scaled_dot_product_attention(
            query[start:end].transpose(0, 1)[None].double(), keys[row : row + 1, :, :length].double(),
            values[row : row + 1, :, :length].double(),
            mask[row : row + 1, :, : end - start, :length].double(), scale=0.3, enable_gqa=True)
        assert torch.allclose(result[start:end].double(), expected[0].transpose(0, 1), atol=TOLERANCES[dtype],
                              rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_without_a_mask_a_query_sees_every_key_and_large_scores_do_not_overflow(dtype):
    torch.manual_seed(0)
    query, keys, values = torch.randn(2, 4, 32) * 100, torch.randn(2, 2, 50, 32), torch.randn(2, 2, 50, 32)
    query, keys, values = query.to(dtype), keys.to(dtype), values.to(dtype)
    expected = scaled_dot_product_attention(query[:, :, None].double(), keys.double(), values.double(),
                                            enable_gqa=True)[:, :, 0]
    result = attend(query, keys, values, None, None, np.arange(3))
    assert torch.allclose(result.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_without_a_mask_the_queries_are_the_last_tokens(dtype):
    torch.manual_seed(0)
    query, (keys, values) = torch.randn(2, 37, 6, 32).to(dtype), torch.randn(2, 2, 3, 50, 32).to(dtype)
    seen = torch.ones(37, 50, dtype=torch.bool).tril(13)
    expected = scaled_dot_product_attention(query.transpose(1, 2).double(), keys.double(), values.double(),
                                            seen, enable_gqa=True).transpose(1, 2)
    result = attend(query.flatten(0, 1), keys, values, None, None, np.arange(3) * 37).view(query.shape)
    assert torch.allclose(result.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("first", "last"), [(-1.5, -0.5), (-0.0, -0.0)])
def test_a_bias_does_not_hide_a_key_nor_does_a_negative_zero(first, last, dtype):
    torch.manual_seed(0)
    query, (keys, values) = torch.randn(2, 1, 32).to(dtype), torch.randn(2, 1, 1, 20, 32).to(dtype)
    mask = torch.zeros(1, 1, 2, 20, dtype=dtype)
    mask[..., :3], mask[..., 18:] = first, last
    expected = scaled_dot_product_attention(query.transpose(0, 1)[None].double(), keys.double(),
                                            values.double(), mask.double())[0].transpose(0, 1)
    result = attend(query, keys, values, mask, None, np.array([0, 2]))
    assert torch.allclose(result.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("name", ["llama", "mistral-window", "llama4"])
def test_texts_are_those_of_generate(name, monkeypatch):
    """In packed and in uniform passes, with windows and with chunks."""
    calls = []
    monkeypatch.setattr(vectors, "is_fast", lambda dtype: True)
    monkeypatch.setattr(compiled_attention, "attend", lambda *inputs: calls.append(inputs) or attend(*inputs))
    model, texts = tiny(name, head_dim=32), prompts()
    expected = [generate(model, text) for text in texts]
    for nodes in (0, 8):
        target = Target(model)
        calls.clear()
        assert_written(write(target, texts, oracle(expected), nodes=nodes), expected)
        assert calls
    assert {len(mask) for *_, mask, _, _ in calls if mask is not None} > {1}


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_query_is_computed_alike_to_the_last_bit_beside_other_queries_and_between_hidden_keys(dtype):
    torch.manual_seed(0)
    for trial in range(30):
        length, hidden, others = (int(torch.randint(*bounds, ())) for bounds in ((2, 500), (1, 40), (0, 9)))
        query = torch.randn(1, 9, 64).to(dtype) * 2
        keys, values = torch.randn(2, 1, 3, length, 64).to(dtype)
        alone = attend(query, keys, values, None, None, np.arange(2))
        last = min(length, 4) if trial % 2 else length  # keys with hidden ones between, as in a tree
        places = torch.randperm(last + hidden)[:last].sort()[0] + length - last
        places = torch.cat([torch.arange(length - last), places])
        more_keys, more_values = torch.randn(2, 1, 3, length + hidden, 64).to(dtype)
        more_keys[:, :, places], more_values[:, :, places] = keys, values
        queries, place = torch.randn(others + 1, 9, 64).to(dtype), others // 2
        queries[place] = query[0]
        mask = torch.zeros(1, 1, others + 1, length + hidden, dtype=dtype)
        mask[0, 0, place] = torch.finfo(dtype).min
        mask[0, 0, place, places] = 0
        among = attend(queries, more_keys, more_values, mask, None, np.array([0, others + 1]))
        assert torch.equal(among[place], alone[0]), (length, hidden, others)


def test_texts_in_bfloat16_depend_neither_on_drafts_nor_on_the_batch(monkeypatch):
    for module in (vectors, llama_forward, prepacked):
        monkeypatch.setattr(module, "is_fast", lambda dtype: True)
    target, texts = Target(tiny("llama", head_dim=32, dtype=torch.bfloat16)), prompts()[:4]
    assert target.llama is not None
    options = {"max_new_tokens": 200, "repetition_penalty": 1.2}
    alone = write(target, texts, batch_size=1, nodes=0, **options)
    expected = [alone[row].token_ids for row in range(len(texts))]
    for batch, nodes in ((4, 0), (1, 8), (3, 5)):
        drafter = oracle(expected, error_rate=0.3)
        assert_written(write(target, texts, drafter, batch_size=batch, nodes=nodes, **options), expected)


def test_numbers_that_are_not_finite_stay_so():
    query, states = torch.full((1, 2, 32), torch.nan), torch.ones(1, 1, 3, 32)
    assert attend(query, states, states, None, None, np.arange(2)).isnan().all()
    values = states.clone()
    values[0, 0, 1, 5] = torch.inf
    assert attend(query.nan_to_num(1.0), states, values, None, None, np.arange(2)).isinf()[..., 5].all()


def test_long_queries_masks_of_heads_and_gradients_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(vectors, "is_fast", lambda dtype: dtype == torch.float32)  # on any processor
    query, states, mask = torch.ones(1, 4, 3, 32), torch.ones(1, 2, 5, 32), torch.zeros(1, 1, 3, 5)
    assert supports(query, states, states, mask, 3)
    assert not supports(query, states, states, mask, 9)
    assert not supports(query, states, states, mask.expand(-1, 4, -1, -1), 3)
    assert not supports(query[..., :24], states[..., :24], states[..., :24], mask, 3)
    assert not supports(query, torch.ones(1, 2, 32, 5).transpose(2, 3), states, mask, 3)
    assert not supports(query.half(), states.half(), states.half(), mask.half(), 3)
    for trained in range(3):
        inputs = [query, states, states]
        inputs[trained] = inputs[trained].clone().requires_grad_()
        assert not supports(*inputs, mask, 3)


@pytest.mark.parametrize("shape", [(1, 1, 3, 5), (2, 1, 1, 5), (2, 1, 3, 1), (2, 1, 3, 4)])
def test_masks_of_another_shape_are_left_to_torch(shape, monkeypatch):
    monkeypatch.setattr(vectors, "is_fast", lambda dtype: True)
    query, states = torch.ones(2, 4, 3, 32), torch.ones(2, 2, 5, 32)
    assert supports(query, states, states, torch.zeros(2, 1, 3, 5), 3)
    assert not supports(query, states, states, torch.zeros(shape), 3)
