"""Pools that are saved and opened; replays of recorded texts."""

import numpy as np
import pandas
import pytest
from api_texts import FILMS, TITLES

from dare_job import LLM, Pool, replay
from dare_job.errors import ConfigError, ModelError, PoolError
from pools.index import Index

TEXTS = [f"{title} is a grainy drama film from Italy, made in the 1980s." for title in TITLES]


@pytest.fixture(scope="module")
def pool():
    return Pool.from_texts([*TEXTS, ""], model="embedded")


def test_a_pool_drafts_the_same_after_it_is_saved_and_opened(pool, llm, tmp_path):
    pool.save(tmp_path / "pool")
    opened = Pool.open(tmp_path / "pool")
    assert repr(opened) == repr(pool) and (pool.texts, opened.texts) == (len(TEXTS), len(TEXTS))
    before, after = (llm.generate(FILMS[:3], pool=each, max_new_tokens=24) for each in (pool, opened))
    assert [text.steps for text in before] == [text.steps for text in after]
    alone = llm.generate(FILMS[:3], max_new_tokens=24)
    assert sum(text.steps for text in after) < sum(text.steps for text in alone)
    assert [text.text for text in after] == [text.text for text in alone]


def test_token_ids_and_texts_make_the_same_pool(pool, llm):
    ids = llm._tokens.tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
    end = llm._tokens.tokenizer.eos_token_id
    same = Pool.from_texts([np.array([*row, end]) for row in ids], model="embedded")
    assert np.array_equal(same._index.tokens, pool._index.tokens)


@pytest.mark.parametrize(("texts", "message"), [
    ("a text", "texts is one str"), (["a", None], r"texts\[1\] is None: leave it out"),
    (["a", 3.5], r"texts\[1\] is 3.5"), ([[-1]], r"texts\[0\] has token ids from -1 to -1")])
def test_texts_that_are_none(texts, message):
    with pytest.raises(ConfigError, match=message):
        Pool.from_texts(texts, model="embedded")


def test_columns_of_a_table(llm, pool):
    table = pandas.DataFrame({"prompt": FILMS[:3], "text": TEXTS[:3]}, index=[7, 7, 1])
    same = Pool.from_texts(table["text"], model="embedded")
    assert repr(same) == repr(Pool.from_texts(iter(TEXTS[:3]), model="embedded"))
    written = llm.generate(table["prompt"], previous=table["text"], pool=[same, pool], max_new_tokens=8)
    assert [text.index for text in written] == [0, 1, 2] and not any(text.error for text in written)
    some = table["text"].where([True, False, True])
    assert [text.text for text in llm.generate(table["prompt"], previous=some, max_new_tokens=8)] == [
        text.text for text in written]


def test_models_and_folders_that_do_not_exist(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        Pool.from_texts(["a"], model=str(tmp_path / "none"))
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text('{"model_type": "llama", "vocab_size": 9}')
    for use in (lambda model: Pool.from_texts(["a"], model=model), LLM):
        with pytest.raises(ModelError, match="bare holds no tokenizer"):
            use(str(tmp_path / "bare"))
        (tmp_path / "bare" / "tokenizer.json").write_text("{")
        with pytest.raises(ModelError, match="has no tokenizer that can be loaded"):
            use(str(tmp_path / "bare"))
        (tmp_path / "bare" / "tokenizer.json").unlink()
    with pytest.raises(PoolError, match="none"):
        Pool.open(tmp_path / "none")
    Index.build([np.arange(4)]).save(tmp_path / "unnamed")
    with pytest.raises(PoolError, match="names no tokenizer; make the pool again with Pool.from_texts"):
        Pool.open(tmp_path / "unnamed")


def test_a_replay_counts_what_the_engine_accepts(llm, pool):
    """A recorded text accepts the drafts that the model accepts, after a prompt that drafts nothing."""
    few, many = replay(TEXTS[:4], "embedded", pool=pool, nodes=(1, 16))
    assert few.nodes == 1 and 0 < few.accepted_per_step <= 1 < many.accepted_per_step
    assert many.tokens_per_step == many.accepted_per_step + 1
    assert many.per_text.sum(0).tolist() == [round(many.accepted_per_step * many.steps), many.steps]
    own, = replay(TEXTS[:4], "embedded", previous=[*TEXTS[:3], None], nodes=[16])
    alone, = replay(TEXTS[:4], "embedded", nodes=[16])
    assert own.accepted_per_step > 2 * alone.accepted_per_step
    assert (own.per_text[3] == alone.per_text[3]).all()


@pytest.mark.parametrize(("arguments", "message"), [
    ({"texts": "a"}, "texts is one str"), ({"nodes": [0]}, r"nodes is \[0\]; each must be from 1 to 512"),
    ({"previous": []}, "previous has 0 entries and texts has 1"), ({"texts": [None]}, r"texts\[0\] is None")])
def test_invalid_arguments_of_replay(arguments, message):
    with pytest.raises(ConfigError, match=message):
        replay(**{"texts": ["a b"], "model": "embedded", **arguments})
