"""How evenly a night fills eight executors, cut by rows and by estimated cost: a simulation.

    python -m dare_job.bench.balance [--slots 8] [--rows 8000,40000,200000] [--seeds 5]

Made-up nights (``night``) are cut as the stage generate cuts them (``spark.costs``, ``spark.shards``) and as
it did before, by rows (``by_rows``). The shards are given to the executors in the order in which Spark starts
tasks (``cluster``); each is decoded in a batch whose slots run empty at its end. Where DARE_DATA is set,
lengths and their spread are those of its profiles. Imbalance: busy seconds of the busiest executor over their
mean. The last line is JSON.
"""

import json
import os
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from dare_job.bench.balance import by_rows, night
from dare_job.bench.balance.cluster import Engine, schedule
from dare_job.bench.balance.night import Lengths, Night
from dare_job.generate import row_assignment, sharding
from dare_job.generate.row_assignment import PoolStatistics

ITEMS = 0.25, 0.4  # rows and lengths of the items against the users'
ROWS_A_POOL = 200
ONE_SLOWER = 0.9
app = typer.Typer()


@app.command()
def main(
    slots: Annotated[int, typer.Option(min=1, help="Executors, with one task slot each.")] = 8,
    rows: Annotated[str, typer.Option(help="Rows of a night.")] = "2000,8000,40000,200000",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows decoded together.")] = 32,
    seeds: Annotated[int, typer.Option(min=1, help="Nights of each size.")] = 5,
) -> None:
    """Compare the imbalance of shards cut by rows and by estimated cost."""
    data = os.environ.get("DARE_DATA")
    lengths, engine = night.recorded(Path(data)) if data else Lengths(), Engine(batch_size)
    lines = []
    for count in (int(word) for word in rows.split(",")):
        for name, last in (("alike", 1.0), ("one slower", ONE_SLOWER)):
            speeds = np.append(np.ones(slots - 1), last)
            found = {cut: [_night(count, seed, cut, lengths, engine, speeds) for seed in range(seeds)]
                     for cut in ("by rows", "by cost")}
            lines += [{"rows": count, "executors": name, "cut": cut, **_sums(nights)}
                      for cut, nights in found.items()]
    _report(lines, lengths, data, slots, batch_size, seeds)


def _night(rows: int, seed: int, cut: str, lengths: Lengths, engine: Engine, speeds: np.ndarray) -> dict:
    """One night on executors of these speeds."""
    rng = np.random.default_rng(seed)
    share, scale = ITEMS
    items = round(rows * share / (1 + share))
    nights = {entity: night.draw(count, max(1, count // ROWS_A_POOL), scale, lengths, rng)
              for entity, count, scale in (("item", items, scale), ("user", rows - items, 1.0))}
    where = (_by_cost if cut == "by cost" else _by_rows)(nights, len(speeds), engine.batch_size)
    seconds, busy_slots, steps = [], [], []
    for entity, shard in sorted({(entity, shard) for entity, placed in where.items() for shard in placed},
                                key=lambda key: key[1]):
        rows_there = np.flatnonzero(where[entity] == shard)
        one = nights[entity]
        expected = one.prompt + np.where(one.old, one.old, night.MOST)
        took, busy = engine.seconds(one.prompt[rows_there], expected[rows_there], one.steps[rows_there])
        seconds.append(took)
        busy_slots.append(busy)
        steps.append(one.steps[rows_there].sum())
    busy = schedule(seconds, len(speeds), speeds)
    return {"imbalance": busy.max() / busy.mean(), "seconds": busy.max(), "shards": len(seconds),
            "busy_slots": float(np.average(busy_slots, weights=steps))}


def _by_rows(nights: dict[str, Night], slots: int, batch_size: int) -> dict[str, np.ndarray]:
    """Shard of each row by entity type."""
    counts = {(entity, f"{pool:06d}"): count for entity, one in nights.items()
              for pool, count in enumerate(np.bincount(one.pool).tolist()) if count}
    placed = by_rows.place(counts, slots, batch_size)
    found = {entity: np.zeros(len(one.pool), int) for entity, one in nights.items()}
    for (entity, pool), (numbers, piece) in placed.items():
        members = np.flatnonzero(nights[entity].pool == int(pool))
        found[entity][members] = np.array(numbers)[np.arange(len(members)) // piece]
    return found


def _by_cost(nights: dict[str, Night], slots: int, batch_size: int) -> dict[str, np.ndarray]:
    """The same as the stage generate has it; prompts and texts are known by their estimates."""
    token, known, members = row_assignment.token_cost(row_assignment.DEFAULT_PER_STEP), {}, {}
    for entity, one in nights.items():
        for pool in range(one.pool.max() + 1):
            rows = np.flatnonzero(one.pool == pool)
            old = one.old[rows]
            key = 1, entity, f"{pool:06d}"
            if len(rows):
                members[key] = rows
                known[key] = PoolStatistics(len(rows), len(rows), *(int(x) for x in (
                    one.prompt[rows].sum(), (old > 0).sum(), old.sum())))
    means = row_assignment.mean_tokens(known, night.MOST)
    number = sharding.shard_count(sum(one.rows for one in known.values()), slots, batch_size, "auto")
    loads = row_assignment.pool_loads(known, means, token)
    placed, _ = sharding.assign_pools({key[1:]: load for key, load in loads.items()}, number)
    found = {entity: np.zeros(len(one.pool), int) for entity, one in nights.items()}
    for key, rows in members.items():
        one, where = nights[key[1]], placed[key[1:]]
        cost = 1 + one.prompt[rows] + token * np.where(one.old[rows], one.old[rows], means[key])
        before = np.cumsum(cost) - cost
        found[key[1]][rows] = [where.place(rank, int(at))[0] for rank, at in enumerate(before)]
    return found


def _sums(nights: list[dict]) -> dict:
    values = {name: [one[name] for one in nights] for name in nights[0]}
    mean = {name: float(np.mean(found)) for name, found in values.items()}
    return {"shards": round(mean["shards"], 1), "imbalance": round(mean["imbalance"], 3),
            "worst": round(max(values["imbalance"]), 3), "busy_slots": round(mean["busy_slots"], 3),
            "seconds": round(mean["seconds"], 1)}


def _report(lines: list[dict], lengths: Lengths, data: str | None, slots: int, batch_size: int,
            seeds: int) -> None:
    table = Table(*lines[0])
    for line in lines:
        table.add_row(*(str(value) for value in line.values()))
    console = Console(width=120)
    console.print(table)
    source = "profiles of DARE_DATA" if data else "lognormal"
    console.print(f"{slots} executors, batches of {batch_size}, {seeds} nights of each size; lengths: "
                  f"{source}, log(new / old) spreads by {lengths.spread:.2f}; one slower: at {ONE_SLOWER} of "
                  "the others' speed")
    print(json.dumps({"slots": slots, "batch_size": batch_size, "seeds": seeds, "lengths": source,
                      "spread": round(lengths.spread, 3), "rows": lines}))


if __name__ == "__main__":
    app()
