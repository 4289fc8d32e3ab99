"""Tables and verdicts as the benches print them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table


def table(lines: Sequence[Mapping], columns: Iterable[str] | None = None, title: str | None = None,
          spaced: bool = False, ends: Callable[[Mapping], bool] = lambda line: False) -> Table:
    """A row for each line; ``columns``: those of the first line, where they are not given.

    spaced: names have spaces and None stands for nothing; ends: whether a line is drawn behind a row
    """
    columns = list(lines[0] if columns is None and lines else columns or ())
    found = Table(*(name.replace("_", " ") if spaced else name for name in columns), title=title)
    for column in found.columns:
        column.overflow = "fold"
    for line in lines:
        found.add_row(*("" if spaced and line.get(name) is None else str(line.get(name)) for name in columns),
                      end_section=ends(line))
    return found


def show_targets(console: Console, targets: Iterable[Mapping]) -> None:
    """What was held against a bound, a line each."""
    for one in targets:
        verdict = "met" if one["met"] else "MISSED"
        console.print(f"{verdict}: {one['target']} {one['bound']}: {one['measured']}")
