"""Strict decoding generates the text of ``generate``, token for token, for every architecture."""

import numpy as np
import pytest
import torch
from decode_models import (
    TABLES,
    architectures,
    assert_written,
    generate,
    oracle,
    prompts,
    short,
    tiny,
    write,
)

from dare_job.decode.engine.engine import Engine
from dare_job.decode.model import cache
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings

CONTEXT, NEW, HEAD = 64, 24, 20


def assert_says_enough(expected, least: int = 20) -> None:
    tokens = {token for text in expected for token in text}
    assert len(tokens) > least, "the model says too little to test with"


@pytest.mark.parametrize("name", architectures(
    "llama", "qwen2-window", "gemma3", "gpt2", "falcon", "mixtral", "llama4", "mpt"))
def test_strict_equals_generate_in_every_path(name, monkeypatch):
    """Few slots, drafts, texts beyond the context, rows of different limits, previous texts and a prefix, in
    a cache that grows under its rows.
    """
    monkeypatch.setattr(cache, "GROWTH_COLUMNS", 16)
    model = short(name, CONTEXT)
    texts, limits = prompts((5, 17, 1, 30, 60, 22)), [NEW, 9, 14, NEW, NEW, 12]
    room = [min(limit, CONTEXT + 1 - len(text)) if name in TABLES else limit
            for text, limit in zip(texts, limits, strict=True)]
    expected = [generate(model, text, max_new_tokens=new) for text, new in zip(texts, room, strict=True)]
    assert_says_enough(expected, 10)
    target = Target(model)
    assert target.traits.max_length == (CONTEXT + 1 if name in TABLES else None)
    for nodes in (0, 33):  # 33: paths longer than a window
        drafter = oracle(expected, seed=nodes, distractors=1)
        engine = Engine(target, EngineSettings(batch_size=3, nodes=nodes), drafter)
        results = {result.id: result for result in engine.run(
            Request(row, text, max_new_tokens=limits[row]) for row, text in enumerate(texts))}
        assert_written(results, expected)
        assert all(result.finish_reason == "length" for result in results.values())
    # The right token is never the first sibling, so no accepted token is on the first branch.
    assert sum(result.accepted_tokens for result in results.values()) >= 0.3 * sum(room)
    assert_equal_after_prefix_and_previous_texts(target)


def assert_equal_after_prefix_and_previous_texts(target: Target) -> None:
    head, tails, new = prompts((HEAD,), 7)[0], prompts((5, 17, 1, 20, 9, 11, 2, 14, 6), 3), 12
    texts = [np.concatenate((head, tail)) for tail in tails]
    with target.as_transformers() as model:
        expected = [generate(model, text, max_new_tokens=new) for text in texts]
    old = [(text, np.insert(text, 4, 7), text[:6], np.append(text[:7], text), text[:0])[row % 5]
           for row, text in enumerate(expected)]
    read, prefill = [], target.prefill

    def watched(rows, slots, ids, lengths, submitted=None, prefix=None):
        read.append(len(prefix) if prefix else 0)
        return prefill(rows, slots, ids, lengths, submitted, prefix)

    target.prefill = watched
    settings = EngineSettings(max_new_tokens=new, batch_size=4, nodes=9, score="always")
    engine = Engine(target, settings, oracle(expected, seed=9))
    results = {result.id: result for result in engine.run(
        Request(row, text, previous_ids=old[row]) for row, text in enumerate(texts))}
    assert_written(results, expected)
    assert read[0] == 0 and set(read[1:]) == {HEAD}  # read once, then used for all rows
    kept = [result.reused_tokens for result in (results[row] for row in range(len(texts)))]
    assert kept[::5] == [new - 1] * 2 and kept[2::5] == [6] * 2 and kept[4] == 0
    assert all(kept[row] >= 4 for row in (1, 6)) and all(kept[row] >= 7 for row in (3, 8))


@pytest.mark.parametrize("name", architectures("gpt_neo"))
def test_strict_equals_generate_in_batches_of_several_sizes(name):
    model, texts = tiny(name), prompts()
    expected = [generate(model, prompt) for prompt in texts]
    assert_says_enough(expected)
    target = Target(model)
    emitted = drafted = 0
    for batch_size, nodes in ((1, 0), (3, 0), (1, 15), (3, 15), (8, 31)):
        drafter = oracle(expected, seed=nodes) if nodes else None
        results = write(target, texts, drafter, batch_size=batch_size, nodes=nodes)
        assert_written(results, expected)
        if nodes:
            emitted += sum(len(r.token_ids) for r in results.values())
            drafted += sum(r.accepted_tokens for r in results.values())
    assert drafted >= 0.3 * emitted


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gemma2", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision(name, dtype):
    """bfloat16, which numpy and numba lack, and float16: drafts change a text at most at ties of logits."""
    target, texts = Target(tiny(name, dtype=dtype)), prompts()
    plain = write(target, texts, None, batch_size=7, nodes=0, max_new_tokens=20)
    expected = [plain[row].token_ids for row in range(len(texts))]
    results = write(target, texts, oracle(expected), batch_size=3, nodes=15, max_new_tokens=20)
    assert not any(result.error for result in (*plain.values(), *results.values()))
    same = sum(np.array_equal(results[row].token_ids, text) for row, text in enumerate(expected))
    assert same >= len(texts) / 2 and sum(result.accepted_tokens for result in results.values()) > 0
