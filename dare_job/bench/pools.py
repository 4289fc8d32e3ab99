"""Replay recorded texts against an index of the others: accepted drafts and retrieval cost, without a model.

    python -m dare_job.bench.pools --text FILE --column C --tokenizer DIR_OR_FILES

Held out are the texts whose id (the row number without ``--id-column``) has the smallest SHA-256. Each is
written again token by token: draft, count the longest path that agrees with what was really written, append
it and the one token that a model's step always gives, repeat. Ceiling of accepted per step: the depth.
"""

import argparse
import gzip
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dare_job.errors import DataError
from pools.draft import DraftSettings, draft, warm_up
from pools.index import Index
from pools.tree import ROOT, DraftBatch


def read_column(path: str | Path, column: str, id_column: str | None = None) -> tuple[list[str], list[str]]:
    """Ids and texts of a jsonl, csv (both gzipped or not) or Parquet file; rows without text are left out.

    Raises DataError where the file or a column is missing.
    """
    import pandas

    path = Path(path)
    try:
        if path.suffix == ".parquet":
            frame = pandas.read_parquet(path)
        elif ".csv" in path.suffixes:
            frame = pandas.read_csv(path)
        else:
            opener = gzip.open if path.suffix == ".gz" else open
            with opener(path, "rt", encoding="utf-8") as lines:
                frame = pandas.DataFrame([json.loads(line) for line in lines if line.strip()])
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as jsonl, csv or Parquet: {error}") from None
    for name in filter(None, (column, id_column)):
        if name not in frame.columns:
            raise DataError(f"{path} has no column {name}: use one of {', '.join(map(str, frame.columns))}")
    frame = frame[frame[column].notna()]
    ids = frame[id_column] if id_column else frame.index
    return [str(value) for value in ids], [str(value) for value in frame[column]]


def load_tokenizer(paths: Sequence[str | Path]) -> Callable[[list[str]], list[np.ndarray]]:
    """Encoder of lists of texts from ``tokenizer.json`` (or its folder), or GPT-2's vocabulary and merges.

    Raises DataError where none of these is found.
    """
    from tokenizers import ByteLevelBPETokenizer, Tokenizer

    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.iterdir()) if path.is_dir() else [path]
    whole = [file for file in files if file.name == "tokenizer.json"]
    merges = [file for file in files if file.suffix in (".bpe", ".txt")]
    vocabulary = [file for file in files if file.name.endswith(("vocab.json", "encoder.json"))]
    if whole:
        tokenizer = Tokenizer.from_file(str(whole[0]))
    elif merges and vocabulary:
        tokenizer = ByteLevelBPETokenizer(str(vocabulary[0]), str(merges[0]))
    else:
        raise DataError(f"no tokenizer.json, nor a vocabulary and merges, at {', '.join(map(str, paths))}")
    return lambda texts: [np.array(row.ids, np.int32) for row in tokenizer.encode_batch(texts)]


def split(ids: Sequence[str], held_out: int) -> np.ndarray:
    """bool (len(ids),): the ``held_out`` ids with the smallest SHA-256 hex digest."""
    order = sorted(range(len(ids)), key=lambda i: hashlib.sha256(ids[i].encode()).hexdigest())
    chosen = np.zeros(len(ids), bool)
    chosen[order[:held_out]] = True
    return chosen


def accepted(tree: DraftBatch, row: int, truth: np.ndarray) -> int:
    """Length of the tree's longest path that ``truth`` (tokens that follow) begins with."""
    node, length = ROOT, 0
    for i in range(tree.sizes[row]):  # parents stand before their children
        if length < truth.size and tree.parents[row, i] == node and tree.tokens[row, i] == truth[length]:
            node, length = i, length + 1
    return length


def replay(texts: Sequence[np.ndarray], pools: Sequence[Index], nodes: int, settings: DraftSettings) -> dict:
    """Write ``texts`` again with drafts of ``nodes`` from ``pools``; the first token is given.

    Returns accepted_per_step with its 95 % bootstrap interval over texts, nodes_used, steps, p50_us and
    p99_us of a call with one row (wall; the same of the thread's own processor time, which a busy machine
    disturbs less, as cpu_p50_us and cpu_p99_us), and ``per_text`` (accepted, steps) for comparison in pairs.
    """
    budget, length = np.array([nodes], np.int32), np.zeros(1, np.int32)
    per_text = np.zeros((len(texts), 2), np.int64)
    used, wall, cpu = 0, [], []
    for i, text in enumerate(texts):
        row, at = text[None], 1
        while at < text.size:
            length[0] = at
            begun, begun_cpu = time.perf_counter_ns(), time.thread_time_ns()
            tree = draft(row, length, budget, [pools], settings)
            cpu.append(time.thread_time_ns() - begun_cpu)
            wall.append(time.perf_counter_ns() - begun)
            gained = accepted(tree, 0, text[at:])
            per_text[i] += gained, 1
            used += int(tree.sizes[0])
            at += gained + 1
    steps = max(1, int(per_text[:, 1].sum()))
    picks = np.random.default_rng(0).integers(0, len(texts), (1000, len(texts)))
    totals = per_text[picks].sum(axis=1)
    return {
        "accepted_per_step": round(float(per_text[:, 0].sum() / steps), 4),
        "ci95": np.percentile(totals[:, 0] / np.maximum(1, totals[:, 1]), [2.5, 97.5]).round(4).tolist(),
        "nodes_used": round(used / steps, 2), "steps": steps,
        **{f"{prefix}p{q}_us": round(float(np.percentile(times, q)) / 1e3, 1)
           for prefix, times in (("", wall), ("cpu_", cpu)) for q in (50, 99)},
        "per_text": per_text,
    }


def run(
    text_file: str | Path,
    column: str,
    tokenizer: Sequence[str | Path],
    id_column: str | None = None,
    held_out: int = 1000,
    nodes: Sequence[int] = (16, 64),
    settings: DraftSettings = DraftSettings(),  # noqa: B008 (frozen)
) -> dict:
    """Replay one file; see the module's text. Returns the JSON object that the command prints last."""
    ids, texts = read_column(text_file, column, id_column)
    if not 0 < held_out < len(ids):
        raise DataError(f"--held-out {held_out} must be above 0 and below {len(ids)}, the file's texts")
    tokens = load_tokenizer(tokenizer)(texts)
    chosen = split(ids, held_out)
    rest = [text for text, out in zip(tokens, chosen, strict=True) if not out]
    warm_up()
    begun = time.perf_counter()
    index = Index.build(rest)
    build_s = time.perf_counter() - begun
    result = {"texts": len(rest), "held_out": held_out, "tokens": index.token_count,
              "distinct_texts": len(set(texts)), "nodes": {}}
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "pool")
        size = sum(file.stat().st_size for file in (Path(folder) / "pool").iterdir())
        opened = {}
        for verify in (True, False):
            begun = time.perf_counter()
            index = Index.open(Path(folder) / "pool", verify=verify)
            opened[verify] = (time.perf_counter() - begun) * 1e3
        test = [text for text, out in zip(tokens, chosen, strict=True) if out and text.size]
        for budget in nodes:
            figures = replay(test, [index], budget, settings)
            del figures["per_text"]
            result["nodes"][str(budget)] = figures
            print(f"{budget} nodes: {figures['accepted_per_step']:.3f} accepted a step, "
                  f"{figures['p50_us']} us median, {figures['p99_us']} us p99 "
                  f"(processor time {figures['cpu_p50_us']} and {figures['cpu_p99_us']})", flush=True)
        del index
    return {**result, "build_tokens_per_s": round(result["tokens"] / build_s),
            "bytes_per_token": round(size / max(1, result["tokens"]), 2),
            "open_ms": round(opened[False], 2), "open_and_verify_ms": round(opened[True], 2)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m dare_job.bench.pools", description=__doc__.split("\n")[0])
    parser.add_argument("--text", required=True, help="jsonl, csv or Parquet; gzipped or not")
    parser.add_argument("--column", required=True, help="column of the text")
    parser.add_argument("--id-column", help="column of the id; without it the row number")
    parser.add_argument("--tokenizer", required=True, nargs="+",
                        help="tokenizer.json, GPT-2's two, or a folder")
    parser.add_argument("--held-out", type=int, default=1000)
    parser.add_argument("--nodes", default="16,64")
    parser.add_argument("--lam", type=float, default=DraftSettings.lam)
    parser.add_argument("--no-live", action="store_true", help="do not draft from the text so far")
    given = parser.parse_args(arguments)
    settings = DraftSettings(lam=given.lam, live=not given.no_live)
    print(f"depth {settings.depth} is the ceiling; {platform.processor() or platform.machine()}, "
          f"{os.cpu_count()} processors, numpy {np.__version__}")
    nodes = [int(part) for part in given.nodes.split(",")]
    result = run(given.text, given.column, given.tokenizer, given.id_column, given.held_out, nodes, settings)
    print(json.dumps(result))


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        sys.exit(str(error))
