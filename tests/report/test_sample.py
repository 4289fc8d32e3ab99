"""The 50 texts of the report: which rows, and what is said of each."""

import published
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.publish.gate.findings import NAME, ROWS
from dare_job.publish.report import nights, page, sample
from dare_job.publish.report.collect import collect
from dare_job.schemas import ENTITIES

BEFORE, DAY = published.day(1), published.DAY
TEXT = "This user likes slow films about the sea and comes back to old directors every winter."


def previous(out) -> str:
    return str(out / "knowledge" / "entity=user" / f"dt={BEFORE}")


def chosen(out) -> list[sample.Shown]:
    collected = [collect(nights.folder(out, entity, DAY), entity, DAY) for entity in ENTITIES]
    return sample.choose(out, nights.read(out, DAY), collected)


def by_id(out) -> dict[str, sample.Shown]:
    return {shown.row["entity_id"]: shown for shown in chosen(out)}


@pytest.fixture
def night(tmp_path):
    """Two dates: rows that changed little, wholly, not at all; new, carried, failed and unreached ones."""
    old = [published.plain(name, dt=BEFORE) for name in ("little", "wholly", "same", "kept", "error", "late",
                                                       "waiting")]
    published.publish(tmp_path, old, [], BEFORE)
    new = [published.plain("little", TEXT.replace("slow", "quiet"), prompt_sha256="t"),
           published.plain("wholly", published.HOSTILE + " nothing of before"), published.plain("same"),
           published.plain("fresh"), published.plain("kept", dt=BEFORE),
           published.plain("error", dt=BEFORE, error="out of memory", carried_reason="failed"),
           published.plain("late", dt=BEFORE, carried_reason="budget"),
           published.plain("waiting", dt=BEFORE, error="out of memory", carried_reason="failed before")]
    published.publish(tmp_path, new, [], previous=previous(tmp_path))
    published.plan(tmp_path, "user", {"little": "Seen:\n1. Heat", "kept": "Seen:\n1. Ran"}, BEFORE)
    published.plan(tmp_path, "user", {"little": "Seen:\n1. Alien\n2. Heat", "late": "Seen:\n1. Ran"})
    return tmp_path


def test_each_row_says_what_changed(night):
    found = by_id(night)
    assert {name: shown.state for name, shown in found.items()} == {
        "little": "6.2 % new words, changed prompt", "wholly": "100 % new words, same prompt",
        "same": "same text, same prompt", "fresh": "new row", "kept": "carried over (unchanged prompt)",
        "error": "previous text, because this run failed to generate a new one",
        "late": "carried over (budget)",
        "waiting": "carried over (failed before)"}
    assert ("added", "quiet ") in found["little"].text and found["little"].previous is None
    assert found["wholly"].previous == TEXT and found["wholly"].text[0][0] == "same"
    assert found["little"].added == ["Alien"] and found["fresh"].added is None
    assert found["fresh"].prompt is None and found["late"].prompt == [("same", "Seen:\n1. Ran")]
    assert [shown.new for shown in chosen(night)] == [True] * 4 + [False] * 4
    assert sample.summary(chosen(night)) == (
        "4 generated in this run, 4 carried over; 3 of the generated texts have a previous text "
        "(1 unchanged), with a median of 6.2 % new words")


def test_failed_checks_are_those_of_the_gate(night):
    assert by_id(night)["fresh"].failed is None  # the gate left no file
    folder = night / "_work" / f"dt={DAY}" / "gate"
    folder.mkdir()
    failing = [{"entity": entity, "entity_id": "fresh", "check": check, "value": 1.0, "text": "t"}
               for entity, check in (("user", "loop"), ("user", "short"), ("item", "empty"))]
    pq.write_table(pa.Table.from_pylist(failing, schema=ROWS), folder / NAME)
    found = by_id(night)
    assert (found["fresh"].failed, found["same"].failed) == (["loop", "short"], [])
    assert found["kept"].failed is None
    assert sample.summary(chosen(night)).endswith("; 1 failed a check of the quality gate")


def test_the_sample_depends_on_ids_and_date_alone(tmp_path):
    rows = [published.plain(f"u{n:03d}", dt=DAY if n < 90 else BEFORE) for n in range(300)]
    outs = [tmp_path / name for name in ("one", "two", "later")]
    published.publish(outs[0], rows, [published.plain(f"i{n}") for n in range(5)])
    published.publish(outs[1], rows[::-1], [published.plain(f"i{n}") for n in range(5)])
    first, second = ([(shown.entity, shown.row["entity_id"], shown.new) for shown in chosen(out)]
                     for out in outs[:2])
    assert first == second and len(first) == sample.ROWS
    assert sum(new for *_, new in first) == sample.ROWS - sample.CARRIED
    assert [entity for entity, *_ in first].count("item") == 5  # all there are
    published.publish(outs[2], [row | {"generated_dt": BEFORE} for row in rows], [], BEFORE)
    other_date = collect(nights.folder(outs[2], "user", BEFORE), "user", BEFORE).sampled.rows()
    users = [name for entity, name, new in first if entity == "user" and new]
    assert [row["entity_id"] for row in other_date[:len(users)]] != users


@pytest.mark.parametrize(("available", "total", "taken"), [
    ([100, 100], 50, [25, 25]), ([100, 3], 50, [47, 3]), ([3, 100], 50, [3, 47]), ([0, 0], 50, [0, 0]),
    ([10, 10], 50, [10, 10]), ([100, 100], 7, [3, 4]), ([0, 100], 1, [0, 1])])
def test_what_one_type_lacks_the_other_takes(available, total, taken):
    found = sample.shares(available, total)
    assert sorted(found) == sorted(taken) and all(a <= b for a, b in zip(found, available, strict=True))


def test_texts_and_prompts_are_escaped_and_the_page_stays_small(tmp_path):
    hostile = f"{published.HOSTILE} " * 400
    rows = [published.plain(f"u{n}<b>", f"{n} {hostile}") for n in range(60)]
    published.publish(tmp_path, [row | {"knowledge": row["knowledge"][::-1], "generated_dt": BEFORE}
                                 for row in rows], [], BEFORE)
    published.publish(tmp_path, rows, [], previous=previous(tmp_path))
    for dt in (BEFORE, DAY):
        published.plan(tmp_path, "user", {row["entity_id"]: f"{dt}\n{hostile}" for row in rows}, dt)
    html = page.render(tmp_path, DAY)
    assert "<script" not in html and "<img" not in html and "<b>" + "<" not in html
    assert html.count("more characters)") >= 100  # texts and prompts of 50 rows
    assert len(html) < 2_000_000


def test_text_that_came_with_the_input_is_the_previous_text_of_a_first_run(tmp_path):
    out, knowledge = tmp_path / "out", tmp_path / "input" / "entity=user"
    knowledge.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([{"entity_id": "a", "knowledge": TEXT}]), knowledge / "p.parquet")
    published.publish(out, [published.plain("a"), published.plain("b")], [], previous=str(knowledge))
    found = by_id(out)
    assert (found["a"].share, found["b"].state) == (0.0, "new row")
    (knowledge / "p.parquet").write_bytes(b"damaged")
    assert by_id(out)["a"].state == "first text"
    (knowledge / "p.parquet").unlink()
    knowledge.rmdir()
    assert by_id(out)["a"].state == "first text"
