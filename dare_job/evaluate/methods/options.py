"""Options of ``dare-job lab decode``. Imports neither torch nor numba."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dare_job.config.options import (
    MODEL,
    PLUG_IN,
    Device,
    Dtype,
    as_given,
    device,
    dtype,
    numbers,
    option,
    paths,
    words,
)
from dare_job.errors import ConfigError

GENERATE, LOOKUP, AUTOREGRESSIVE = "generate", "lookup", "autoregressive"
PROMPT, DARE, RELAXED = "prompt", "dare", "relaxed"
METHODS = (GENERATE, LOOKUP, AUTOREGRESSIVE, PROMPT, DARE, RELAXED)
_TEXTS, _PLUG_INS = "Texts", "Your own methods"


def _methods(flag: str, text: str) -> list[str]:
    names = words(flag, text)
    if not names or set(names) - set(METHODS):
        raise ConfigError(f"{flag} {text!r}: choose from {', '.join(METHODS)}")
    return names


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job lab decode``."""

    model: str = option(f"{MODEL}.")
    prompts: Path = option("A jsonl, csv or Parquet file, a .txt file of lines, or a run's output folder.",
                           panel=_TEXTS)
    prompt_column: str = option("Column of the prompt or its token ids.", "prompt", panel=_TEXTS)
    previous_column: str | None = option("Column of the row's previous text.", None,
                                         panel=_TEXTS)
    pool: Sequence[Path] = option("Further texts to draft from: a jsonl, csv or Parquet file; repeatable.",
                                  (), parse=paths, repeatable=True, panel=_TEXTS)
    column: str = option("Column of the texts of --pool.", "text", panel=_TEXTS)
    pool_texts: Sequence[int] = option("dare with so many texts of other rows.", (),
                                       parse=numbers, panel=_TEXTS)
    methods: Sequence[str] = option(
        "Methods, compared with the first; generate and lookup (batch 1) are of transformers; prompt: drafts "
        "from prompt and text; relaxed: dare's rule.",
        (GENERATE, AUTOREGRESSIVE, PROMPT, DARE), parse=_methods)
    drafter: Sequence[str] = option("A drafter; repeatable.", (), repeatable=True, parse=as_given,
                                    metavar=PLUG_IN, panel=_PLUG_INS)
    verifier: Sequence[str] = option("A verifier; repeatable. With --drafter, pairs are timed too.", (),
                                     repeatable=True, parse=as_given, metavar=PLUG_IN, panel=_PLUG_INS)
    draft_budget: Sequence[str] = option("A draft budget; repeatable.", (), repeatable=True, parse=as_given,
                                         metavar=PLUG_IN, panel=_PLUG_INS)
    batch: Sequence[int] = option("Batch sizes.", (1, 8), parse=numbers)
    rows: int = option("Prompts to take: the first of a file, or by hash.", 32, min=1)
    repeats: int = option("Times that each method runs; the median counts.", 3, min=1)
    max_new_tokens: int = option("Maximum tokens of a text.", 128, min=1)
    dtype: Dtype = dtype()
    device: Device = device()
    config: list[Path] | None = option("YAML settings; repeatable.", None)
    set_: list[str] | None = option("Override a setting, as in decode.nodes=16; repeatable.", None,
                                    flag="--set", metavar="KEY=VALUE")

    def __post_init__(self):
        if not self.batch or min(self.batch) < 1:
            raise ConfigError(f"--batch {','.join(map(str, self.batch))}: each must be at least 1")
        if any(count < 0 for count in self.pool_texts):
            raise ConfigError(f"--pool-texts {','.join(map(str, self.pool_texts))}: each must be at least 0")
        if LOOKUP in self.methods and 1 not in self.batch:
            raise ConfigError(f"--methods {LOOKUP} takes one row at a time: add 1 to --batch")
