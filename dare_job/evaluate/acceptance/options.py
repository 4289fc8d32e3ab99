"""Options of ``dare-job lab acceptance``. Imports no torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_job.config import options
from dare_job.config.options import ChatTemplate, Device, Dtype, numbers, option, words
from dare_job.errors import ConfigError

_MAX_DRAFTS = 8
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.01, 100.0
_TEXTS, _TREES = "Texts", "Draft trees"


def _temperatures(flag: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in words(flag, text)]
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is not a list of numbers; write for example 0.1,0.5,1") from None
    if not values or not all(value == 0 or _MIN_TEMPERATURE <= value <= _MAX_TEMPERATURE for value in values):
        raise ConfigError(f"{flag} {text!r}: each must be 0 (greedy) or from {_MIN_TEMPERATURE:g} to "
                          f"{_MAX_TEMPERATURE:g}")
    return list(dict.fromkeys(values))


def _counts(flag: str, text: str) -> list[int]:
    between = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", text)
    if between:
        first, last = map(int, between.groups())
        counts = list(range(first, min(last, _MAX_DRAFTS + 1) + 1))
    else:
        counts = numbers(flag, text)
    if not counts or not all(1 <= n <= _MAX_DRAFTS for n in counts):
        raise ConfigError(f"{flag} {text!r}: each must be from 1 to {_MAX_DRAFTS}, such as 3, 1,2,4 or "
                          f"1..{_MAX_DRAFTS}")
    return list(dict.fromkeys(counts))


def _shapes(flag: str, text: str) -> list:
    from dare_job.evaluate.acceptance.trees import SparseShape

    return [SparseShape.parse(part) for part in words(flag, text)]


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job lab acceptance``.

    Raises
    ------
    ConfigError
        ``plot`` is given, but there is only one value to plot.
    """

    target: str = option("Target model, named as model.name.", flag="--model")
    draft: str = option("Draft model with the same tokenizer, named as model.name.")
    text: str | None = option("Texts: jsonl, csv, Parquet or a run's output. Default: texts of the synthetic "
                              "data set.", None, panel=_TEXTS)
    column: str = option("Column of the texts in a file.", "knowledge", panel=_TEXTS)
    prompt_column: str | None = option("Column of the prompts in a file. Default: prompt, if there is one.",
                                       None, panel=_TEXTS)
    temperatures: Sequence[float] = option("Temperatures of both models, such as 0.1,0.5,1; 0: greedy.",
                                           (0.7,), flag="--temperature", parse=_temperatures)
    drafts: Sequence[int] = option(f"Draft tokens per position, such as 3, 1,2,4 or 1..{_MAX_DRAFTS}.", (3,),
                                   parse=_counts)
    texts: int = option("Maximum number of texts.", 128, min=1, panel=_TEXTS)
    positions: int = option("Sampled positions to measure at.", 256, min=1,
                            panel=_TEXTS)
    samples: int = option("Number of samples per position for rates that are estimated.", 16,
                        min=2)
    trees: Sequence[Any] = option(
        "Also generate with these draft trees, of at most NODES nodes.", (),
        metavar="4x2x1[:NODES],...", parse=_shapes, panel=_TREES)
    tree_rows: int = option("Number of prompts to generate for.", 32, min=1, panel=_TREES)
    new_tokens: int = option("Maximum number of tokens of a generated text.", 128, min=2, panel=_TREES)
    plot: Path | None = option("SVG file of rates and optima over temperatures or draft tokens.", None)
    seed: int = option("Seed of all samples.", 0, min=0)
    dtype: Dtype = options.dtype()
    device: Device = options.device()
    chat_template: ChatTemplate | None = option(
        "auto, always or never (model.chat_template). Default: as in the run; auto for a file.", None,
        metavar="MODE", panel=_TEXTS)
    trust_remote_code: bool = options.trust_remote_code()

    def __post_init__(self):
        if self.plot and len(self.temperatures) == len(self.drafts) == 1:
            raise ConfigError("--plot needs several temperatures or several numbers of drafts")
