"""Facts that a text names: titles and attribute values that its prompt shows, and numbers.

Titles and values are those of the input. A common word that is also a title of the input counts as one, so
the share of texts with other facts errs on the high side.
"""

import re
from collections.abc import Sequence

import pyarrow as pa

from dare_job.data.titles import Mentions, named
from dare_job.schemas import ATTRIBUTES, TRAFFIC
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath

_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


def of_text(text: str, titles: Sequence[str], values: Sequence[str]) -> frozenset[str]:
    """The facts that a text names, in any order."""
    return frozenset([*named(text, titles, values), *_NUMBER.findall(text)])


def changed(texts: Sequence[tuple[str, str, str]], source: AnyPath) -> int:
    """In how many of the (prompt, text, other text) the two texts name different facts.

    Parameters
    ----------
    source
        Folder of the tables of the input.
    """
    differing = [row for row in texts if row[1] != row[2]]
    if not differing:
        return 0
    known = in_prompts([prompt for prompt, _, _ in differing], source)
    return sum(of_text(text, *facts) != of_text(other, *facts)
               for (_, text, other), facts in zip(differing, known, strict=True))


def in_prompts(prompts: Sequence[str], source: AnyPath) -> list[tuple[list[str], list[str]]]:
    """Titles, and attribute values of users and items, that each prompt shows.

    Parameters
    ----------
    source
        Folder of the tables of the input.
    """
    mentions, seen = Mentions(prompts), set()
    for table in ("items.parquet", "users.parquet"):
        rows = paths.parquet_dataset(source / table)
        for batch in rows.to_batches(columns=[name for name in ("title", "attributes")
                                              if name in rows.schema.names]):
            for title in batch["title"].drop_null().to_pylist() if "title" in batch.schema.names else ():
                mentions.add_title(title)
            for value in _values(batch["attributes"]) - seen:
                seen.add(value)
                mentions.add_value(value)
    return [(list(titles), list(values))
            for titles, values in zip(mentions.titles, mentions.values, strict=True)]


def _values(attributes: pa.Array) -> set[str]:
    """The different values of some rows' attributes, without that of the traffic."""
    pairs = attributes.cast(ATTRIBUTES).drop_null()
    keys, values = (part.to_pylist() for part in (pairs.keys, pairs.items))
    return {value for key, value in zip(keys, values, strict=True) if value and key != TRAFFIC}
