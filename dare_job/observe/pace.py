"""How fast rows are finished, and when the last one will be. Pure: the clock is an argument."""

from bisect import bisect_right

_WINDOW_S = 120.0  # at least so much of the past counts, and half of what there is


class Pace:
    """Rows and tokens a second since a part of the work began: a wave, or all of it.

    What was there when it began counts for nothing, so that a resumed run is not taken for a fast one.
    """

    def __init__(self):
        self._noted: list[tuple[float, int, int]] = []  # (s, rows, tokens) where rows had changed
        self._before: tuple[float, float] | None = None

    def begin(self, now: float, rows: int, tokens: int) -> None:
        """A new part begins; until it has rows of its own, the pace is that of the part before."""
        if self._noted:
            self._before = self.rates(now)
        self._noted = [(now, rows, tokens)]

    def note(self, now: float, rows: int, tokens: int) -> None:
        if self._noted and rows > self._noted[-1][1]:
            self._noted.append((now, rows, tokens))

    def rates(self, now: float) -> tuple[float, float] | None:
        """Rows and tokens a second lately; None where nothing was finished yet."""
        if len(self._noted) < 2:
            return self._before
        back = max(_WINDOW_S, (now - self._noted[0][0]) / 2)
        start = max(0, bisect_right(self._noted, (now - back, float("inf"), 0)) - 1)
        start = min(start, len(self._noted) - 2)
        began, rows, tokens = self._noted[start]
        _, last_rows, last_tokens = self._noted[-1]
        seconds = max(1e-9, now - began)
        return (last_rows - rows) / seconds, (last_tokens - tokens) / seconds

    def left_s(self, now: float, rows: int) -> float | None:
        """Seconds for ``rows`` more at this pace."""
        rates = self.rates(now)
        return rows / rates[0] if rates and rates[0] else None
