"""The synthetic data set: contract tables, structure that models can find, and text that says true things."""

import datetime
import hashlib

import numpy as np
import pyarrow.parquet as pq
import pytest

from dare_job import prompts, schemas
from dare_job.data.sample_world.catalogue import MOOD_OF, THEME_OF, make_titles, title_facts
from dare_job.data.sample_world.simulate import DAYS, item_examples, simulate, user_examples
from dare_job.data.sample_world.write import write_world
from dare_job.errors import ConfigError

DATE = datetime.date(2026, 1, 2)


@pytest.fixture(scope="module")
def world():
    return simulate(users=400, items=300, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("world")
    return out, write_world(out, users=150, items=80, seed=1, date=DATE)


def _digest(out):
    files = out.rglob("*.parquet")
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_tables_follow_the_contract(folder):
    out, summary = folder
    for name in ("interactions", "users", "items"):
        assert pq.read_table(out / f"{name}.parquet").schema.equals(getattr(schemas, name.upper()))
    interactions = pq.read_table(out / "interactions.parquet").to_pandas()
    assert len(interactions) == summary.interactions
    assert not interactions.duplicated(["user_id", "item_id"]).any()
    last = datetime.datetime.fromtimestamp(interactions["timestamp"].max(), datetime.UTC)
    assert last.date() == DATE
    titles = pq.read_table(out / "items.parquet").column("title").to_pylist()
    assert len(set(titles)) == len(titles) == 80


def test_old_text_is_of_the_day_before_and_knows_nothing_newer(folder):
    out, summary = folder
    old = pq.read_table(out / "knowledge/entity=user/dt=2026-01-01/part-00000.parquet")
    assert old.schema.names == ["entity_id", "knowledge", "generated_dt"]
    assert old.num_rows == summary.previous_user_texts
    assert set(old["generated_dt"].to_pylist()) == {"2026-01-01"}
    world, known = simulate(150, 80, 1), prompts.load(prompts.SAMPLE)
    today = {f"u{x.row:06d}": x.text for x in user_examples(world, known, DAYS)}
    changed = sum(today[row["entity_id"]] != row["knowledge"] for row in old.to_pylist())
    assert 0.3 < changed / old.num_rows < 0.8  # those with interactions on the last day
    new_items = 80 - pq.read_table(out / "knowledge/entity=item/dt=2026-01-01/part-00000.parquet").num_rows
    assert new_items >= 1


def test_old_text_can_be_of_an_earlier_day(tmp_path):
    summary = write_world(tmp_path, users=60, items=20, seed=1, text_date=datetime.date(2025, 12, 3))
    old = pq.read_table(tmp_path / "knowledge/entity=user/dt=2025-12-03/part-00000.parquet")
    then = {f"u{x.row:06d}": x.text for x in
            user_examples(simulate(60, 20, 1), prompts.load(prompts.SAMPLE), DAYS - 30)}
    assert {row["entity_id"]: row["knowledge"] for row in old.to_pylist()} == then
    assert old.num_rows == summary.previous_user_texts
    assert set(old["generated_dt"].to_pylist()) == {"2025-12-03"}
    with pytest.raises(ConfigError, match="text_date 2026-01-03 is not one of the 60 days"):
        write_world(tmp_path / "late", users=60, items=20, text_date=datetime.date(2026, 1, 3))


def test_same_arguments_same_bytes(tmp_path):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        write_world(tmp_path / name, users=30, items=20, seed=seed)
    assert _digest(tmp_path / "a") == _digest(tmp_path / "b") != _digest(tmp_path / "c")


def test_popularity_is_skewed_and_cold_rows_exist(world):
    per_item = np.sort(np.bincount(world.events.item, minlength=300))[::-1]
    assert per_item[:30].sum() > 0.25 * per_item.sum()
    assert (per_item <= 2).sum() >= 3
    per_user = np.bincount(world.events.user, minlength=400)
    assert (per_user == 0).sum() in (1, 2)
    assert 0.03 < ((per_user > 0) & (per_user <= 3)).mean() < 0.15


def test_hidden_facts_decide_choices_and_ratings(world):
    """Mood and theme are in no attribute, yet tell ratings apart and repeat within a user's history."""
    catalogue, events = world.catalogue, world.events
    mood, theme = world.users.taste["mood"][0], world.users.taste["theme"][0]
    meets = mood[events.user, catalogue.mood[events.item]] + theme[events.user, catalogue.theme[events.item]]
    assert np.corrcoef(meets, events.rating)[0, 1] > 0.3
    same = catalogue.mood[events.item][1:] == catalogue.mood[events.item][:-1]
    assert same[events.user[1:] == events.user[:-1]].mean() > 1.3 / 12
    assert all(set(row) == {"genre", "decade", "country"} for row in catalogue.attributes)


def test_taste_drifts(world):
    assert np.abs(world.users.taste["mood"][1] - world.users.taste["mood"][0]).mean() > 0.05


def test_text_is_a_function_of_the_prompt_and_states_facts(world):
    known = prompts.load(prompts.SAMPLE)
    by_prompt = {}
    for example in (*user_examples(world, known, DAYS), *item_examples(world, known, DAYS)):
        assert by_prompt.setdefault(example.prompt, example.text) == example.text
        mood, theme = title_facts(example.titles[0])
        assert example.titles[0] in example.text and mood in example.text and theme in example.text


def test_words_are_unambiguous():
    assert len(MOOD_OF) == 84 and len(THEME_OF) == 96 and not set(MOOD_OF) & set(THEME_OF)


def test_thousands_of_titles_stay_distinct():
    titles = make_titles(20_000, np.random.default_rng(0))
    assert len(set(titles)) == 20_000


@pytest.mark.parametrize(("users", "items"), [(0, 300), (10, 2), (10, 10**7)])
def test_impossible_sizes(users, items):
    with pytest.raises(ConfigError):
        simulate(users, items, 0)


def test_smallest_world(tmp_path):
    summary = write_world(tmp_path, users=1, items=8)
    assert summary.users == 1 and summary.interactions >= 1
