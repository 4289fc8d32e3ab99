"""Which rows fail each check of single texts, at its boundaries."""

import numpy as np
import pyarrow as pa
import pytest

from dare_job.config.gates import MAX_SHARE, GateSettings
from dare_job.publish.gate import checks
from dare_job.schemas import KNOWLEDGE

GATES = GateSettings()
NUMBERS = np.zeros(10, np.bool_)


def row(words: str | None, ids=(1, 2, 3, 4, 5, 6, 7, 8), **columns) -> dict:
    return {"entity_id": "u", "knowledge": words, "token_ids": list(ids), "tokens": len(ids),
            "finish_reason": "eos", "relaxed_tokens": 0, "run_id": "r", **columns}


def batch(rows: list[dict]) -> pa.RecordBatch:
    named = [{"entity_id": f"u{n}"} | {key: value for key, value in row.items() if key != "entity_id"}
             for n, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(named, schema=KNOWLEDGE)


def counted(check: str, *rows: dict, **gates) -> list[bool]:
    found = checks.failing_texts(checks.Texts(batch(list(rows)), NUMBERS), GateSettings(**gates))
    return found[check][0].tolist()


def test_a_row_with_an_error_is_no_text():
    of = checks.Texts(batch([row("a"), row(None, error="too long"), row("b")]), NUMBERS)
    assert of.ids.to_pylist() == ["u0", "u2"]
    assert all(len(bad) == 2 for bad, _ in checks.failing_texts(of, GATES).values())


def test_empty_texts_have_no_character_that_shows():
    words = [None, "", " \n\t", "\u00a0\u3000\u2028", ".", "\u200b"]
    assert counted("empty", *map(row, words)) == [True, True, True, True, False, False]


def test_a_text_is_too_short_if_it_ended_by_itself_with_fewer_tokens(monkeypatch):
    rows = [row("a b", range(7)), row("a b", range(8)), row("a b", range(7), finish_reason="length"),
            row(" ", range(7))]
    assert counted("short", *rows) == [True, False, False, False]  # one cut off, one empty
    monkeypatch.setattr(checks, "SHORT_TOKENS", 9)
    assert counted("short", *rows) == [True, True, False, False]


def test_cut_off_texts_ended_by_length():
    assert counted("cut_off", row("a"), row("a", finish_reason="length")) == [False, True]


def test_texts_without_their_form_ended_before_it_allows_it():
    rows = [row('{"a": 1}'), row('{"a": 1', finish_reason="length"), row('{"a": 1}', finish_reason="length"),
            row('{"a": ', finish_reason="loop"), row("null", finish_reason="stop")]
    of = checks.Texts(batch(rows), NUMBERS)
    found = {form: checks.failing_texts(of, GATES, form=form)["schema"][0].tolist()
             for form in (None, "json", "regex", "choices")}
    assert found == {None: [False] * 5, "json": [False, True, False, True, True],
                     "regex": [False, True, True, True, True], "choices": [False, True, True, True, True]}


def test_a_form_lifts_the_limits_of_checks_of_free_texts():
    free = {check for check in MAX_SHARE if checks.limit(GATES, check, None) is not None}
    with_form = {check for check in MAX_SHARE if checks.limit(GATES, check, "choices") is not None}
    assert free - with_form == {"short", "shell", "same_text"}


@pytest.mark.parametrize(("words", "bad"), [
    ("plain\n\ttext", 0), ("naïve café 日本語 🦣 \u200d", 0),
    ("a\x00", 1), ("a\rb", 1), ("\x1b[0m", 1), ("\x7f", 1),
    ("\x85\x9f", 2), ("a\ufffdb", 1), ("torn \ufffd", 1), (None, 0)])
def test_unprintable_characters_are_counted(words, bad):
    found, value = checks.failing_texts(checks.Texts(batch([row(words)]), NUMBERS), GATES)["unprintable"]
    assert (found.tolist(), value.tolist()) == ([bad > 0], [bad])


def test_a_character_that_a_cut_tore_at_the_very_end_is_not_counted():
    torn = [row("torn \ufffd\ufffd", finish_reason="length"), row("to\ufffdrn", finish_reason="length")]
    assert counted("unprintable", *torn) == [False, True]


def test_broken_utf8_and_lone_surrogates_are_unprintable_and_cost_no_other_row():
    rows = batch([row("a"), row("b"), row(None), row("c")])
    words = pa.array([b"good", b"lone \xed\xa0\x80", None, b"cut \xe2\x82"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 4, words.buffers(), 1)
    of = checks.Texts(rows.set_column(rows.schema.get_field_index("knowledge"), "knowledge", broken), NUMBERS)
    assert of.text.to_pylist() == ["good", "lone \ufffd\ufffd\ufffd", "", "cut \ufffd"]
    bad, value = checks.failing_texts(of, GATES)["unprintable"]
    assert (bad.tolist(), value.tolist()) == ([False, True, False, True], [0, 3, 0, 1])


def test_a_row_has_more_relaxed_tokens_than_the_limit_of_the_share():
    rows = [row("a", relaxed_tokens=2), row("a", relaxed_tokens=3), row("a", (), relaxed_tokens=0)]
    assert counted("relaxed", *rows) == [False, True, False]
    assert counted("relaxed", *rows, max_share={"relaxed": None}) == [False, False, False]


def test_loops_are_found_in_rows_of_a_filtered_table():
    ids = [[7] * 40, [7] * 40, range(40), (), [1, 2] * 20, [*[1, 2] * 17, 0]]
    rows = [row("a", each) for each in ids]
    rows[1]["error"] = "x"
    rows[3]["token_ids"] = None
    rows[4]["finish_reason"] = "loop"
    of = checks.Texts(batch(rows).slice(0, 6), NUMBERS)
    assert of.loop_tokens().tolist() == [39, 0, 0, 40, 34]  # at the end, without the end-of-text token
    assert checks.Texts(batch(rows).slice(2, 3), NUMBERS).loop_tokens().tolist() == [0, 0, 40]
