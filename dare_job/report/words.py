"""Numbers as the report writes them."""


def count(value: float | None) -> str:
    """1234567 -> 1,234,567; None: a dash."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def share(value: float | None) -> str:
    """As per cent, with the digits that a small share needs."""
    if value is None:
        return "–"
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 10 or not percent else f"{percent:.1f} %" if percent >= 0.1 \
        else f"{percent:.2g} %"


def seconds(value: float | None) -> str:
    """In the unit that fits: 0.4 s, 41 s, 12 min, 3.4 h, 5.2 days."""
    if value is None:
        return "–"
    for size, unit, upto in ((1, "s", 120), (60, "min", 120), (3600, "h", 72), (86400, "days", float("inf"))):
        scaled = value / size
        if scaled < upto:
            return f"{scaled:,.0f} {unit}" if scaled >= 10 or scaled == 0 else f"{scaled:.1f} {unit}"
    raise AssertionError


def milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g} ms" if value < 1000 else seconds(value / 1000)


def size(value: float | None) -> str:
    """Bytes, in powers of 1024."""
    if value is None:
        return "–"
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if value < 1024 or unit == units[-1]:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def of_kind(kind: str, value: float | None) -> str:
    """A measure's value; kind: count | rate | share | times."""
    return {"count": count, "rate": rate, "share": share, "times": times}[kind](value)
