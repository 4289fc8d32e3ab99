"""How many rows each wave of a night takes: arithmetic alone."""

from collections.abc import Sequence

_FEWEST = 8  # texts: an index of fewer drafts nothing worth a stage of its own
_FIRST_SHARE, _SHARE = 8, 2  # a wave is at most one of so many rows that wait; first: without any text


def rows_of_waves(sizes: Sequence[int], waiting: int, texts: int = 0) -> list[int]:
    """Rows of each wave before the rest; ``texts`` are there already, ``waiting`` rows are to be written.

    A wave brings the index to the next of ``sizes`` (setting ``waves.sizes``), but takes no more than its
    share of the rows that wait, as it is written with worse drafts than they. One that would not double the
    index, or would be smaller than ``_FEWEST``, is left out.
    """
    found = []
    for size in sizes:
        rows = min(size - texts, waiting // (_SHARE if texts else _FIRST_SHARE))
        if rows >= max(_FEWEST, texts):
            found.append(rows)
            texts, waiting = texts + rows, waiting - rows
    return found
