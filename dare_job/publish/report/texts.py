"""Prints one text as it was written: the border of each decoding step, and what came from a draft.

A few of tonight's texts as they were written: what was old text, what a draft, what the model's own.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
from rich.console import Console
from rich.text import Text

from dare_job.errors import ConfigError, DareJobError, DataError
from dare_job.publish.report.collect import Collected, texts
from dare_job.schemas import ENTITIES, ROUTES
from dare_job.storage import atomic, errors, paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.workspace import MANIFEST

_NEAR = 5  # close matches named in an error

_SEARCHED = 200_000  # ids among which they are looked for


def show_text(out: str | AnyPath, name: str, dt: str | None = None, console: Console | None = None) -> None:
    """Print the text of ``user:ID`` or ``item:ID`` in the snapshot of a date (default: the newest).

    On a terminal drafted tokens are green, and old text that the prompt's forward accepted is blue; elsewhere
    they stand in brackets and in braces, and a bar ends each step.
    Raises ConfigError for a malformed name, DataError for an unknown date or id, naming close ones.
    """
    entity, colon, identifier = name.partition(":")
    if entity not in ENTITIES or not colon or not identifier:
        raise ConfigError(f"{name!r} names no text; write user:ID or item:ID")
    out = paths.path(out, "OUT")
    errors.check_access(out, "OUT")
    atomic.recover(out)
    folder = snapshot(out, entity, dt)
    row = find(folder, entity, identifier)
    print_row(out, entity, row, folder.name[3:], console or Console(highlight=False))


def snapshot(out: AnyPath, entity: str, dt: str | None) -> AnyPath:
    """Folder of a published date, None: the newest. Raises DataError naming those there are."""
    root = out / "knowledge" / f"entity={entity}"
    folders = [path for path in paths.dated_folders(root) if (path / MANIFEST).exists()]
    if not folders:
        raise DataError(f"{out} holds no published {entity} text; run `dare-job run` with --out {out} first")
    if dt is None:
        return folders[-1]
    if root / f"dt={dt}" not in folders:
        dates = [path.name[3:] for path in folders]
        near = difflib.get_close_matches(dt, dates, n=_NEAR, cutoff=0) or dates[-_NEAR:]
        raise DataError(f"{out} holds no {entity} text of {dt}; published: {', '.join(sorted(near))}")
    return root / f"dt={dt}"


def find(folder: AnyPath, entity: str, identifier: str) -> dict:
    """The row of an id. Raises DataError naming close ids."""
    table = published.dataset(folder)
    rows = table.to_table(filter=pc.field("entity_id") == identifier).to_pylist()
    if rows:
        return rows[0]
    ids = table.head(_SEARCHED, columns=["entity_id"])["entity_id"].to_pylist()
    near = difflib.get_close_matches(identifier, ids, n=_NEAR) or ids[:_NEAR]
    raise DataError(f"no {entity} {identifier!r} in {folder}; close: {', '.join(near)}")


def print_row(out: AnyPath, entity: str, row: dict, dt: str, console: Console) -> None:
    """A row's text between a heading (who, when, pool, reason) and its figures."""
    written = row["generated_dt"] or dt
    age = f", written {written}" if written != dt else ""
    console.print(Text(f"{entity}:{row['entity_id']}  {dt}{age}", style="bold"))
    if row["error"]:
        console.print(Text(f"error: {row['error']}", style="red"))
    if row["pool"]:
        reason = _reason(out, entity, row, written)
        console.print(Text(f"pool {row['pool']} ({row['pool_kind']}){reason}"), soft_wrap=True)
    if row["knowledge"] is None:
        console.print("no text")
        return
    tokenizer = tokenizer_of(out, entity, written) if row["step_tokens"] and row["token_ids"] else None
    if tokenizer:
        scored = bool(row["scored_tokens"])
        console.print(
            marked(list(decoding_steps(row, tokenizer)), scored, console.is_terminal), soft_wrap=True
        )
    else:
        console.print(Text(row["knowledge"]), soft_wrap=True)
    console.print(figures(row), soft_wrap=True)


def decoding_steps(row: dict, tokenizer) -> Iterator[tuple[str, str]]:
    """Text of each forward of the model: drafted tokens, and its own token behind them."""
    ids, position, shown = row["token_ids"], 0, ""
    for emitted in row["step_tokens"]:
        pieces = []
        for end in (position + emitted - 1, position + emitted):
            text = tokenizer.decode(ids[:end], skip_special_tokens=True).rstrip("\ufffd")
            pieces.append(text[len(shown):])
            shown = text if len(text) > len(shown) else shown
        position += emitted
        yield pieces[0], pieces[1]


def marked(parts: list[tuple[str, str]], scored: bool, colour: bool) -> Text:
    """Steps in one text: drafted tokens green and alternately underlined, or in brackets with bars.

    scored  what the first step accepted is the row's old text: blue, or in braces
    """
    text = Text()
    for number, (drafted, own) in enumerate(parts):
        old = scored and not number
        if colour:
            line = " underline" if number % 2 else ""
            text.append(drafted, style=f"{'blue' if old else 'green'}{line}").append(own, style=f"bold{line}")
        else:
            left, right = "{}" if old else "[]"
            text.append((f"{left}{drafted}{right}" if drafted else "") + own + "|")
    return text


def figures(row: dict) -> str:
    """One line: tokens, steps, old text kept, accepted a step, times."""
    if row["target_steps"] is None:
        return f"{row['tokens'] or '?'} tokens, not written by this job"
    words = [f"{row['tokens']} tokens in {row['target_steps']} steps after the prompt's"]
    if row["scored_tokens"]:
        words.append(f"{row['scored_tokens']} of old text kept by the prompt's")
    if row["target_steps"]:
        words.append(f"{row['accepted_tokens'] / row['target_steps']:.2f} accepted a step")
    if row["relaxed_tokens"]:
        words.append(f"{row['relaxed_tokens']} relaxed")
    if row["guarded_tokens"]:
        words.append(f"{row['guarded_tokens']} strict behind the length guard")
    if row["decode_ms"] is not None and row["retrieval_ms"] is not None:
        words.append(f"{row['decode_ms']:.0f} ms of which drafting {row['retrieval_ms']:.0f} ms")
    return ", ".join(words) + f", ended by {row['finish_reason']}"


def _reason(out: AnyPath, entity: str, row: dict, written: str) -> str:
    """Why the router chose the pool, where that run's work folder is still there."""
    stage = atomic.current(out / "_work" / f"dt={written}" / "route")
    routes = published.dataset(stage / f"entity={entity}", ROUTES)
    found = routes.to_table(columns=["reason"], filter=pc.field("entity_id") == row["entity_id"])
    return f": {found['reason'][0].as_py()}" if found.num_rows else ""


def tokenizer_of(out: AnyPath, entity: str, written: str):
    """Tokenizer of the model that wrote on a date, or None where its folder is gone or has changed."""
    from dare_job.models import files as models_files

    try:
        writer = published.read_manifest(out / "knowledge" / f"entity={entity}" / f"dt={written}")
        path = writer["model"]["path"]
        if models_files.tokenizer_hash(path) != writer["tokenizer"]:
            return None
        if (Path(path) / "tokenizer.json").is_file():  # ids to words needs no more, and no torch
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(path)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path)
    except (KeyError, DareJobError, OSError, ValueError):
        return None


@dataclass(frozen=True)
class Step:
    """Text of one forward of the model; ``origin`` of what it accepted: old | draft."""

    accepted: str
    own: str
    origin: str


@dataclass(frozen=True)
class Passage:
    """steps  None where they cannot be told apart: no tokenizer, or a row of an older version"""

    entity: str
    which: str  # typical | least drafted
    row: dict
    steps: list[Step] | None
    figures: str


def choose(out: AnyPath, dt: str, collected: list[Collected]) -> list[Passage]:
    """Of the rows sampled by ``collect``, for each entity type the one of median acceptance and the worst."""
    found = []
    for part in collected:
        ranked = sorted(part.sampled, key=_acceptance)
        if not ranked:
            continue
        chosen = {"typical": ranked[len(ranked) // 2], "least drafted": ranked[0]}
        if len(ranked) == 1 or chosen["typical"] is ranked[0]:
            del chosen["least drafted"]
        tokenizer = tokenizer_of(out, part.entity, dt)
        rows = texts(list(chosen.values()))
        found += [_passage(part.entity, which, row, tokenizer)
                  for which, row in zip(chosen, rows, strict=True)]
    return found


def _acceptance(row: dict) -> float:
    return (row["accepted_tokens"] or 0) / row["target_steps"] if row["target_steps"] else float("inf")


def _passage(entity: str, which: str, row: dict, tokenizer) -> Passage:
    steps = None
    if tokenizer and row["token_ids"] and row["step_tokens"]:
        old = bool(row["scored_tokens"])
        steps = [Step(accepted, own, "old" if old and not n else "draft")
                 for n, (accepted, own) in enumerate(decoding_steps(row, tokenizer))]
    return Passage(entity, which, row, steps, figures(row))
