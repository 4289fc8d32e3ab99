"""Pools and GPU-days of a night on paper, from rates that are measured or computed here.

    python -m dare_job.bench.scale.capacity --text FILE --column plain --id-column user --tokenizer FOLDER

GPU seconds of a text = forward of its prompt + tokens / (tokens a second). Tokens a second come from a replay
of recorded texts (what is accepted), a latency curve (what a forward takes) and drafting as timed here.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from dare_job.bench.scale import indexes
from dare_job.bench.scale.gpu_days import Night, gpu_days, host
from dare_job.cli.options import numbers
from dare_job.config.settings import PoolSettings
from dare_job.evaluate.replay import latency, sources, texts
from pools.draft import warm_up

_GIB = 1 << 30
_CURVES = "h100-mistral-7b,h100-qwen2.5-0.5b"


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.curves.split(",")) - set(latency.FILES):
        parser.error(f"--curves: {', '.join(sorted(unknown))}; choose from {', '.join(latency.FILES)}")
    night = Night(options.texts, options.stale, options.tokens, options.prompt)
    source = sources.Source(options.text, options.column, options.tokenizer, options.id_column,
                            held_out=options.held_out)
    corpus = sources.load(source, texts.load_tokenizer(options.tokenizer), {})
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "recorded.npy", np.concatenate(corpus.rest))
        sizes = sorted({*numbers("--sizes", options.sizes), options.group, options.pool_texts})
        built = [indexes.measure(Path(folder) / "recorded.npy", count, options.tokens,
                                 "collaborative" if count <= options.group else "global") for count in sizes]
    print(_markdown(built))
    group, everybody = (built[sizes.index(count)] for count in (options.group, options.pool_texts))
    plan = pools(night, group, everybody, options.group, options.cores)
    print(_markdown(plan))
    torch.set_num_threads(1)
    warm_up()
    outside, batches = host(), numbers("--batch", options.batch)
    print("\n".join(f"outside the forward, {way}: {step:.0f} us a step and {row:.1f} us a row"
                    for way, (step, row) in outside.items()) + "\n")
    rows = [row for name in options.curves.split(",")
            for row in gpu_days(night, name, corpus, batches, outside)]
    print(_markdown(rows))
    print(json.dumps({"night": vars(night), "indexes": built, "pools": plan, "outside_us": outside,
                      "gpu_days": rows}))


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
    parser.add_argument("--sizes", default="5000,50000", help="texts of further pools that are measured")
    parser.add_argument("--cores", default="2,16,64", help="cores of all executors together")
    return parser


def pools(night: Night, group: dict, everybody: dict, size: int, cores: str) -> list[dict]:
    """Group pools of all texts and one global pool: disk, and seconds to build by cores.

    A text is in one group's pool, as the router has it. The global pool is one task, the others run beside.
    Processor seconds, as if each core were free.
    """
    tokens = night.texts * night.tokens
    work = tokens / group["tokens_per_cpu_s"]
    return [{"cores": count, "group pools": -(-night.texts // size),
             "GiB": round(tokens * group["bytes_per_token"] / _GIB, 1),
             "global pool GiB": round(everybody["disk_mib"] / 1024, 2),
             "build s": round(max((work + everybody["cpu_s"]) / count, everybody["cpu_s"])),
             "memory of a build task MiB": max(group["build_memory_mib"], everybody["build_memory_mib"])}
            for count in map(int, cores.split(","))]


def _markdown(rows: list[dict]) -> str:
    lines = ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row.values())) + " |" for row in rows]) + "\n"


if __name__ == "__main__":
    main()
