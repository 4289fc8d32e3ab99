"""The report's sample: 50 texts beside their prompts, and what changed since the date before.

The rows depend only on their ids and the date. Prompts, and which checks of the quality gate a text failed,
come from the working files of the date, while these exist.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from dare_job.errors import DareJobError
from dare_job.publish.gate import findings
from dare_job.publish.report import changes, format, nights
from dare_job.publish.report.changes import Piece
from dare_job.publish.report.collect import Collected
from dare_job.publish.report.nights import Night
from dare_job.refresh.words import FAILED
from dare_job.schemas import PLAN
from dare_job.storage import atomic_folder, paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

ROWS, CARRIED = 50, 10  # rows of the sample, and how many of them are carried over, if there are enough
_ROW = ("entity_id", "knowledge", "tokens", "finish_reason", "error", "generated_dt", "prompt_sha256",
        "carried_reason")
_BEFORE = ("entity_id", "knowledge", "generated_dt", "prompt_sha256")
_REWRITTEN = 0.6  # from this share of new words on, the texts are shown one after the other
_LISTED = 8  # maximum number of new prompt entries that are listed
_SNIPPET = 160  # characters


@dataclass(frozen=True)
class Shown:
    """A row of the sample.

    Attributes
    ----------
    new
        The text was generated on this date.
    state
        What changed since the date before, in words.
    prompt
        None if the working files are gone.
    text
        Word-by-word comparison if the previous text is similar; else the text itself.
    previous
        The previous text if it differs too much to be compared word by word; else None.
    added
        Entries of the prompt that the previous prompt lacks; None if that is unknown.
    failed
        Checks of the quality gate that the text failed; None if that is unknown.
    share
        Share of new words; None if there is no previous text.
    """

    entity: str
    row: dict
    new: bool
    state: str
    prompt: list[Piece] | None
    text: list[Piece]
    previous: str | None
    added: list[str] | None
    failed: list[str] | None
    share: float | None

    @property
    def snippet(self) -> str:
        """The beginning of the text, on one line."""
        return " ".join(self.row["knowledge"][:_SNIPPET].split())


def choose(out: AnyPath, night: Night, collected: list[Collected]) -> list[Shown]:
    """The sample of a date: generated texts first, each entity type in the order of the hash."""
    wanted = [[part.sampled.rows() for part in collected], [part.carried.rows() for part in collected]]
    generated, carried = (sum(map(len, rows)) for rows in wanted)
    of_carried = min(carried, max(CARRIED, ROWS - generated))
    shown = []
    for rows, total in zip(wanted, (min(generated, ROWS - of_carried), of_carried), strict=True):
        for part, count in zip(collected, shares([len(each) for each in rows], total), strict=True):
            shown += _shown(out, night, part, rows[collected.index(part)][:count])
    return shown


def shares(available: Sequence[int], total: int) -> list[int]:
    """Divide ``total`` evenly; if one has less than an even share, the others take the rest."""
    counts = dict.fromkeys(range(len(available)), 0)
    for left, place in zip(range(len(available), 0, -1), sorted(counts, key=lambda n: available[n]),
                           strict=True):
        counts[place] = min(available[place], -(-(total - sum(counts.values())) // left))
    return [counts[place] for place in range(len(available))]


def summary(shown: list[Shown]) -> str:
    """One line about the sample."""
    new = [each for each in shown if each.new]
    words = f"{len(new)} generated in this run, {len(shown) - len(new)} carried over"
    compared = [each.share for each in new if each.share is not None]
    if compared:
        same = sum(share == 0 for share in compared)
        words += (f"; {len(compared)} of the generated texts have a previous text ({same} unchanged), with a "
                  f"median of {format.share(median(compared))} new words")
    if (failed := [each for each in new if each.failed]):
        words += f"; {len(failed)} failed a check of the quality gate"
    return words


def _shown(out: AnyPath, night: Night, part: Collected, rows: list[dict]) -> list[Shown]:
    ids = [row["entity_id"] for row in rows]
    previous = _previous_folder(out, night, part.entity)
    old = _old_rows(previous, ids)
    planned = _planned(out, night.dt, part.entity, ids)
    before = _planned(out, previous.name[3:], part.entity, ids) if previous else {}
    failed = _failed(out, night.dt, part.entity, ids)
    return [_compare(night.dt, part.entity, row, (old or {}).get(row["entity_id"]), old is not None,
                     planned.get(row["entity_id"]), before.get(row["entity_id"]),
                     failed if failed is None else failed.get(row["entity_id"], []))
            for row in published.rows_at(part.folder, [row["number"] for row in rows], _ROW)
            if row["knowledge"] is not None]


def _compare(dt: str, entity: str, row: dict, old: dict | None, has_previous: bool, planned: dict | None,
             planned_before: dict | None, failed: list[str] | None) -> Shown:
    new, text = row["generated_dt"] == dt, changes.shorten(row["knowledge"])
    prompt, prompt_before = (plan and plan["prompt"] for plan in (planned, planned_before))
    pieces = None
    if prompt is not None:
        same = [("same", changes.shorten(prompt))]
        pieces = changes.entries(prompt_before, prompt) if new and prompt_before is not None else same
    known = new and pieces is not None and prompt_before is not None
    added = list(changes.added_entries(pieces))[:_LISTED] if known else None
    common = {"entity": entity, "row": row, "new": new, "prompt": pieces, "added": added}
    if not new:
        return Shown(**common, state=_why_kept(row), text=[("same", text)], previous=None,
                     failed=None, share=None)
    if old is None or old["knowledge"] is None:
        state = "new row" if has_previous and old is None else "first text"
        return Shown(**common, state=state, text=[("same", text)], previous=None, failed=failed, share=None)
    prompt_state = "same prompt" if old["prompt_sha256"] == row["prompt_sha256"] else "changed prompt"
    if old["knowledge"] == row["knowledge"]:
        return Shown(**common, state=f"same text, {prompt_state}", text=[("same", text)], previous=None,
                     failed=failed, share=0.0)
    words = changes.words(old["knowledge"], row["knowledge"])
    share = 1.0 if words is None else changes.changed_share(words)
    alike = words is not None and share < _REWRITTEN
    return Shown(**common, state=f"{format.share(share)} new words, {prompt_state}",
                 text=words if alike else [("same", text)],
                 previous=None if alike else changes.shorten(old["knowledge"]), failed=failed, share=share)


def _why_kept(row: dict) -> str:
    reason = row["carried_reason"]
    if row["error"] and reason in (None, FAILED):
        return "previous text, because this run failed to generate a new one"
    return f"carried over ({reason or 'unchanged prompt'})"


def _previous_folder(out: AnyPath, night: Night, entity: str) -> AnyPath | None:
    """The snapshot that the date was compared with; None if there was none, or it was removed."""
    named = night.manifests.get(entity, {}).get("previous")
    if not named:
        return None
    folder = nights.folder(out, entity, named.rstrip("/").rpartition("dt=")[2])  # OUT may have been moved
    with suppress(DareJobError, OSError):
        return next((place for place in (folder, paths.path(named)) if place.is_dir()), None)
    return None


def _old_rows(folder: AnyPath | None, ids: list[str]) -> dict[str, dict] | None:
    """Previous rows by id; None if there is no previous snapshot, or it cannot be read."""
    with suppress(DareJobError, OSError, pa.ArrowException):
        return folder and published.rows_by_id(folder, ids, _BEFORE)
    return None


def _planned(out: AnyPath, dt: str, entity: str, ids: list[str]) -> dict[str, dict]:
    """``prompt`` by id, while the working files of the date exist."""
    folder = atomic_folder.current(out / "_work" / f"dt={dt}" / "plan") / f"entity={entity}"
    with suppress(OSError, pa.ArrowException):
        return published.rows_by_id(folder, ids, ("entity_id", "prompt"), PLAN)
    return {}


def _failed(out: AnyPath, dt: str, entity: str, ids: list[str]) -> dict[str, list[str]] | None:
    """The checks that each text failed; None if the working files are gone."""
    file = atomic_folder.current(out / "_work" / f"dt={dt}" / "gate") / findings.NAME
    if not file.exists():
        return None
    chosen = (pc.field("entity") == entity) & pc.field("entity_id").isin(pa.array(ids, pa.string()))
    table = published.dataset_of_files([file], findings.ROWS).to_table(
        columns=["entity_id", "check"], filter=chosen)
    failed: dict[str, list[str]] = {}
    for row in table.to_pylist():
        failed.setdefault(row["entity_id"], []).append(row["check"])
    return failed
