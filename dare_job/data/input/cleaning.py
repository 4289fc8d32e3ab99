"""Cleans text for prompts: one line, without markup, entities and characters that are not text.

A title must not be able to end its line: a line break in it would begin a line of the prompt that nobody
wrote. HTML entities (also those encoded twice) are replaced, tags of HTML are removed, and text that was
decoded with a wrong encoding is repaired: bytes of cp1252 that were read as Latin-1, and UTF-8 that was read
as cp1252.
"""

import html
import re
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

_TAGS = ("a|abbr|b|big|blockquote|body|br|center|code|dd|div|dl|dt|em|font|h[1-6]|head|hr|html|i|img|li|ol|p|"
         "pre|s|script|small|span|strike|strong|style|sub|sup|table|tbody|td|th|tr|tt|u|ul")
_TAG = re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]{{0,500}})?/?>", re.IGNORECASE)
_ENTITY = re.compile("&#?[0-9A-Za-z]{1,31};")  # x&para=1 has none
# control characters, line and paragraph separators, and the blank of Braille
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u2800]+")
# Unicode's Default_Ignorable_Code_Point, which nothing shows, without joiners; and marks of annotations
_IGNORABLE = ("\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e"
              "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
              "\U0001d173-\U0001d17a\U000e0000-\U000e0fff")
_INVISIBLE = re.compile(f"[{_IGNORABLE}]+")
# one joiner is spelling between letters of Arabic, of India or of emoji, and hidden anywhere else
_JOINED = "[\u0590-\u1fff\u2100-\U000dffff]"
_JOINERS = re.compile(f"(?<!{_JOINED})[\u200c\u200d]+|[\u200c\u200d]+(?!{_JOINED})|[\u200c\u200d]{{2,}}")
_C1 = re.compile("[\x80-\x9f]")
# two or three bytes of UTF-8 that were read as cp1252: C3 or C2 and a byte, E2 and two bytes
_MISREAD = re.compile("[\u00c2\u00c3][\u0080-\u00bf\u0152-\u2122]|\u00e2[\u0080-\u00bf\u0152-\u2122]{2}")
_TYPESET = re.compile("[A-Z\u00c0-\u00de][\u00c2\u00c3][\u00ae\u00bb\u2013-\u2122]")  # as in MANH\u00c3\u2122
# any character that a rule above may change; the others are left alone without a look at each text
_SUSPECT = (f"[\\x00-\\x1f&<\\x7f-\\x9f\\x{{2028}}\\x{{2029}}\\x{{2800}}\u200c\u200d{_IGNORABLE}]|  |^ | $|"
            "[\\xc2-\\xf4][\\x80-\\xbf\\x{0152}-\\x{2122}]")


def clean_texts(column: pa.Array) -> pa.Array:
    """``clean`` of each text; empty texts are null."""
    suspect = pc.fill_null(pc.match_substring_regex(column, _SUSPECT), False)
    if pc.any(suspect).as_py():
        encoded = column.filter(suspect).dictionary_encode()
        cleaned = pa.array(map(clean, encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)
        column = pc.replace_with_mask(column, suspect, cleaned)
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


def clean(text: str) -> str:
    """One line of text without markup, entities, control characters and spaces at its ends."""
    for _ in range(2):
        if "&" in text:
            text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    text = _repaired(text)
    if "<" in text:
        text = _TAG.sub(" ", text)
    text = _JOINERS.sub("", _INVISIBLE.sub("", _NOT_TEXT.sub(" ", text)))
    return " ".join(text.split())


def _repaired(text: str) -> str:
    """Text whose encoding was taken for another one, if all of it then reads as UTF-8; else as it is."""
    if _MISREAD.search(text) and not _TYPESET.search(text):
        with suppress(UnicodeError):
            text = b"".join(map(_byte, text)).decode("utf-8")
    return _C1.sub(lambda match: match[0].encode("latin-1").decode("cp1252", "ignore") or " ", text)


def _byte(letter: str) -> bytes:
    """A character's byte in cp1252, in which five bytes have no character of their own."""
    try:
        return letter.encode("cp1252")
    except UnicodeEncodeError:
        return letter.encode("latin-1")
