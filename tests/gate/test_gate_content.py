"""Checks of what a text says, on texts of real models."""

import numpy as np
import pyarrow as pa
import pytest

from dare_job import prompts
from dare_job.config.settings import JobConfig
from dare_job.decode.prompt.template import THINKING_TAGS
from dare_job.generate.copied_words import GAP, MIN_WORDS, RUN, copied_words
from dare_job.prompts.sets import HistoryItem
from dare_job.publish.gate import content
from dare_job.publish.gate.content import SameTexts

PROFILE = ("The user's favourite genre is likely to be drama, as many of the movies listed fall under this "
           "category. None of them is a musical. I'm sure that the user also enjoys artificial intelligence "
           "as a theme, as in Blade Runner.")


@pytest.mark.parametrize(("text", "refuses"), [
    ("As an AI language model, I do not have personal preferences.", True),
    ("I'm sorry, but I can't determine what this viewer likes.", True),
    ("I\u2019m just an AI, and I have not seen these films.", True),
    ("Unfortunately I cannot provide a profile of this person.", True),
    ("I apologize for the confusion.", True), ("Well, as an AI language model, I have no tastes.", True),
    ("As a helpful AI assistant, I cannot", True),
    ("I don't have access to personal data about this user.", True),
    ("I don\u2019t have the ability to watch films.", True),
    ("As a lonely AI, Samantha leaves him. As in I, Robot, machines have feelings.", False),
    ("A widow says: I don't have a home. She does not have access to her children.", False),
    ("He likes Her, in which a voice lives as an AI among lonely people.", False),
    (PROFILE, False), ("The viewer likes films in which nobody is sorry, and an AI that turns on us.", False),
    ("This viewer cannot provide for his family, as in Bicycle Thieves.", False),
    ("A film about an AI that wants to be a boy.", False)])
def test_refusals(text, refuses):
    assert content.refusals(pa.array([text]), []).tolist() == [refuses]


def test_further_patterns_are_refusals_too():
    texts = pa.array(["Als KI kann ich das nicht sagen.", PROFILE])
    assert content.refusals(texts, ["^als ki\\b"]).tolist() == [True, False]
    with pytest.raises(ValueError, match="gates.refusal_patterns: '\\(' is not a valid regular expression"):
        JobConfig.model_validate({"gates": {"refusal_patterns": ["("]}})


@pytest.mark.parametrize(("text", "empty"), [
    ("Preferences: none", True), ("**Preferences:** N/A", True), ("I don't know.", True), ("Facts:", True),
    ("## Viewer preferences", True), ("**Summary**", True), ("The viewer's preferences: unknown", True),
    ("No information available", True), ("Preferences:\nNone.", True),
    ("Genre: none. Theme: none. Mood: none.", True), ("Genre: none\nTheme: none\nMood: none", True),
    ("Preferences: none.\nDislikes: none.", True), ("- None\n- None\n- None", True),
    ("Genre:\nTheme:\nMood:\n", True), ("1. Genre: N/A\n2. Theme: N/A", True),
    ("**Genre:** unknown\n**Theme:**\n", True), ("The user's preferences are not known.", True),
    ("This user has no preferences.", True), ("Their tastes are unclear.", True),
    (PROFILE, False), ("Likes: drama.", False), ("The viewer likes films that nobody knows.", False),
    ("Genre: drama\nTheme: none\nMood: none", False), ("Genre: none. Theme: war.", False),
    ("- None but the Brave\n- Nothing Sacred\n- Unknown", False), ("Genre: drama\nTheme:\nMood:\n", False),
    ("This user has no preferences for a genre but likes Fargo.", False), ("Драма: да", False),
    ("Likes: Alien: Covenant, Mission: Impossible", False),
    ("The user's preferences are not known to change: drama, always.", False),
    ("None of these films is a comedy, so the viewer likes drama.", False),
    ("Preferences:\n- drama\n- war", False), ("Nothing but horror: the viewer likes Scream.", False)])
def test_shells(text, empty):
    assert content.shells(pa.array([text])).tolist() == [empty]


def test_thinking_tags():
    texts = ["<think>\nThe list", "The user.</think>\nDramas.", "<THINKING>", "I think they like drama.",
             "a < b"]
    assert content.thinking(pa.array(texts)).tolist() == [True, True, True, False, False]
    tags = [f"The user. {tag}Dramas." for pair in THINKING_TAGS for tag in pair]
    assert len(tags) > 20 and content.thinking(pa.array(tags)).all()


@pytest.mark.parametrize(("text", "remains"), [
    ("analysisWe need to describe the viewer.assistantfinalThe viewer likes noir.", True),
    ("The user wants a profile.assistantfinalThe viewer likes noir.", True),
    ("<|channel|>final<|message|>The viewer likes noir.", True),
    ("<|begin_of_solution|>The viewer likes noir.", True),
    ("Analysis: the viewer likes noir.", False), ("Analysis of the viewer.", False),
    ("The reasoning: a final thought on noir.", False), ("An assistant finally helps the hero.", False)])
def test_remains_of_thinking_blocks(text, remains):
    assert content.thinking(pa.array([text])).tolist() == [remains]


def test_texts_in_another_script_than_the_prompts():
    texts = pa.array([PROFILE, "用户喜欢的电影类型是戏剧", "Любит драмы и комедии",
                      "Likes 七人の侍 (Seven Samurai)", "1984", "七人の侍", "naïve café à la Crème brûlée"])
    assert content.main_script(texts.slice(0, 1)) == "Latin"
    latin = content.wrong_script(content.foreign_share(texts, "Latin"))
    assert latin.tolist() == [False, True, True, False, False, False, False]
    han = content.wrong_script(content.foreign_share(texts, content.main_script(texts.slice(1, 1))))
    assert han.tolist() == [True, False, True, True, False, False, True]
    assert content.main_script(pa.array(["1984", None, ""])) is None
    assert not content.foreign_share(texts, None).any()


TITLES = [f"{first} {second}" for first in ("Red", "Grand", "Silent", "Last") for second in
          ("River", "Hotel", "Movie", "Garden", "Mountain")]
PROMPT = "A viewer liked:\n" + "\n".join(f"{n}. {title} ({1980 + n})" for n, title in enumerate(TITLES, 1))


@pytest.mark.parametrize(("text", "copied"), [
    (f"They often watched: {', '.join(TITLES[:RUN // 2])}.", RUN),
    (f"{PROMPT} and other films.", 2 * len(TITLES) + 3),
    (f"They like {' '.join(TITLES[:9])}, and also {' '.join(TITLES[10:20])}.", 18 + 20),
    (f"They like {', '.join(TITLES[:RUN // 2 - 1])}.", 0), (PROFILE, 0), ("", 0), (None, 0)])
def test_words_in_long_chains_of_the_prompt_are_copied(text, copied):
    assert copied_words(["another prompt", PROMPT], [PROFILE, text]).tolist() == [0, copied]


LINES = [f"- {title} ({1980 + n}): drama, crime, thriller, rated five" for n, title in enumerate(TITLES)]
LEAD_IN = "This person has watched many different movies over time, including: "


@pytest.mark.parametrize(("lines", "text", "copied"), [
    (LINES, f"{LEAD_IN}{', '.join(TITLES[:12])}.", 24),
    (LINES, f"{LEAD_IN}{', '.join(TITLES[:12])}. All of these movies deserve to be seen more than once.", 24),
    (LINES, f"{LEAD_IN}{', '.join(TITLES[:6])}, and {', '.join(TITLES[6:20])}.", 28),
    (LINES, f"{LEAD_IN}{', '.join(TITLES[:7])}.", 0),
    (LINES, f"{LEAD_IN}{', '.join(reversed(TITLES))}.", 0),
    ([line + " word" * (GAP - 5) for line in LINES], f"{LEAD_IN}{', '.join(TITLES)}.", 40),
    ([line + " word" * (GAP - 4) for line in LINES], f"{LEAD_IN}{', '.join(TITLES)}.", 0)])
def test_titles_after_a_lead_in_are_copied_although_the_prompt_has_words_between_them(lines, text, copied):
    prompt = "A viewer liked:\n" + "\n".join(lines)
    assert copied_words([prompt, prompt], [PROFILE, text]).tolist() == [0, copied]


@pytest.mark.parametrize("name", ["brief", "kar", "rlmrec", "writer", "once", "trawl"])
def test_a_list_of_titles_is_a_copy_of_the_prompt_of_each_set(name):
    prompt_set = prompts.load(name)
    history = [HistoryItem(f"{title} (1990)", 4.0, {"genre": "drama", "other_genres": "crime, war"})
               for title in TITLES[:12]]
    prompt = prompt_set.user({}, history)
    order = sorted(TITLES[:12], key=prompt.index)
    assert copied_words([prompt], [f"{LEAD_IN}{', '.join(order)}."])[0] >= 24


def copied_by_definition(prompt: list[str], text: list[str]) -> int:
    if len(text) >= MIN_WORDS and sum(word in prompt for word in text) >= 0.9 * len(text):
        return sum(word in prompt for word in text)
    copied = set()
    for start in range(len(text)):
        places = {j for j, word in enumerate(prompt) if word == text[start]}
        for stop in range(start + 1, len(text) + 1):
            if places and stop - start >= RUN:
                copied |= set(range(start, stop))
            if stop < len(text):
                places = {j for j, word in enumerate(prompt) if word == text[stop]
                          and any(0 < j - k <= GAP + 1 for k in places)}
    return len(copied)


def test_copied_words_are_those_of_the_definition():
    """Texts from every n-th word of a prompt of few words, with other words in between."""
    random, letters = np.random.default_rng(0), np.array(list("abcdefghijkl"))
    texts, sources = [], []
    for n in range(200):
        source = random.choice(letters, 60 + n)
        part = np.cumsum(random.integers(1, 3 + GAP * (n % 3), 40))
        text = source[part[part < len(source)]]
        for _ in range(n % 4):
            text = np.insert(text, random.integers(0, len(text) + 1), ["x", "y"])
        texts.append(text.tolist()), sources.append(source.tolist())
    found = copied_words([" ".join(source) for source in sources], [" ".join(text) for text in texts])
    assert found.tolist() == list(map(copied_by_definition, sources, texts))
    assert sum(0 < count < len(text) for count, text in zip(found, texts, strict=True)) > 20


SHORT = "A viewer liked: Speed, Casino, Se7en, Jaws, Ronin, Fargo, Alien, Heat. Describe this viewer."


@pytest.mark.parametrize(("prompt", "text", "copied"), [
    (PROMPT, ", ".join(reversed(TITLES)), 2 * len(TITLES)),
    (SHORT, "Heat; Alien; Fargo; Ronin; Jaws; Se7en; Casino; Speed.", 9),
    (SHORT, "Heat; Alien; Fargo; Ronin; Jaws; Se7en; Casino; Speed and Solaris.", 0),  # 9 of 11 words
    (SHORT, "Heat; Alien; Fargo; Ronin; Jaws; Casino.", 0),
    (SHORT, "This viewer likes tense thrillers, as Heat, Ronin, Fargo, Jaws, Alien, Speed, Casino.", 0)])
def test_short_titles_in_any_order_are_copied_and_prose_that_names_them_is_not(prompt, text, copied):
    assert copied_words([prompt], [text]).tolist() == [copied]
    assert copied_words([], []).tolist() == []


def test_words_are_counted_as_they_are_copied():
    counted = content.words(pa.array(["", "1999 (2)", "One film, two films!", PROMPT]))
    assert counted.tolist() == [0, 0, 4, 2 * len(TITLES) + 3]


def test_same_texts_are_found_over_many_batches():
    texts = SameTexts()
    random = np.random.default_rng(0)
    seen, found, expected = {}, [], []
    for _ in range(3):
        drawn = random.integers(0, 30_000, 6_000)
        prompts = [str(random.integers(0, 3)) for _ in drawn]
        found += texts.add(pa.array([f" text {n} " for n in drawn]), pa.array(prompts)).tolist()
        expected += [seen.setdefault(n, prompt) != prompt for n, prompt in zip(drawn, prompts, strict=True)]
    assert found == expected and sum(found) > 1000


def test_empty_texts_and_texts_of_one_prompt_are_not_the_same():
    texts, prompts = pa.array(["", "", "a b", "a  b ", "a\nb"]), pa.array(["p", "q", "p", "p", None])
    assert SameTexts().add(texts, prompts).tolist() == [False, False, False, False, True]
