"""SpecDecode-Bench's recordings (arXiv 2601.11580): prompts and texts as token ids, and drafters' results.

Each file, ``combined_SET.jsonl.gz``, has for every position of a text how many tokens a step from there
generates, the model's own counted: of an n-gram drafter and of EAGLE.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dare_job.data.recorded_texts import frame, held_out, token_ids
from dare_job.errors import DataError
from dare_job.evaluate.replay import sources
from dare_job.evaluate.replay.measure import interval, resampled
from dare_job.evaluate.replay.sources import Corpus

HELD_OUT = 100
RECORDED = {"ngram": 5, "eagle": 3}  # draft tokens per step of the recorded drafters
_COLUMNS = ["id", "prompt_token_ids", "generated_token_ids", *(f"acc_{name}" for name in RECORDED)]


def load(folder: Path, count: int = HELD_OUT) -> dict[str, tuple[Corpus, dict[str, dict]]]:
    """By set: texts to replay, ``count`` chosen by hash, and the recorded drafters' figures on them.

    Raises
    ------
    ConfigError
        A set has too few texts.
    DataError
        There are no recordings, or a file is invalid.
    """
    files = sorted(Path(folder).glob("combined_*.jsonl*"))
    if not files:
        raise DataError(f"--specdecode {folder} has no files combined_*.jsonl.gz of SpecDecode-Bench")
    return {file.name.removeprefix("combined_").split(".")[0]: _load(file, count) for file in files}


def _load(file: Path, count: int) -> tuple[Corpus, dict[str, dict]]:
    table = frame(file, _COLUMNS)
    ids = [str(name) for name in table["id"]]
    prompts, texts = (token_ids(table[name].tolist(), (), f"{file}: column {name}") for name in _COLUMNS[1:3])
    chosen = np.flatnonzero(held_out(ids, count))
    recorded = {}
    for name, nodes in RECORDED.items():
        lengths = [_lengths(table[f"acc_{name}"][place], f"{file}, row {place}: acc_{name}")
                   for place in chosen]
        per_text = np.array([(texts[place].size, steps(length, texts[place].size, nodes))
                             for place, length in zip(chosen, lengths, strict=True)])
        recorded[name] = figures(per_text) | {"draft_tokens": nodes}
    return sources.split(sources.Recorded(ids, texts, prompts), count, str(file)), recorded


def _lengths(value, where: str) -> Sequence[int]:
    lengths = value.get("acc_len") if isinstance(value, Mapping) else None
    if not isinstance(lengths, list) or not all(isinstance(n, int) and n >= 1 for n in lengths):
        raise DataError(f"{where}.acc_len must be a list of numbers of tokens, each at least 1")
    return lengths


def steps(lengths: Sequence[int], tokens: int, nodes: int) -> int:
    """Steps that generate a text.

    Parameters
    ----------
    lengths
        Tokens that a step generates from each position; positions beyond them generate one.
    tokens
        Length of the text.
    nodes
        Draft tokens per step: a step generates at most one more.
    """
    at = count = 0
    while at < tokens:
        at += min(lengths[at], nodes + 1) if at < len(lengths) else 1
        count += 1
    return count


def figures(per_text: np.ndarray) -> dict:
    """Tokens per step with the 95 % bootstrap interval over texts, of int64 (texts, 2): tokens and steps."""
    (sums,) = resampled(per_text)
    tokens, total = per_text.sum(axis=0)
    return {"tokens_per_step": round(float(tokens / total), 4), "ci95": interval(sums[:, 0] / sums[:, 1]),
            "steps": int(total)}
