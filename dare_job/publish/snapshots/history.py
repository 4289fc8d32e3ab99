"""Lists the published dates of an output folder, one line per date."""

from datetime import date

from rich.console import Console
from rich.table import Table

from dare_job.errors import DataError
from dare_job.observe.progress import duration
from dare_job.publish.report import nights
from dare_job.publish.report.nights import Night
from dare_job.publish.snapshots import clean
from dare_job.publish.snapshots.diff import changes
from dare_job.schemas import ENTITIES
from dare_job.storage import atomic_folder
from dare_job.storage.paths import AnyPath, dated_folders, map_paths
from dare_job.workspace import Workspace, generation_started

_NAMED = 2  # changed settings named in the table; if there are more, their number is shown


def history(out: AnyPath, last: int | None = None) -> list[dict]:
    """Statistics of each date that is published or started, ascending; ``last``: only the newest ones.

    ``status`` is "published", or says what is missing. Values that a manifest lacks are None. ``changes`` are
    those since the date before.

    Raises
    ------
    DataError
        No date is published or started.
    """
    atomic_folder.recover(out)
    begun = dated_folders(*(out / "knowledge" / f"entity={entity}" for entity in ENTITIES))
    names = {path.name[3:] for path in begun}
    names |= {work.name[3:] for work in dated_folders(out / "_work") if generation_started(work)
              and not clean.is_hidden(Workspace(out, date.fromisoformat(work.name[3:])))}
    if not names:
        raise DataError(f"{out} has no published text; name the output folder of a run: --out FOLDER")
    rows, before = [], None
    folders = [nights.folder(out, ENTITIES[0], dt) for dt in sorted(names)]
    for night, status in map_paths(lambda folder: nights.read_any(out, folder.name[3:]), folders):
        rows.append({"date": night.dt, "status": status, **_figures(night),
                     "changes": _changes(before, night.manifests)})
        before = night.manifests or before
    return rows[-last:] if last else rows


def print_history(rows: list[dict], console: Console) -> None:
    """Print the statistics as a table."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("date", "rows", "written", "backlog", "errors", "accepted", "tokens/s", "speed-up",
                 "duration"):
        table.add_column(name, justify="left" if name == "date" else "right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        notes = ([] if row["status"] == "published" else [row["status"]]) + _words(row["changes"])
        seconds = row["seconds"]
        table.add_row(row["date"], _number(row["rows"]), _number(row["written"]),
                      _number(row["backlog"]), _number(row["errors"]),
                      _number(row["accepted_per_step"], 2), _number(row["tokens_per_s"]),
                      _number(row["ratio"], 2), "" if seconds is None else duration(seconds),
                      "; ".join(notes))
    console.print(table)
    console.print("[dim]backlog: changed rows that were not written; accepted: draft tokens per step; "
                  "tokens/s: per worker; speed-up: over autoregressive "
                  "decoding in the same run; then the changes since the date before[/dim]", soft_wrap=True)


def _figures(night: Night) -> dict:
    rate = night.first("tokens_per_s")
    baseline = night.baseline_rate
    return {
        "run_id": night.first("run_id"), "published": night.first("published"),
        **{name: night.total("counts", name) for name in ("rows", "written", "carried", "errors")},
        "backlog": backlog(night.manifests),
        **{name: night.total("totals", name) for name in ("tokens", "relaxed_tokens")},
        "accepted_per_step": _rounded(night.share("accepted_tokens", "target_steps"), 4),
        "tokens_per_s": rate, "baseline_tokens_per_s": baseline,
        "ratio": _rounded(rate / baseline if rate and baseline else None, 4),
        "seconds": _rounded(night.stages_s, 1)}


def backlog(manifests: dict) -> int | None:
    """Changed rows of a date that were carried over; None for a date of an earlier version."""
    records = [manifest["refresh"]["carried"] for manifest in manifests.values() if "refresh" in manifest]
    return sum(sum(record.values()) for record in records) if records else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _changes(before: dict | None, manifests: dict) -> list[str]:
    """The changes as text, without repeating those that both entity types share."""
    shared = [entity for entity in manifests if before and entity in before]
    changed = [change for entity in shared for change in changes(before[entity], manifests[entity])]
    return list(dict.fromkeys(str(change) for change in changed))


def _words(changes: list[str]) -> list[str]:
    """What changed: the model, tokenizer and prompts, then the keys of settings or their number."""
    names = [change.partition(":")[0] for change in changes]
    settings = [name for name in names if "." in name]
    if len(settings) > _NAMED:
        names = [name for name in names if "." not in name] + [f"{len(settings)} settings"]
    return [f"new {name}" for name in names]


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
