"""Writes the texts of a pool in the forms that other inference engines read, as JSON lines.

``arctic``: ``{"prompt": [], "response": [token ids]}`` for each text, the form of recorded responses that the
simulator of ArcticInference reads.
``vllm``: the same; its speculation method ``suffix`` uses the suffix cache of ArcticInference.
``sglang``: a JSON string for each text, an external corpus of SGLang's n-gram speculation.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pools import PoolError
from pools.index import Index

ARCTIC, VLLM, SGLANG = "arctic", "vllm", "sglang"
FORMS = (ARCTIC, VLLM, SGLANG)
Decode = Callable[[list[int]], str]


def texts(index: Index) -> Iterator[np.ndarray]:
    """The token ids, int32 (tokens,), of each text, in the order in which the index was built."""
    start = 0
    for end in np.flatnonzero(index.tokens == 0):
        yield index.vocab[index.tokens[start:end].astype(np.int64) - 1]
        start = end + 1


def write(index: Index, file: Path, form: str, decode: Decode | None = None) -> None:
    """Write a pool to a file; an existing file is replaced in one step.

    Parameters
    ----------
    form
        One of FORMS.
    decode
        Returns the text of token ids without special tokens; for ``sglang``, which tokenizes texts itself.

    Raises
    ------
    PoolError
        The form is unknown, or needs ``decode``.
    """
    if form not in FORMS:
        raise PoolError(f"format {form!r} is unknown: use one of {', '.join(FORMS)}")
    if form == SGLANG and decode is None:
        raise PoolError(f"format {form} holds texts: it needs the tokenizer of the pool's model")
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    with partial.open("w", encoding="utf-8") as lines:
        for ids in texts(index):
            record = decode(ids.tolist()) if form == SGLANG else {"prompt": [], "response": ids.tolist()}
            if record:
                print(json.dumps(record, ensure_ascii=False), file=lines)
    os.replace(partial, file)
