"""Stop strings: the same ends as ``generate`` with ``stop_strings``, drafted or not, and the automaton."""

import numpy as np
import pytest
import torch
from chat_models import tokenizer_with
from decode_models import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.stop_strings import (
    NO_STOP,
    StopStrings,
    _automaton,
    length_until_stop,
    state_after,
    stop_strings,
)
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.oracle import OracleDrafter

NEW = 40
TOKENIZER = tokenizer_with(None)


@pytest.fixture(scope="module")
def target():
    model = tiny("llama", vocab_size=len(TOKENIZER))
    model.generation_config.eos_token_id = [7, 11]
    return Target(model, check=False)


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(5)
    return [rng.integers(20, 300, size).astype(np.int32) for size in (4, 9, 5, 12, 7)]


def _generate(target, prompt, **options):
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    with target.as_transformers() as model:
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False,
                             pad_token_id=0, **options)
    return out[0, len(prompt):].numpy()


def _stops(texts) -> list[str]:
    """Strings across a border of two tokens of a text, and inside one."""
    pieces = [[TOKENIZER.decode(int(token)) for token in text] for text in texts]
    across = [a[-1:] + b[:1] for text in pieces[1:4] for a, b in zip(text[8:], text[9:], strict=False)
              if (a + b).isascii()]
    return [across[0], across[-1]]


@pytest.mark.parametrize(("batch", "nodes"), [(1, 0), (1, 16), (3, 16)])
def test_texts_end_where_those_of_generate_end(target, prompts, batch, nodes):
    plain = [_generate(target, prompt) for prompt in prompts]
    stops = _stops(plain)
    expected = [_generate(target, prompt, stop_strings=stops, tokenizer=TOKENIZER) for prompt in prompts]
    assert any(len(a) < len(b) for a, b in zip(expected, plain, strict=True))
    drafter = OracleDrafter(dict(enumerate(plain)), target.vocabulary) if nodes else None  # past the stop
    engine = Engine(target, EngineSettings(max_new_tokens=NEW, batch_size=batch, nodes=nodes), drafter,
                    stop=stop_strings(stops, TOKENIZER))
    results = {result.id: result for result in engine.run(
        Request(i, prompt, previous_ids=plain[i] if i % 2 and nodes else None)
        for i, prompt in enumerate(prompts))}
    for i, text in enumerate(expected):
        assert results[i].token_ids.tolist() == text.tolist()
        stopped = len(text) < len(plain[i])
        assert results[i].finish_reason == ("stop" if stopped else "eos" if text[-1] in (7, 11) else "length")
    assert {result.finish_reason for result in results.values()} >= {"stop"}


def test_a_string_that_begins_in_the_prompt_counts(target, prompts):
    text = _generate(target, prompts[0])
    begin, end = TOKENIZER.decode(prompts[0][-1:]), TOKENIZER.decode(text[:1])
    prompt, stop = prompts[0], [(begin + end)] if (begin + end).isascii() else [end]
    engine = Engine(target, EngineSettings(max_new_tokens=NEW, batch_size=1, nodes=0),
                    stop=stop_strings(stop, TOKENIZER))
    result = next(iter(engine.run([Request(0, prompt)])))
    expected = _generate(target, prompt, stop_strings=stop, tokenizer=TOKENIZER)
    assert result.token_ids.tolist() == expected.tolist()


def _over_bytes(strings) -> StopStrings:
    """Tokens 0 to 255 are bytes, and tokens from 256 on are pairs of "a" and "b"."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"aa", b"ab", b"ba", b"bb", b""]
    return StopStrings(*_automaton([string.encode() for string in strings]),
                       np.cumsum([0, *map(len, tokens)]), np.frombuffer(b"".join(tokens), np.uint8))


_TEXT = st.lists(st.sampled_from([97, 98, 256, 257, 258, 259, 260]), max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), _TEXT, _TEXT)
def test_the_automaton_finds_what_searching_finds(strings, prompt, text):
    write = {97: "a", 98: "b", 256: "aa", 257: "ab", 258: "ba", 259: "bb", 260: ""}
    written = "".join(write[token] for token in prompt)
    expected = len(text)
    for count in range(1, len(text) + 1):
        before, whole = written, written + "".join(write[token] for token in text[:count])
        start = len(before) + len("".join(write[token] for token in text[:count - 1]))
        if any(whole.find(string, max(0, start - len(string) + 1)) >= 0 for string in strings):
            expected = count
            break
    found = length_until_stop(np.array(prompt, np.int32), np.array(text, np.int32), _over_bytes(strings))
    assert found == expected


def test_tokens_write_their_bytes_wherever_they_stand():
    stop = stop_strings(["🎬"], TOKENIZER)
    ids = np.array(TOKENIZER("ein Film 🎬 und")["input_ids"], np.int32)
    written = b"".join(bytes(stop.content[stop.starts[i]: stop.starts[i + 1]]) for i in ids)
    assert written.decode() == "ein Film 🎬 und"
    end = length_until_stop(ids[:0], ids, stop)
    assert TOKENIZER.decode(ids[:end]) == "ein Film 🎬" and end > 1
    special = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    assert bytes(stop.content[stop.starts[special]: stop.starts[special + 1]]) == b"<|im_end|>"


def test_without_stop_strings_nothing_is_read():
    assert stop_strings([], TOKENIZER) is NO_STOP
    assert state_after(np.array([3, 4], np.int32), NO_STOP) == 0
    assert length_until_stop(np.zeros(1, np.int32), np.zeros(5, np.int32), NO_STOP) == 5


def test_a_penalty_of_the_settings_is_the_one_of_generate(target, prompts):
    expected = [_generate(target, prompt, repetition_penalty=1.3) for prompt in prompts]
    assert any(a.tolist() != _generate(target, b).tolist() for a, b in zip(expected, prompts, strict=True))
    for nodes in (0, 16):
        drafter = OracleDrafter(dict(enumerate(expected)), target.vocabulary) if nodes else None
        engine = Engine(target, EngineSettings(max_new_tokens=NEW, batch_size=3, nodes=nodes,
                                               repetition_penalty=1.3), drafter)
        results = {result.id: result for result in engine.run(map(Request, range(len(prompts)), prompts))}
        for i, text in enumerate(expected):
            assert results[i].token_ids.tolist() == text.tolist()
    assert target.generation_config.repetition_penalty in (None, 1.0)  # the model's own config is untouched
