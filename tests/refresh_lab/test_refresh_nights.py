"""Coefficients from the published dates of a job: which rows count, and what they say."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job.errors import DataError
from dare_job.evaluate.refresh import published_nights
from dare_job.evaluate.refresh.comparison import run
from dare_job.evaluate.refresh.options import Options
from dare_job.refresh import learned
from dare_job.schemas import ENTITIES, KNOWLEDGE

WORDS = ["crime", "war", "love", "space", "comedy", "horror", "music", "sport", "animals", "history"]


def publish(out, day, rows, limited=False, settings="as ever"):
    """A date of ``entity_id -> (text, generated_dt, new and all interactions, other columns)``."""
    for entity in ENTITIES:
        folder = out / f"knowledge/entity={entity}/dt={day}"
        folder.mkdir(parents=True)
        table = [{"entity_id": name, "knowledge": text, "generated_dt": written, "new_interactions": new,
                  "text_interactions": count, "prompt_set": "a", "run_id": day, **more}
                 for name, (text, written, new, count, more) in rows.items()]
        table = pa.Table.from_pylist(table if entity == "user" else [], schema=KNOWLEDGE)
        pq.write_table(table, folder / "part-0.parquet")
        (folder / "_manifest.json").write_text(json.dumps({
            "date": day, "text_settings": settings,
            "settings": {"history": {"max_items": 15}, "prompts": {"user": "kar"}},
            "refresh": {"curve": {"rows": [0, 1]} if limited else None}}))


def likes(number):
    """A text of ten sentences, in which the first ``number`` like something else."""
    return " ".join(f"The user likes {WORDS[place]} films{' set at sea by night' * (place < number)}."
                    for place in range(10))


@pytest.fixture
def out(tmp_path):
    """Three dates. User uN has N new interactions on each of them, and N sentences of its text change."""
    first, second, third = "2026-01-01", "2026-01-02", "2026-01-03"
    users = {f"u{number}": number for number in range(1, 9)}
    publish(tmp_path, first, {**{name: (likes(0), first, None, 10, {}) for name in users},
                              "moved": (likes(0), first, None, 1, {"prompt_set": "b"})})
    publish(tmp_path, second, {
        **{name: (likes(number), second, number, 10 + number, {}) for name, number in users.items()},
        "new": ("first text", second, None, 1, {}), "kept": ("old text", first, 1, 1, {}),
        "moved": (likes(9), second, 1, 2, {})})
    publish(tmp_path, third, {name: (likes(0), third, number, 10 + 2 * number, {"distance": number / 10})
                              for name, number in users.items()})
    return tmp_path


def test_users_whose_texts_were_written_again_count(out):
    rows = published_nights.rewritten(str(out))
    assert rows.groupby("night").size().tolist() == [8, 8]
    last = rows[rows["night"] == 1].set_index("entity_id").loc["u3"]
    assert last[["missed", "shown", "age_days", "distance"]].tolist() == pytest.approx([3, 15, 1, 0.3])
    assert (last["before"], last["after"]) == (likes(3), likes(0))


def test_what_was_learned_ranks_the_last_night_and_is_kept(out, tmp_path):
    file = tmp_path / "value.json"
    found = run(Options(nights=str(out), save=file))["nights"]
    assert (found["nights"], found["rows"], found["held_out_rows"]) == (2, 8, 8)
    assert learned.read(file).new > 0.1 and found["coefficients"] == vars(learned.read(file))
    assert found["rankings"]["most new interactions"]["spearman"] > 0.9
    assert found["rankings"]["value, learned"]["spearman"] > 0.9 > found["rankings"]["random"]["spearman"]


def test_of_a_night_with_a_budget_the_seeded_sample_counts_alone(out):
    day = "2026-01-04"
    publish(out, day, {f"u{number}": (likes(number), day, 1, 30, {"sampled": number == 5, "distance": 0.5})
                       for number in range(1, 9)}, limited=True)
    rows = published_nights.rewritten(str(out))
    assert rows[rows["night"] == 2]["entity_id"].tolist() == ["u5"]
    found = published_nights.run(str(out), "embedded", 0)[1]  # of rows whose distance is known
    assert (found["nights"], found["rows"], found["held_out_rows"]) == (2, 8, 1)


def test_another_model_says_nothing_about_what_changed(out):
    publish(out, "2026-01-04", {f"u{number}": (likes(9), "2026-01-04", 1, 30, {}) for number in range(1, 9)},
            settings="of another model")
    assert set(published_nights.rewritten(str(out))["night"]) == {0, 1}


def test_too_few_dates_are_named(tmp_path):
    with pytest.raises(DataError, match="0 published dates; learning needs at least three"):
        published_nights.run(str(tmp_path / "none"), "embedded", 0)
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        publish(tmp_path, day, {"u": ("text", "2026-01-01", 1, 1, {})})
    with pytest.raises(DataError, match="on 0 published dates users got a new text in place of an older one"):
        published_nights.run(str(tmp_path), "embedded", 0)
