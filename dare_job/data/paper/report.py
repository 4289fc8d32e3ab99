"""What ``dare-job data prepare`` prints: counts beside the paper's, what went, and what had to be assumed."""

from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from dare_job.data.paper.options import Options, PaperCounts
from dare_job.data.paper.splits import PARTS


def ratios(counts: dict, paper: PaperCounts) -> dict[str, float]:
    """Ours over the paper's, for users, items and interactions."""
    return {name: round(counts[name] / getattr(paper, name), 4)
            for name in ("users", "items", "interactions")}


def assumptions(name: str, options: Options) -> list[str]:
    """What the paper leaves open, and what was done, one sentence each."""
    core = (f"users have {options.min_user} interactions or more and items {options.min_item}, "
            "applied until nothing changes")
    if name == "amazon-books":
        core += "; the paper says only that less-interacted ones are filtered (60 and 40 are KAR's)"
    split = {"time": "by time over all users", "user": "by user"}[options.split]
    return [
        core,
        f"items without a title: {options.untitled}; a user's ratings of one item: "
        + {"last": "the last counts", "all": "all count"}[options.duplicates],
        f"label 1 is a rating of {options.positive:g} or more",
        f"m is {options.history_share:g} of n, where the paper says n/2 < m < n; new is the last m (its "
        "x_(n-m) to x_n would be m + 1)",
        f"CTR rows are those strictly later than a user's old window, split {split}: "
        f"{1 - options.valid_share - options.test_share:.3g} / {options.valid_share:g} / "
        f"{options.test_share:g} (KAR: 9 to 1 by user, without a validation part)",
        f"{options.sample} test users of those with two windows and {options.sample} test items of the new "
        f"half, by seed {options.seed}",
    ]


def print_manifest(manifest: dict, console: Console) -> None:
    """Print a manifest for people."""
    counts, paper, known = manifest["counts"], manifest["paper"], manifest["input"]
    table = Table("", "here", "paper", "ratio")
    for name, ratio in manifest["ratio"].items():
        stated = f"{'about ' if paper['rounded'] else ''}{paper[name]:,}"
        table.add_row(name, f"{counts[name]:,}", stated, f"{ratio:.4f}")
    console.print(table)
    console.print(f"read: {known['interactions']:,} interactions, {known['items']:,} items; bad lines: "
                  f"{known['broken']:,}{_first_broken(known['first_broken'])}; "
                  f"repeated ids: {known['duplicates']:,}")
    console.print("dropped: " + ", ".join(f"{rows:,} {why}" for why, rows in manifest["dropped"].items())
                  + "; left after each round of the filter: "
                  + (", ".join(f"{rows:,}" for rows in manifest["core_rounds"]) or "no filter"))
    share, existing = counts["positive"] / counts["interactions"], counts["existing_items"]
    console.print(f"{share:.1%} positive; {existing:,} items exist, {counts['items'] - existing:,} are new; "
                  f"{counts['test_users']} test users, {counts['test_items']} test items; "
                  f"the last day is {_day(counts['last_second'])}")
    ctr = manifest["ctr"]
    console.print("ctr: " + ", ".join(f"{part} {ctr[part]['rows']:,} ({ctr[part]['positive']:,} positive)"
                                      for part in PARTS)
                  + f"; left out as early as the old window's last: {ctr['tied_left_out']:,}")
    if single := [part for part in PARTS if ctr[part]["positive"] in (0, ctr[part]["rows"])]:
        console.print(f"one label only, which has no AUC: {', '.join(single)}")
    console.print("assumed:")
    for sentence in manifest["assumed"]:
        console.print(f"  {sentence}", soft_wrap=True)


def _first_broken(broken: dict | None) -> str:
    if broken is None:
        return ""
    return f" (the first: {broken['source']}:{broken['line']}, {broken['reason']})"


def _day(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).date().isoformat()
