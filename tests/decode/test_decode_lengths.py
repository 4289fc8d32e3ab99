"""Texts may be as long as with ``generate``: beyond max_position_embeddings, unless a table ends."""

import numpy as np
import pytest
from decode_models import TABLES, architectures, assert_written, generate, oracle, prompts, short, write
from transformers import GenerationConfig

from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings

CONTEXT, NEW = 32, 40


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_rotary_models_continue_like_generate(name):
    model, texts = short(name, CONTEXT), prompts((20, 5, CONTEXT, 1, 31, 11))
    expected = [generate(model, text, max_new_tokens=NEW) for text in texts]
    assert {len(text) for text in expected} == {NEW}
    target = Target(model)
    assert (target.traits.context, target.traits.max_length) == (CONTEXT, None)
    for batch_size, nodes in ((1, 15), (3, 0), (8, 31)):
        drafter = oracle(expected, seed=nodes) if nodes else None
        results = write(target, texts, drafter, max_new_tokens=NEW, batch_size=batch_size, nodes=nodes)
        assert_written(results, expected)
        assert {result.finish_reason for result in results.values()} == {"length"}
    assert sum(result.accepted_tokens for result in results.values()) > 100


@pytest.mark.parametrize("name", architectures("gpt2", "opt", "gpt_neo", "xglm", "phi3"))
def test_every_architecture_ends_where_generate_does(name):
    model, texts = short(name, CONTEXT), prompts((28, 5, CONTEXT, 17))
    room = [min(NEW, CONTEXT + 1 - len(text)) if name in TABLES else NEW for text in texts]
    expected = [generate(model, text, max_new_tokens=new) for text, new in zip(texts, room, strict=True)]
    assert [len(text) for text in expected] == room
    target = Target(model, check=False)
    assert target.traits.max_length == (CONTEXT + 1 if name in TABLES else None)
    for nodes in (0, 15):
        results = write(target, texts, oracle(expected) if nodes else None, max_new_tokens=NEW, nodes=nodes)
        assert_written(results, expected)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_generate_cannot_exceed_a_table(name):
    with pytest.raises((IndexError, RuntimeError)):
        generate(short(name, CONTEXT), prompts((CONTEXT - 4,))[0], max_new_tokens=6)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_prompt_must_fit_the_context(name):
    model, texts = short(name, CONTEXT), prompts((CONTEXT, CONTEXT + 1, 9))
    results = write(Target(model, check=False), texts, None, max_new_tokens=1)
    assert results[1].finish_reason == "error" and not len(results[1].token_ids)
    assert results[1].error == (
        f"the prompt has {CONTEXT + 1} tokens and max_position_embeddings is {CONTEXT}: no room to generate")
    expected = [generate(model, texts[row], max_new_tokens=1) for row in (0, 2)]
    assert_written([results[0], results[2]], expected)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_limits_of_one_row_do_not_affect_another(name):
    """Row limits, an end of text, a full table and rejected rows, in one batch and one after another."""
    model, texts = short(name, CONTEXT), prompts((28, 5, 33, 15, CONTEXT, 12, 38, 3, 25))
    limits = [NEW, 7, NEW, 17, NEW, 1, 2, 29, NEW]
    ends = int(generate(model, texts[7], max_new_tokens=29)[20])
    model.generation_config.eos_token_id = [ends]
    rows = [row for row, text in enumerate(texts) if len(text) <= CONTEXT]
    room = {row: limits[row] if name == "llama" else min(limits[row], CONTEXT + 1 - len(texts[row]))
            for row in rows}
    expected = [generate(model, text, max_new_tokens=room[row]) if row in room else np.zeros(0, int)
                for row, text in enumerate(texts)]
    engine = Engine(Target(model, check=False), EngineSettings(batch_size=4, nodes=15), oracle(expected))
    results = {r.id: r for r in engine.run(
        Request(row, text, max_new_tokens=limits[row]) for row, text in enumerate(texts))}
    assert {row for row in results if results[row].error is not None} == {2, 6}
    for row in rows:
        assert np.array_equal(results[row].token_ids, expected[row]), row
        assert results[row].finish_reason == ("eos" if ends in expected[row] else "length")
    assert results[7].finish_reason == "eos"


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("fields", [
    {}, {"max_length": 17}, {"max_length": CONTEXT + 1}, {"max_length": 50},
    {"max_length": 15, "max_new_tokens": 9}, {"max_length": 20, "min_new_tokens": 45},
    {"max_length": 50, "min_length": 45, "eos_token_id": [3, 5, 7]}], ids=str)
def test_lengths_of_the_generation_config(name, fields):
    """Without any, 20 tokens but none beyond max_position_embeddings, also in rotary models."""
    model, texts = short(name, CONTEXT), prompts((3, 15, 25, 16, 31, 17, CONTEXT))
    model.generation_config = GenerationConfig(pad_token_id=0, **fields)
    most, new = fields.get("max_length", CONTEXT), fields.get("max_new_tokens")
    limit = "max_length" if "max_length" in fields else "max_position_embeddings"
    expected = []
    for text in texts:
        if new is None and len(text) >= most:
            expected.append(f"the prompt has {len(text)} tokens and {limit} is {most}: no room to generate")
            with pytest.raises(ValueError, match="Input length"):
                generate(model, text, max_new_tokens=None)
            continue
        cut = name in TABLES and (len(text) + new if new else most) > CONTEXT + 1
        asked = CONTEXT + 1 - len(text) if cut else None
        expected.append(generate(model, text, max_new_tokens=asked).tolist())
    results = write(Target(model, check=False), texts, None, max_new_tokens=None)
    for row, text in enumerate(expected):
        assert (results[row].error or results[row].token_ids.tolist()) == text, row


def test_no_end_of_text_before_the_minimum_length_beyond_the_context():
    model, texts = short("llama", CONTEXT), prompts((20, 5, 30))
    common = np.bincount(np.concatenate([generate(model, text, max_new_tokens=NEW) for text in texts]))
    often, unwritable = common.argsort()[::-1][:12].tolist(), 4000
    least = NEW - 10
    for ends in (often, [*often[:9], unwritable]):
        model.generation_config.eos_token_id = ends
        expected = [generate(model, text, max_new_tokens=NEW, min_new_tokens=least) for text in texts]
        assert min(map(len, expected)) >= least and any(len(text) < NEW for text in expected)
        results = write(Target(model, check=False), texts, oracle(expected), max_new_tokens=NEW,
                        min_new_tokens=least)
        assert_written(results, expected)
