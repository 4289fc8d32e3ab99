"""Two texts side by side, word by word: what went and what came."""

import difflib

from rich.text import Text


def side_by_side(before: str, after: str, colour: bool) -> tuple[Text, Text]:
    """Both texts; words that went are red, those that came green; else in [-...-] and {+...+}."""
    old, new = before.split(), after.split()
    left, right = Text(), Text()
    for kind, i, j, k, n in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        _append(left, old[i:j], kind != "equal", "red" if colour else "[--]")
        _append(right, new[k:n], kind != "equal", "green" if colour else "{++}")
    return left, right


def _append(text: Text, words: list[str], marked: bool, mark: str) -> None:
    if not words:
        return
    text.append(" " if text else "")
    joined = " ".join(words)
    if marked and not mark.isalpha():
        text.append(f"{mark[:2]}{joined}{mark[2:]}")
    else:
        text.append(joined, style=mark if marked else "")
