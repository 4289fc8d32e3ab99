"""Which titles and attribute values of its history a text names."""

import time

import pytest

from dare_job.data.titles import named, split_values, title_variants


@pytest.mark.parametrize(("title", "text"), [
    ("Toy Story (1995)", "They liked toy story a lot"),
    ("Matrix, The (1999)", 'Films such as "The Matrix" stay in memory'),
    ("Matrix, The (1999)", "Films such as the MATRIX: none"),
    ("Matrix, The (1999)", "They saw Matrix twice"),
    ("Usual Suspects, The (1995)", "He likes Usual Suspects"),
    ("Cité des enfants perdus, La (City of Lost Children, The) (1995)", "The City of Lost Children is dark"),
    ("Cité des enfants perdus, La (City of Lost Children, The) (1995)", "La cite des enfants perdus"),
    ("Seven (a.k.a. Se7en) (1995)", "Above all Se7en."),
    ("Dr. Strangelove or: How I Learned (1964)", "Dr Strangelove, or How I Learned"),
    ("Fast & Furious", "fast and furious films"),
    ("Schindler’s List", "schindler's list"),
    ("Amélie", "She adores Amelie"),
    ("It (2017)", 'She was afraid of "It".'),
    ("Heat (1995)", "1. Heat\n2. Other films"),
    ("Heat (1995)", "Much liked. \"Heat\" was best"),
    ("七人の侍", "彼は七人の侍が好きです"),
    ("(500) Days of Summer (2009)", "Likes 500 days of summer"),
    ("Toy Story (1995)", "Toy Story (1995) and more"),
])
def test_names_a_title(title, text):
    assert named(text, [title]) == [title_variants(title)[0]]


@pytest.mark.parametrize(("title", "text"), [
    ("Toy Story (1995)", "toy storyteller"),
    ("Toy Story (1995)", "They like Toy Story 2 and Toy Story III"),
    ("It (2017)", "It is said that it was good. It was."),
    ("Her (2013)", "Ask her. Her taste is dark"),
    ("Heat (1995)", "the heat of the moment"),
    ("Game, The (1997)", "they play a game every day"),
    ("300 (2006)", "They saw 300 films"),
    ("1984 (1984)", "They were born in 1984"),
    ("Alien (1979)", "inalienable Aliens"),
    ("", "anything"),
    ("...", "anything ... at all"),
    ("Toy Story", ""),
    ("Toy Story", None),
    ("A.*", "Abc and A and more"),
    ("M (1931)", "He likes M and films"),
    ("(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"),
])
def test_does_not_name_a_title(title, text):
    assert named(text, [title]) == []


def test_a_longer_title_hides_the_shorter_one_in_it():
    titles = ["Toy Story (1995)", "Toy Story 2 (1999)"]
    assert named("They like Toy Story 2.", titles) == ["Toy Story 2"]
    assert named("They like Toy Story 2 and Toy Story.", titles) == ["Toy Story 2", "Toy Story"]


def test_the_same_title_twice_counts_once():
    titles = ["Hamlet (1990)", "Hamlet (1996)"]
    assert named("Hamlet, Hamlet and Hamlet", titles) == ["Hamlet"]


def test_attribute_values_count_in_singular_and_plural():
    values = ["Comedy, Sci-Fi|Drama", "1995", "M", ""]
    assert split_values(values) == ["comedy", "sci fi", "drama"]
    assert named("Comedies, dramas and SCI-FI of 1995 and M", (), values) == ["comedy", "drama", "sci fi"]
    assert named("dramatic comedians", (), values) == []


def test_long_hostile_input_is_fast():
    title, text = "a " * 18 + "b " * 2000, "a " * 20_000
    start = time.perf_counter()
    assert named(text, [title, "x" * 10_000, "((((" * 500]) == []
    assert time.perf_counter() - start < 5
