"""Texts of a form from Python: parsed values, forms by call, and messages about what is wrong with one."""

import json

import pytest
from api_texts import FILMS

pytest.importorskip("llguidance", reason="grammars need the package llguidance (extra schema)")

from dare_job import LLM, Pool  # noqa: E402
from dare_job.errors import ConfigError  # noqa: E402

MOODS = ["calm", "dark", "funny"]
FILM = {"type": "object", "additionalProperties": False, "required": ["mood", "year", "themes"],
        "properties": {"mood": {"enum": MOODS}, "year": {"type": "integer", "minimum": 1900, "maximum": 2030},
                       "themes": {"type": "array", "items": {"type": "string", "maxLength": 12},
                                  "maxItems": 2}}}


def test_json_has_a_value_and_drafts_do_not_change_it(llm):
    plain = llm.generate(FILMS, schema={"json": FILM}, drafts=False)
    pool = Pool.from_texts([text.text for text in plain[:4]], model="embedded")
    drafted = llm.generate(FILMS, [text.text for text in plain], pool, schema={"json": FILM})
    for before, after in zip(plain, drafted, strict=True):
        assert before.finish_reason == "eos" and before.parsed == json.loads(before.text)
        assert before.parsed["mood"] in MOODS and 1900 <= before.parsed["year"] <= 2030
        assert after.text == before.text and after.steps < before.steps


def test_each_call_may_have_another_form(llm):
    free, = llm.generate(FILMS[:1])
    word, = llm.generate(FILMS[:1], schema={"regex": "(good|bad) film"})
    choice, = llm.generate(FILMS[:1], schema={"choices": ["a drama", "a comedy"]})
    cut, = llm.generate(FILMS[:1], schema={"json": FILM}, max_new_tokens=4)
    assert word.text in ("good film", "bad film") and choice.text in ("a drama", "a comedy")
    assert (cut.finish_reason, cut.parsed) == ("length", None) and cut.text
    assert free.parsed is word.parsed is None
    assert llm.generate(FILMS[:1])[0].text == free.text  # as before


def test_the_form_of_the_settings_applies_to_all_calls():
    llm = LLM("embedded", decode={"schema": {"choices": ["yes", "no"]}, "nodes": 8})
    assert {text.text for text in llm.generate(FILMS)} <= {"yes", "no"}
    assert llm.generate(FILMS[:1], schema={})[0].text not in ("yes", "no")


def test_sampled_texts_have_the_form():
    llm = LLM("embedded", decode={"mode": "sample", "nodes": 8})
    texts = llm.generate(FILMS * 2, schema={"json": FILM})
    assert all(text.parsed["mood"] in MOODS for text in texts)
    assert len({text.text for text in texts}) > len(FILMS)


@pytest.mark.parametrize(("schema", "message"), [
    ({"json": {"type": "strin"}}, "decode.schema.json: .*strin"),
    ({"regex": "(a"}, "(?s)decode.schema.regex: .*unclosed"),
    ({"jsn": {}}, "unknown key decode.schema.jsn .did you mean json"),
    ({"json": 3}, "json = 3 is no JSON schema"),
    ({"regex": "a", "choices": ["a"]}, "regex and choices are both set"),
    ({"user": {"regex": "a"}}, "decode.schema.user .* for the job alone")])
def test_a_form_that_cannot_be(llm, schema, message):
    with pytest.raises(ConfigError, match=message):
        llm.iterate(FILMS[:1], schema=schema)
    with pytest.raises(ConfigError, match=message):
        LLM("embedded", decode={"schema": schema})
