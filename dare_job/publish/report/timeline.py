"""When the stages of a date ran, and when each worker decoded, as one chart over wall-clock time.

A date can take several commands (a run was killed and started again). The axis leaves out the times at which
no stage ran, and marks them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from dare_job.publish.report import format, svg
from dare_job.publish.report.nights import Night

MAX_WORKERS = 24  # rows of the chart
_WIDTH, _LABEL, _FIGURE, _ROW = 860, 150, 76, 17
_PAUSE_S = 60.0  # shorter times without a stage are not left out
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800)

Span = tuple[float, float]  # start and end, seconds since 1970


@dataclass(frozen=True)
class Timeline:
    """The chart and what it shows.

    Attributes
    ----------
    began, ended
        Times in UTC.
    pauses
        Times between commands that are left out.
    workers, shown_workers
        Number of workers that decoded, and number of workers in the chart.
    decoding_share
        Share of the wall-clock time of the stage generate in which a worker decoded, on average.
    """

    chart: Markup
    began: str
    ended: str
    pauses: int
    workers: int
    shown_workers: int
    decoding_share: float | None


class Axis:
    """Maps times to places: consecutive segments in which a stage ran, without the pauses between them."""

    def __init__(self, spans: Sequence[Span]):
        self.segments: list[list[float]] = []
        for start, end in sorted(spans):
            if self.segments and start - self.segments[-1][1] <= _PAUSE_S:
                self.segments[-1][1] = max(self.segments[-1][1], end)
            else:
                self.segments.append([start, end])
        self.total_s = sum(end - start for start, end in self.segments) or 1.0

    def elapsed(self, time: float) -> float:
        """Seconds of all segments before a time."""
        return sum(min(max(time - start, 0.0), end - start) for start, end in self.segments)

    def x(self, time: float) -> float:
        """Place of a time, in the chart's units from its left edge."""
        return _LABEL + self.elapsed(time) / self.total_s * (_WIDTH - _LABEL - _FIGURE)

    @property
    def cuts(self) -> list[float]:
        """Places of the pauses."""
        return [self.x(start) for start, _ in self.segments[1:]]


def of(night: Night) -> Timeline | None:
    """The timeline of a date; None if the version that published it recorded no times."""
    stages = night.first("stages")
    if not stages:
        return None
    axis = Axis([(span["start"], span["end"]) for span in stages])
    workers = _shown_workers((night.first("workers") or {}).get("spans") or {})
    rows = [*_stage_rows(axis, stages, night.first("baseline_span")), *_worker_rows(axis, stages, workers)]
    number = len((night.first("workers") or {}).get("spans") or {})
    decoding_share = night.worker_s / night.allocated_s if night.worker_s and night.allocated_s else None
    return Timeline(_chart(axis, rows), _clock(axis.segments[0][0]), _clock(axis.segments[-1][1]),
                    len(axis.segments) - 1, number, len(workers), decoding_share)


def _shown_workers(spans: dict[str, list]) -> dict[str, list]:
    """At most MAX_WORKERS, from the one that decoded longest to the one that decoded least."""
    ranked = sorted(spans, key=lambda worker: -sum(span[1] - span[0] for span in spans[worker]))
    if len(ranked) > MAX_WORKERS:
        ranked = [ranked[n * (len(ranked) - 1) // (MAX_WORKERS - 1)] for n in range(MAX_WORKERS)]
    return {worker: spans[worker] for worker in ranked}


@dataclass(frozen=True)
class _Row:
    label: str
    figure: str
    tracks: list[Markup]  # light bars in the background
    bars: list[Markup]


def _stage_rows(axis: Axis, stages: list[dict], baseline: list | None) -> list[_Row]:
    rows = []
    for stage in dict.fromkeys(span["stage"] for span in stages):
        spans = [(span["start"], span["end"]) for span in stages if span["stage"] == stage]
        rows.append(_row(axis, stage, spans, "current"))
        if stage == "generate" and baseline and any(_inside(baseline, span) for span in spans):
            rows.append(_row(axis, "  baseline", [tuple(baseline)], "past"))
    return rows


def _worker_rows(axis: Axis, stages: list[dict], workers: dict[str, list]) -> list[_Row]:
    allocated = [(span["start"], span["end"]) for span in stages if span["stage"] == "generate"]
    allocated_s = sum(end - start for start, end in allocated)
    rows = []
    for worker, spans in workers.items():
        spans = [span for span in spans if any(_inside(span, span_allocated) for span_allocated in allocated)]
        decoding_s = sum(span[1] - span[0] for span in spans)
        bars = [_bar(axis, span[:2], "bar", f"{worker}: shard {span[2]}, wave {span[3]}") for span in spans]
        tracks = [_bar(axis, span, "track", f"{worker}: not decoding") for span in allocated]
        figure = f"{format.share(decoding_s / allocated_s)} decoding" if allocated_s else ""
        rows.append(_Row(_short(worker), figure, tracks, bars))
    return rows


def _inside(span: Sequence[float], other: Span) -> bool:
    return span[0] < other[1] and span[1] > other[0]


def _row(axis: Axis, label: str, spans: list[Span], name: str) -> _Row:
    return _Row(label, format.seconds(sum(end - start for start, end in spans)), [],
                [_bar(axis, span, name, label.strip()) for span in spans])


def _bar(axis: Axis, span: Sequence[float], name: str, label: str) -> Markup:
    """A bar on the line y = 0 of its row, with a tooltip."""
    x = axis.x(span[0])
    return svg.rect(x, 3, max(axis.x(span[1]) - x - 0.7, 0.8), _ROW - 5, name,
                    f"{label}, {format.seconds(span[1] - span[0])} from {_clock(span[0])}")


def _chart(axis: Axis, rows: list[_Row]) -> Markup:
    height = _ROW * len(rows) + 24
    base = _ROW * len(rows) + 4
    step = next((step for step in _STEPS_S if axis.total_s / step <= 8), _STEPS_S[-1])
    parts = []
    for n in range(int(axis.total_s // step) + 1):
        x = _LABEL + n * step / axis.total_s * (_WIDTH - _LABEL - _FIGURE)
        parts += [svg.line(x, 0, x, base, "axis"),
                  svg.text(x, base + 14, format.seconds(n * step), "tick")]
    parts += [svg.line(x, 0, x, base, "mark high") for x in axis.cuts]
    for n, row in enumerate(rows):
        content = [svg.text(_LABEL - 8, _ROW - 5, row.label, "", "end"), *row.tracks, *row.bars,
                   svg.text(_WIDTH, _ROW - 5, row.figure, "tick", "end")]
        parts.append(svg.moved(0, n * _ROW, content))
    described = ", ".join(f"{row.label.strip()} {row.figure}" for row in rows)
    return svg.svg(_WIDTH, height, f"Timeline of stages and workers: {described}", parts, "timeline")


def _short(worker: str) -> str:
    return worker if len(worker) <= 20 else f"…{worker[-19:]}"


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
