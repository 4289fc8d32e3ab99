"""Where a decoding step's time goes: inside the target's forward and outside it.

    python -m dare_job.bench.decode_overhead [--model NAME_OR_DIR] [--batches 1,8,32] [--nodes 0,16]

Random prompts; drafts from an oracle that knows the text and is wrong now and then, so that about as much is
accepted as of real drafts. Ceiling: the forwards alone. On a CPU with one thread all times are that thread's
own, so that other work on the machine counts less; else they are wall times.
"""

import argparse
import json
import os
import platform
import time
from dataclasses import replace

import numpy as np
import torch
import transformers

from dare_job.decode import Engine, EngineSettings, Request, Target
from dare_job.decode.draft.oracle import OracleDrafter
from dare_job.model_files import resolve

STEP_US, ROW_US = 500, 20  # what may be spent outside the forward


class _Timed:
    """A callable that adds up its calls' time."""

    def __init__(self, inner, clock):
        self.inner, self.clock = inner, clock
        self.reset()

    def reset(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def __call__(self, *args, **kwargs):
        started = self.clock()
        try:
            return self.inner(*args, **kwargs)
        finally:
            self.seconds += self.clock() - started
            self.calls += 1


def measure(target: Target, batch: int, nodes: int, options: argparse.Namespace) -> dict:
    """One line of the table: medians over the repeats, engine and ``generate`` taking turns."""
    rng, new = np.random.default_rng(0), options.new_tokens
    shape = (batch, options.prompt_tokens)
    requests = [Request(i, row) for i, row in enumerate(rng.integers(0, target.vocabulary, shape, np.int32))]
    settings = EngineSettings(max_new_tokens=new, batch_size=batch, nodes=nodes)
    texts = {r.id: r.token_ids for r in Engine(target, replace(settings, nodes=0)).run(requests)}
    clock = time.thread_time if target.device.type == "cpu" and options.threads == 1 else time.perf_counter
    lines = []
    for repeat in range(options.repeats):
        drafter = OracleDrafter(texts, target.vocabulary, 0, options.error_rate, repeat)
        drafter.draft, forward = _Timed(drafter.draft, clock), _Timed(target._forward, clock)
        target._forward = forward
        engine = Engine(target, settings, drafter)
        list(engine.run(requests[:1]))  # allocates the cache, as a run of many rows does once
        drafter.draft.reset(), forward.reset()
        started = clock()
        results = list(engine.run(requests))
        engine_s = clock() - started
        target._forward = forward.inner
        steps, tokens = sum(r.target_steps for r in results), sum(len(r.token_ids) for r in results)
        lines.append({
            "forward_ms": 1e3 * forward.seconds / forward.calls,
            "outside_us_per_step": 1e6 * (engine_s - forward.seconds - drafter.draft.seconds) / forward.calls,
            "accepted_per_step": sum(r.accepted_tokens for r in results) / steps,
            "tokens_per_s": tokens / engine_s,
            "ratio_to_generate": _generate_s(target, requests, new, clock) / engine_s,
        })
    medians = {key: round(float(np.median([line[key] for line in lines])), 3) for key in lines[0]}
    return {"batch": batch, "nodes": nodes, **medians, "allowed_us_per_step": STEP_US + ROW_US * batch}


@torch.inference_mode()
def _generate_s(target: Target, requests: list[Request], new: int, clock) -> float:
    ids = torch.from_numpy(np.stack([r.prompt_ids for r in requests]).astype(np.int64)).to(target.device)
    started = clock()
    with target.as_transformers() as model:
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
    return clock() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--nodes", default="0,16")
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--error-rate", type=float, default=0.2, help="share of draft tokens that are wrong")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target = Target.load(resolve(options.model), options.dtype, options.device)
    target.generation_config.eos_token_id = None  # every text has the same length
    rows = []
    for batch in map(int, options.batches.split(",")):
        for nodes in map(int, options.nodes.split(",")):
            rows.append(measure(target, batch, nodes, options))
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()))
    print(json.dumps({
        "rows": rows, "model": options.model, "dtype": options.dtype, "device": options.device,
        "threads": options.threads, "cores": os.cpu_count(), "machine": platform.machine(),
        "torch": torch.__version__, "transformers": transformers.__version__,
    }))


if __name__ == "__main__":
    main()
