"""Shows what ``dare-job data inspect`` found."""

import unicodedata

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dare_job.observe.progress import counted
from dare_job.observe.redact import printable

_SHOWN_TEXT = 60  # characters of a value
_SHOWN_COLUMNS = 30


def show(facts: dict) -> None:
    """Tables, orphans, prompts and the proposed mapping."""
    console = Console(highlight=False, markup=False)
    console.print(f"{facts['path']}: {facts['format'] or 'cannot be read with the proposed mapping'}")
    for name, table in facts["tables"].items():
        console.print()
        console.print(Text(_headline(name, table), style="bold"))
        console.print(_columns(table["columns"]))
        console.print(_rows(table["sample"]))
        for reason, rejected in table["rejected"].items():
            console.print(Text(f"rejected: {reason} ({counted(rejected['rows'], 'row')})", style="red"))
            for example in rejected["examples"]:
                console.print(f"  {_short(example)}")
            if rejected["hint"]:
                console.print(f"  {rejected['hint']}")
    for name, orphans in facts["orphans"].items():
        if orphans["unknown"]:
            console.print(f"\n{orphans['unknown']} of {orphans['of']} {name} of interactions are not in the "
                          f"table "
                          f"{name}, such as {_short(', '.join(orphans['examples']))}")
        for id_, other in list(orphans["alike"].items())[:1]:
            console.print(f"ids are written differently: interactions has {_short(id_)}, {name} has "
                          f"{_short(other)}. {_remedy(name, id_, other)}")
    for prompt in facts["prompts"]:
        console.print(Text(f"\nprompt of {prompt['entity']}:{_short(prompt['id'])}", style="bold"))
        console.print(printable(prompt["prompt"] or prompt["error"]))
    if facts["proposal"]:
        console.print(Text("\nThe columns have other names than ours. Proposed mapping (--save FILE, then "
                           "--config "
                           "FILE):", style="bold"))
        console.print(facts["proposal"])


def _remedy(table: str, id_: str, other: str) -> str:
    if unicodedata.normalize("NFC", id_) != unicodedata.normalize("NFC", other):
        return f"Read one of the two tables with a query that changes them: input.tables.{table}.query"
    return "They look alike, but encode accents in different ways (Unicode NFC, NFD): convert one of the " \
        "two files, for example with uconv -x nfc"


def _headline(name: str, table: dict) -> str:
    counts = [counted(table["rows"], "row") + ("" if table["all_rows_read"] else " read, there are more")]
    of_events = name == "interactions"
    counts += [counted(table[key], key[:-1]) for key in ("users", "items") if key in table and of_events]
    if table["duplicates"]:
        counts.append(counted(table["duplicates"], "repeated row" if of_events else "repeated id"))
    if table["untitled"]:
        counts.append(f"{counted(table['untitled'], 'item')} without a title, which get no texts")
    if table["ratings"]:
        counts.append("ratings {:g} to {:g}".format(*table["ratings"]))
    if table["first"]:
        counts.append(f"{table['first']} to {table['last']} (UTC)")
    return f"{name} ({counted(table['files'], 'file')}): {', '.join(counts)}"


def _columns(columns: dict[str, dict]) -> Table:
    table = Table("column", "type", "taken for", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, column in list(columns.items())[:_SHOWN_COLUMNS]:
        table.add_row(*map(_short, (name, column["type"], column["use"])))
    if len(columns) > _SHOWN_COLUMNS:
        table.add_row(f"and {len(columns) - _SHOWN_COLUMNS} more", "", "")
    return table


def _rows(rows: list[dict]) -> Table:
    names = list(rows[0]) if rows else []
    table = Table(*names, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*[_short(_value(row[name])) for name in names])
    return table


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(f"{name}: {text}" for name, text in value)
    return "" if value is None else str(value)


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _SHOWN_TEXT else text[:_SHOWN_TEXT - 1] + "…"
