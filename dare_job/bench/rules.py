"""Every rule of verification on the sample world, without and with the length guard, in counts.

    python -m dare_job.bench.rules [--rows 64] [--old shipped|model] [--quantile 0.95] [--max-new-tokens 512]

Tonight's plan, groups, routes and pools are made by the job's stages; a seeded sample of tonight's rows is
written by each rule in turn, all of its old text scored (``verify.reproducible``). No times: what is counted
does not depend on the machine. The last line is JSON.
"""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dare_job.bench.night import Old, prepared, sampled
from dare_job.config.decoding import VerifySettings
from dare_job.generate import loading

# The rules at the settings' defaults, then looser ones: the embedded model is sure of most of its text.
RULES = ({"rule": "strict"}, {"rule": "relaxed"}, {"rule": "top_k"}, {"rule": "threshold"},
         {"rule": "literal"}, {"rule": "ratio"}, {"rule": "entropy"}, {"rule": "relaxed", "k": 8, "p": 0.001},
         {"rule": "top_k", "k": 16}, {"rule": "top_k", "k": 64}, {"rule": "threshold", "p": 1e-5},
         {"rule": "ratio", "c": 1e-5}, {"rule": "entropy", "epsilon": 1e-5})


def main(
    rows: Annotated[int, typer.Option(help="Rows written by each rule.")] = 64,
    old: Annotated[Old, typer.Option(help="Whose text drafts.")] = Old.shipped,
    quantile: Annotated[float, typer.Option(help="verify.length_quantile of the guarded lines.")] = 0.95,
    max_new_tokens: Annotated[int, typer.Option(help="Longest text; high, so that texts may run on.")] = 512,
    nodes: Annotated[int, typer.Option(help="Draft nodes a row.")] = 8,
    users: Annotated[int, typer.Option(help="Users of the sample world.")] = 400,
    items: Annotated[int, typer.Option(help="Items of the sample world.")] = 300,
) -> None:
    """Count relaxed tokens, accepted tokens, lengths and guarded rows of every rule."""
    with TemporaryDirectory() as folder:
        job = prepared(Path(folder), old, users, items)
        sample, task = sampled(job, rows), replace(loading.Task.of(job), threads=1)
        job.spark.stop()
        decode = task.config.decode.model_copy(
            update={"max_new_tokens": max_new_tokens, "nodes": nodes, "score": "always"})
        task = replace(task, config=task.config.model_copy(update={"decode": decode}))
        lines = []
        for verify in track(RULES, "rules", transient=True):
            guards = (None,) if verify["rule"] == "strict" else (None, quantile)
            lines += [_line(task, sample, {**verify, "length_quantile": guard}) for guard in guards]
    _report(lines, old, len(sample))


def _line(task: loading.Task, sample: list[dict], verify: dict) -> dict:
    """What one rule makes of the rows."""
    settings = VerifySettings(reproducible=True, **verify)
    task = replace(task, config=task.config.model_copy(update={"verify": settings}))
    requests = sorted((loading.make_request(row, task) for row in sample), key=lambda r: len(r.prompt_ids))
    results = list(loading.make_engine(task).run(requests))
    lengths = np.array([len(result.token_ids) for result in results])

    def total(name: str) -> int:
        return sum(getattr(result, name) for result in results)

    used = {name: value for name, value in verify.items() if name not in ("rule", "length_quantile")}
    return {
        "rule": " ".join([verify["rule"], *(f"{name}={value}" for name, value in used.items())]),
        "guard": verify["length_quantile"],
        "relaxed_share": round(total("relaxed_tokens") / lengths.sum(), 5),
        "scored_share": round(total("scored_tokens") / lengths.sum(), 3), "steps": total("target_steps"),
        "accepted_per_step": round(total("accepted_tokens") / max(1, total("target_steps")), 3),
        "mean_length": round(float(lengths.mean()), 1), "longest": int(lengths.max()),
        "guarded_rows": sum(result.tokens_past_limit > 0 for result in results)}


def _report(lines: list[dict], old: Old, rows: int) -> None:
    table = Table(*lines[0])
    for line in lines:
        table.add_row(*("" if value is None else str(value) for value in line.values()))
    console = Console(width=130)
    console.print(table)
    console.print(f"{rows} rows, old text: {old}; accepted_per_step: the model's own token not counted")
    print(json.dumps({"old": old, "rows": rows, "rules": lines}))


if __name__ == "__main__":
    typer.run(main)
