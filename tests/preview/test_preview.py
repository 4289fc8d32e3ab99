"""``dare-job preview``: texts of a few rows with the embedded model, without Spark."""

import io
import re
from contextlib import redirect_stdout
from datetime import date
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.config.settings import JobConfig
from dare_job.data.input.preview_rows import Row
from dare_job.errors import ConfigError, RowError
from dare_job.evaluate.preview import PreviewOptions, decode, drafts, results, screen, variants
from dare_job.job import Job
from dare_job.observe import redact
from dare_job.schemas import KNOWLEDGE
from dare_job.workspace import MANIFEST, Workspace, write_json

HOSTILE = "<x-tag onload=alert(1)> \x1b[31m & Film"  # no tag of HTML, which would be left out


def job(folder, data, **settings):
    config = JobConfig.model_validate({
        "out": str(folder / "out"), "input": {"path": str(data)},
        "model": {"name": "embedded", "device": "cpu"},
        "decode": {"max_new_tokens": 24, "batch_size": 4, "nodes": 8}, **settings})
    return Job(config, Workspace(folder / "out", date(2026, 1, 2)), "run-1")


@pytest.fixture(scope="module")
def previewed(tmp_path_factory, write_tables):
    """Result and printed text of a preview of two variants."""
    folder = tmp_path_factory.mktemp("preview")
    events = [(f"u{user}", f"i{item}", 4.0, 10 * user + item) for user in range(4) for item in range(3)]
    items = [("i0", HOSTILE, [("genre", "drama")]), ("i1", "Amber Daughter", [("genre", "drama")]),
             ("i2", "Ashen Wolf", [("genre", "thriller")])]
    data = write_tables(folder / "input", events, [], items)
    jobs = [job(folder, data), job(folder, data, prompts={"user": "kar", "item": "kar"})]
    with redirect_stdout(io.StringIO()) as printed:
        result = variants.run([variants.Variant(name, each) for name, each in zip("AB", jobs, strict=True)],
                             PreviewOptions(limit=2))
    return SimpleNamespace(result=result, printed=printed.getvalue(), folder=folder, jobs=jobs)


def test_a_text_is_its_rows_own_if_it_names_more_of_it_than_of_any_other():
    rows = [Row(entity, str(n), "p", None, history, ("drama",)) for n, (entity, history) in enumerate((
        ("user", ("Heat", "Fargo")), ("user", ("Heat", "Alien")), ("item", ("Heat", "Alien"))))]

    def own(place, text):
        return results._is_own(rows[place], rows, text, len(results.titles.named(text, rows[place].titles,
                                                                                 rows[place].values)))

    assert own(1, "Likes drama, as in Heat and Alien.") and own(0, "Fargo")
    assert not own(0, "Likes drama, as in Heat.") and not own(0, "Heat, Fargo and Alien")
    assert not own(0, "Heat and Alien") and not own(0, "broad taste")


def test_a_preview_has_prompts_texts_speed_and_advice(previewed):
    first, second = previewed.result["variants"]
    assert [row["entity"] for row in first["rows"]] == ["user", "user", "item", "item"]
    assert all(row["text"] and row["prompt"].startswith("<|bos|>") for row in first["rows"])
    summary = first["summary"]
    assert (summary["texts"], summary["errors"], summary["decoded_up_to"]) == (4, 0, 48)
    assert all(row["tokens"] <= 48 for row in first["rows"])
    speed = summary["speed"]
    assert speed["without_drafts"]["rows"] == 3 and speed["without_drafts"]["tokens_per_s"] > 0
    assert speed["equal_texts"] == speed["with_drafts"]["rows"] == 3  # strict verification
    assert "the other texts of this preview (there are no previous texts)" in speed["drafts"]
    assert first["rows"][0]["prompt"] != second["rows"][0]["prompt"]
    assert [row["entity_id"] for row in first["rows"]] == [row["entity_id"] for row in second["rows"]]


def test_it_starts_no_spark_and_writes_nothing_to_out(previewed):
    assert not any("spark" in vars(job) for job in previewed.jobs)
    assert not (previewed.folder / "out").exists()


def test_rows_cut_off_are_those_that_the_configured_limit_would_cut(previewed):
    for row in previewed.result["variants"][0]["rows"]:
        assert row["cut_off"] == (row["tokens"] > 24 or row["finish_reason"] == "length")
        assert row["cut_off"] == ("cut_off" in row["gates"])


def test_titles_and_texts_are_escaped_on_the_page_and_harmless_on_a_terminal(previewed):
    found = screen.page(previewed.result)
    assert "<x-tag" not in found and "&lt;x-tag" in found
    assert found.count("<article>") == found.count("<details>") == 2 * 4
    assert "\x1b" not in previewed.printed and "alert(1)" in previewed.printed
    assert redact.printable("a\x1b\u202eb\n") == "a\ufffd\ufffdb\n"


def test_variants_of_a_row_are_shown_next_to_each_other(previewed):
    rows = previewed.result["variants"][0]["rows"]
    names = [f"{row['entity']}:{row['entity_id']}, {variant}" for row in rows for variant in "AB"]
    places = [previewed.printed.index(f"{name}\n") for name in names]
    assert places == sorted(places) and len(places) == 8
    page = screen.page(previewed.result)
    assert re.findall("<h4><bdi>(.)</bdi></h4>", page) == 4 * ["A", "B"]
    alone = screen.page(previewed.result | {"variants": previewed.result["variants"][:1]})
    assert alone.count("<article>") == 2 * 4 and "<h4>" not in alone


def checked(*texts, limit=24, errors=(), prompts=None, **settings):
    """Summary of a preview of users with these texts, which the limit leaves whole, and of failed rows."""
    config = JobConfig.model_validate({"decode": {"max_new_tokens": limit}, **settings})
    names = [("user", str(n)) for n in range(len(texts) + len(errors))]
    rows = [Row(*name, (prompts or {}).get(n, f"prompt {n}"), None, (), ()) for n, name in enumerate(names)]
    done = {name: SimpleNamespace(token_ids=np.arange(20, dtype=np.int32), finish_reason="eos", error=error,
                                  prompt_tokens=5, relaxed_tokens=0)
            for name, error in zip(names, [*[None] * len(texts), *errors], strict=True)}
    written = SimpleNamespace(
        prompts={}, failed={}, numbers=np.zeros(9, bool), plain=None, drafted=None, equal=0, drafts_from=None,
        loading_s=0, first_text_s=0, limited=dict(zip(names, texts, strict=False)), results=done)
    found = results.row_results(rows, written, dict.fromkeys(names, "") | written.limited, config)
    return results.summary("x", found, written, config)


def own(n):
    return f"This viewer {'abcdefgh'[n] * 5} likes quiet films about families, mostly from the {n} decade."


def test_a_preview_tells_whether_a_run_would_publish_only_if_it_can():
    assert checked(*map(own, range(4)))["would_publish"] is True
    assert checked("", "")["would_publish"] is None
    assert checked(*map(own, range(4)), "", "")["would_publish"] is None
    assert checked("", "", "", own(1))["would_publish"] is False
    assert checked()["would_publish"] is False
    one_error = checked(*map(own, range(4)), errors=["the prompt is too long"])
    assert one_error["would_publish"] is False and one_error["gates"][0]["check"] == "errors"
    allowed = checked(*map(own, range(4)), errors=[None], limits={"max_error_share": 0.2})
    assert allowed["would_publish"] is True  # its text has an error only up to the limit
    assert [finding["rows"] for finding in allowed["gates"]] == [1]


def test_same_texts_of_other_prompts_are_found():
    assert [finding["check"] for finding in checked(own(1), own(1), own(2), own(3))["gates"]] == ["same_text"]
    assert checked(own(1), own(1), own(2), own(3), prompts={0: "p", 1: "p"})["gates"] == []


def test_checks_read_the_text_up_to_the_limit(previewed):
    task = decode.make_task(previewed.jobs[0])
    with redirect_stdout(io.StringIO()):
        rows = variants.input_rows.prompts(variants.input_rows.choose(
            previewed.jobs[0].config, date(2026, 1, 2), 2, []), previewed.jobs[0].config)
        written = decode.write(previewed.jobs[0], rows, lambda *values: None)
    for name, result in written.results.items():
        assert written.limited[name] == decode.loading.decode_text(result.token_ids[:24], task)
    assert written.drafted.accepted <= written.drafted.tokens


def test_unknown_names_and_two_comparisons_at_once_are_refused():
    with pytest.raises(ConfigError, match="one of them at a time"):
        variants.variants(PreviewOptions(models=("a",), prompts=("b",)), lambda flags: None)
    asked = []

    def make(flags, **prompts):
        asked.append(flags)
        return SimpleNamespace(config=JobConfig.model_validate({"prompts": prompts}))

    variants.variants(PreviewOptions(prompts=("kar", "once")), make)
    assert asked[-1] == {"prompts.user": ("--prompts", "once"), "prompts.item": ("--prompts", "once")}
    variants.variants(PreviewOptions(prompts=("kar",)), partial(make, item=None))
    assert asked[-1] == {"prompts.user": ("--prompts", "kar")}
    with pytest.raises(ConfigError, match="write user:ID or item:ID"):
        variants.run([variants.Variant(None, SimpleNamespace(config=None, space=None))],
                    PreviewOptions(ids=("7",)))


def test_a_row_whose_prompt_cannot_be_tokenized_costs_no_other_row(previewed, monkeypatch):
    make = decode.loading.make_request

    def fail(row, task, drafted):
        if row["entity"] == "user":
            raise RowError("the prompt spells a control token")
        return make(row, task, drafted)

    monkeypatch.setattr(decode.loading, "make_request", fail)
    with redirect_stdout(io.StringIO()) as printed:
        result = variants.run([variants.Variant(None, previewed.jobs[0])], PreviewOptions(limit=2))
    rows = result["variants"][0]["rows"]
    assert [row["error"] for row in rows] == 2 * ["the prompt spells a control token"] + 2 * [None]
    assert "  no text: the prompt spells a control token" in printed.getvalue()
    assert result["variants"][0]["summary"]["texts"] == 2


def test_drafts_are_previous_texts_that_do_not_loop_and_have_known_tokens(previewed):
    folder = previewed.folder / "before"
    folder.mkdir()
    task = decode.make_task(previewed.jobs[0])
    rows = [("a", "one", [5, 6], "eos"), ("b", "two", [7, 8], "loop"), ("c", "", [], "eos"),
            ("d", "odd", [5, 10**6], None), ("e", "old", [9], None)]
    names = ("entity_id", "knowledge", "token_ids", "finish_reason")
    schema = pa.schema([KNOWLEDGE.field(name) for name in names])
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema),
                   folder / "part-0.parquet")
    write_json(folder / MANIFEST, {"tokenizer": task.tokenizer})
    found = drafts._read(folder, {"b", "d", "e"}, task, drafts.MAX_TEXTS)
    assert len(found.texts) == 2 and {name: ids.tolist() for name, ids in found.own.items()} == {"e": [9]}


def test_the_speed_of_a_mode_without_drafts_names_no_drafts():
    speed = {"without_drafts": {"tokens_per_s": 5.0, "rows": 1}, "with_drafts": None, "drafts": None}
    assert screen._speed_words(speed) == "5.0 tokens/s without drafts, for 1 row in this process"


def texts(*rows):
    return [{"tokens": tokens, "finish_reason": reason} for tokens, reason in rows]


def test_a_limit_is_proposed_only_if_nearly_all_texts_end_by_themselves():
    assert results.proposed_limit(texts((100, "eos"), (60, "eos"))) == 112
    assert results.proposed_limit(texts((100, "eos"), (200, "length"))) is None
    assert results.proposed_limit([]) is None


def test_advice_names_the_setting_if_most_texts_are_cut_off():
    summary = {"texts": 10, "cut_off": 9, "max_new_tokens": 48, "proposed_max_new_tokens": None,
               "finish_reasons": {"length": 8, "eos": 2}, "decoded_up_to": 96}
    first, second = results.advice(summary)
    assert first.startswith("9 of 10 texts reach decode.max_new_tokens = 48 and would be cut off: raise it")
    assert "only 2 of 10 texts ended by themselves within 96 tokens" in second
    assert results.advice(summary | {"cut_off": 0, "proposed_max_new_tokens": 32}) == [
        "decode.max_new_tokens = 32 would cut off none of the texts that ended by themselves (now 48)"]


def test_a_row_does_not_draft_from_its_own_text():
    row = Row("user", "a", "p", None, (), ())
    own = {("user", "a"): np.array([1, 2, 3]), ("item", "b"): np.array([4, 5, 6])}
    assert drafts.pool_of_others(own, row) == ()
    pool, = drafts.pool_of_others(own | {("user", "c"): np.array([7, 8])}, row)
    assert (pool.texts, pool.token_count) == (1, 2)
