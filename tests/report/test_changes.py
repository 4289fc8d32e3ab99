"""What changed in a text and in a prompt."""

import time

import pytest

from dare_job.publish.report import changes

OLD = "This viewer likes slow films about the sea, and old directors."
NEW = "This viewer likes quiet films about the sea, and new directors."


def test_words_keep_the_new_text_and_name_the_removed_words():
    pieces = changes.words(OLD, NEW)
    assert "".join(text for kind, text in pieces if kind != "removed") == NEW
    assert [(kind, text.strip()) for kind, text in pieces if kind != "same"] == [
        ("removed", "slow"), ("added", "quiet"), ("removed", "old"), ("added", "new")]
    assert changes.changed_share(pieces) == pytest.approx(2 / 11)
    assert changes.words(OLD, OLD) == [("same", OLD)] and changes.changed_share([("same", OLD)]) == 0
    assert changes.words("", NEW) == [("added", NEW)] and changes.words(OLD, "") == [("removed", OLD)]


def test_lines_and_spaces_of_the_new_text_stay():
    text = "A first line.\n\n  B  second\tline.\n"
    pieces = changes.words("A first line. B third line.", text)
    assert "".join(text for kind, text in pieces if kind != "removed") == text


def test_a_loop_is_not_compared_and_takes_no_time():
    loop = "and the supernatural " * 190
    began = time.perf_counter()
    assert changes.words(loop, loop + "end") is None
    assert time.perf_counter() - began < 0.5


def test_long_texts_are_cut_and_say_by_how_much():
    shown = changes.shorten("x" * (changes.MAX_CHARACTERS + 1234))
    assert shown.endswith("… (1,234 more characters)") and len(shown) < changes.MAX_CHARACTERS + 40
    assert changes.shorten("x" * changes.MAX_CHARACTERS) == "x" * changes.MAX_CHARACTERS


@pytest.mark.parametrize(("before", "after", "added"), [
    ("Seen:\n1. Alien\n2. Heat\nProfile:", "Seen:\n1. Ran\n2. Alien\n3. Heat\nProfile:", ["Ran"]),
    ("Seen: Alien; Heat.", "Seen: Alien; Ran; Heat.", ["Ran"]),
    ("1. Alien, rated 4\n2. Heat, rated 5", "1. Ran, rated 4\n2. Alien, rated 4", ["Ran"]),
    ("- Alien\n- Heat", "- Heat\n- Alien", []), ("Alien", "Alien", []),
    ("Seen:\n1. Alien", "Seen:\n1. Ran; Kagemusha\n2. Alien", ["Ran; Kagemusha"]),
])
def test_new_entries_of_a_prompt_whatever_their_numbers(before, after, added):
    pieces = changes.entries(before, after)
    assert "".join(text for _, text in pieces) == after
    assert list(changes.added_entries(pieces)) == added
