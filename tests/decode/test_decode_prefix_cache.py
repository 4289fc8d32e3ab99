"""Common prompt prefixes are read once, and texts stay those of ``generate``."""

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, architectures, assert_written, generate, oracle, prompts, tiny

from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.prefix_cache import MAX_PREFIXES, MAX_TOKENS, MIN_TOKENS, PrefixCache
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings

BAD = VOCABULARY - 1  # a token that only failing prompts have
HEAD = 20  # tokens, more than a window
TAILS = (5, 17, 1, 30, 9, 22, 11, 2, 14, 6)


def headed(seeds=(7, 8)) -> list[np.ndarray]:
    """Return prompts that alternate between one template for each seed."""
    heads = [prompts((HEAD,), seed)[0] for seed in seeds]
    return [np.concatenate((head, tail)) for place, tail in enumerate(prompts(TAILS, 3))
            for head in (heads if place % 2 else heads[::-1])]


def watched(target: Target) -> list[tuple[int, int]]:
    """Return a list that collects (rows, tokens read, without padding) of each prefill."""
    calls, prefill = [], target.prefill

    def watch(cache, slots, ids, lengths, scored=None, prefix=None):
        read = lengths + (0 if scored is None else scored) - (len(prefix) if prefix else 0)
        calls.append((len(slots), int(read.sum())))
        return prefill(cache, slots, ids, lengths, scored, prefix)

    target.prefill = watch
    return calls


def write(target, texts, old=None, drafter=None, **settings):
    engine = Engine(target, EngineSettings(**{"max_new_tokens": 16, "score": "always", **settings}), drafter)
    requests = (Request(row, text, previous_ids=old[row] if old else None) for row, text in enumerate(texts))
    return {result.id: result for result in engine.run(requests)}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", architectures("llama", "mistral-window"))
def test_strict_equals_generate_after_a_prefix(name):
    model = tiny(name)
    texts = headed()
    expected = [generate(model, text, max_new_tokens=16) for text in texts]
    assert len({token for text in expected for token in text}) > 20, "the model says too little to test with"
    target = Target(model)
    calls = watched(target)
    whole = sum(map(len, texts))
    assert_written(write(target, texts, batch_size=1), expected)
    assert sum(read for _, read in calls) == whole - (len(texts) - 2) * HEAD  # each prefix was read once
    assert len(calls) == len(texts) + 2
    old = [(text, np.roll(text, 3), np.append(text[:7], text), text[:4], text[:0])[row % 5]
           for row, text in enumerate(expected)]
    for batch_size, nodes in ((3, 0), (5, 9)):
        for prefixes in (target.prefix_cache, PrefixCache()):
            target.prefix_cache = prefixes
            calls.clear()
            drafter = oracle(expected, seed=nodes) if nodes else None
            results = write(target, texts, old, drafter, batch_size=batch_size, nodes=nodes)
            assert_written(results, expected)
            assert sum(result.reused_tokens for result in results.values()) > 60
            assert all(results[row].reused_tokens == 15 for row in range(0, len(texts), 5))


def test_fewer_tokens_are_read_for_the_same_text():
    model = tiny("llama", seed=1)
    target = Target(model, check=False)
    calls, texts, read = watched(target), headed((7,)), {}
    expected = [generate(model, text, max_new_tokens=16) for text in texts]
    target.prefix_cache.update = lambda prompts, read: None
    for kind in ("whole", "after", "known"):
        calls.clear()
        assert_written(write(target, texts, batch_size=4), expected)
        read[kind] = sum(tokens for _, tokens in calls)
        if kind == "whole":
            target.prefix_cache = PrefixCache()
    assert read["whole"] - read["after"] == HEAD * (len(texts) - 1)
    assert read["after"] - read["known"] == HEAD  # by a later engine with the same model


def _poisoned(value: float):
    model = tiny("llama", seed=1)
    with torch.no_grad():
        model.get_input_embeddings().weight[BAD] = value
        model.lm_head.weight[BAD].zero_()
    texts = [np.where(text == BAD, 5, text).astype(np.int32) for text in headed()]
    return model, texts, [generate(model, text, max_new_tokens=16) for text in texts]


@pytest.mark.parametrize(("batch_size", "value"), [(1, np.nan), (4, np.inf)])
def test_a_non_finite_prefix_is_not_cached(value, batch_size):
    model, texts, expected = _poisoned(value)
    assert not any(BAD in text for text in expected)
    bad = [text.copy() for text in texts[::2]]
    for text in bad:
        text[3] = BAD  # in the prefix of its own template
    target = Target(model, check=False)
    calls = watched(target)
    for _ in range(2):
        results = write(target, [*bad[:6], *texts, *bad[6:]], batch_size=batch_size)
        for row, text in enumerate(expected):
            assert np.array_equal(results[row + 6].token_ids, text)
        broken = [result for row, result in results.items() if not 6 <= row < 6 + len(texts)]
        assert len(broken) == len(bad) and all("finite" in result.error for result in broken)
        held = target.prefix_cache._prefixes
        assert held and all(bool(x.isfinite().all()) for prefix in held for x in prefix.entries)
    assert sum(rows == 1 and read == HEAD for rows, read in calls) <= 4  # not tried again every time


@pytest.mark.parametrize(("batch_size", "value"), [(1, np.nan), (4, np.inf)])
def test_a_failing_row_does_not_affect_the_prefix(value, batch_size):
    model, texts, expected = _poisoned(value)
    bad = [np.append(text[:HEAD], np.full(3, BAD, np.int32)) for text in texts[:4]]
    old = [*([np.full(5, BAD, np.int32)] * 8), *([None] * len(texts))]
    target = Target(model, check=False)
    results = write(target, [*texts[:2], *bad, *texts], old, batch_size=batch_size)
    for row, text in enumerate((*expected[:2], *[None] * 4, *expected)):
        assert np.array_equal(results[row].token_ids, text) if text is not None else results[row].error


def keys(tokens: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(tokens)[None, None, :, None].float()]


def lots(count: int, head: int, tail: int = 10, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 50, head)
    return [np.concatenate((first, [100 + row], rng.integers(0, 50, tail))).astype(np.int32)
            for row in range(count)]


@pytest.mark.parametrize(("texts", "held"), [
    (lots(20, 30), 30), (lots(1, 30), 0), (lots(3, 30), 0), (lots(30, MIN_TOKENS), MIN_TOKENS),
    (lots(30, MIN_TOKENS - 1), 0), (lots(30, 20, tail=600), 0), (lots(3, 3 * MAX_TOKENS), MAX_TOKENS)],
    ids=["many", "one", "few", "shortest", "too short", "small share", "longest"])
def test_a_prefix_is_cached_if_it_saves_enough(texts, held):
    prefixes, read = PrefixCache(), []
    prefixes.update(texts, lambda tokens: read.append(tokens) or keys(tokens))
    assert [len(tokens) for tokens in read] == ([held] if held else [])
    prefixes.update(texts, lambda tokens: pytest.fail("it is known"))
    ((prefix, rows),) = prefixes.group(texts[:1])
    assert (len(prefix) if prefix else 0, rows.tolist()) == (held, [0])


def test_a_longer_prefix_of_some_prompts_is_used_only_by_them():
    rng = np.random.default_rng(1)
    inner = [np.concatenate((text[:30], np.arange(60), text[30:])).astype(np.int32) for text in lots(9, 30)]
    outer = lots(20, 30, seed=0)
    prefixes = PrefixCache()
    texts = [*inner, *outer]
    rng.shuffle(texts)
    prefixes.update(texts, keys)
    assert sorted(len(prefix) for prefix in prefixes._prefixes) == [30, 90]
    groups = prefixes.group([*inner[:5], *outer[:5]])
    assert [(len(prefix), rows.tolist()) for prefix, rows in groups] == [
        (90, [0, 1, 2, 3, 4]), (30, [5, 6, 7, 8, 9])]
    (few, (other, rows)) = prefixes.group([*inner[:5], *outer[:2]])  # 2 x 30 tokens save too little
    assert len(few[0]) == 90 and other is None and rows.tolist() == [5, 6]


def test_the_last_token_of_a_prompt_is_always_read():
    prefixes, texts = PrefixCache(), lots(20, 30)
    prefixes.update(texts, keys)
    ((prefix, _),) = prefixes.group([texts[0][:30], texts[1]])
    assert len(prefix) == 29 and torch.equal(prefix.entries[0], keys(texts[0][:29])[0])
    same = PrefixCache()
    same.update([texts[0]] * 20, keys)
    ((prefix, _),) = same.group([texts[0]] * 3)
    assert len(prefix) == len(texts[0]) - 1


def test_few_prefixes_are_cached_and_those_in_use_stay():
    prefixes, first = PrefixCache(), lots(20, 30, seed=99)
    prefixes.update(first, keys)
    for seed in range(2 * MAX_PREFIXES):
        prefixes.update(lots(20, 30, seed=seed), keys)
        ((prefix, _),) = prefixes.group(first[:2])
        assert prefix is not None and len(prefixes._prefixes) <= MAX_PREFIXES
    ((gone, _),) = prefixes.group(lots(20, 30, seed=0)[:1])
    assert gone is None


@pytest.mark.parametrize("value", [1.0, np.nan], ids=["numbers", "no numbers"])
def test_the_best_prefixes_are_read_first_and_once(value):
    counts = [20 + 5 * seed for seed in range(MAX_PREFIXES + 2)]  # the last one saves most
    texts = [text for seed, count in enumerate(counts) for text in lots(count, 30, seed=seed)]
    prefixes, seen = PrefixCache(), []

    def read(tokens):
        seen.append(tuple(tokens.tolist()))
        assert len(seen) <= MAX_PREFIXES, "more is read than can be held"
        return [x * value for x in keys(tokens)]

    prefixes.update(texts, read)
    best = [tuple(lots(1, 30, seed=seed)[0][:30].tolist()) for seed in reversed(range(MAX_PREFIXES + 2))]
    assert seen == best[:MAX_PREFIXES]
    assert len(prefixes._prefixes) == (MAX_PREFIXES if np.isfinite(value) else 0)
