"""A row's random numbers depend only on seed, id, position and purpose."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from dare_job.config.settings import JobConfig
from dare_job.decode.request import Request
from dare_job.decode.sampling.random_streams import DRAFT, VERIFY, RowKeys, uniforms
from dare_job.errors import ConfigError
from dare_job.generate import loading
from dare_job.schemas import ENTITIES


def _one(key, place, purpose, number, count):
    return uniforms(key[None], np.array([place]), purpose, np.array([number]), count)[0]


def test_numbers_equal_those_of_numpys_philox():
    keys = RowKeys(7).keys_of(["a", ("user", 3), 2**70])
    cases = itertools.product(keys, (0, 1, 2**40), (DRAFT, VERIFY), (0, 5, 2**33), (1, 3, 4, 9))
    for key, place, purpose, number, count in cases:
        blocks = [np.random.Philox(counter=_less_one(block, place, number, purpose), key=key).random_raw(4)
                  for block in range(3)]
        expected = (np.concatenate(blocks) >> np.uint64(11)) * 2.0**-53
        assert np.array_equal(_one(key, place, purpose, number, count), expected[:count])


def _less_one(*words):
    """The previous counter: numpy increments it before it generates."""
    whole = (sum(word << (64 * place) for place, word in enumerate(words)) - 1) % 2**256
    return np.array([whole >> (64 * place) & (2**64 - 1) for place in range(4)], np.uint64)


def test_a_rows_numbers_do_not_depend_on_the_batch():
    requests = tuple(Request(name, np.zeros(1, np.int32)) for name in ("a", "b", "c", "d"))
    seeds, places, numbers = RowKeys(3), np.array([9, 2, 40, 2]), np.array([0, 1, 2, 1])
    keys = seeds.keys(requests)
    together = uniforms(keys, places, DRAFT, numbers, 6)
    assert np.array_equal(seeds.keys(requests), RowKeys(3).keys_of("abcd"))
    order = [2, 0, 3]
    apart = uniforms(seeds.keys(tuple(requests[n] for n in order)), places[order], DRAFT, numbers[order], 3)
    assert np.array_equal(apart, together[order, :3])


def test_a_user_and_an_item_with_the_same_id_share_no_numbers(monkeypatch):
    """The key of a row includes its entity type; a request without a key uses its id."""
    monkeypatch.setattr(loading, "prompt_ids", lambda *_: np.ones(1, np.int32))
    monkeypatch.setattr(loading, "load_task_model", lambda task: SimpleNamespace(tokenizer=None))
    task = SimpleNamespace(config=JobConfig(), prompt_format=lambda entity: None)
    rows = [loading.make_request({"entity": entity, "entity_id": "7", "prompt": "p"}, task, drafted=False)
            for entity in ENTITIES]
    keys = RowKeys(0).keys((*rows, Request("7", np.ones(1, np.int32))))
    assert [row.id for row in rows] == ["7", "7"] and len({bytes(key) for key in keys}) == 3
    assert np.array_equal(keys, RowKeys(0).keys_of([("user", "7"), ("item", "7"), "7"]))


def test_any_difference_gives_other_numbers():
    ids = ["a", b"a", "b", 1, "1", (1, 1), ((1,), 1), ("1", 1), ("a", "b"), ("ab",), (11,), "", ()]
    keys = {bytes(key) for seed in (0, 1, 11) for key in RowKeys(seed).keys_of(ids)}
    assert len(keys) == 3 * len(ids)
    key = RowKeys(0).keys_of(["a"])[0]
    cases = list(itertools.product((0, 1, 2, 3), (DRAFT, VERIFY), (0, 1, 2, 3)))
    found = np.array([_one(key, place, purpose, number, 4) for place, purpose, number in cases])
    assert len(np.unique(found)) == found.size and found.min() >= 0 and found.max() < 1


def test_invalid_seeds_and_ids():
    for seed in (-1, 2**63, 0.5, True, "1"):
        with pytest.raises(ConfigError, match="^seed is"):
            RowKeys(seed)
    for name in (None, 1.5, ["a"], (1, None)):
        with pytest.raises(ConfigError, match="row id"):
            RowKeys(0).keys_of([name])
