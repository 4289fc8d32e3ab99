"""Texts of the replay: recorded ones of a file, or made-up ones with a similar amount of repetition."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dare_job.errors import ConfigError, DataError

POOL = 400  # made-up texts that drafts come from


@dataclass(frozen=True)
class Recorded:
    """New and previous texts, int32 (tokens,) each.

    Attributes
    ----------
    source
        A description that begins with "recorded text" or "made-up text".
    """

    new: list[np.ndarray]
    old: list[np.ndarray]
    source: str


def made_up(count: int, tokens: int, vocabulary: int, seed: int = 0) -> Recorded:
    """Texts of phrases and titles, with about the acceptance of ML-1M's recorded profiles.

    Phrases follow each other mostly in one order, titles have Zipf's distribution, and one token in 25 is
    random. 16 and 63 draft tokens have 5.1 and 5.5 tokens per step accepted (``task.accepted``, 64 texts of
    192 tokens); the profiles 4.3 and 5.7 with 16 and 64 (docs/figures.md).
    """
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(2, vocabulary, rng.integers(8, 20)) for _ in range(30)]
    titles = [rng.integers(2, vocabulary, rng.integers(2, 6)) for _ in range(100)]
    rank = 1 / np.arange(1, len(titles) + 1)
    texts = []
    for _ in range(count + POOL):
        parts, length, at = [], 0, int(rng.integers(len(phrases)))
        while length < tokens:
            phrase = phrases[at].copy()
            other = rng.random(len(phrase)) < 0.04
            phrase[other] = rng.integers(2, vocabulary, int(other.sum()))
            parts += [phrase, titles[int(rng.choice(len(titles), p=rank / rank.sum()))]]
            length += len(parts[-1]) + len(parts[-2])
            at = (at + 1) % len(phrases) if rng.random() < 0.7 else int(rng.integers(len(phrases)))
        texts.append(np.concatenate(parts)[:tokens].astype(np.int32))
    return Recorded(texts[:count], texts[count:],
                    f"made-up text with the repetition of recorded profiles, seed {seed}")


def from_file(path: Path, column: str, tokenizer: Path, count: int, tokens: int, vocabulary: int) -> Recorded:
    """JSON lines (``.gz`` or not) with a text in ``column``; the last ``count`` long enough ones are new.

    Parameters
    ----------
    tokenizer
        As for ``dare-job lab replay``. Token ids are renumbered from 0, as the weights are random.

    Raises
    ------
    ConfigError
        The texts have more than ``vocabulary`` distinct tokens.
    DataError
        The file or the tokenizer cannot be read, ``column`` holds a value that is no text, or fewer than
        ``count`` texts have ``tokens`` tokens.
    """
    from dare_job.data.recorded_texts import load_tokenizer

    texts = [text for text in load_tokenizer([tokenizer])(_read(path, column)) if len(text)]
    distinct = np.unique(np.concatenate(texts)) if texts else np.zeros(0, np.int32)
    if len(distinct) > vocabulary:
        raise ConfigError(f"{path} holds {len(distinct)} distinct tokens, the replayed shape has "
                          f"{vocabulary}: choose another --tokenizer, or another first one of --shapes")
    texts = [np.searchsorted(distinct, text).astype(np.int32) for text in texts]
    long_enough = [number for number, text in enumerate(texts) if len(text) >= tokens]
    if len(long_enough) < count:
        raise DataError(f"{path} has {len(long_enough)} texts of {tokens} tokens or more, of {count} that "
                        "are needed: lower --new-tokens or --batches, or name another --column")
    new = set(long_enough[-count:])
    return Recorded([texts[number][:tokens] for number in sorted(new)],
                    [text for number, text in enumerate(texts) if number not in new],
                    f"recorded text, column {column} of {path.name}")


def _read(path: Path, column: str) -> list[str]:
    texts = []
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                row = json.loads(line) if line.strip() else {}
                if not isinstance(row.get(column, ""), str):
                    raise DataError(f"{path}, line {number}: {column} holds no text")
                texts.append(row.get(column, ""))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} as JSON lines: {error}") from error
    return [text for text in texts if text]
