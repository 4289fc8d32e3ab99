"""Request scheduler: longest requests start first, none is lost, and slots in use are counted."""

import numpy as np
import pytest
from decode_models import assert_written, generate, prompts, tiny, write

from dare_job.decode.engine import request_scheduler
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings

AHEAD = 10  # requests read ahead


def started(target: Target) -> list[list[int]]:
    """Return a list that collects the prompt lengths of each prefill."""
    calls, prefill = [], target.prefill

    def read(cache, slots, ids, lengths, *others):
        calls.append(lengths.tolist())
        return prefill(cache, slots, ids, lengths, *others)

    target.prefill = read
    return calls


@pytest.mark.parametrize("old", [False, True])
def test_the_longest_waiting_requests_start_first(old, monkeypatch):
    monkeypatch.setattr(request_scheduler, "_MIN_LOOKAHEAD", AHEAD)
    model = tiny("llama")
    target = Target(model, check=False)
    calls = started(target)
    rng = np.random.default_rng(2)
    lengths = rng.permutation(np.arange(10, 10 + 3 * AHEAD))
    texts = prompts(lengths)
    most = 2 * (max(lengths) + 1)
    before = [text[: most - 2 * n] for n, text in zip(lengths, prompts([most] * len(texts)), strict=True)]
    taken = 0

    def requests():
        nonlocal taken
        for row, text in enumerate(texts):
            taken += 1
            yield Request(row, text, previous_ids=before[row] if old else None, max_new_tokens=most)

    settings = EngineSettings(batch_size=1, score="never", max_new_tokens=2)
    results = []
    for result in Engine(target, settings).run(requests()):
        results.append(result)
        assert taken <= AHEAD * (1 + (len(results) - 1) // AHEAD)
        if len(results) == AHEAD + 1:
            break
    assert taken == 2 * AHEAD
    first = sorted(lengths[:AHEAD].tolist(), reverse=not old)
    expected = [*first, (min if old else max)(lengths[AHEAD : 2 * AHEAD])]
    assert [length for call in calls for length in call][: AHEAD + 1] == expected


def test_rejected_requests_are_returned_once_and_do_not_affect_others():
    model = tiny("gpt2")
    texts = [*prompts(), *prompts((3, 8), seed=4)]
    expected = [generate(model, text, max_new_tokens=20) for text in texts]
    requests = [Request(row, text) for row, text in enumerate(texts)]
    bad = [Request(-1, np.zeros(0, np.int32)), Request(-2, np.array([-3], np.int32))]
    for place in (0, 4, len(requests)):
        order = [*requests[:place], *bad, *requests[place:]]
        engine = Engine(Target(model, check=False), EngineSettings(max_new_tokens=20, batch_size=2))
        results = list(engine.run(iter(order)))
        assert sorted(result.id for result in results) == sorted(request.id for request in order)
        found = {result.id: result for result in results}
        assert_written(found, expected)
        assert all(found[request.id].error and not found[request.id].slot_steps for request in bad)
    assert [result.error is not None for result in engine.run(bad)] == [True, True]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_slots_of_steps_are_divided_among_rows(batch_size):
    target = Target(tiny("llama"), check=False)
    steps, forward = [], target.forward

    def counted(cache, tree, lengths):
        steps.append(len(lengths))
        return forward(cache, tree, lengths)

    target.forward = counted
    engine = Engine(target, EngineSettings(batch_size=batch_size))
    requests = [Request(row, text, max_new_tokens=int(n)) for row, (text, n) in
                enumerate(zip(prompts(), (30, 4, 1, 12, 9, 3, 20), strict=True))]
    results = list(engine.run(requests))
    assert sum(result.target_steps for result in results) == sum(steps)
    assert np.isclose(sum(result.slot_steps for result in results), batch_size * len(steps))
    assert all(result.slot_steps >= result.target_steps for result in results)
    alone = {result.id: result for result in engine.run(requests[:1])}[0]
    assert alone.slot_steps == batch_size * alone.target_steps


def test_a_cache_is_reused_except_after_an_error():
    target = Target(tiny("llama"), check=False)
    texts = prompts()
    expected = write(target, texts)
    kept = target.spare_cache
    assert kept is not None
    assert_written(write(target, texts), [expected[row].token_ids for row in range(len(texts))])
    assert target.spare_cache is kept
    write(target, texts, batch_size=2)
    assert target.spare_cache is not kept and target.spare_cache.slots == 2
    forward = target._forward

    def failing(*args, **options):
        forward(*args, **options)
        raise RuntimeError("no memory")

    target._forward = failing
    with pytest.raises(RuntimeError):
        write(target, texts)
    target._forward = forward
    assert target.spare_cache is None
