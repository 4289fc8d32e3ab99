"""Rows that wait for pages of keys and values, and for a pass over prompts that is worth it."""

import numpy as np
import pytest
import torch
from decode_models import assert_written, generate, oracle, prompts, tiny, write

from dare_job.decode.engine import request_scheduler
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model import failures
from dare_job.decode.model import target as model_target
from dare_job.decode.model.paged.pool import PAGE
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings


@pytest.mark.parametrize("limit", [2, 3])
def test_rows_wait_for_pages(limit, monkeypatch):
    model, texts = tiny("llama"), prompts()
    expected = [generate(model, text) for text in texts]
    target = Target(model, paged=True)
    monkeypatch.setattr(model_target, "affordable_pages", lambda *_: limit)
    results = write(target, texts, oracle(expected), batch_size=5, nodes=9)
    assert_written(results, expected)
    assert target.spare_cache.pages == limit


def test_pages_are_those_of_the_row_s_own_slot(monkeypatch):
    """The longest text has the shortest prompt, and the pool is as large as both rows need together."""
    model = tiny("llama", max_position_embeddings=1024)
    target, texts = Target(model, paged=True), prompts((40, 5))
    monkeypatch.setattr(model_target, "affordable_pages", lambda *_: 4)
    most = 20, PAGE + 20
    requests = [Request(row, text, max_new_tokens=most[row]) for row, text in enumerate(texts)]
    expected = [generate(model, text, max_new_tokens=most[row]) for row, text in enumerate(texts)]
    settings = EngineSettings(batch_size=2, nodes=0, max_new_tokens=None)
    assert_written({result.id: result for result in Engine(target, settings).run(requests)}, expected)


def test_a_row_for_which_there_are_no_pages_does_not_hold_up_shorter_ones(monkeypatch):
    """Of three pages, two rows need two each, and two one: the longer short row starts with the first."""
    model = tiny("llama", max_position_embeddings=1024)
    target, texts = Target(model, paged=True), prompts((PAGE, PAGE - 8, 9, 5))
    monkeypatch.setattr(model_target, "affordable_pages", lambda *_: 4)
    lengths = 12, 12, 8, 20
    requests = [Request(row, text, max_new_tokens=lengths[row]) for row, text in enumerate(texts)]
    expected = [generate(model, text, max_new_tokens=lengths[row]) for row, text in enumerate(texts)]
    settings = EngineSettings(batch_size=3, nodes=4, max_new_tokens=None)
    results = {result.id: result for result in Engine(target, settings).run(requests)}
    assert_written(results, expected)
    assert list(results) == [0, 3, 1, 2]  # in the order in which they end


@pytest.mark.parametrize("full", [True, False])
def test_a_prefix_is_read_only_where_there_are_pages_for_it(full, monkeypatch):
    """Two rows take three pages and leave a slot; the next two share their first 200 tokens."""
    model = tiny("llama", max_position_embeddings=1024)
    head = prompts((200,), seed=3)[0]
    texts = [*prompts((PAGE + 5, 20)), *(np.append(head, text) for text in prompts((5, 9), seed=4))]
    expected = [generate(model, text, max_new_tokens=8) for text in texts]
    target, entries = Target(model, paged=True), []
    monkeypatch.setattr(model_target, "affordable_pages", lambda *_: 4 if full else 9)
    monkeypatch.setattr(request_scheduler, "_LOOKAHEAD_BATCHES", 0)
    monkeypatch.setattr(request_scheduler, "_MIN_LOOKAHEAD", 2)
    update = target.prefix_cache.update
    target.prefix_cache.update = lambda prompts, read: update(
        prompts, lambda tokens: (entries.append(read(tokens)), entries[-1])[1])
    requests = [Request(row, text, max_new_tokens=8) for row, text in enumerate(texts)]
    settings = EngineSettings(batch_size=3, nodes=0, max_new_tokens=None)
    assert_written({result.id: result for result in Engine(target, settings).run(requests)}, expected)
    assert len(entries) == 1 and (entries[0] is None) == full


def test_a_row_that_never_fits_is_out_of_memory(monkeypatch):
    model = tiny("llama", max_position_embeddings=1024)
    target = Target(model, paged=True)
    monkeypatch.setattr(model_target, "affordable_pages", lambda *_: 2)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        write(target, prompts((PAGE,)), None, batch_size=1, nodes=0)
    assert failures.is_out_of_memory(raised.value)


def test_new_rows_wait_until_a_pass_over_prompts_is_worth_it():
    """Slots are refilled several at a time, and all texts are those of ``generate``."""
    model = tiny("llama")
    texts = prompts(np.random.default_rng(3).integers(4, 40, 60))
    target, calls = Target(model, paged=True), []
    assert target.paged is not None
    prompts_of = target.paged.prompts
    target.paged.prompts = lambda *args: (calls.append(len(args[1])), prompts_of(*args))[1]
    settings = EngineSettings(batch_size=16, nodes=0, max_new_tokens=None)
    lengths = np.random.default_rng(4).integers(3, 30, len(texts))
    requests = [Request(n, text, max_new_tokens=int(length))
                for n, (text, length) in enumerate(zip(texts, lengths, strict=True))]
    results = {result.id: result for result in Engine(target, settings).run(requests)}
    assert len(results) == len(texts) and all(len(results[n].token_ids) == length
                                              for n, length in enumerate(lengths))
    assert np.mean(calls[1:]) >= 2
