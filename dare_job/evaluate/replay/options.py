"""Settings of replays of recorded texts: the options of ``dare-job lab replay`` and ``dare-job tune``.

Imports neither torch nor numba.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_job.config.options import (
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

_TEXTS, _LATENCY, _SEARCH = "Texts", "Latency", "Search"


def _lambdas(flag: str, text: str) -> list[float | None]:
    try:
        lambdas = [None if part == "learned" else float(part) for part in words(flag, text)]
    except ValueError:
        lambdas = [math.nan]
    if not all(value is None or math.isfinite(value) for value in lambdas):
        raise ConfigError(f"{flag} {text!r} is not a list of finite numbers or 'learned'; write for "
                          "example 4,8")
    return lambdas


def _microseconds(flag: str, text: str) -> tuple[float, float]:
    try:
        row, node = map(float, text.split(","))
    except ValueError:
        row = node = math.nan
    if not (0 <= row < math.inf and 0 <= node < math.inf):
        raise ConfigError(f"{flag} {text!r} is not two numbers of at least 0; write for example 12,0.6")
    return row, node


@dataclass(frozen=True)
class Source:
    """Files and columns of recorded texts."""

    text: Sequence[Path] = option("A jsonl, csv or Parquet file; repeatable.", (), parse=paths,
                                  repeatable=True, panel=_TEXTS)
    column: str = option("Column of the text or its token ids.", "text", panel=_TEXTS)
    tokenizer: Sequence[Path] = option("tokenizer.json, or GPT-2's files; a folder.",
                                       (), parse=paths, repeatable=True, panel=_TEXTS)
    id_column: str | None = option("Column of the id. Default: file and row number.", None, panel=_TEXTS)
    held_out: int = option("Texts to replay, chosen by hash.", 1000, panel=_TEXTS)
    pool: Sequence[str] = option("Where drafts come from, comma-separated: own, group, global.",
                                 ("global",), parse=words, panel=_TEXTS)
    groups: Path | None = option("Table with the columns entity_id and group (or pool).", None,
                                 panel=_TEXTS)
    old: Path | None = option("File with previous texts of the same ids.", None, panel=_TEXTS)


@dataclass(frozen=True)
class ReplayOptions(Source):
    """Options of ``dare-job lab replay``."""

    held_out: int | None = option("Texts to replay, chosen by hash. Default: 1000, of each set of "
                                  "--specdecode 100.", None, panel=_TEXTS)
    prompt_column: str | None = option("Column of the prompt or its token ids.", None,
                                       panel=_TEXTS)
    specdecode: Path | None = option("Folder of SpecDecode-Bench's recordings, instead of --text: 100 texts "
                                     "of each set are replayed.", None, panel=_TEXTS)
    nodes: Sequence[int] = option("Draft tokens per step.", (16, 64), parse=numbers)
    pool_texts: Sequence[int] = option("Replay also with only so many texts of other ids in the pool, for "
                                       "example 0,24,100; also for each --drafter.", (), parse=numbers)
    against: Sequence[str] = option("Other methods to compare with: published (the rule of DARE's code), "
                                    "arctic (suffix tree), n-gram (prompt lookup as in vLLM).", (),
                                    parse=words)
    drafter: Sequence[str] = option("A drafter of your own; repeatable.", (), repeatable=True,
                                    parse=as_given, metavar=PLUG_IN)
    verifier: Sequence[str] = option("A verifier of your own, in place of strict verification; repeatable.",
                                     (), repeatable=True, parse=as_given, metavar=PLUG_IN)


@dataclass(frozen=True)
class TuneOptions(Source):
    """Options of ``dare-job tune``.

    Attributes
    ----------
    curve
        Latency curve, read from ``latency`` or measured with ``model``.
    curve_name
        Origin of ``curve``.
    drafting
        Microseconds of drafting (per row, per draft token); None: measured.
    """

    latency: Path | None = option("Latency curve, as in conf/latency/*.json.", None,
                                  panel=_LATENCY)
    model: str | None = option("Model to measure, named as model.name.", None, panel=_LATENCY)
    dtype: Dtype = dtype(panel=_LATENCY)
    device: Device = device(_LATENCY)
    save_latency: Path | None = option("Save what --model measures to this file.", None, panel=_LATENCY)
    out: Path = option("Configuration file to write.", Path("tuned.yaml"),
                       flag="--save")
    screen: int = option("Texts that discard slow settings first.", 100, panel=_SEARCH)
    config: Sequence[Path] = option("Configuration of the run to tune for; repeatable. Default: the "
                                    "default settings, with the largest --batch.", (), repeatable=True,
                                    parse=paths, panel=_SEARCH)
    batch: Sequence[int] = option("Batch sizes to try. Default: the curve's.", (),
                                  parse=numbers, panel=_SEARCH)
    nodes: Sequence[int] = option("Draft tokens per step.",
                                  (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128), parse=numbers,
                                  panel=_SEARCH)
    sizes: Sequence[int] = option("Texts in an index, to try.", (100, 500, 2000),
                                  parse=numbers, panel=_SEARCH)
    contexts: Sequence[int] = option("Context lengths to try.", (4, 8, 12, 15),
                                     parse=numbers, panel=_SEARCH)
    depths: Sequence[int] = option("Draft path lengths to try.", (6, 12, 20),
                                   parse=numbers, panel=_SEARCH)
    lambdas: Sequence[float | None] = option("Weights of the blend to try, or learned.",
                                             (2.0, 4.0, 8.0, 16.0, 32.0), parse=_lambdas, panel=_SEARCH)
    drafting: tuple[float, float] | None = option(
        "Microseconds that drafting takes per row, and per draft token.", None,
        flag="--drafting-us", metavar="12,0.6", parse=_microseconds, panel=_LATENCY)
    threads: int = option("Threads that draft; 0: all processors.", 0, min=0, panel=_LATENCY)
    rows: int | None = option("Number of rows of a run, to plan waves for. Default: that of the texts.",
                              None, min=1, panel=_SEARCH)
    per_gpu_hour: float | None = option(
        "Price of an hour of a GPU, for costs. Default: cost.per_gpu_hour of --config.", None, min=0)
    curve: Any = None
    curve_name: str = ""
    command: str = "dare-job tune"
