"""Tables in Markdown, and targets, as the benches print them. Needs the standard library alone."""

from collections.abc import Iterable, Mapping, Sequence


def table(rows: Sequence[Mapping], columns: Iterable[str] | None = None) -> str:
    """A Markdown table of these columns, by default those of the first row; what a row lacks is empty."""
    columns = list(columns or (rows[0] if rows else ()))
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    head = [column.replace("_", " ") for column in columns]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(columns), *cells])


def _text(value) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def print_table(title: str, rows: Sequence[Mapping], columns: Iterable[str] | None = None) -> None:
    """Print a table under its title."""
    print(f"{title}\n\n{table(rows, columns)}\n", flush=True)


def target_row(name: str, bound: float, measured: float, met: bool) -> dict:
    """A figure and the bound that it is held against."""
    return {"target": name, "bound": bound, "measured": round(float(measured), 5), "met": bool(met)}


def print_targets(targets: Iterable[Mapping]) -> None:
    """Print one line per target."""
    for each in targets:
        print(f"{'met' if each['met'] else 'MISSED'}: {each['target']} {each['bound']}: {each['measured']}")
