"""Rates and optima over temperatures, and over numbers of candidates, as an SVG document without scripts."""

from collections.abc import Sequence

from dare_job.report.panels import Line, Panel, document

SHOWN = (("iid", "rrs"), ("iid", "k_seq"), ("iid", "priority"), ("without_replacement", "rrs"),
         ("greedy", "greedy"))
_COLOURS = {"iid": "#b2551f", "without_replacement": "#1f6fb2", "greedy": "#2b8a3e"}
_DASHES = {"rrs": "6 3", "k_seq": "2 3", "priority": "8 3 2 3", "greedy": ""}


def draw(rows: Sequence[dict]) -> str | None:
    """Of the command's ``rows``, a panel where one number of candidates has several temperatures, or one
    temperature several numbers; None where there is nothing to draw.
    """
    panels = []
    for fixed, moving, title in (("drafts", "temperature", "{:g} candidates, over temperatures"),
                                 ("temperature", "drafts", "temperature {:g}, over candidates")):
        for value in dict.fromkeys(row[fixed] for row in rows):
            some = [row for row in rows if row[fixed] == value]
            if len({row[moving] for row in some}) > 1:
                panels.append(Panel("Acceptance rate: " + title.format(value), _lines(some, moving)))
    if not panels:
        return None
    return document("Acceptance rates of verification rules beside the optima of their draft laws", panels)


def _lines(rows: Sequence[dict], moving: str) -> list[Line]:
    """Optima with whole lines and rates of their rules with broken ones, in the law's colour."""
    found = []
    for law, colour in _COLOURS.items():
        best = sorted({(row[moving], row["optimum"]) for row in rows if row["law"] == law})
        found.append(Line(f"{law}: optimum", colour, "", best))
        for other, rule in SHOWN:
            points = sorted((row[moving], row["rate"]) for row in rows
                            if (row["law"], row["verifier"]) == (law, rule))
            if other == law != rule and points:  # the greedy rule is the optimum of its law
                found.append(Line(f"{law}: {rule}", colour, _DASHES[rule], points))
    return [one for one in found if one.points]
