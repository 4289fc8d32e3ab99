"""``dare-job lab acceptance``: rates and optima of two models on texts, as tables, JSON and an SVG chart."""

import logging
from collections.abc import Sequence
from importlib.metadata import version

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from dare_job.decode.draft.tokenizer_match import require_same_tokenizer
from dare_job.decode.model.target import Target
from dare_job.evaluate.acceptance import measure, texts, trees
from dare_job.evaluate.acceptance.options import Options
from dare_job.models.files import fingerprint, resolve, vocabulary
from dare_job.publish.report.plot import Line, Panel, document

SHOWN = (("iid", "rrs"), ("iid", "k_seq"), ("iid", "priority"), ("without_replacement", "rrs"),
         ("greedy", "greedy"))
_COLOURS = {"iid": "#b2551f", "without_replacement": "#1f6fb2", "greedy": "#2b8a3e"}
_DASHES = {"rrs": "6 3", "k_seq": "2 3", "priority": "8 3 2 3", "greedy": ""}
_LOG = logging.getLogger("dare_job")


def draw_chart(rows: Sequence[dict]) -> str | None:
    """Draw rates and optima over temperatures and over numbers of candidates as an SVG document.

    There is a panel per number of candidates with several temperatures, and per temperature with several
    numbers; None if there is no panel.
    """
    panels = []
    for fixed, axis, title in (("drafts", "temperature", "{:g} candidates, over temperatures"),
                                 ("temperature", "drafts", "temperature {:g}, over candidates")):
        for value in dict.fromkeys(row[fixed] for row in rows):
            selected = [row for row in rows if row[fixed] == value]
            if len({row[axis] for row in selected}) > 1:
                panels.append(Panel("Acceptance rate: " + title.format(value), _lines(selected, axis)))
    if not panels:
        return None
    return document(
        "Acceptance rates of verification rules and the optima of their draft distributions", panels
    )


def _lines(rows: Sequence[dict], axis: str) -> list[Line]:
    """Return solid lines for the optima and dashed lines for the rates, in the color of the distribution."""
    lines = []
    for distribution, colour in _COLOURS.items():
        best = sorted({(row[axis], row["optimum"]) for row in rows if row["distribution"] == distribution})
        lines.append(Line(f"{distribution}: optimum", colour, "", best))
        for rule_distribution, rule in SHOWN:
            points = sorted((row[axis], row["rate"]) for row in rows
                            if (row["distribution"], row["verifier"]) == (distribution, rule))
            if rule_distribution == distribution != rule and points:  # rule greedy attains its optimum
                lines.append(Line(f"{distribution}: {rule}", colour, _DASHES[rule], points))
    return [line for line in lines if line.points]


def print_rates(rows: Sequence[dict], console: Console) -> None:
    """Print a table per temperature and number of candidates: rate, optimum and gap of every rule."""
    for temperature, drafts in dict.fromkeys((row["temperature"], row["drafts"]) for row in rows):
        table = Table("distribution", "rule", "rate", "optimum", "gap", "vs rrs", "",
                      title=f"temperature {temperature:g}, {drafts} {'draft' if drafts == 1 else 'drafts'}")
        for row in rows:
            if (row["temperature"], row["drafts"]) == (temperature, drafts):
                table.add_row(row["distribution"], row["verifier"], *(_with_width(row, name) for name in
                              ("rate", "optimum", "gap", "over_rrs")), "" if row["exact"] else "estimated")
        console.print(table)


def print_trees(rows: Sequence[dict], console: Console) -> None:
    table = Table("temperature", "tree", "distribution", "rule", "accepted per step", "delta",
                  "per verified node", "steps", title="Drafted trees")
    for row in rows:
        error = "" if row["error"] is None else f" ± {1.96 * row['error']:.3f}"
        share = "" if row["node_rate"] is None else f"{row['node_rate']:.4f}"
        table.add_row(f"{row['temperature']:g}", row["tree"], row["distribution"], row["rule"],
                      f"{row['accepted']:.3f}{error}", f"{row['delta']:.3f}", share, str(row["steps"]))
    console.print(table)


def _with_width(row: dict, name: str) -> str:
    ends = row[f"{name}_interval"]
    return f"{row[name]:.4f}" + ("" if ends is None else f" ± {(ends[1] - ends[0]) / 2:.4f}")


def run(options: Options, console: Console) -> dict:
    """Measure, print the tables, and return the record of the last line."""
    trust, names = options.trust_remote_code, (options.target, options.draft)
    folders = [resolve(name, trust, setting)
               for name, setting in zip(names, ("--model", "--draft"), strict=True)]
    tokenizers = [AutoTokenizer.from_pretrained(folder, trust_remote_code=trust) for folder in folders]
    rows = texts.read(options.text, options.column, options.prompt_column, tokenizers[0], folders[0],
                      options.texts, options.seed, options.chat_template)
    require_same_tokenizer(*tokenizers, vocabulary(folders[1], trust), names)
    target, draft = (Target.load(folder, options.dtype, options.device, trust) for folder in folders)
    contexts = [model.traits.context for model in (target, draft) if model.traits.context is not None]
    rows = texts.truncate(rows, min(contexts, default=None))
    positions = texts.sample_positions(rows, options.positions, options.seed)
    total, texts_used = sum(map(len, positions)), sum(len(row_positions) > 0 for row_positions in positions)
    _LOG.info("%d positions of %d texts, at %d temperatures", total, texts_used, len(options.temperatures))
    cells = measure.cells(options.temperatures, options.drafts)
    read = texts.read_positions(target, draft, rows, positions)
    measure.fill(cells, read, total, options.samples, options.seed)
    lines = measure.lines(cells)
    print_rates(lines, console)
    prompts = rows[: options.tree_rows]
    tree_rows = list(trees.measure(target, draft, prompts, options.trees, options.temperatures,
                                   options.new_tokens, min(8, options.tree_rows), options.seed))
    if tree_rows:
        print_trees(tree_rows, console)
    console.print(
        f"{total} positions of {texts_used} texts; ±: half-width of the 95 % confidence interval "
        "of the mean, with the positions of a text treated as dependent. vs rrs: rate minus that of "
        "recursive rejection without replacement at the same positions",
        soft_wrap=True,
    )
    return {
        "rows": lines,
        "trees": tree_rows,
        "positions": total,
        "texts": texts_used,
        "seed": options.seed,
        **{role: {"name": name, "hash": fingerprint(folder), "vocabulary": model.vocabulary,
                  "parameters": sum(p.numel() for p in model.model.parameters())}
           for role, name, folder, model in zip(("target", "draft"), names, folders, (target, draft),
                                                strict=True)},
        "text": options.text,
        "versions": {name: version(name) for name in ("dare-job", "torch")},
        "threads": torch.get_num_threads(),
    }
