"""Shows how single texts were generated: which tokens were drafted, and in which decoding step.

For ``dare-job show``; also chooses the example texts of the report.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
from rich.console import Console
from rich.text import Text

from dare_job.errors import ConfigError, DareJobError, DataError
from dare_job.observe.redact import printable
from dare_job.publish.report import nights
from dare_job.publish.report.collect import Collected
from dare_job.refresh.words import of_row
from dare_job.schemas import ENTITIES, ROUTES
from dare_job.storage import atomic_folder, errors, paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

_SUGGESTED = 5  # maximum number of similar ids in an error message
_SEARCHED = 200_000  # ids among which similar ones are searched


def show_text(out: str | AnyPath, name: str, dt: str | None = None) -> None:
    """Print the text of ``user:ID`` or ``item:ID`` in the snapshot of a date (default: the newest).

    Raises
    ------
    ConfigError
        The name is malformed.
    DataError
        The date or id is unknown; the message names similar ones.
    """
    entity, colon, identifier = name.partition(":")
    if entity not in ENTITIES or not colon or not identifier:
        raise ConfigError(f"{name!r} is not the name of a text; write user:ID or item:ID")
    out = paths.path(out, "OUT")
    errors.check_access(out, "OUT")
    atomic_folder.recover(out)
    folder = nights.snapshot(out, entity, dt)
    row = find(folder, entity, identifier)
    print_row(out, entity, row, folder.name[3:], Console(highlight=False))


def find(folder: AnyPath, entity: str, identifier: str) -> dict:
    """The row of an id.

    Raises
    ------
    DataError
        The id is unknown; the message names similar ids.
    """
    table = published.dataset(folder)
    rows = table.to_table(filter=pc.field("entity_id") == identifier).to_pylist()
    if rows:
        return rows[0]
    ids = table.head(_SEARCHED, columns=["entity_id"])["entity_id"].to_pylist()
    near = difflib.get_close_matches(identifier, ids, n=_SUGGESTED) or ids[:_SUGGESTED]
    raise DataError(f"{folder} has no {entity} {identifier!r}; similar ids: {', '.join(near)}")


def print_row(out: AnyPath, entity: str, row: dict, dt: str, console: Console) -> None:
    """Print a row: heading, pool and why it was chosen, marked text, legend, statistics."""
    written = row["generated_dt"] or dt
    age = f", generated {written}" if written != dt else ""
    console.print(Text(printable(f"{entity}:{row['entity_id']}  {dt}{age}"), style="bold"))
    if row["error"]:
        console.print(Text(printable(f"error: {row['error']}"), style="red"))
    if stale := of_row(row):
        console.print(Text(printable(stale)), soft_wrap=True)
    if row["pool"]:
        reason = _reason(out, entity, row, written)
        console.print(Text(f"drafts from {row['pool']} ({row['pool_kind']}){reason}"), soft_wrap=True)
    if row["knowledge"] is None:
        console.print("no text")
        return
    tokenizer = tokenizer_of(out, entity, written) if row["step_tokens"] and row["token_ids"] else None
    if tokenizer:
        reused = bool(row["scored_tokens"])
        steps = list(decoding_steps(row, tokenizer))
        console.print(marked(steps, reused, console.is_terminal), soft_wrap=True)
        console.print(legend(reused, console.is_terminal), soft_wrap=True)
    else:
        console.print(Text(printable(row["knowledge"])), soft_wrap=True)
    console.print(figures(row), soft_wrap=True)


def decoding_steps(row: dict, tokenizer) -> Iterator[tuple[str, str]]:
    """For each decoding step, the text of the accepted draft tokens and that of the model's own token."""
    ids, position, shown = row["token_ids"], 0, ""
    for emitted in row["step_tokens"]:
        pieces = []
        for end in (position + emitted - 1, position + emitted):
            text = tokenizer.decode(ids[:end], skip_special_tokens=True).rstrip("\ufffd")
            pieces.append(text[len(shown):])
            shown = text if len(text) > len(shown) else shown
        position += emitted
        yield printable(pieces[0]), printable(pieces[1])


def marked(steps: list[tuple[str, str]], reused: bool, colour: bool) -> Text:
    """The steps as one text with the marks that ``legend`` explains.

    Parameters
    ----------
    reused
        The tokens that the first step accepted are reused from the row's previous text.
    """
    text = Text()
    for number, (drafted, own) in enumerate(steps):
        from_previous = reused and not number
        if colour:
            line = " underline" if number % 2 else ""
            text.append(drafted, style=f"{'blue' if from_previous else 'green'}{line}")
            text.append(own, style=f"bold{line}")
        else:
            left, right = "{}" if from_previous else "[]"
            text.append((f"{left}{drafted}{right}" if drafted else "") + own + "|")
    return text


def legend(reused: bool, colour: bool) -> Text:
    """Explain the marks of ``marked``; ``reused``: the text has tokens of its previous version."""
    if not colour:
        return Text(("{reused from the previous text} " if reused else "") +
                    "[accepted draft tokens] the model's own token | end of a decoding step")
    text = Text("reused from the previous text", style="blue").append("  ") if reused else Text()
    return text.append("accepted draft tokens", style="green").append("  ").append(
        "the model's own tokens", style="bold").append(
        "  Each decoding step ends with one of these; every second step is underlined.", style="dim")


def figures(row: dict) -> str:
    """One line of statistics: tokens, decoding steps, reused and accepted tokens, times."""
    if row["target_steps"] is None:
        return f"{row['tokens'] or '?'} tokens, not generated by this job"
    words = [f"{row['tokens']} tokens in {row['target_steps']} decoding steps"]
    if row["scored_tokens"]:
        words.append(f"{row['scored_tokens']} reused from the previous text")
    if row["target_steps"]:
        words.append(f"{row['accepted_tokens'] / row['target_steps']:.2f} draft tokens accepted per step")
    if row["relaxed_tokens"]:
        words.append(f"{row['relaxed_tokens']} accepted by relaxed verification")
    if row["guarded_tokens"]:
        words.append(f"{row['guarded_tokens']} verified strictly after the length limit")
    if row["decode_ms"] is not None and row["retrieval_ms"] is not None:
        words.append(f"{row['decode_ms']:.0f} ms, of which drafting took {row['retrieval_ms']:.0f} ms")
    return ", ".join(words) + f", finish reason: {row['finish_reason']}"


def _reason(out: AnyPath, entity: str, row: dict, written: str) -> str:
    """Why the stage route chose the pool, if the working files of that run still exist."""
    stage = atomic_folder.current(out / "_work" / f"dt={written}" / "route")
    routes = published.dataset(stage / f"entity={entity}", ROUTES)
    reasons = routes.to_table(columns=["reason"], filter=pc.field("entity_id") == row["entity_id"])
    return f": {reasons['reason'][0].as_py()}" if reasons.num_rows else ""


def tokenizer_of(out: AnyPath, entity: str, written: str):
    """Tokenizer of the model that generated a date's texts; None if its folder is missing or has changed."""
    from dare_job.models import files as models_files

    try:
        writer = published.read_manifest(nights.folder(out, entity, written))
        path = writer["model"]["path"]
        if models_files.tokenizer_hash(path) != writer["tokenizer"]:
            return None
        if (Path(path) / "tokenizer.json").is_file():  # enough to decode ids, without torch
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(path)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path)
    except (KeyError, DareJobError, OSError, ValueError):
        return None


def choose(out: AnyPath, dt: str, collected: list[Collected]) -> list[dict]:
    """Example texts: for each entity type, the sampled rows of median and of lowest acceptance.

    Each has ``entity, which, row, figures`` and ``steps``, which is None if the tokenizer is missing or an
    older version wrote the row.
    """
    examples = []
    for part in collected:
        ranked = sorted((row for row in part.sampled.rows() if row["step_tokens"]), key=_acceptance)
        if not ranked:
            continue
        chosen = {"typical": ranked[len(ranked) // 2], "least drafted": ranked[0]}
        if chosen["typical"] is ranked[0]:
            del chosen["least drafted"]
        tokenizer = tokenizer_of(out, part.entity, dt)
        for which, row in zip(chosen, part.texts(list(chosen.values())), strict=True):
            shown = tokenizer and row["token_ids"] and row["step_tokens"]
            examples.append({"entity": part.entity, "which": which, "row": row, "figures": figures(row),
                             "steps": list(decoding_steps(row, tokenizer)) if shown else None})
    return examples


def _acceptance(row: dict) -> float:
    return (row["accepted_tokens"] or 0) / row["target_steps"] if row["target_steps"] else float("inf")
