"""Checks of what a text says, by patterns (RE2) over the columns of a batch.

They find texts that answer no prompt: refusals, remains of a thinking block, shells without content, and
texts in another script. ``SameTexts`` finds texts that other rows have as well.
"""

import re
from collections.abc import Iterable, Sequence

import numba
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.decode.prompt.template import THINKING_TAGS

_ASSISTANT = (r"an? (helpful |harmless |honest |responsible )*"
              r"(ai|a\.i\.|artificial intelligence|(large )?language model)")
# A refusal in English. The apology counts only where the text begins with it.
REFUSALS = (
    rf"(^|[.!?:\n])\W*as {_ASSISTANT}\b",
    rf"\bas {_ASSISTANT}\b[^.!?]{{0,40}}\bi\b",
    rf"\bi( a|['’])m (just |only |merely )?{_ASSISTANT}\b",
    r"^\W*(i( a|['’])m |i |my )?(very |so |truly |sincerely )?"
    r"(sorry[,.]? (but|i|we)\b|apologi[sz]e|apologies\b)",
    r"\bi (can ?not|can['’]t|won['’]t|( a|['’])m (unable|not able) to|am (unable|not able) to) "
    r"(help|assist|provide|fulfil|complete|comply|answer|create|generate|write|describe|infer|determine)",
    r"\bi (do not|don['’]t) have (the (ability|capability) to|(direct |any )?access to|(any )?personal "
    r"(data|information|preferences|opinions|experiences?))\b",
)
# Of gpt-oss, decoding without special tokens leaves the names of channels.
_THINKING = "|".join([*(re.escape(tag) for pair in THINKING_TAGS for tag in pair),
                      r"<\|(begin|end)_of_solution\|>", r"^\s*analysis\pL",
                      "assistant(analysis|commentary|final)"])
_GAP = r"[\x00-@\[-`{-¿\x{2000}-\x{206f}]*"  # no letters of any script; cheaper to compile than \PL
_END = rf"{_GAP}$"
_LABEL = r"[a-z][a-z'’ /&-]{0,40}:"
_NOTHING = (
    r"(none|nothing|n/?a|unknown|null|(i )?(do not|don['’]t) know"
    r"|not (available|applicable|specified|known|provided|enough)[a-z ]*"
    r"|(no|insufficient) (information|preferences?|data|description|facts?|details?)[a-z ]*)")
_PERSON = r"(user|viewer|reader|listener|customer|person)"
_TASTES = r"(preferences?|tastes?|interests?|likes|dislikes|favou?rite genres?)"
_KNOWN = r"(known|clear|available|specified|provided|given|stated|listed)"
# The whole text is a heading, labels without values, or says that there is nothing to say.
SHELLS = (
    rf"^{_GAP}([a-z'’ ]*:)?{_GAP}{_NOTHING}{_END}",
    rf"^{_GAP}(({_LABEL}{_GAP})?{_NOTHING}\b{_GAP}|{_LABEL}{_GAP})+$",
    rf"^{_GAP}((the|this) {_PERSON}['’]s|their|the) {_TASTES} (is|are) (not {_KNOWN}|un(known|clear)){_END}",
    rf"^{_GAP}((the|this) {_PERSON}|they) (has|have) no ({_KNOWN} )?{_TASTES}( {_KNOWN})?{_END}",
    rf"^[^\n.!?]*:{_END}",
    rf"^{_GAP}#[^\n]*$",
    rf"^{_GAP}\*\*[^*\n]*\*\*{_END}",
)
_SHELL_CHARACTERS = 120  # a longer text is none
# Writing systems that are told apart. Japanese mixes three scripts.
SCRIPTS = {name: rf"\p{{{name}}}" for name in (
    "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari", "Bengali", "Tamil", "Thai", "Hangul",
    "Armenian", "Georgian")} | {"Han": r"\p{Han}\p{Hiragana}\p{Katakana}"}
_MIN_LETTERS, _MIN_SHARE = 8, 0.5  # fewer letters have no script; a text has most letters in its script


def matches(text: pa.Array, patterns: Iterable[str]) -> np.ndarray:
    """(N,) bool: the text matches one of the patterns, upper or lower case."""
    matched = np.zeros(len(text), np.bool_)
    for pattern in patterns:
        matched |= pc.match_substring_regex(text, pattern, ignore_case=True).to_numpy(zero_copy_only=False)
    return matched


def refusals(text: pa.Array, more: Sequence[str]) -> np.ndarray:
    """(N,) bool: the text refuses to answer. ``more``: further patterns."""
    return matches(text, (*REFUSALS, *more))


def thinking(text: pa.Array) -> np.ndarray:
    """(N,) bool: the text has a tag of a thinking block, or begins with the name of a channel."""
    return matches(text, [_THINKING])


def shells(text: pa.Array) -> np.ndarray:
    """(N,) bool: the text is only a heading, or says that there is nothing to say."""
    short = pc.less_equal(pc.utf8_length(text), _SHELL_CHARACTERS)
    return matches(pc.utf8_trim_whitespace(pc.if_else(short, text, "no shell")), SHELLS)


def main_script(texts: pa.Array) -> str | None:
    """The script of SCRIPTS that has most letters of some texts; None if they have no such letter."""
    letters = {name: pc.sum(_letters(texts, characters)).as_py() or 0
               for name, characters in SCRIPTS.items()}
    name = max(letters, key=letters.get)
    return name if letters[name] else None


def foreign_share(text: pa.Array, script: str | None) -> np.ndarray:
    """(N,) float64: share of the letters that are not of a script; 0 for texts of few letters."""
    if script is None:
        return np.zeros(len(text))
    letters = pc.utf8_length(pc.replace_substring_regex(text, r"\PL+", "")).to_numpy(zero_copy_only=False)
    own = _letters(text, SCRIPTS[script]).to_numpy(zero_copy_only=False)
    return np.where(letters >= _MIN_LETTERS, 1 - np.minimum(own, letters) / np.maximum(letters, 1), 0.0)


def wrong_script(share: np.ndarray) -> np.ndarray:
    """(N,) bool: most letters are of another script. ``share``: result of ``foreign_share`` (N,)."""
    return share > 1 - _MIN_SHARE


def words(text: pa.Array) -> np.ndarray:
    """(N,) int64: number of words that have letters, as ``generate.copied_words`` counts them."""
    spaced = pc.utf8_trim(pc.replace_substring_regex(text, r"\PL+", " "), " ")
    counts = pc.add(pc.count_substring(spaced, " "), pc.cast(pc.not_equal(spaced, ""), pa.int32()))
    return counts.to_numpy(zero_copy_only=False).astype(np.int64)


def _letters(text: pa.Array, characters: str) -> pa.Array:
    return pc.utf8_length(pc.replace_substring_regex(text, f"[^{characters}]+", ""))


_INITIAL = 1 << 14  # slots


class SameTexts:
    """Texts of one entity type, as hashes; white space does not count.

    Memory: 32 to 64 bytes per text, in a table of 64-bit hashes.
    """

    def __init__(self):
        self._slots, self._rows = np.zeros((_INITIAL, 2), np.uint64), 0

    def add(self, text: pa.Array, prompts: pa.Array) -> np.ndarray:
        """Add N texts with the hashes of their prompts.

        Returns (N,) bool: an earlier text is the same and answers another prompt. Empty texts are never.
        """
        plain = pc.utf8_trim(pc.replace_substring_regex(text, r"\s+", " "), " ")
        hashes = np.stack([_hashes(plain), _hashes(pc.fill_null(prompts, ""))], 1)
        while 2 * (self._rows + len(hashes)) > len(self._slots):
            self._grow()
        same = np.zeros(len(hashes), np.bool_)
        self._rows += _add(self._slots, hashes, same)
        return same & pc.not_equal(plain, "").to_numpy(zero_copy_only=False)

    def _grow(self) -> None:
        kept = self._slots[self._slots[:, 0] > 0]
        self._slots = np.zeros((2 * len(self._slots), 2), np.uint64)
        _add(self._slots, kept, np.zeros(len(kept), np.bool_))


def _hashes(values: pa.Array) -> np.ndarray:
    """(N,) uint64, none of them 0."""
    return pd.util.hash_array(values.to_numpy(zero_copy_only=False), categorize=False) | np.uint64(1)


@numba.njit(cache=True)
def _add(slots, hashes, same):
    """Add pairs of hashes of a text and its prompt, uint64 (N, 2), to an open hash table (S, 2)."""
    added, mask = 0, np.uint64(len(slots) - 1)
    for row in range(len(hashes)):
        at = (hashes[row, 0] >> np.uint64(1)) & mask
        while slots[at, 0] != 0 and slots[at, 0] != hashes[row, 0]:
            at = (at + np.uint64(1)) & mask
        if slots[at, 0] == 0:
            slots[at] = hashes[row]
            added += 1
        else:
            same[row] = slots[at, 1] != hashes[row, 1]
    return added
