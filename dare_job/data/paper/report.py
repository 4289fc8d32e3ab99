"""Output of ``dare-job data prepare``: counts compared with the paper, dropped rows, assumptions."""

from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from dare_job.data.paper import Options
from dare_job.data.paper.splits import PARTS

# Counts in appendix A of DARE.
COUNTS = {
    "movielens-10m": {"users": 72_000, "items": 10_000, "interactions": 10_000_000, "rounded": True},
    "amazon-books": {"users": 49_391, "items": 78_318, "interactions": 5_002_043, "rounded": False}}


def ratios(counts: dict, paper: dict) -> dict[str, float]:
    """Our counts divided by the paper's, for users, items and interactions."""
    return {name: round(counts[name] / paper[name], 4) for name in ("users", "items", "interactions")}


def assumptions(name: str, options: Options) -> list[str]:
    """One sentence for each choice that the paper does not specify."""
    core = (f"users have {options.min_user} interactions or more and items {options.min_item}, "
            "applied until nothing changes")
    if name == "amazon-books":
        core += "; the paper gives no thresholds (60 and 40 are those of KAR)"
    split = {"time": "by time over all users", "user": "by user"}[options.split]
    return [
        core,
        f"items without a title: {options.untitled}; a user's ratings of one item: "
        + {"last": "only the last counts", "all": "all count"}[options.duplicates],
        f"label 1 is a rating of {options.positive:g} or more",
        f"m is {options.history_share:g} of n, and the paper requires n/2 < m < n; new is the last m "
        "(x_(n-m) to x_n in the paper would be m + 1)",
        f"CTR rows are strictly later than a user's old window and are split {split}: "
        f"{1 - options.valid_share - options.test_share:.3g} / {options.valid_share:g} / "
        f"{options.test_share:g} (KAR: 9 to 1 by user, without a validation part)",
        f"{options.sample} test users are sampled from users with two windows, and {options.sample} test "
        f"items from the new half, with seed {options.seed}",
    ]


def print_manifest(manifest: dict, console: Console) -> None:
    """Print a manifest in human-readable form."""
    counts, paper, source = manifest["counts"], manifest["paper"], manifest["input"]
    table = Table("", "prepared", "paper", "ratio")
    for name, ratio in manifest["ratio"].items():
        stated = f"{'about ' if paper['rounded'] else ''}{paper[name]:,}"
        table.add_row(name, f"{counts[name]:,}", stated, f"{ratio:.4f}")
    console.print(table)
    console.print(f"read: {source['interactions']:,} interactions, {source['items']:,} items; "
                  f"invalid lines: {source['broken']:,}{_describe_row(source['first_broken'])}; "
                  f"repeated ids: {source['duplicates']:,}")
    console.print("dropped: " + ", ".join(f"{rows:,} {why}" for why, rows in manifest["dropped"].items())
                  + "; remaining after each round of the filter: "
                  + (", ".join(f"{rows:,}" for rows in manifest["core_rounds"]) or "no filter"))
    share, existing = counts["positive"] / counts["interactions"], counts["existing_items"]
    console.print(f"{share:.1%} positive; {existing:,} existing and {counts['items'] - existing:,} new "
                  f"items; {counts['test_users']} test users, {counts['test_items']} test items; "
                  f"the last day is {_day(counts['last_second'])}")
    ctr = manifest["ctr"]
    console.print("ctr: " + ", ".join(f"{part} {ctr[part]['rows']:,} ({ctr[part]['positive']:,} positive)"
                                      for part in PARTS)
                  + f"; excluded because not later than the old window: {ctr['tied_left_out']:,}")
    if single := [part for part in PARTS if ctr[part]["positive"] in (0, ctr[part]["rows"])]:
        console.print(f"without AUC because all labels are equal: {', '.join(single)}")
    console.print("assumptions:")
    for sentence in manifest["assumed"]:
        console.print(f"  {sentence}", soft_wrap=True)


def _describe_row(broken: dict | None) -> str:
    if broken is None:
        return ""
    return f" (the first: {broken['source']}:{broken['line']}, {broken['reason']})"


def _day(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).date().isoformat()
