"""Recognises texts that loop, as greedy decoding of a small or base model often does.

One definition serves twice: rows are ended while they are written, and the quality gate counts finished
texts. It looks at token ids alone, so it depends neither on drafts nor on the batch. A run of number tokens
is read as one token, so that "1. A film. 2. A film." repeats itself. English words that count, capital
letters and Roman numerals are number tokens as well ("Film one: A drama. Film two: A drama."). The text so
far ends in a loop if one of three rules holds.

Few words: for one of WINDOWS, its last tokens

- were all in the text before,
- are few different ones (MAX_DIFFERENT of the window),
- and hardly any pair of neighbours is new to the text (MAX_NEW_PAIRS of the window).

Period: nearly all of its last tokens (all but MAX_CHANGED) equal the token one period before. The period is
the most frequent distance of a pair of neighbours to its previous place. The rule reads MIN_REPEATED tokens,
or one period if that is longer.

Word for word: MIN_EXACT tokens in a row, or one period if that is longer, equal the token one period before,
for any period. They may end up to STRIDE - 1 tokens before the end.

The first rule covers exact and almost periodic repetition with periods up to about 48 tokens. The second
covers longer periods, and counters that are no number tokens. The third finds exact repetition sooner. Prose
whose sentences begin alike, and lists, bring new words. All rules are tested at multiples of STRIDE tokens,
and on a finished text also at its end.
"""

import re

import numba
import numpy as np

STRIDE = 16  # tokens
WINDOWS = (32, 64, 128)  # tokens, a run of number tokens counted as one
MAX_DIFFERENT, MAX_NEW_PAIRS = 3 / 8, 1 / 16
MIN_REPEATED, MAX_CHANGED = 128, 1 / 10
MIN_EXACT = 48  # tokens: a sentence of 16 tokens four times, a paragraph of 48 or more twice
# English words that count, in lower case. Digits, capital letters and Roman numerals are numbers as well.
_COUNTERS = """
    one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred
    first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth
    fifteenth sixteenth seventeenth eighteenth nineteenth twentieth
    january february march april may june july august september october november december
    monday tuesday wednesday thursday friday saturday sunday"""
COUNTERS = frozenset(_COUNTERS.split())
_LETTER = re.compile(r"[A-Z]|[IVX]{2,}")
_MIN_VOCABULARY = 16_000  # tokens: in a smaller vocabulary single letters are mostly parts of words
_WORD_MARKS = "\u0120\u2581# "  # before a token that begins or continues a word, depending on the tokenizer


def number_tokens(tokenizer) -> np.ndarray:
    """Return which tokens of a tokenizer are numbers, bool (V,): alone or after a space, digits, COUNTERS,
    and in a vocabulary of at least _MIN_VOCABULARY tokens a capital letter or a Roman numeral.
    """
    vocabulary = tokenizer.get_vocab()
    letters = len(vocabulary) >= _MIN_VOCABULARY
    numbers = np.zeros(max(vocabulary.values(), default=-1) + 1, np.bool_)
    numbers[[number for token, number in vocabulary.items()
             if isinstance(token, str) and _is_number(token.lstrip(_WORD_MARKS), letters)]] = True
    return numbers


def _is_number(word: str, letters: bool) -> bool:
    return (word.isdecimal() or word.lower() in COUNTERS
            or letters and _LETTER.fullmatch(word) is not None)


def loop_ends(tokens: np.ndarray, starts: np.ndarray, stops: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the number of tokens with which each text is first found to loop, int32 (N,); 0: it does not.

    Parameters
    ----------
    tokens : int32 (T,)
    starts, stops : int64 (N,)
        Where each text begins and ends, without its end-of-text token.
    numbers : bool (V,)
        As from ``number_tokens``.
    """
    ends = np.zeros(len(starts), np.int32)
    _fill(tokens, starts, stops, numbers, ends)
    return ends


@numba.njit(cache=True, nogil=True)
def _fill(tokens, starts, stops, numbers, ends):
    for row in range(len(ends)):
        ends[row] = first_loop(tokens[starts[row]:stops[row]], 0, True, numbers)


@numba.njit(cache=True, nogil=True)
def first_loop(text, after, whole, numbers):
    """Return the first multiple of STRIDE above ``after`` with which a text, int32 (T,), loops; 0: none.

    Parameters
    ----------
    whole
        Test the whole text too.
    """
    if len(text) < WINDOWS[0]:
        return 0
    units, counts = _units(text, numbers)
    places = _previous_places(units)
    for length in range((after // STRIDE + 1) * STRIDE, len(text) + 1, STRIDE):
        if _ends_in_loop(units, places, counts[length - STRIDE], counts[length - 1]):
            return length
    first = counts[(len(text) - 1) // STRIDE * STRIDE]
    return len(text) if whole and _ends_in_loop(units, places, first, len(units)) else 0


@numba.njit(cache=True, nogil=True)
def _ends_in_loop(units, places, first, total):
    """Return whether the first ``total`` units loop; ``places`` int64 (2, T) of the whole text.

    Word for word repetition may end with any of the units from number ``first`` to number ``total``.
    """
    return (_has_few_words(places, total) or _has_period(units, places, total)
            or _has_repetition(units, places[1], first, total))


@numba.njit(cache=True, nogil=True)
def _has_few_words(places, total):
    for window in WINDOWS:
        if total < window:
            return False
        different = new_pairs = 0
        known = True
        for i in range(total - window, total):
            known = known and places[0, i] >= 0
            different += places[0, i] < total - window
            new_pairs += places[1, i] < 0
        if known and different <= MAX_DIFFERENT * window and new_pairs <= MAX_NEW_PAIRS * window:
            return True
    return False


@numba.njit(cache=True, nogil=True)
def _has_period(units, places, total):
    if total <= MIN_REPEATED:
        return False
    pairs = np.zeros(total, np.int64)  # by the distance to their previous place; 0: new
    for i in range(total - MIN_REPEATED, total):
        if places[1, i] >= 0:
            pairs[i - places[1, i]] += 1
    period = pairs.argmax()
    repeated = max(MIN_REPEATED, period)
    if period == 0 or total < period + repeated:
        return False
    changed = 0
    for i in range(total - repeated, total):
        changed += units[i] != units[i - period]
    return changed <= MAX_CHANGED * repeated


@numba.njit(cache=True, nogil=True)
def _has_repetition(units, previous, first, total):
    """Return whether word for word repetition ends with one of the units number ``first`` to ``total``.

    A period leads from a pair of neighbours to a place of the same pair, so these places are tried. The first
    token of a text is not compared: it often lacks the space that its repetition has.
    """
    for end in range(first - 1, total):
        place = previous[end]
        while place >= 0:
            period = end - place
            repeated = max(MIN_EXACT, period)
            if repeated > place + 1:
                break  # the text begins later, for earlier places too
            equal = 0
            while equal < repeated and (units[end - equal] == units[place - equal] or equal == place):
                equal += 1
            if equal == repeated:
                return True
            place = previous[place]
    return False


@numba.njit(cache=True, nogil=True)
def _units(text, numbers):
    """Return the text with each run of number tokens as one token, -2, and how many there are up to each
    token of the text.
    """
    units, counts = np.empty(len(text), np.int64), np.empty(len(text), np.int64)
    count = 0
    for i, token in enumerate(text):
        number = 0 <= token < len(numbers) and numbers[token]
        if not (number and count and units[count - 1] == -2):
            units[count] = -2 if number else token
            count += 1
        counts[i] = count
    return units[:count], counts


@numba.njit(cache=True, nogil=True)
def _previous_places(units):
    """Return int64 (2, T): where each token, and each pair that ends with it, stood last; -1: nowhere."""
    places = np.full((2, len(units)), -1, np.int64)
    size = 64
    while size < 4 * len(units):
        size *= 2
    for pairs in range(2):
        table = np.full(size, -1, np.int64)  # a hash table with linear probing
        for i in range(pairs, len(units)):
            key = np.uint64(units[i] + 3) * np.uint64(0x9E3779B97F4A7C15)
            if pairs:
                key = (key ^ np.uint64(units[i - 1] + 3)) * np.uint64(0xBF58476D1CE4E5B9)
            slot = np.int64((key >> np.uint64(29)) & np.uint64(size - 1))
            while table[slot] >= 0:
                j = table[slot]
                if units[j] == units[i] and (not pairs or units[j - 1] == units[i - 1]):
                    places[pairs, i] = j
                    break
                slot = (slot + 1) & (size - 1)
            table[slot] = i
    return places
