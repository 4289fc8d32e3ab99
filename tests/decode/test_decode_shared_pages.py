"""Rows that start from the same cached prefix share the pages that it fills."""

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, assert_written, generate, oracle, prompts, tiny, write

from dare_job.decode.engine.engine import Engine
from dare_job.decode.model import target as model_target
from dare_job.decode.model.paged.pool import PAGE, PagedCache, pages_of
from dare_job.decode.model.prefix_cache import NoPrefixes
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings

FULL = 2  # pages that the prefix fills
HEAD = prompts((FULL * PAGE + 30,), seed=8)[0]
TEXTS = [np.append(HEAD, tail) for tail in prompts((5, 17, 1, 30, 9, 22, 11, 3, 14), seed=3)]
LENGTH = 12  # tokens of each text


def model_of_long_texts(**options):
    return tiny("llama", max_position_embeddings=1024, **options)


def in_use(cache: PagedCache) -> int:
    return int((cache._users > 0).sum()) - 1  # without the spare page


def entries_of(tokens: np.ndarray) -> list[torch.Tensor]:
    """Return keys and values of one head and two dimensions that are the tokens."""
    return [torch.from_numpy(tokens).float().view(1, 1, -1, 1).expand(2, 1, -1, 2)]


def watched(target: Target) -> list[tuple[int, int]]:
    """Return a list that collects (rows, pages in use) of each step."""
    steps, level = [], target.paged.level

    def run(cache, nodes, *args):
        steps.append((len(nodes.lengths), in_use(cache)))
        return level(cache, nodes, *args)

    target.paged.level = run
    return steps


@pytest.mark.parametrize("name", ["llama", "qwen2-window"])
def test_texts_are_equal_and_full_pages_are_there_once(name):
    model = tiny(name, max_position_embeddings=1024)
    expected = [generate(model, text, max_new_tokens=LENGTH) for text in TEXTS]
    assert len({token for text in expected for token in text}) > 20
    target = Target(model, paged=True)
    steps, options = watched(target), dict(max_new_tokens=LENGTH, batch_size=4)
    for nodes in (0, 9):
        assert_written(write(target, TEXTS, oracle(expected), nodes=nodes, **options), expected)
    assert {rows for rows, _ in steps} >= {1, 4}
    assert all(pages == FULL + rows for rows, pages in steps)  # the rest of a row is one page
    assert in_use(target.spare_cache) == 0 and not target.spare_cache._shared

    steps.clear()
    target.prefix_cache = NoPrefixes()
    assert_written(write(target, TEXTS, nodes=0, **options), expected)
    assert all(pages == rows * (FULL + 1) for rows, pages in steps)


def test_a_prefix_that_is_evicted_stays_in_the_pages_of_its_rows():
    model = model_of_long_texts()
    expected = [generate(model, text, max_new_tokens=LENGTH) for text in TEXTS]
    target = Target(model, paged=True)
    steps = watched(target)
    settings = EngineSettings(max_new_tokens=LENGTH, batch_size=4, nodes=0)
    results = {}
    for result in Engine(target, settings).run(Request(row, text) for row, text in enumerate(TEXTS)):
        results[result.id] = result
        target.prefix_cache._prefixes.clear()
    assert_written(results, expected)
    assert min(pages - rows for rows, pages in steps) == FULL
    assert in_use(target.spare_cache) == 0


def test_rows_start_earlier_where_the_pool_is_small(monkeypatch):
    """8 pages hold two whole rows; those that share start as soon as they fit whole: 2 + 4 x 1."""
    model = model_of_long_texts()
    expected = [generate(model, text, max_new_tokens=LENGTH) for text in TEXTS]
    target = Target(model, paged=True)
    steps = watched(target)
    monkeypatch.setattr(model_target, "affordable_pages", lambda *_: 9)
    assert_written(write(target, TEXTS, max_new_tokens=LENGTH, batch_size=6, nodes=0), expected)
    assert max(rows for rows, _ in steps) == 4 and all(pages == FULL + rows for rows, pages in steps)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_failing_row_does_not_clear_the_pages_that_it_shares(value):
    model, bad = model_of_long_texts(seed=1), VOCABULARY - 1
    target = Target(model, paged=True)
    with torch.no_grad():
        model.get_input_embeddings().weight[bad] = value
        model.lm_head.weight[bad].zero_()
    texts = [np.where(text == bad, 5, text).astype(np.int32) for text in TEXTS]
    expected = [generate(model, text, max_new_tokens=LENGTH) for text in texts]
    old = {row: np.full(5, bad, np.int32) for row in (0, 3)}  # verified with the prompt, then again without
    broken = [np.append(text, bad).astype(np.int32) for text in texts[:2]]
    settings = EngineSettings(max_new_tokens=LENGTH, batch_size=4, nodes=0, score="always")
    requests = (Request(row, text, previous_ids=old.get(row)) for row, text in enumerate([*texts, *broken]))
    results = {result.id: result for result in Engine(target, settings).run(requests)}
    assert_written(results, expected)
    assert all("finite" in results[len(texts) + row].error for row in range(len(broken)))
    assert in_use(target.spare_cache) == 0


@torch.inference_mode()
@pytest.mark.parametrize("limit", [None, 20])
def test_no_page_is_lost_or_freed_twice(limit):
    """Rows of three prefixes, two of which begin alike, start, grow, move and end at random."""
    rng, cache = np.random.default_rng(7), PagedCache([(1, 2, 2)], 6, torch.float32, "cpu", limit)
    first = rng.integers(0, 50, PAGE)
    prefixes = [np.concatenate((first, rng.integers(0, 50, PAGE + 9))),
                np.concatenate((first, rng.integers(0, 50, 2 * PAGE))), rng.integers(0, 50, PAGE + 20)]
    entries = [entries_of(tokens) for tokens in prefixes]
    rows: dict[int, tuple[int, int]] = {}  # prefix and columns by slot
    most, refused = 0, 0
    for _ in range(300):
        slot, other = (int(n) for n in rng.integers(0, 6, 2))
        which = int(rng.integers(3))
        columns = len(prefixes[which]) + int(rng.integers(1, 2 * PAGE))
        if slot in rows and rng.random() < 0.3:
            cache.release(slot)
            del rows[slot]
        elif slot in rows and rng.random() < 0.3:
            longer = rows[slot][1] + PAGE
            if cache.hold(slot, longer):
                rows[slot] = rows[slot][0], longer
        elif slot in rows and other not in rows:
            cache.move_slot(slot, other, 0)
            rows[other] = rows.pop(slot)
        elif slot in rows:
            cache.clear(slot)
            cache.write(np.array([slot]), entries[rows[slot][0]], prefixes[rows[slot][0]])
        elif cache.hold(slot, columns):
            cache.write(np.array([slot]), entries[which], prefixes[which])
            cache._stacks[0][:, cache.lines(slot, len(prefixes[which]), columns)] = -1 - slot
            rows[slot] = which, columns
        else:
            refused += 1

        held = {row: cache.table[row, : pages_of(end)].tolist() for row, (_, end) in rows.items()}
        users = np.bincount(sum(held.values(), []), minlength=cache.pages)
        assert users[0] == 0 and np.array_equal(users[1:], cache._users[1:])
        whole = {tuple(prefixes[n][: (place + 1) * PAGE]): row for row, (n, _) in rows.items()
                 for place in range(len(prefixes[n]) // PAGE)}
        assert len(cache._shared) == len(whole)
        assert in_use(cache) == len(whole) + sum(
            pages_of(end) - len(prefixes[n]) // PAGE for n, end in rows.values())
        for row, (n, _) in rows.items():
            length = len(prefixes[n])
            assert torch.equal(cache.entries(row, length)[0], entries[n][0])
        most = max(most, len(rows))
    assert most >= 4 and cache.pages > 10 and (refused > 0) == (limit is not None)
    for slot in rng.permutation(list(rows)):
        cache.release(int(slot))
    assert in_use(cache) == 0 and not cache._shared


@torch.inference_mode()
def test_pages_that_follow_each_other_are_not_shared():
    cache = PagedCache([(1, 2, 2)], 2, torch.float32, "cpu", contiguous=True)
    tokens = np.arange(PAGE + 3)
    values = entries_of(tokens)
    cache.write(np.array([0, 1]), values, tokens)
    assert in_use(cache) == 4
    assert all(torch.equal(cache.entries(slot, len(tokens))[0], values[0]) for slot in (0, 1))
