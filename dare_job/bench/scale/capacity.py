"""Pools and GPU-days of a night on paper, from rates that are measured or computed here.

    python -m dare_job.bench.scale.capacity --text FILE --column plain --id-column user --tokenizer FOLDER

GPU seconds of a text = forward of its prompt + tokens / (tokens a second). Tokens a second come from a replay
of recorded texts (what is accepted), a latency curve (what a forward takes) and drafting as timed here.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dare_job.bench.decode_overhead import ROW_US, STEP_US
from dare_job.bench.scale import indexes
from dare_job.config import PoolSettings
from dare_job.decode.scheduler import MOST
from dare_job.replay import budgets, latency, roofline, sources, texts
from pools.draft import DraftSettings, warm_up
from pools.index import Index

_DAY_S, _GIB = 86_400, 1 << 30
_CURVES = "h100-mistral-7b,h100-qwen2.5-0.5b"


@dataclass(frozen=True)
class Night:
    """Texts there are, the share of them that is stale, tokens of a text and of its prompt."""

    texts: int
    stale: float
    tokens: int
    prompt: int


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.curves.split(",")) - set(roofline.FILES):
        parser.error(f"--curves: {', '.join(sorted(unknown))}; choose from {', '.join(roofline.FILES)}")
    night = Night(options.texts, options.stale, options.tokens, options.prompt)
    source = sources.Source(options.text, options.column, options.tokenizer, options.id_column,
                            held_out=options.held_out)
    corpus = sources.load(source, texts.load_tokenizer(options.tokenizer), {})
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "recorded.npy", np.concatenate(corpus.rest))
        built = [indexes.measure(Path(folder) / "recorded.npy", count, options.tokens, kind)
                 for count, kind in ((options.group, "collaborative"), (options.pool_texts, "global"))]
    print(_markdown(built))
    plan = pools(night, *built, options.group, options.cores)
    print(_markdown(plan))
    rows = [row for name in options.curves.split(",")
            for row in gpu_days(night, name, corpus, [int(batch) for batch in options.batch.split(",")])]
    print(_markdown(rows))
    print(json.dumps({"night": vars(night), "indexes": built, "pools": plan, "gpu_days": rows}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m dare_job.bench.scale.capacity")
    parser.add_argument("--text", type=Path, required=True, help="recorded texts: jsonl, csv or Parquet")
    parser.add_argument("--column", required=True)
    parser.add_argument("--id-column")
    parser.add_argument("--tokenizer", type=Path, nargs="+", required=True)
    parser.add_argument("--held-out", type=int, default=500, help="texts that are replayed")
    parser.add_argument("--curves", default=_CURVES, help="names of computed curves (replay/roofline.py)")
    parser.add_argument("--batch", default="32,128")
    parser.add_argument("--texts", type=int, default=10_000_000)
    parser.add_argument("--stale", type=float, default=0.02)
    parser.add_argument("--tokens", type=int, default=200, help="of a text")
    parser.add_argument("--prompt", type=int, default=300, help="tokens of a prompt")
    parser.add_argument("--group", type=int, default=500, help="texts of a group's pool")
    parser.add_argument("--pool-texts", type=int, default=PoolSettings().max_global_texts,
                        help="texts of the global pool (pools.max_global_texts)")
    parser.add_argument("--cores", default="2,16,64", help="cores of all executors together")
    return parser


def pools(night: Night, group: dict, everybody: dict, size: int, cores: str) -> list[dict]:
    """Group pools of all texts and one global pool: disk, and seconds to build by cores.

    A text is in one group's pool, as the router has it. The global pool is one task, the others run beside.
    """
    tokens = night.texts * night.tokens
    disk = tokens * group["bytes_per_token"] / _GIB
    global_gib = everybody["disk_mib"] / 1024
    return [{"cores": count, "group pools": -(-night.texts // size), "GiB": round(disk, 1),
             "global pool GiB": round(global_gib, 2),
             "build s": round(max(tokens / group["tokens_per_s"] / count + everybody["seconds"] / count,
                                  everybody["seconds"])),
             "memory of a build task MiB": max(group["build_memory_mib"], everybody["build_memory_mib"])}
            for count in map(int, cores.split(","))]


def gpu_days(night: Night, name: str, corpus: sources.Corpus, batches: Sequence[int]) -> list[dict]:
    """GPU-days of all texts and of the stale ones, plain and with drafts, at each batch size."""
    device, model = roofline.FILES[name]
    curve = latency.Curve.of(roofline.document(device, model)["latency_ms"], name)
    warm_up()
    near, settings = [(Index.build(corpus.rest),)] * len(corpus.test), DraftSettings(threads=1)
    budgets.fixed(corpus.test[:2], near[:2], 1, 2, settings)  # compiled
    rows = []
    for batch in batches:
        prompt_s = roofline.forward_ms(device, model, batch, night.prompt, 0) / batch / 1e3
        ways = {"plain": budgets.fixed(corpus.test, near, batch, 0, settings),
                "dare": budgets.scheduled(corpus.test, near, batch, MOST, settings, curve)}
        rates = {way: steps.tokens_per_s(curve) for way, steps in ways.items()}
        hosted = {way: _with_host(steps, rates[way]) for way, steps in ways.items()}
        days = {way: night.texts * (prompt_s + night.tokens / rate) / _DAY_S for way, rate in rates.items()}
        slow = {way: night.texts * (prompt_s + night.tokens / rate) / _DAY_S for way, rate in hosted.items()}
        taken = ways["dare"]
        rows.append({
            "curve": name, "batch": batch,
            "accepted a step": round(float(taken.tokens.sum() / taken.rows.sum() - 1), 2),
            "nodes a row": round(float(taken.nodes.sum() / taken.rows.sum()), 1),
            "plain: days of all": round(days["plain"], 2), "dare: days of all": round(days["dare"], 2),
            "times": round(days["plain"] / days["dare"], 2),
            "plain: days of the stale": round(days["plain"] * night.stale, 3),
            "dare: days of the stale": round(days["dare"] * night.stale, 3),
            "with the host: plain, of all": round(slow["plain"], 2),
            "with the host: dare, of all": round(slow["dare"], 2),
            "with the host: times": round(slow["plain"] / slow["dare"], 2)})
    return rows


def _with_host(steps: budgets.Steps, rate: float) -> float:
    """Tokens a second where each step also takes all that ``bench.decode_overhead`` allows the host."""
    seconds = steps.tokens.sum() / rate - steps.draft_ms.sum() / 1e3  # drafting is part of the allowance
    return float(steps.tokens.sum() / (seconds + (STEP_US + ROW_US * steps.rows).sum() / 1e6))


def _markdown(rows: list[dict]) -> str:
    lines = ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row.values())) + " |" for row in rows]) + "\n"


if __name__ == "__main__":
    main()
