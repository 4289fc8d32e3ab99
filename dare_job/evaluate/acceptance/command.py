"""``dare-job acceptance``: two models and texts in, rates beside optima out.

Rates and optima over temperatures, and over numbers of candidates, as an SVG document without scripts.

The rates as tables for people.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from dare_job.decode.draft.tokenizer_match import require_same_tokenizer
from dare_job.decode.model.target import Target
from dare_job.evaluate.acceptance import measure, texts, trees
from dare_job.evaluate.acceptance import texts as acceptance_texts
from dare_job.evaluate.acceptance.trees import SparseShape
from dare_job.models.files import fingerprint, resolve, vocabulary
from dare_job.publish.report.svg import Line, Panel, document

SHOWN = (("iid", "rrs"), ("iid", "k_seq"), ("iid", "priority"), ("without_replacement", "rrs"),
         ("greedy", "greedy"))

_COLOURS = {"iid": "#b2551f", "without_replacement": "#1f6fb2", "greedy": "#2b8a3e"}

_DASHES = {"rrs": "6 3", "k_seq": "2 3", "priority": "8 3 2 3", "greedy": ""}


def draw_chart(rows: Sequence[dict]) -> str | None:
    """Of the command's ``rows``, a panel where one number of candidates has several temperatures, or one
    temperature several numbers; None where there is nothing to draw.
    """
    panels = []
    for fixed, moving, title in (("drafts", "temperature", "{:g} candidates, over temperatures"),
                                 ("temperature", "drafts", "temperature {:g}, over candidates")):
        for value in dict.fromkeys(row[fixed] for row in rows):
            some = [row for row in rows if row[fixed] == value]
            if len({row[moving] for row in some}) > 1:
                panels.append(Panel("Acceptance rate: " + title.format(value), _lines(some, moving)))
    if not panels:
        return None
    return document("Acceptance rates of verification rules beside the optima of their draft laws", panels)


def _lines(rows: Sequence[dict], moving: str) -> list[Line]:
    """Optima with whole lines and rates of their rules with broken ones, in the law's colour."""
    found = []
    for law, colour in _COLOURS.items():
        best = sorted({(row[moving], row["optimum"]) for row in rows if row["law"] == law})
        found.append(Line(f"{law}: optimum", colour, "", best))
        for other, rule in SHOWN:
            points = sorted((row[moving], row["rate"]) for row in rows
                            if (row["law"], row["verifier"]) == (law, rule))
            if other == law != rule and points:  # the greedy rule is the optimum of its law
                found.append(Line(f"{law}: {rule}", colour, _DASHES[rule], points))
    return [one for one in found if one.points]


def print_rates(rows: Sequence[dict], console: Console) -> None:
    """A table for each temperature and number of candidates: rate, optimum and gap of every verifier."""
    for temperature, drafts in dict.fromkeys((row["temperature"], row["drafts"]) for row in rows):
        table = Table("law", "verifier", "rate", "optimum", "gap", "over rrs", "",
                      title=f"temperature {temperature:g}, {drafts} {'draft' if drafts == 1 else 'drafts'}")
        for row in rows:
            if (row["temperature"], row["drafts"]) == (temperature, drafts):
                table.add_row(row["law"], row["verifier"], *(_with_width(row, name) for name in
                              ("rate", "optimum", "gap", "over_rrs")), "" if row["exact"] else "estimated")
        console.print(table)


def print_trees(rows: Sequence[dict], console: Console) -> None:
    table = Table("temperature", "tree", "law", "rule", "accepted a step", "delta", "of judged nodes",
                  "steps", title="Drafted trees")
    for row in rows:
        error = "" if row["error"] is None else f" ± {1.96 * row['error']:.3f}"
        share = "" if row["node_rate"] is None else f"{row['node_rate']:.4f}"
        table.add_row(f"{row['temperature']:g}", row["tree"], row["law"], row["rule"],
                      f"{row['accepted']:.3f}{error}", f"{row['delta']:.3f}", share, str(row["steps"]))
    console.print(table)


def _with_width(row: dict, name: str) -> str:
    ends = row[f"{name}_interval"]
    return f"{row[name]:.4f}" + ("" if ends is None else f" ± {(ends[1] - ends[0]) / 2:.4f}")

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
    trees: Sequence[SparseShape]
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
               ((options.target, "--model"), (options.draft, "--draft"))]
    ours, theirs = (AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code)
                    for folder in folders)
    rows = texts.read(options.text, options.column, options.prompt_column, ours, folders[0], options.texts,
                      options.seed, options.chat_template)
    require_same_tokenizer(ours, theirs, vocabulary(folders[1], options.trust_remote_code),
                 (options.target, options.draft))
    target, draft = (Target.load(folder, options.dtype, options.device, options.trust_remote_code)
                     for folder in folders)
    contexts = [one.traits.context for one in (target, draft) if one.traits.context is not None]
    rows = texts.truncate(rows, min(contexts, default=None))
    chosen = acceptance_texts.sample_places(rows, options.positions, options.seed)
    total, used = sum(map(len, chosen)), sum(len(one) > 0 for one in chosen)
    _LOG.info("%d places of %d texts, at %d temperatures", total, used, len(options.temperatures))
    found = measure.cells(options.temperatures, options.drafts)
    measure.fill(
        found, acceptance_texts.read_places(target, draft, rows, chosen), total, options.draws, options.seed
    )
    lines, console = measure.lines(found), Console(width=120)
    print_rates(lines, console)
    grown = list(trees.measure(target, draft, rows[: options.tree_rows], options.trees, options.temperatures,
                               options.new_tokens, min(8, options.tree_rows), options.seed))
    if grown:
        print_trees(grown, console)
    console.print(f"{total} places of {used} texts; ±: half an interval of 95 % of the mean over places, in "
                  "which those of a text count as dependent. over rrs: rate less that of recursive "
                  "rejection of draws without replacement at the same places", soft_wrap=True)
    return {
        "rows": lines,
        "trees": grown,
        "positions": total,
        "texts": used,
        "seed": options.seed,
        "target": _model_record(options.target, folders[0], target),
        "draft": _model_record(options.draft, folders[1], draft),
        "text": options.text,
        "versions": {name: version(name) for name in ("dare-job", "torch")},
        "threads": torch.get_num_threads(),
    }


def _model_record(name: str, folder, model: Target) -> dict:
    return {"name": name, "hash": fingerprint(folder), "vocabulary": model.vocabulary,
            "parameters": sum(p.numel() for p in model.model.parameters())}
