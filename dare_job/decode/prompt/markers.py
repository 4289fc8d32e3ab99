"""Breaks up text in a prompt that a chat template would print between messages, such as "[/INST]" or "USER:".

Many templates mark turns with ordinary text instead of control tokens. The same text in a title has the same
token ids, so that the rest of the title would be another turn.
"""

import re
from collections.abc import Callable, Iterable

_TAG = re.compile(r"<+[^<>\s]+>+|\[[^\[\]\s]+\]")  # <|user|>, <<SYS>>, [/INST]
# USER:, ### Response, 问：. A bare word, such as the user of ChatML, or a sentence marks no turn by itself.
_LABEL = re.compile(r"(?=.*[^\W\d_])(?:[^\w\s].*|.*[^\w\s.!?])")


class TurnMarkers:
    """The texts with which a chat template marks turns.

    Parameters
    ----------
    gaps
        What the template prints before, between and after messages.
    controls
        Spellings of control tokens, which are no part of a marker.
    normalize
        What the tokenizer does to a text first: some make the brackets of ``［/INST］`` ASCII.
    """

    def __init__(self, gaps: Iterable[str], controls: Iterable[str], normalize: Callable[[str], str] = str):
        spellings = sorted(map(re.escape, filter(None, controls)), key=len, reverse=True)
        control = re.compile("|".join(spellings) or r"(?!)")
        markers = {marker for gap in gaps for marker in _markers(control.sub("\n", gap))}
        self._normalize = normalize
        self._broken = [(_pattern(marker), _with_space(marker)) for marker in sorted(markers)]

    def break_up(self, prompt: str) -> str:
        """The prompt with a space inside of each marker; a prompt without markers stays as it is."""
        prompt = self._with_spaces(prompt)
        normal = self._normalize(prompt)
        broken = self._with_spaces(normal)
        return prompt if broken == normal else broken

    def _with_spaces(self, text: str) -> str:
        before = None
        while text != before:  # a broken marker can be another one, and a marker can overlap itself
            before = text
            for pattern, broken in self._broken:
                text = pattern.sub(lambda _, broken=broken: broken, text)
        return text


def _markers(gap: str) -> Iterable[str]:
    """All tags, and the labels on the lines next to a message."""
    yield from _TAG.findall(gap)
    lines = [line.strip() for line in gap.splitlines() if line.strip()]
    yield from (line for line in lines[:1] + lines[-1:] if not _TAG.search(line) and _LABEL.fullmatch(line))


def _pattern(marker: str) -> re.Pattern[str]:
    """Finds the marker, but not the end or beginning of a longer word."""
    before, after = r"(?<!\w)" * marker[0].isalnum(), r"(?!\w)" * marker[-1].isalnum()
    return re.compile(before + re.escape(marker) + after)


def _with_space(marker: str) -> str:
    """``[/INST ]``, ``USER :``, ``# ## User``."""
    at = 1 if marker[-1].isalnum() else len(marker) - 1
    return f"{marker[:at]} {marker[at:]}"
