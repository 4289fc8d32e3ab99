"""Warnings of a mapping that is probably wrong, by what was read with it."""

import logging
from collections.abc import Set
from datetime import UTC, datetime

from dare_job.data.input import guess, values
from dare_job.data.input.table import Table
from dare_job.observe.progress import counted

_LOG = logging.getLogger("dare_job")


def warn_of_mapping(table: Table, rows: int, oldest: int | None, newest: int | None, met: int | None) -> None:
    """Warn of no row, values that no row has, missing keys, columns left out, and times of another unit.

    Parameters
    ----------
    rows
        Those that were read, usable or not.
    oldest, newest
        Smallest and largest time of the interactions.
    met
        Bits of the values of ``where`` that a row has.
    """
    _warn_of_missing_keys(table)
    if similar := [name for name in table.left_out() if name not in table.settings.all_but]:
        _LOG.warning("%s: %s is left out, too, since a name in %s.all_but differs in case only", table.name,
                     ", ".join(similar), table.key)
    for name in table.settings.where if rows else ():
        if lacking := [values.as_text(value) for bit, (column, value) in enumerate(table.conditions)
                       if column == name and not (met or 0) >> bit & 1]:
            _LOG.warning("%s: none of the rows that were read has %s in the column %s, which %s.where names; "
                         "upper and lower case differ", table.name, ", ".join(lacking), name, table.key)
    if not rows and (table.name == "interactions" or table.settings.where):
        files = f"{table.files[0].path}{' and others' if len(table.files) > 1 else ''}" if table.files \
            else "the query"
        chosen_by = "; ".join(f"{table.key}.where: {name} is one of {', '.join(map(values.as_text, allowed))}"
                              for name, allowed in table.settings.where.items())
        _LOG.warning("%s: no row of %s is read%s", table.name, files, f" ({chosen_by})" if chosen_by else "")
    timed = table.name == "interactions" and table.column("timestamp") is not None
    if timed and oldest is not None and oldest < guess.EARLY_S:
        first, last = (datetime.fromtimestamp(time, UTC).date() for time in (oldest, newest))
        _LOG.warning("interactions: the oldest is of %s, the newest of %s (UTC): check the unit, "
                     "%s.time = %s", first, last, table.key, table.settings.time or "s")


def _warn_of_missing_keys(table: Table) -> None:
    """Warn of columns that the settings name and the first objects of all files of JSON lack."""
    if not table.may_lack_keys or table.derive:
        return
    for setting, names in (("attributes", table.attribute_names().values()),
                           ("where", table.settings.where), ("all_but", table.left_out())):
        if missing := [name for name in names if name not in table.columns]:
            _LOG.warning("%s: the first objects have no %s, which %s.%s names (keys found: %s)",
                         table.files[0].path, ", ".join(missing), table.key, setting,
                         ", ".join(table.files[0].types))


def warn_of_ratings(table: Table, ratings: Set[float]) -> None:
    """Warn of a single negative rating, such as -1, which often means that there is none."""
    negative = [rating for rating in ratings if rating < 0]
    if len(negative) == 1 and len(ratings) > 1:
        _LOG.warning("%s: %g is the only negative rating: if it stands for a missing rating, set "
                     "%s.unrated=[%g]", table.name, negative[0], table.key, negative[0])


def warn_of_headers(table: Table, lines: int, file: str | None) -> None:
    """Warn of lines that repeat the header, which are no rows."""
    if lines:
        _LOG.warning("%s: skipped %s with the names of the columns again, the first one in %s",
                     table.name, counted(lines, "line"), file)


def warn_of_encoding(table: Table, lines: int, file: str | None) -> None:
    """Warn of lines that are not of the encoding. Tables that ``derive`` makes are known to have them."""
    if lines and not table.derive:
        encoding = table.settings.encoding
        what = f"not {encoding} and lost bytes" if encoding else "not UTF-8 and read as cp1252"
        _LOG.warning("%s: %s, the first of %s: %s. If it is another encoding, name it: %s.encoding",
                     table.name, counted(lines, "line"), file, what, table.key)
