"""What ``dare-job run --dry-run`` prints: the estimated parts of the run, and one total."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dare_job.observe.progress import duration


def show(estimate: dict) -> None:
    """Print an estimate of ``generate.estimate``."""
    console = Console(highlight=False, markup=False)
    table = Table("part", "time", "basis", box=None, pad_edge=False)
    for part in estimate["parts"]:
        known = part["seconds"] is not None
        table.add_row(part["name"], duration(part["seconds"]) if known else "–", Text(part["basis"]))
    console.print(table)
    console.print(total(estimate), soft_wrap=True)


def total(estimate: dict) -> str:
    """The total in one line."""
    words = (f"{estimate['users']} users and {estimate['items']} items need text: about {estimate['tokens']} "
             f"tokens in {duration(estimate['seconds'])} with {estimate['workers']} "
             f"{'worker' if estimate['workers'] == 1 else 'workers'} ({estimate['basis']})")
    if estimate["cost"] is not None:
        words += (f"; {estimate['gpu_hours']:.3g} GPU hours (one GPU per worker, for the whole run) cost "
                  f"{estimate['cost']:.2f}")
    missing = [part["name"] for part in estimate["parts"] if part["seconds"] is None]
    return words + (f"; without {', '.join(missing)}" if missing else "")
