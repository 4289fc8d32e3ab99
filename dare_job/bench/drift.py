"""How far chained relaxed nights drift from strict text, and what refreshing rows by the strict rule does.

    python -m dare_job.bench.drift [--rules 2:0.1,4:0.02,...] [--refresh 0,3,7] [--users 40] [--nights 14]

A world of users whose histories grow each night; night 0 is strict. From then on a user is written when the
prompt has changed, as the job does it, or when the refresh says so: drafts come from the user's own text and
everybody's of the night before, which is relaxed text itself. All old text is scored. After each night every
user's text is compared with strict text of the same prompt; the last line is JSON. No Spark, no groups.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoTokenizer

from dare_job import prompts
from dare_job.bench.edits import distance
from dare_job.data.sample_world.simulate import DAYS, Example, simulate, user_examples
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request, Result
from dare_job.decode.settings import EngineSettings
from dare_job.models import embedded_path
from dare_job.training.embedded.evaluate import Tally, tally
from pools.draft import DraftSettings
from pools.index import Index

_SHOWN = (1, 2, 4, 7, 10, 14)  # nights in the table


@dataclass
class Writer:
    """Writes rows of one night with the embedded model."""

    target: Target
    tokenizer: object
    batch_size: int = 8

    def write(self, rows: list[Example], old: dict[int, Result], rule: str, k: int, p: float,
              strict: frozenset[int]) -> dict[int, Result]:
        """Results by user; old: the texts of the night before; strict: users written strictly by any rule."""
        everybody = [Index.build([result.token_ids for result in old.values()], kind="global")] if old else []
        settings = EngineSettings(rule=rule, k=k, p=p, max_new_tokens=192, batch_size=self.batch_size,
                                  nodes=8, score="always")
        engine = Engine(self.target, settings, RetrievalDrafter(DraftSettings(threads=1)))
        return {result.id: result for result in engine.run(self._requests(rows, old, everybody, strict))}

    def _requests(self, rows, old, everybody, strict) -> Iterator[Request]:
        for row in rows:
            prompt = np.asarray(self.tokenizer(row.prompt)["input_ids"], np.int32)
            own = old[row.row].token_ids if row.row in old else None
            pools = [Index.build([own], kind="own"), *everybody] if own is not None else everybody
            yield Request(row.row, prompt, tuple(pools), previous_ids=own, strict=row.row in strict)

    def text(self, result: Result) -> str:
        return self.tokenizer.decode(result.token_ids, skip_special_tokens=True).strip()


def main(
    rules: Annotated[str, typer.Option(help="k:p of each relaxed rule.")] = "2:0.1,4:0.02,8:0.001",
    refresh: Annotated[str, typer.Option(help="Nights between two strict ones of a row; 0: none.")] = "0,3,7",
    users: Annotated[int, typer.Option(help="Users of the world.")] = 40,
    nights: Annotated[int, typer.Option(help="Relaxed nights.")] = 14,
    seed: Annotated[int, typer.Option(help="Seed of the world.")] = 0,
) -> None:
    """Measure the drift of chained relaxed nights."""
    world, prompt_set = simulate(users, 300, seed), prompts.load(prompts.SAMPLE)
    days = [list(user_examples(world, prompt_set, DAYS - nights + night)) for night in range(nights + 1)]
    writer = Writer(Target.load(embedded_path()), AutoTokenizer.from_pretrained(embedded_path()))
    strict = _chained(writer, days, "strict nights")
    chains = [(int(rule.split(":")[0]), float(rule.split(":")[1]), int(n))
              for rule in rules.split(",") for n in refresh.split(",")]
    found = []
    for k, p, n in chains:
        label = f"k {k}, p {p}, refresh {n or 'never'}"
        relaxed = _chained(writer, days, label, k, p, n)
        lines = [_compared(writer, night, days[night], strict[night], relaxed[night])
                 for night in range(1, nights + 1)]
        found.append({"k": k, "p": p, "refresh_nights": n, "nights": lines})
    _report(found)


def _chained(writer: Writer, days: list[list[Example]], label: str, k: int = 1, p: float = 0.0,
             refresh: int = 0) -> list[tuple[dict[int, Result], set[int]]]:
    """Each night's texts by user, and the users that were written. Strict throughout where p is 0."""
    texts, asked, chain = {}, {}, []
    for night, rows in enumerate(track(days, label, transient=True)):
        turn = frozenset(row.row for row in rows if refresh and (row.row + night) % refresh == 0)
        stale = [row for row in rows if asked.get(row.row) != row.prompt
                 or row.row in turn and texts[row.row].relaxed_tokens]
        rule = "relaxed" if night and p else "strict"
        written = writer.write(stale, texts, rule, k, p, turn)
        texts, asked = texts | written, {row.row: row.prompt for row in rows}
        chain.append((texts, set(written)))
    return chain


def _compared(writer: Writer, night: int, rows: list[Example], strict, relaxed) -> dict:
    """How one night's texts differ from the strict ones of the same prompts."""
    (right, _), (texts, written) = strict, relaxed
    similar = [1 - distance(texts[row.row].token_ids, right[row.row].token_ids) for row in rows]
    new = [texts[user] for user in written]
    tokens, steps = sum(len(result.token_ids) for result in new), sum(result.target_steps for result in new)
    return {
        "night": night, "written": len(new), "differ": round(np.mean([s < 1 for s in similar]), 4),
        "similarity": round(float(np.mean(similar)), 4),
        "relaxed_share": round(sum(result.relaxed_tokens for result in new) / max(1, tokens), 4),
        "scored_share": round(sum(result.reused_tokens for result in new) / max(1, tokens), 4),
        "steps_a_text": round(steps / max(1, len(new)), 2),
        "true": _true(writer, rows, texts), "true_strict": _true(writer, rows, right)}


def _true(writer: Writer, rows: list[Example], texts: dict[int, Result]) -> float:
    """Share of statements about titles that are facts of the world."""
    total = sum((tally(writer.text(texts[row.row]), row.titles) for row in rows), Tally())
    return round(total.statements_true / max(1, total.statements), 4)


def _report(found: list[dict]) -> None:
    table = Table("k", "p", "refresh", *found[0]["nights"][0])
    for chain in found:
        for line in chain["nights"]:
            if line["night"] in _SHOWN:
                shown = (chain["k"], chain["p"], chain["refresh_nights"], *line.values())
                table.add_row(*map(str, shown))
    Console(width=130).print(table)
    print(json.dumps({"chains": found}))


if __name__ == "__main__":
    typer.run(main)
