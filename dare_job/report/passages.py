"""A few of tonight's texts as they were written: what was old text, what a draft, what the model's own."""

from dataclasses import dataclass

from dare_job import show
from dare_job.files import AnyPath
from dare_job.report.collect import Collected, texts


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
        tokenizer = show.tokenizer_of(out, part.entity, dt)
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
                 for n, (accepted, own) in enumerate(show.steps(row, tokenizer))]
    return Passage(entity, which, row, steps, show.figures(row))
