"""Renders the report from its templates. The template engine escapes all text of the data."""

from collections import Counter
from functools import cache
from pathlib import Path

import jinja2
import pyarrow as pa
from rich.filesize import decimal

from dare_job import workspace
from dare_job.publish.gate.findings import OF_LENGTHS
from dare_job.publish.loss import limits
from dare_job.publish.report import (
    carried,
    cost,
    format,
    highlights,
    lengths,
    nights,
    sample,
    show_text,
    svg,
    timeline,
)
from dare_job.publish.report.collect import MIN_STEPS, Collected, collect
from dare_job.publish.report.nights import MEASURES, Night
from dare_job.schemas import ENTITIES, ROUTES
from dare_job.storage import atomic_folder
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

ERRORS = 10  # most common errors of each entity type
POOLS = 10  # pools with the lowest acceptance
LISTED = 10  # rows of a table of single rows
_MIN_TEXTS = 5  # pools of fewer texts are not listed
_NEAR = 0.8  # of a gate's limit
_BATCH = 1 << 18


@cache
def _environment() -> jinja2.Environment:
    """The template engine of the report's pages, which escapes all text of the data."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=format.count, rate=format.rate, share=format.share, seconds=format.seconds,
        milliseconds=format.milliseconds, money=format.money, times=format.times)
    return environment


def render_template(name: str, **values) -> str:
    """A page of templates/ as HTML."""
    return _environment().get_template(name).render(values)


def render(out: AnyPath, dt: str) -> str:
    """Return the page of a published date as HTML.

    Raises
    ------
    DataError
        As ``nights.read``.
    """
    night, before = nights.read(out, dt), nights.earlier(out, dt)
    collected = [collect(nights.folder(out, entity, dt), entity, dt) for entity in ENTITIES]
    gates, unusual = gate_rows(night), nights.unusual(night, before)
    points = highlights.points(night, before, collected, gates, unusual)
    slowest = [row for part in collected for row in part.slowest.rows()]
    worst = [row for part in collected for row in part.worst.rows()]
    next_date = next((date for date in nights.dates(out) if date > dt), None)
    shown_dates = [next_date, *(each.dt for each in before)]
    shown = sample.choose(out, night, collected)
    return render_template(
        "page.html", shown=shown, sample_words=sample.summary(shown), timeline=timeline.of(night),
        time_shares=cost.time_shares(night.worker_s, sum((part.times for part in collected), Counter())),
        lengths=lengths.of(out, night, before[-1] if before else None, collected), money=cost.of(night),
        carried_over=carried.of(night), losses=_losses(night),
        baseline_method=cost.baseline_method(night.baseline or {}),
        night=night, before=before, next_date=next_date, collected=collected, gates=gates, points=points,
        linked={date for date in shown_dates if date and workspace.report_page(out, date).exists()},
        status=_status(points), without_text=sum(part.written[None] for part in collected),
        cost_chart=_cost_chart(night), measures=_measures(night, before, unusual),
        min_dates=nights.MIN_DATES, drafts=_drafts(collected), pools=_pools(collected),
        routes=route_rows(out, dt), pool_kinds=_pool_kinds(night), waves=_waves(night),
        errors=_errors(collected), min_steps=MIN_STEPS, written=_written(collected, dt),
        slowest=sorted(slowest, key=lambda row: -row["decode_ms"])[:LISTED],
        worst=sorted(worst, key=lambda row: row["accepted_tokens"] / row["target_steps"])[:LISTED],
        examples=show_text.choose(out, dt, collected), run=_run(night))


def gate_rows(night: Night) -> list[dict]:
    """One row per entity type and check: ``entity, check, value, limit, result, ids, more``.

    Parameters
    ----------
    result
        Failed | near (passed, but above 80 % of the limit) | passed | not checked | off.
    """
    return [{"entity": entity, "check": check, **_gate(check, finding)}
            for entity, manifest in night.manifests.items()
            for check, finding in manifest.get("gates", {}).items()]


def _gate(check: str, finding: dict) -> dict:
    value, limit, is_share = finding["value"], finding["limit"], check not in OF_LENGTHS
    result = "passed"
    if finding["failed"]:
        result = "failed"
    elif limit is None or value is None:
        result = "off" if limit is None else "not checked"
    elif is_share and value > _NEAR * limit:
        result = "near"
    shown = format.share if is_share else format.rate
    more = f"{finding['rows']:,} of {finding['of']:,} rows"
    return {"value": shown(value), "limit": shown(limit), "result": result, "ids": finding["first"],
            "more": ", ".join(filter(None, [more, finding["why"]]))}


def route_rows(out: AnyPath, dt: str) -> list[dict]:
    """``entity, kind, reason, rows, share``, most rows first; empty if the working files are gone."""
    folder, chosen = atomic_folder.current(out / "_work" / f"dt={dt}" / "route"), []
    for entity in ENTITIES:
        counts, table = Counter(), published.dataset(folder / f"entity={entity}", ROUTES)
        for batch in table.to_batches(columns=["pool_kind", "reason"], batch_size=_BATCH, batch_readahead=2):
            pairs = pa.table(batch).group_by(["pool_kind", "reason"]).aggregate([([], "count_all")])
            counts.update({(row["pool_kind"], row["reason"]): row["count_all"] for row in pairs.to_pylist()})
        chosen += [{"entity": entity, "kind": kind, "reason": reason, "rows": rows,
                    "share": rows / counts.total()} for (kind, reason), rows in counts.most_common()]
    return chosen


def _status(points: list[highlights.Point]) -> dict:
    level = points[0].level if points and points[0].level != "note" else "good"
    messages = {"bad": "Published with faults", "warn": "Published with warnings",
                "good": "Published, nothing unusual"}
    return {"level": level, "message": messages[level]}


def _cost_chart(night: Night):
    ours, autoregressive = night.worker_s, night.autoregressive_s
    return svg.against(ours, autoregressive) if ours and autoregressive else None


def _measures(night: Night, before: list[Night], unusual: list[nights.Unusual]) -> dict[str, dict]:
    """By name: ``title``, whether ``unusual``, the values by date as text (``shown``) and as a ``chart``."""
    nights_shown, names, measures = [*before, night], {value.measure.name for value in unusual}, {}
    for measure in MEASURES:
        values = [measure.of(each) for each in nights_shown]
        shown = [measure.format(value) for value in values]
        measures[measure.name] = {
            "title": measure.title, "unusual": measure.name in names, "shown": shown,
            "chart": svg.nights(measure.title, [each.dt for each in nights_shown], values, shown)}
    return measures


def _drafts(collected: list[Collected]) -> list[dict]:
    """The kinds of pools, each with its charts; charts of one sort share an axis."""
    kinds = [kind for part in collected for kind in part.kinds()]
    longest = svg.longest_shown([kind.accepted for kind in kinds])
    span = svg.latency_span([kind.latency for kind in kinds])
    return [{
        "kind": kind,
        "accepted_chart": svg.accepted(kind.accepted, longest) if kind.accepted.total else None,
        "latency_chart": svg.latency(kind.latency, span) if kind.latency.total else None,
    } for kind in kinds]


def _pools(collected: list[Collected]) -> list[dict]:
    """Pools with the fewest accepted tokens per step, lowest first."""
    pools = [{"entity": part.entity, **pool, "accepted": pool["accepted_tokens"] / pool["target_steps"],
              "milliseconds": pool["decode_ms"] / pool["texts"] if pool["decode_ms"] else None}
             for part in collected for pool in part.pools()
             if pool["target_steps"] and pool["texts"] >= _MIN_TEXTS]
    return sorted(pools, key=lambda pool: (pool["accepted"], pool["pool"]))[:POOLS]


def _pool_kinds(night: Night) -> list[dict]:
    return [{"entity": entity, "kind": kind, "rows": rows} for entity, manifest in night.manifests.items()
            for kind, rows in sorted(manifest.get("pool_kinds", {}).items(), key=lambda pair: -pair[1])]


def _errors(collected: list[Collected]) -> list[dict]:
    return [{"entity": part.entity, **reason}
            for part in collected for reason in part.reasons.most_common(ERRORS)]


def _waves(night: Night) -> list[dict]:
    return [{"entity": entity, "number": number, "rows": wave.get("rows"), "tokens": wave.get("tokens"),
             "accepted": wave.get("accepted_per_step"), "rate": wave.get("tokens_per_s")}
            for entity, manifest in night.manifests.items()
            for number, wave in enumerate(manifest.get("waves") or [], start=1)]


def _losses(night: Night) -> list[dict]:
    """``measure, mean, bound, limit`` of each measure of the loss, as text; empty if none was measured.

    The AUC loss is that of the curve by which the verification was chosen, if it has one.
    """
    loss, choice = night.first("loss"), night.first("choice") or {}
    if not loss:
        return []
    measured = [(title, loss[name], loss["limits"].get(name)) for name, title in limits.MEASURES.items()]
    measured += [(f"AUC loss of {model}, by the curve of {choice['curve_date']}", found, None)
                 for model, found in choice.get("auc", {}).items()]
    return [{"measure": title, **{name: "–" if value is None else f"{value:.4f}" for name, value in (
        ("mean", (found or {}).get("mean")), ("bound", (found or {}).get("bound")), ("limit", limit))}}
        for title, found, limit in measured]


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
        ("Files", f"{len(files)}, {decimal(sum(f.get('bytes', 0) for f in files))}" if files else None),
        ("Input", ", ".join(f"{format.count(number)} {name}" for name, number in
                            (night.first("input") or {}).items())),
        ("Rejected input rows", format.count(night.total("rejects", "broken"))),
        ("Duplicate input rows", format.count(night.total("rejects", "duplicate"))),
        ("Rows without a prompt that were not tried again",
         format.count(night.total("counts", "errors_before"))),
        ("Entities without a row", format.count(night.total("counts", "pending"))),
        ("Texts that reached their length limit", format.count(night.total("counts", "guarded"))),
    ]
    return [(name, value) for name, value in facts if value]
