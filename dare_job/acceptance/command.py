"""``dare-job acceptance``: two models and texts in, rates beside optima out."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import torch
from rich.console import Console
from transformers import AutoTokenizer

from dare_job.acceptance import places, rates, report, texts, trees
from dare_job.acceptance.trees import Sparse
from dare_job.decode import Target
from dare_job.decode.draft.same import require_same
from dare_job.model_files import fingerprint, resolve, vocabulary

_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Options:
    """What was asked; the fields' names are those of the options.

    text    None: the sample world
    texts   rows of it that are read; positions: tokens of these that are judged
    draws   of candidates, for a rate at one place that has no exact form
    trees   written with the first ``tree_rows`` prompts
    """

    target: str
    draft: str
    text: str | None
    column: str
    prompt_column: str | None
    temperatures: Sequence[float]
    drafts: Sequence[int]
    texts: int
    positions: int
    draws: int
    trees: Sequence[Sparse]
    tree_rows: int
    new_tokens: int
    seed: int
    dtype: str
    device: str
    chat_template: str
    trust_remote_code: bool


def run(options: Options) -> dict:
    """Measure and print the tables; returns what the last line says."""
    folders = [resolve(name, None, options.trust_remote_code, setting) for name, setting in
               ((options.target, "--target"), (options.draft, "--draft"))]
    ours, theirs = (AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code)
                    for folder in folders)
    rows = texts.read(options.text, options.column, options.prompt_column, ours, folders[0], options.texts,
                      options.seed, options.chat_template)
    require_same(ours, theirs, vocabulary(folders[1], options.trust_remote_code),
                 (options.target, options.draft))
    target, draft = (Target.load(folder, options.dtype, options.device, options.trust_remote_code)
                     for folder in folders)
    contexts = [one.traits.context for one in (target, draft) if one.traits.context is not None]
    rows = texts.fitting(rows, min(contexts, default=None))
    chosen = places.chosen(rows, options.positions, options.seed)
    total, used = sum(map(len, chosen)), sum(len(one) > 0 for one in chosen)
    _LOG.info("%d places of %d texts, at %d temperatures", total, used, len(options.temperatures))
    found = rates.cells(options.temperatures, options.drafts)
    rates.fill(found, places.read(target, draft, rows, chosen), total, options.draws, options.seed)
    lines, console = rates.lines(found), Console(width=120)
    report.rates(lines, console)
    grown = list(trees.measure(target, draft, rows[: options.tree_rows], options.trees, options.temperatures,
                               options.new_tokens, min(8, options.tree_rows), options.seed))
    if grown:
        report.trees(grown, console)
    console.print(f"{total} places of {used} texts; ±: half an interval of 95 % of the mean over places, in "
                  "which those of a text count as dependent. over rrs: rate less that of recursive "
                  "rejection of draws without replacement at the same places", soft_wrap=True)
    return {"rows": lines, "trees": grown, "positions": total, "texts": used, "seed": options.seed,
            "target": _of(options.target, folders[0], target), "draft": _of(options.draft, folders[1], draft),
            "text": options.text, "versions": {name: version(name) for name in ("dare-job", "torch")},
            "threads": torch.get_num_threads()}


def _of(name: str, folder, model: Target) -> dict:
    return {"name": name, "hash": fingerprint(folder), "vocabulary": model.vocabulary,
            "parameters": sum(p.numel() for p in model.model.parameters())}
