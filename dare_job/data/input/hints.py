"""The settings that mend what is wrong with rejected rows."""

import re

# reasons of rejects, the first that fits counts; key: of the settings of the table, column: our name
_HINTS = (
    ("timestamp is a date", "Dates as 20260131: {key}.time=%Y%m%d; with hours, as 2026013110: %Y%m%d%H"),
    ("timestamp is (not|neither)", "Set their unit or format: {key}.time=ms, or '%d.%m.%Y', or %Y%m%d%H%M%S "
     "for 20260131100000; the right column: {key}.columns={{timestamp: COLUMN}}"),
    ("rating is not a number", "Ratings as 4,5: {key}.decimal=comma; the right column, or none: "
     "{key}.columns={{rating: COLUMN}}, {{rating: null}}"),
    ("rating is outside", "Another range of ratings: {key}.rating_range=[LOW, HIGH]"),
    ("rating is", "The right column, or none: {key}.columns={{rating: COLUMN}}, {{rating: null}}"),
    ("expected", "Another separator, or quotes that are text: {key}.separator=';', {key}.quotes=none; if the "
     "header lacks a name, as that of R's row names: {key}.header=[NAME, ...]"),
    ("not a JSON object", "Each line must be one object; files of another format: {key}.format=csv"),
    (r"\w+ is not in ", "The file that translates ids, and its columns: {key}.ids"),
    (r"\w+ is list", "An entry of a list: {key}.query=\"SELECT {column}[0] AS {column}, ... FROM "
     "json.`/path`\"; the right column: {key}.columns={{{column}: COLUMN}}"),
    (r"\w+ is (dict|struct|map|an object)", "A key inside of an object: {key}.query=\"SELECT object.key AS "
     "{column}, ... FROM json.`/path`\"; the right column: {key}.columns={{{column}: COLUMN}}"),
    (r"\w+ is ", "The right column: {key}.columns={{{column}: COLUMN}}"),
)


def hint(table: str, reason: str) -> str:
    """What to set where rows of a table are rejected for a reason; empty if no setting mends it."""
    found = next((text for pattern, text in _HINTS if re.match(pattern, reason)), "")
    return found.format(key=f"input.tables.{table}", column=reason.partition(" ")[0])
