"""The rates as tables for people."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def rates(rows: Sequence[dict], console: Console) -> None:
    """A table for each temperature and number of candidates: rate, optimum and gap of every verifier."""
    for temperature, drafts in dict.fromkeys((row["temperature"], row["drafts"]) for row in rows):
        table = Table("law", "verifier", "rate", "optimum", "gap", "over rrs", "",
                      title=f"temperature {temperature:g}, {drafts} {'draft' if drafts == 1 else 'drafts'}")
        for row in rows:
            if (row["temperature"], row["drafts"]) == (temperature, drafts):
                table.add_row(row["law"], row["verifier"], *(_with_width(row, name) for name in
                              ("rate", "optimum", "gap", "over_rrs")), "" if row["exact"] else "estimated")
        console.print(table)


def trees(rows: Sequence[dict], console: Console) -> None:
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
