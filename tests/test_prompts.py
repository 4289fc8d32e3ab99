"""Prompt sets: what they show, what they refuse, and that a change of wording changes the hash."""

import pytest

from dare_job import prompts
from dare_job.errors import ConfigError, RowError
from dare_job.prompts import HistoryItem


def _write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def _set(user="{{ history | length }}", item="{{ title }}"):
    return f"name: own\nmax_history: 2\nuser: '{user}'\nitem: '{item}'\n"


def test_user_prompt_shows_attributes_and_the_newest_title_first():
    text = prompts.load("kar").user(
        {"gender": "F", "age": "25"},
        [HistoryItem("Toy Story (1995)"), HistoryItem("Heat (1995)", rating=4.0)],
    )
    assert text.index("1. Heat (1995)") < text.index("2. Toy Story (1995)")
    assert "Last 2 titles" in text and "age: 25" in text and text.endswith("Profile:\n")


def test_user_prompt_shows_only_the_newest_part_of_a_long_history():
    kar = prompts.load("kar")
    history = [HistoryItem(f"Film {n}") for n in range(50)]
    assert kar.user({}, history) == kar.user({}, history[-kar.max_history :])
    assert "Film 49" in kar.user({}, history) and "Film 29\n" not in kar.user({}, history)


def test_item_prompt_shows_title_and_attributes_whatever_their_order():
    kar = prompts.load("kar")
    assert "Title: Heat (1995)" in kar.item("Heat (1995)", {"genres": "Action|Crime"})
    assert kar.item("Heat", {"a": "1", "b": "2"}) == kar.item("Heat", {"b": "2", "a": "1"})


def test_rows_without_content_are_row_errors():
    kar = prompts.load("kar")
    with pytest.raises(RowError, match="empty history"):
        kar.user({"age": "25"}, [])
    for title in ("", "  "):
        with pytest.raises(RowError, match="empty title"):
            kar.item(title, {})


def test_titles_are_text_and_never_templates():
    text = prompts.load("kar").item("{{ 7 * 7 }} <b>&", {})
    assert "{{ 7 * 7 }} <b>&" in text


def test_own_file_and_hash(tmp_path):
    first = prompts.load(_write(tmp_path / "a.yaml", _set()))
    same = prompts.load(_write(tmp_path / "b.yaml", _set()))
    other = prompts.load(_write(tmp_path / "c.yaml", _set(item="{{ title }}!")))
    assert first.name == "own" and first.user({}, [HistoryItem("x")] * 5) == "2"
    assert first.version_hash == same.version_hash != other.version_hash
    assert len(first.version_hash) == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_set(user="{{ histroy }}"), "unknown histroy"),
        (_set(item="{{ history }}"), "unknown history"),
        (_set(user="{% for x in %}"), "template user"),
        (_set().replace("name: own", "nome: own"), "exactly the keys"),
        (_set().replace("max_history: 2", "max_history: 0"), "at least 1"),
        (_set().replace("max_history: 2", "max_history: many"), "type int"),
        ("- a\n- b\n", "exactly the keys"),
        ("name: [\n", "not YAML"),
    ],
)
def test_bad_files_are_config_errors(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        prompts.load(_write(tmp_path / "bad.yaml", text))


def test_unknown_name_lists_the_known():
    with pytest.raises(ConfigError, match="kar"):
        prompts.load("no-such-set")


def test_templates_cannot_reach_python(tmp_path):
    own = prompts.load(_write(tmp_path / "a.yaml", _set(item="{{ title.__class__.__mro__ }}")))
    with pytest.raises(ConfigError):
        own.item("x", {})


def test_unknown_field_of_a_history_item_is_a_config_error(tmp_path):
    own = prompts.load(_write(tmp_path / "a.yaml", _set(user="{{ history[0].titel }}")))
    with pytest.raises(ConfigError, match="titel"):
        own.user({}, [HistoryItem("x")])
