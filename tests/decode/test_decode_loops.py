"""Texts that loop: which ones do, and that they end alike however they are drafted."""

import copy
import re
import types
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, generate, oracle, prompts, tiny
from transformers import AutoTokenizer

from dare_job.decode.engine import loops
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.loops import STRIDE, WINDOWS, loop_ends, number_tokens
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import EngineSettings, Warp
from dare_job.models.files import resolve

TOKENS, ROWS = 120, 12

# Texts that SmolLM2-135M-Instruct and Llama-3 wrote, by whether they loop. The dots are this file's.
LOOPS = [
    "They are a fan of films that explore the unknown." + " They enjoy films with a fondness for the "
    "supernatural and the supernatural, and the supernatural, and a fondness for the supernatural." * 5,
    "The viewer liked these films: " + " ".join(f"{n}. The (1986)" for n in range(6, 26)),
    "Return was a drama. " + " ".join(f"The movie was nominated for {year} Academy Awards."
                                      for year in range(1999, 2010)),
    "".join(f"{n}. Movies with a dark underbelly: Lover's Knot, Deadly Friend, Strangeland, Amityville: A "
            "New Generation, and Strangeland are all favorites. " for n in range(1, 7)),
    "The user appears to prefer" + " movies that are based on stories that are set in the north, and that "
    "are based on stories that are set in the south. The user appears to prefer" * 5
    + " films. I hope that this summary of the preferences helps you with your recommendations!",
]
PROSE = [
    "The user's favourite genre is likely to be drama, as many of the movies listed are dramas. The user's "
    "favourite kind of plot is likely to be complex and multi-layered, as many of the movies listed have "
    "intricate storylines. The user's favourite kind of musical score is likely to be emotional and "
    "impactful, as many of the movies listed have memorable soundtracks. The user's favourite mood is likely "
    "to be uplifting and inspiring, as many of the movies listed evoke feelings of hope. The user's "
    "favourite setting is likely to be historical, as many of the movies listed take place in the past.",
    "1. The user's favourite genre is action. 2. The user's favourite kind of plot is historical fiction. 3. "
    "The user's favourite kind of musical score is epic. 4. The user's favourite mood for the musical score "
    "is serious. 5. The user's favourite setting is historical. 6. The user's favourite visual style is "
    "realistic. 7. The user's favourite writing style is dramatic. 8. The user's favourite runtime is 2 "
    "hours. 9. The user's favourite themes are war, family, and adventure.",
    "- Sour Grapes (1998) - He Got Game (1998) - European Vacation (1985) - Hard Target (1993) - Footloose "
    "(1984) - Grand Hotel (1932) - Steal This Movie (1994) - Repulsion (1965) - Amateur (1994) - Pi (1998)",
]


@cache
def vocabulary() -> dict[str, int]:
    found = re.findall(r"\d|\w+|[^\w\s]", " ".join(LOOPS + PROSE))
    return {word: number for number, word in enumerate(dict.fromkeys(found))}


def ids_of(text: str) -> np.ndarray:
    """Words, digits and punctuation marks as tokens."""
    return np.array([vocabulary()[word] for word in re.findall(r"\d|\w+|[^\w\s]", text)], np.int32)


def ends_of(*texts: np.ndarray, numbers: np.ndarray) -> list[int]:
    stops = np.cumsum([len(text) for text in texts])
    starts = stops - [len(text) for text in texts]
    return loop_ends(np.concatenate(texts), starts, stops, numbers).tolist()


def test_real_texts_that_loop_are_found_and_prose_is_not():
    numbers = np.array([word.isdecimal() for word in vocabulary()])
    assert all(ends_of(*map(ids_of, LOOPS), numbers=numbers))
    assert not any(ends_of(*map(ids_of, PROSE), numbers=numbers))
    assert ends_of(ids_of(LOOPS[1]), numbers=np.zeros_like(numbers)) == [0]  # whose numbers count


def units_of(ids: list[int], numbers: set[int]) -> list:
    units = []
    for token in ids:
        unit = "number" if token in numbers else token
        if not (unit == "number" and units and units[-1] == unit):
            units.append(unit)
    return units


def by_definition(ids: list[int], numbers: set[int]) -> bool:
    """Whether a text ends in a loop, rule by rule."""
    units = units_of(ids, numbers)
    for window in WINDOWS:
        before, last = units[: -window], units[-window:]
        pairs = list(zip(units, units[1:], strict=False))
        first = {pair: place + 1 for place, pair in reversed(list(enumerate(pairs)))}
        new = sum(place >= len(before) for place in first.values())
        if len(units) >= window and set(last) <= set(before) and (
                len(set(last)) <= window * loops.MAX_DIFFERENT) and new <= window * loops.MAX_NEW_PAIRS:
            return True
    return has_period(units) or any(repeats_itself(units_of(ids[:length], numbers)) for length in
                                    range((len(ids) - 1) // STRIDE * STRIDE + 1, len(ids) + 1))


def repeats_itself(units: list) -> bool:
    for period in range(1, len(units) // 2 + 1):
        if units[-1] != units[-1 - period]:
            continue
        places = range(len(units) - max(loops.MIN_EXACT, period), len(units))
        if places[0] >= period and all(units[place] == units[place - period] or place == period
                                       for place in reversed(places)):
            return True
    return False


def has_period(units: list) -> bool:
    pairs = list(zip(units, units[1:], strict=False))
    distances, previous = Counter(), {}
    for place, pair in enumerate(pairs):
        if pair in previous and place + 1 >= len(units) - loops.MIN_REPEATED:
            distances[place - previous[pair]] += 1
        previous[pair] = place
    if len(units) <= loops.MIN_REPEATED or not distances:
        return False
    period = min(distances, key=lambda distance: (-distances[distance], distance))
    repeated = max(loops.MIN_REPEATED, period)
    changed = sum(unit != before for unit, before in zip(units[-repeated:], units[-repeated - period:],
                                                         strict=False))
    return len(units) >= period + repeated and changed <= loops.MAX_CHANGED * repeated


def expected_end(ids: list[int], numbers: set[int]) -> int:
    lengths = [*range(STRIDE, len(ids) + 1, STRIDE), len(ids)]
    return next((length for length in lengths if by_definition(ids[:length], numbers)), 0)


def test_loops_are_those_of_the_definition():
    """Random texts of few letters, some of which begin with more."""
    random, texts = np.random.default_rng(0), []
    for n in range(300):
        start = random.integers(0, 40, random.integers(0, 60))
        loop = np.tile(random.integers(0, 40, random.integers(1, 30)), 8)
        loop[random.random(len(loop)) < 0.04 * (n % 3)] = 41
        texts.append(np.concatenate([start, loop[: random.integers(1, 140)]]).astype(np.int32))
    numbers = np.arange(43) % 5 == 0
    found = ends_of(*texts, numbers=numbers)
    assert found == [expected_end(text.tolist(), set(np.flatnonzero(numbers))) for text in texts]
    assert 60 < np.count_nonzero(found) < 240


def test_long_loops_are_those_of_the_definition():
    """Loops of many different tokens, in which up to every fifth token changes."""
    random, texts = np.random.default_rng(1), []
    for n in range(80):
        period = random.integers(20, 160)
        loop = np.tile(random.integers(0, 1 + n * 5, period), 512 // period)
        changed = random.random(len(loop)) < 0.05 * (n % 5)
        loop[changed] = random.integers(400, 800, np.count_nonzero(changed))
        texts.append(np.concatenate([random.integers(0, 400, 30), loop]).astype(np.int32))
    numbers = np.arange(800) % 50 == 0
    found = ends_of(*texts, numbers=numbers)
    assert found == [expected_end(text.tolist(), set(np.flatnonzero(numbers))) for text in texts]
    assert 20 < np.count_nonzero(found) < 70


@pytest.mark.parametrize("period", [20, 30, 45, 60, 80, 120])
def test_word_for_word_repetition_of_any_period_is_found(period):
    loop = np.tile(np.arange(5, 5 + period, dtype=np.int32), 8)
    end, = ends_of(loop, numbers=np.zeros(800, bool))
    first = period + max(loops.MIN_EXACT, period)
    assert first <= end < first + STRIDE
    before, after = np.arange(900, 907), np.arange(950, 980)
    text = np.concatenate([before, loop[:first], after]).astype(np.int32)
    assert len(before) + first <= ends_of(text, numbers=np.zeros(1, bool))[0] < len(before) + first + STRIDE
    if period <= 80:  # the rule of periods finds others that lack a token
        assert ends_of(np.delete(text, len(before) + first - 1), numbers=np.zeros(1, bool)) == [0]
    changed = np.where(np.arange(len(loop)) % 8, loop, np.arange(200, 200 + len(loop))).astype(np.int32)
    assert ends_of(changed, numbers=np.zeros(1200, bool)) == [0]


SHORT = "The viewer enjoys quiet dramas about families who live in small towns by the sea."
LONG = ("The user's fondness for movies like Alien and Blade Runner suggests a preference for science "
        "fiction films with dark moods and uncertain futures.")
PARAGRAPH = ("The viewer likes science fiction and action most, as Alien and Blade Runner show. Dark moods "
             "and uncertain futures run through the list, and Brazil adds satire to them. Heat shows that "
             "the viewer also enjoys crime films and thrillers in which characters work under pressure.")


@pytest.mark.parametrize("text", [" ".join([SHORT] * 4), " ".join([LONG] * 4), f"{PARAGRAPH} {PARAGRAPH}"])
@pytest.mark.parametrize("ending", ["", " I hope that this summary helps you with your recommendations!"])
def test_sentences_that_repeat_word_for_word_loop(text, ending):
    words = re.findall(r" ?\w+|[^\w\s]", text + ending)  # the first one has no space, its repetition does
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    assert ends_of(np.array([numbers[word] for word in words], np.int32), numbers=np.zeros(99, bool)) != [0]


SENTENCE = "The viewer enjoys films that explore the unknown and stories of people who find their way."
ORDINALS = ["First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth", "Ninth", "Tenth",
            "Eleventh", "Twelfth"]


@pytest.mark.parametrize("text", [
    " ".join(f"{letter}. {SENTENCE}" for letter in "ABCDEFGHIJKLMNOPQRST"),
    " ".join(f"{word}, {SENTENCE}" for word in ORDINALS)])
def test_counters_of_letters_and_words_loop(text):
    words = re.findall(r"\w+|[^\w\s]", text)
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    assert ends_of(np.array([numbers[word] for word in words], np.int32), numbers=np.zeros(99, bool)) != [0]


MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December"]
ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]


@pytest.mark.parametrize("text", [
    " ".join(f"Film number {word.lower()} is a drama." for word in ORDINALS),
    " ".join(f"{word}, the film is great." for word in ORDINALS[:10]),
    " ".join(f"{letter}. The viewer likes dramas." for letter in "ABCDEFGHIJKL"),
    " ".join(f"{numeral}. The viewer likes dramas." for numeral in ROMAN),
    " ".join(f"Released on {month} 1, 1999." for month in MONTHS)])
def test_counters_that_are_spelled_are_numbers(text):
    words = re.findall(r"\w+|[^\w\s]", text)
    fill = [f"word{n}" for n in range(16_000)]
    tokens = {word: number for number, word in enumerate(dict.fromkeys([*words, *fill]))}
    numbers = number_tokens(types.SimpleNamespace(get_vocab=lambda: tokens))
    ids = np.array([tokens[word] for word in words], np.int32)
    assert ends_of(ids, numbers=numbers) != [0] and ends_of(ids, numbers=np.zeros(1, bool)) == [0]


def test_adjectives_are_no_counters():
    genres = ["drama", "comedy", "horror", "action", "romance", "thriller", "western", "musical", "war",
              "crime"]
    text = " ".join(f"The viewer also likes {genre} films." for genre in genres)
    words = re.findall(r"\w+|[^\w\s]", text)
    tokens = {word: number for number, word in enumerate(dict.fromkeys(words))}
    numbers = number_tokens(types.SimpleNamespace(get_vocab=lambda: tokens))
    assert ends_of(np.array([tokens[word] for word in words], np.int32), numbers=numbers) == [0]


def test_the_numbers_of_a_tokenizer():
    """Letters are numbers in a large vocabulary only."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("embedded"))
    numbers = number_tokens(tokenizer)
    words = tokenizer.convert_ids_to_tokens(np.flatnonzero(numbers).tolist())
    assert words and all(re.fullmatch(r"\d+", word) or word.lower() in loops.COUNTERS
                         for word in (word.lstrip("\u0120\u2581") for word in words))
    assert not numbers[tokenizer("film")["input_ids"]].any()
    names = ["A", "\u0120B", "IV", "\u2581XII", "Third", "\u0120third", "7", "a", "film", "VIP"]
    for fill, expected in ((0, 3), (16_000, 7)):
        tokens = {name: number for number, name in enumerate([*names, *(f"word{n}" for n in range(fill))])}
        numbers = number_tokens(types.SimpleNamespace(get_vocab=lambda tokens=tokens: tokens))
        assert np.flatnonzero(numbers).tolist() == list(range(7))[-expected:]


@pytest.fixture(scope="module")
def written():
    """A model, prompts, its texts, the numbers among its tokens, and where each text ends."""
    rng = np.random.default_rng(5)
    model, asked = copy.deepcopy(tiny("llama")), prompts(rng.integers(2, 20, ROWS))
    for layer in model.model.layers:  # a token depends on the one before alone, so texts are periodic
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    texts = [generate(model, text, max_new_tokens=TOKENS) for text in asked]
    numbers = np.arange(VOCABULARY) % 9 == 0
    ends = [next((length for length in range(STRIDE, len(text) + 1, STRIDE)
                  if by_definition(list(text[:length]), set(np.flatnonzero(numbers)))), 0) for text in texts]
    assert sum(0 < end < TOKENS for end in ends) >= 3
    return Target(model), asked, texts, numbers, ends


@pytest.mark.parametrize(("nodes", "batch", "score"), [(0, 1, "never"), (0, 5, "never"), (15, 5, "never"),
                                                       (15, 12, "always")])
def test_a_text_that_loops_ends_at_the_same_token_however_it_is_drafted(written, nodes, batch, score):
    target, asked, texts, numbers, ends = written
    settings = EngineSettings(max_new_tokens=TOKENS, batch_size=batch, nodes=nodes, score=score)
    requests = [Request(row, prompt, previous_ids=texts[row] if score == "always" and row % 2 else None)
                for row, prompt in enumerate(asked)]
    engine = Engine(target, settings, oracle(texts, seed=nodes) if nodes else None, numbers=numbers)
    results = {result.id: result for result in engine.run(requests)}
    for row, (text, end) in enumerate(zip(texts, ends, strict=True)):
        result = results[row]
        assert result.token_ids.tolist() == list(text)[:end or None]
        assert (result.finish_reason == "loop") == bool(end)
        assert result.step_tokens.sum() == len(result.token_ids)
        own = len(result.token_ids) - result.reused_tokens - result.accepted_tokens
        assert own in (result.target_steps, result.target_steps + 1)  # a last step that is cut may have none


def test_without_numbers_and_before_the_minimum_length_no_text_ends(written):
    target, asked, texts, numbers, ends = written
    for given, least in ((None, 0), (numbers, TOKENS)):
        settings = EngineSettings(max_new_tokens=TOKENS, min_new_tokens=least, nodes=0)
        engine = Engine(target, settings, numbers=given)
        results = list(engine.run(Request(row, prompt) for row, prompt in enumerate(asked)))
        assert "loop" not in {result.finish_reason for result in results if len(result.token_ids) < TOKENS}


@pytest.mark.slow
def test_sampled_texts_that_loop_end_too(written):
    target, asked, texts, numbers, ends = written
    engine = SamplingEngine(target, EngineSettings(max_new_tokens=TOKENS, nodes=0),
                            Sampling(Warp(temperature=0)), numbers=numbers)
    rows = sorted(range(ROWS), key=lambda row: ends[row] == 0)
    rows = [*rows[:2], rows[-1]]
    results = {result.id: result for result in engine.run(Request(row, asked[row]) for row in rows)}
    assert {row for row, result in results.items() if result.finish_reason == "loop"} == {
        row for row in rows if ends[row]}
