"""Compares two published dates: rows, texts, lengths, and the model, tokenizer, prompts and settings used."""

from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dare_job.config.source import flat
from dare_job.publish.report.nights import snapshot
from dare_job.publish.snapshots import compare
from dare_job.publish.snapshots.compare import side_by_side
from dare_job.schemas import ENTITIES
from dare_job.storage import atomic_folder
from dare_job.storage.paths import AnyPath
from dare_job.tables import published


@dataclass(frozen=True)
class Change:
    """``what`` was ``before`` and is ``after``; a setting's ``what`` is its key."""

    what: str
    before: object
    after: object
    setting: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {_short(self.before)} -> {_short(self.after)}"


def changes(before: dict, after: dict) -> list[Change]:
    """Differences between two manifests; settings by key if both manifests have them, else by digest."""
    pairs = [("model", _model(before), _model(after)),
             ("tokenizer", before.get("tokenizer"), after.get("tokenizer"))]
    pairs += [(f"{entity} prompt", *(changed.get("prompts", {}).get(entity) for changed in (before, after)))
              for entity in ENTITIES]
    changed = [Change(*pair) for pair in pairs if pair[1] != pair[2]]
    if "settings" in before and "settings" in after:
        then, now = dict(flat(before["settings"])), dict(flat(after["settings"]))
        keys = [key for key in sorted(then | now) if then.get(key) != now.get(key)]
        return changed + [Change(key, then.get(key), now.get(key), True) for key in keys]
    if before.get("config") != after.get("config"):
        changed.append(Change("settings (details unknown: published by an older version of dare-job)",
                            before.get("config"), after.get("config")))
    return changed


def _model(manifest: dict):
    """Name and hash, since the files of a folder may change."""
    model = manifest.get("model", {})
    return model and f"{model.get('name')} ({str(model.get('hash'))[:12]})"


def _short(value) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_COUNTS = {
    "before": "rows before", "after": "rows after", "added": "ids added", "removed": "ids removed",
    "changed": "texts changed", "same": "texts unchanged", "same_written_anew": "of these generated again",
    "text_gained": "gained a text", "text_lost": "lost their text", "errors_before": "errors before",
    "errors_after": "errors after", "errors_new": "new errors"}


def diff(out: AnyPath, before: str, after: str, examples: int = 2) -> dict:
    """Compare two dates. ``examples``: number of changed texts of each entity type to return in full.

    Raises
    ------
    DataError
        A date is not published (the message names similar dates), or a manifest is damaged.
    """
    atomic_folder.recover(out)
    result: dict = {"out": str(out), "before": before, "after": after}
    for entity in ENTITIES:
        folders = [snapshot(out, entity, dt) for dt in (before, after)]
        manifests = [published.read_manifest(folder) for folder in folders]
        rows = compare.compare(*(compare.read(folder, folder.name[3:]) for folder in folders))
        result[entity] = {
            "counts": rows.counts, "lengths": rows.lengths,
            "accepted_per_step": [manifest.get("accepted_per_step") for manifest in manifests],
            "tokens_per_s": [manifest.get("tokens_per_s") for manifest in manifests],
            "examples": _examples(folders, rows, examples)}
        result.setdefault("changes", []).extend(
            vars(change) for change in changes(*manifests) if vars(change) not in result.get("changes", []))
    return result


def print_diff(result: dict, console: Console) -> None:
    """Print the result of ``diff``."""
    console.print(Text(f"{result['before']} -> {result['after']}  {result['out']}", style="bold"))
    for change in result["changes"]:
        console.print(Text(str(Change(**change))), soft_wrap=True)
    if not result["changes"]:
        console.print("same model, tokenizer, prompts and settings")
    console.print()
    console.print(_table(result))
    for entity in ENTITIES:
        for example in result[entity]["examples"]:
            console.print()
            console.print(_example(entity, example, result, console.is_terminal))


def _examples(folders: list[AnyPath], rows: compare.Comparison, count: int) -> list[dict]:
    """Changed texts spread evenly over the hashes of the ids, so that the choice is reproducible."""
    changed = len(rows.changed)
    chosen = rows.changed[np.unique(np.linspace(0, changed - 1, min(count, changed)).astype(int))]
    texts = [published.rows_at(folder, numbers, ["entity_id", "knowledge"])
             for folder, numbers in zip(folders, chosen.T.tolist(), strict=True)]
    return [{"entity_id": old["entity_id"], "before": old["knowledge"], "after": new["knowledge"]}
            for old, new in zip(*texts, strict=True)]


def _table(result: dict) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", *(f"{entity}s" for entity in ENTITIES)):
        table.add_column(name, justify="right" if name else "left")
    sides = [result[entity] for entity in ENTITIES]
    for name, words in _COUNTS.items():
        table.add_row(words, *(f"{side['counts'][name]:,}" for side in sides))
    for name in ("mean", "median", "p95"):
        table.add_row(f"tokens per text, {name}", *(_spread(side["lengths"], name) for side in sides))
    table.add_row("changed texts: longer, shorter", *(
        f"{side['lengths']['longer']:,}, {side['lengths']['shorter']:,}" for side in sides))
    table.add_row("accepted per step", *(_pair(side["accepted_per_step"], ".2f") for side in sides))
    table.add_row("tokens/s per worker", *(_pair(side["tokens_per_s"], ".0f") for side in sides))
    return table


def _example(entity: str, example: dict, result: dict, colour: bool) -> Table:
    table = Table(title=Text(f"{entity}:{example['entity_id']}"), title_justify="left", expand=True,
                  header_style="dim", title_style="bold")
    for name in ("before", "after"):
        table.add_column(result[name], ratio=1)
    table.add_row(*side_by_side(example["before"], example["after"], colour))
    return table


def _spread(lengths: dict, name: str) -> str:
    return _pair([lengths[when] and lengths[when][name] for when in ("before", "after")], ".1f")


def _pair(values: list[float | None], form: str) -> str:
    return " -> ".join("-" if value is None else format(value, form) for value in values)
