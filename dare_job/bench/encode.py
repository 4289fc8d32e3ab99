"""What encoding texts costs, and what sorting them by length saves: one worker, without Spark.

    python -m dare_job.bench.encode [--model embedded] [--users 400] [--batch 8,32] [--threads 1]

The texts are those of the sample world. "as they come" encodes each batch by itself. Runs take turns; the
median counts. Seconds are the process's own, so that other work on the machine counts less: with one thread
they are those of the clock on a machine without any. The last line is JSON.
"""

import json
import statistics
import time
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import pyarrow.dataset as ds
import torch
import typer

from dare_job.cli.options import numbers
from dare_job.data.sample_world.write import write_world
from dare_job.publish.features import encoder_files
from dare_job.publish.features.encoder import Encoded, Encoder
from dare_job.schemas import ENTITIES


def main(
    model: Annotated[str, typer.Option(help="'embedded', a folder or a hub name.")] = "embedded",
    users: Annotated[int, typer.Option(help="Users of the sample; three items for four users.")] = 400,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "8,32",
    threads: Annotated[int, typer.Option(help="torch threads, as one Spark worker has.")] = 1,
    repeats: Annotated[int, typer.Option(help="Times each case runs.")] = 3,
) -> None:
    """Measure texts a second of processor time and the share of padding."""
    torch.set_num_threads(threads)
    texts, rows = _texts(users), []
    for entity, found in texts.items():
        for size in numbers("--batch", batch):
            encoder = Encoder(encoder_files.resolve(model), "cpu", size)
            encoder.encode(found[:size])  # warm
            cases = {"by length": [found], "as they come": [found[at:at + size]
                                                            for at in range(0, len(found), size)]}
            rows += _measured(encoder, cases, repeats, {"texts": entity, "batch": size})
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print(json.dumps({"rows": rows, "model": model, "threads": threads, "torch": torch.__version__}))


def _texts(users: int) -> dict[str, list[str]]:
    with TemporaryDirectory() as folder:
        write_world(Path(folder), users=users, items=max(8, 3 * users // 4), seed=0, date=date(2026, 1, 2))
        return {entity: ds.dataset(Path(folder) / "knowledge" / f"entity={entity}", format="parquet")
                .to_table(columns=["knowledge"])["knowledge"].drop_null().to_pylist() for entity in ENTITIES}


def _measured(encoder: Encoder, cases: dict[str, list[list[str]]], repeats: int, row: dict) -> list[dict]:
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    found: dict[str, list[Encoded]] = {}
    for _ in range(repeats):
        for name, parts in cases.items():
            began = time.process_time()
            found[name] = [encoder.encode(part) for part in parts]
            seconds[name].append(time.process_time() - began)
    rows = []
    for name, parts in found.items():
        count, tokens, padded = (sum(values) for values in zip(
            *((len(part.vectors), part.tokens, part.padded) for part in parts), strict=True))
        rows.append({**row, "order": name, "count": count, "tokens_a_text": round(tokens / count, 1),
                     "texts_per_cpu_s": round(count / statistics.median(seconds[name]), 1),
                     "padding_share": round(1 - tokens / padded, 4)})
    return rows


if __name__ == "__main__":
    typer.run(main)
