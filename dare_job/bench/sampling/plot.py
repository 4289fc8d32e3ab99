"""Acceptance on the first level by number of candidates, before and after distillation, as an SVG."""

from collections.abc import Sequence

from dare_job.report.panels import Line, Panel, document

_COLOURS = ("#1f6fb2", "#2b8a3e", "#b2551f", "#7a3fa0", "#555555", "#b0263a")
_TITLES = {"after": "distilled on the target's own texts", "before": "before distillation"}


def draw(acceptance: Sequence[dict]) -> str:
    """Of the bench's lines ``acceptance``: a panel for each draft model, a line for each temperature, as in
    figures 3 and 5 of MCSD (arXiv 2401.06706), whose panels are of two draft models.
    """
    warm = list(dict.fromkeys(one["temperature"] for one in acceptance))
    panels = []
    for drafter, title in _TITLES.items():
        lines = []
        for number, value in enumerate(warm):
            points = sorted((one["candidates"], one["rate"]) for one in acceptance
                            if (one["drafter"], one["temperature"]) == (drafter, value))
            lines.append(Line(f"temperature {value:g}", _COLOURS[number % len(_COLOURS)], "", points))
        panels.append(Panel(f"Acceptance rate over candidates: draft model {title}", lines, doubling=True))
    return document("How often one of k candidates is accepted, by temperature, for a draft model before and "
                    "after distillation", panels)
