"""Words of texts."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def words(texts: list[str]) -> tuple[pa.Array, np.ndarray]:
    """All words in lower case without punctuation, and the places where those of each text end, int64
    (N,)."""
    letters = pc.replace_substring_regex(pa.array(texts, pa.string()), r"\PL+", " ")
    words = pc.utf8_split_whitespace(pc.utf8_trim(pc.utf8_lower(letters), " "))
    return words.flatten(), np.cumsum(pc.list_value_length(words).to_numpy(), dtype=np.int64)
