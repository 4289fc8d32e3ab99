"""Renders the report from its templates. The template engine escapes all text of the data."""

from functools import cache

import jinja2

from dare_job import workspace
from dare_job.publish.report import format, highlights, nights, sections, svg, texts
from dare_job.publish.report.collect import MIN_STEPS, Collected, Kind, collect
from dare_job.publish.report.nights import MEASURES, Night
from dare_job.schemas import ENTITIES
from dare_job.storage.paths import AnyPath

ERRORS = 10  # most common errors of each entity type
POOLS = 10  # pools with the lowest acceptance
LISTED = 10  # rows of a table of single rows
_MIN_TEXTS = 5  # pools of fewer texts are not listed


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dare_job.publish.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=format.count, rate=format.rate, times=format.times, share=format.share, seconds=format.seconds,
        milliseconds=format.milliseconds, size=format.size)
    return environment


def render(out: AnyPath, dt: str) -> str:
    """Return the page of a published date as HTML. Raises DataError if the date is not published."""
    night, before = nights.read(out, dt), nights.earlier(out, dt)
    collected = [collect(nights.folder(out, entity, dt), entity, dt) for entity in ENTITIES]
    checks = sections.rows(night)
    points = highlights.points(night, before, collected, checks)
    return _environment().get_template("page.html").render(
        night=night, before=before, collected=collected, gates=checks, points=points,
        status=_status(points), tiles=_tiles(night, before, collected), cost=_cost(night),
        week=_week(out, night, before), links=_neighbours(out, dt), drafts=_drafts(collected),
        pools=_pools(collected), routes=_routes(out, dt, night), errors=_errors(collected),
        waves=_waves(night),
        slowest=_listed(collected, "slowest"), worst=_listed(collected, "worst"), min_steps=MIN_STEPS,
        written=_written(collected, dt), passages=texts.choose(out, dt, collected), run=_run(night))


def _status(points: list[highlights.Point]) -> dict:
    urgent = [point for point in points if point.level != "note"]
    level = urgent[0].level if urgent else "good"
    messages = {"bad": "Published with faults", "warn": "Published with warnings",
                "good": "Published, nothing unusual"}
    return {"level": level, "message": messages[level]}


def _tiles(night: Night, before: list[Night], collected: list[Collected]) -> dict:
    measures = {measure.name: measure for measure in MEASURES}
    rows = sum(part.rows for part in collected)
    failed = sum(part.reasons.rows for part in collected)
    return {
        "rows": rows, "failed": failed, "failed_share": failed / rows if rows else None,
        "fresh": sum(part.fresh for part in collected), "carried": night.total("counts", "carried"),
        "without": sum(part.written[None] for part in collected),
        "accepted": night.share("accepted_tokens", "target_steps"), "length": measures["length"].of(night),
        "charts": {name: _chart(measures[name], night, before)
                   for name in ("rows", "errors", "speedup", "accepted")},
    }


def _chart(measure: nights.Measure, night: Night, before: list[Night]):
    every = [*before, night]
    values = [measure.of(each) for each in every]
    shown = [format.of_kind(measure.kind, value) for value in values]
    return svg.nights(measure.title, [each.dt for each in every], values, shown)


def _cost(night: Night) -> dict:
    ours, autoregressive = night.worker_s, night.autoregressive_s
    chart = svg.against(ours, autoregressive) if ours and autoregressive else None
    saved = autoregressive - ours if ours is not None and autoregressive is not None else None
    return {"chart": chart, "ours": ours, "autoregressive": autoregressive, "saved": saved,
            "speedup": night.speedup,
            "baseline": night.baseline or {}, "rate": night.first("tokens_per_s"),
            "tokens": night.total("totals", "tokens"), "written": night.total("counts", "written")}


def _week(out: AnyPath, night: Night, before: list[Night]) -> dict:
    unusual = {value.measure.name for value in nights.unusual(night, before)}
    rows = [{"title": measure.title, "name": measure.name, "unusual": measure.name in unusual,
             "chart": _chart(measure, night, before),
             "shown": [format.of_kind(measure.kind, measure.of(value)) for value in (*before, night)]}
            for measure in MEASURES]
    dates = [{"dt": date.dt, "href": _href(out, date.dt)} for date in before]
    dates.append({"dt": night.dt, "href": None})
    return {"rows": rows, "dates": dates, "comparable": len(before) >= nights.MIN_DATES,
            "needed": nights.MIN_DATES}


def _href(out: AnyPath, dt: str) -> str | None:
    """Relative link to the report of another date; None if it does not exist."""
    return f"../dt={dt}/index.html" if workspace.report_page(out, dt).exists() else None


def _neighbours(out: AnyPath, dt: str) -> dict:
    dates = nights.dates(out)
    earlier, later = ([date for date in dates if date < dt][-1:], [date for date in dates if date > dt][:1])
    return {name: {"dt": night[0], "href": _href(out, night[0])} if night else None
            for name, night in (("earlier", earlier), ("later", later))}


def _drafts(collected: list[Collected]) -> list[dict]:
    kinds = [kind for part in collected for kind in part.kinds]
    longest = svg.longest_shown([kind.accepted for kind in kinds])
    span = svg.latency_span([kind.latency for kind in kinds])
    return [_draft(kind, longest, span) for kind in kinds]


def _draft(kind: Kind, longest: int, span: tuple[int, int]) -> dict:
    return {
        "entity": kind.entity, "kind": kind.name, "texts": kind.texts, "steps": kind.accepted.total,
        "mean": kind.accepted.mean(),
        "accepted": [kind.accepted.quantile(share) for share in (0.5, 0.9)],
        "accepted_chart": svg.accepted(kind.accepted, longest) if kind.accepted.total else None,
        "latency": [kind.latency.quantile(share) for share in (0.5, 0.9, 0.99)],
        "latency_chart": svg.latency(kind.latency, span) if kind.latency.total else None,
    }


def _pools(collected: list[Collected]) -> list[dict]:
    """Pools with the fewest accepted tokens per step, lowest first."""
    pools = [{"entity": part.entity, **pool, "accepted": pool["accepted_tokens"] / pool["target_steps"],
              "milliseconds": pool["decode_ms"] / pool["texts"] if pool["decode_ms"] else None}
             for part in collected for pool in part.pools
             if pool["target_steps"] and pool["texts"] >= _MIN_TEXTS]
    return sorted(pools, key=lambda pool: (pool["accepted"], pool["pool"]))[:POOLS]


def _routes(out: AnyPath, dt: str, night: Night) -> dict:
    routes = sections.read(out, dt)
    every = [{"entity": entity, "kind": kind, "reason": reason, "rows": rows,
              "share": rows / counts.total()}
             for entity, counts in routes.items() for (kind, reason), rows in counts.most_common()]
    drafted = [{"entity": entity, "kind": kind, "rows": rows}
               for entity, manifest in night.manifests.items()
               for kind, rows in sorted(manifest.get("pool_kinds", {}).items(), key=lambda pair: -pair[1])]
    return {"chosen": every, "drafted": drafted}


def _errors(collected: list[Collected]) -> list[dict]:
    return [{"entity": part.entity, "distinct": len(part.reasons), **reason}
            for part in collected for reason in part.reasons.most_common(ERRORS)]


def _waves(night: Night) -> list[dict]:
    return [{"entity": entity, "number": number, "rows": wave.get("rows"), "tokens": wave.get("tokens"),
             "accepted": wave.get("accepted_per_step"), "rate": wave.get("tokens_per_s")}
            for entity, manifest in night.manifests.items()
            for number, wave in enumerate(manifest.get("waves") or [], start=1)]


def _listed(collected: list[Collected], name: str) -> list[dict]:
    key = {"slowest": lambda row: -row["decode_ms"],
           "worst": lambda row: row["accepted_tokens"] / row["target_steps"]}[name]
    rows = [{"entity": part.entity, **row} for part in collected for row in getattr(part, name)]
    return sorted(rows, key=key)[:LISTED]


def _written(collected: list[Collected], dt: str) -> list[dict]:
    """Rows by the date on which their text was generated, newest first; the oldest dates share a row."""
    dates = sorted({date for part in collected for date in part.written if date}, reverse=True)
    groups = [(date, {date}) for date in dates[:nights.EARLIER_DATES + 1]]
    if dates[nights.EARLIER_DATES + 1:]:
        groups.append((f"before {groups[-1][0]}", set(dates[nights.EARLIER_DATES + 1:])))
    groups.append(("no text", {None}))
    rows = sum(part.rows for part in collected) or 1
    by_date = [{"date": "this run" if name == dt else name,
              "rows": [sum(part.written[date] for date in members) for part in collected]}
             for name, members in groups]
    return [entry | {"share": sum(entry["rows"]) / rows} for entry in by_date if sum(entry["rows"])]


def _target(night: Night) -> str | None:
    """The verification that verify.target chose, and why."""
    choice = night.first("choice")
    return choice and f"{choice['target']}: {choice['why']}"


def _run(night: Night) -> list[tuple[str, str]]:
    """Names and values that describe the run; those that the manifests lack are left out."""
    model = night.first("model") or {}
    files = [file for manifest in night.manifests.values() for file in (manifest.get("files") or {}).values()]
    facts = [
        ("Run", ", ".join(sorted({str(m.get("run_id")) for m in night.manifests.values()}))),
        ("Model", " ".join(str(model[name]) for name in ("name", "revision", "dtype") if model.get(name))),
        ("Model hash", model.get("hash")), ("Decoding mode", night.first("mode")),
        ("Verification", night.first("verify")), ("Verification target", _target(night)),
        ("Hash of the settings", night.first("config")),
        ("Previous texts", ", ".join(sorted({str(m["previous"]) for m in night.manifests.values()
                                            if m.get("previous")})) or "none"),
        ("Files", f"{len(files)}, {format.size(sum(f.get('bytes', 0) for f in files))}" if files else None),
        ("Rejected input rows", format.count(night.total("rejects", "broken"))),
        ("Duplicate input rows", format.count(night.total("rejects", "duplicate"))),
        ("Entities without a row", format.count(night.total("counts", "pending"))),
        ("Texts that reached their length limit", format.count(night.total("counts", "guarded"))),
    ]
    return [(name, value) for name, value in facts if value]
