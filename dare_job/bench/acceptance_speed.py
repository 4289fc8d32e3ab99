"""How long the optimal acceptance rate and one node's verification take over a large vocabulary, on one core.

    python -m dare_job.bench.acceptance_speed [--vocabulary 128000] [--drafts 4] [--rows 8] [--limit-ms 50]

Times are the thread's own, so that other work on the machine counts less. The last line is JSON. Where an
optimum takes ``--limit-ms`` or more the command says which, and ends with exit code 1.
"""

import json
import platform
import sys
import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
import typer

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, sample_candidates
from dare_job.decode.sampling.rules import RULES
from dare_job.decode.sampling.verify import Verifier
from dare_job.evaluate.acceptance.optimum import optimum
from dare_job.evaluate.acceptance.rates import rate

CALLS = 9
LIMIT_MS = 50.0
RATES = (("k_seq", "iid", 4), ("naive", "without_replacement", 4), ("naive", "distinct", 4),
         *(("rrs", "without_replacement", n) for n in (2, 3, 4, 5)), ("rrs", "distinct", 2),
         ("rrs", "distinct", 3), ("greedy", "without_replacement", 2), ("greedy", "without_replacement", 3))
SHAPES = {"flat": 0.01, "wide": 1.0, "usual": 3.0, "peaked": 8.0, "zipf": 0.0}  # deviation of normal logits


def main(
    vocabulary: Annotated[int, typer.Option(help="Tokens.")] = 128_000,
    drafts: Annotated[int, typer.Option(help="Candidates of a node.")] = 4,
    rows: Annotated[int, typer.Option(help="Rows that are verified together.")] = 8,
    limit_ms: Annotated[float, typer.Option(help="Each optimum has to be had in less.")] = LIMIT_MS,
) -> None:
    """Print medians in milliseconds."""
    torch.set_num_threads(1)
    found = []
    for shape, spread in SHAPES.items():
        p, q = pair(vocabulary, spread)
        for law in ("iid", "without_replacement", "distinct", "greedy"):
            found.append({"what": "optimum", "law": law, "laws": shape,
                          "ms": milliseconds(lambda law=law, p=p, q=q: optimum(law, p, q, drafts))})
            print(found[-1], flush=True)
    p, q = (each.expand(rows, -1).contiguous() for each in pair(vocabulary, SHAPES["usual"]))
    for rule, law, n in RATES:
        found.append({"what": "rate", "law": law, "rule": rule, "drafts": n,
                      "ms": milliseconds(lambda rule=rule, law=law, n=n: rate(rule, law, p[0], q[0], n))})
        print(found[-1], flush=True)
    milliseconds(
        lambda: sample_candidates(DISTRIBUTIONS["distinct"], q, drafts, torch.rand(rows, drafts))
    )  # to have the memory
    for law in ("iid", "without_replacement", "distinct", "top_k", "greedy"):
        found += node(law, p, q, drafts)
    print(json.dumps({"rows": found, "vocabulary": vocabulary, "drafts": drafts, "batch": rows,
                      "limit_ms": limit_ms, "torch": torch.__version__, "machine": platform.machine()}))
    slow = too_slow(found, limit_ms)
    if slow:
        print("\n".join(slow), file=sys.stderr)
        raise typer.Exit(1)


def too_slow(found: list[dict], limit_ms: float) -> list[str]:
    """What to say of each optimum that took the limit or more."""
    return [f"the optimum of {row['law']} on {row['laws']} laws took {row['ms']:g} ms; the limit is "
            f"{limit_ms:g} ms" for row in found if row["what"] == "optimum" and row["ms"] >= limit_ms]


def node(law: str, p: torch.Tensor, q: torch.Tensor, n: int) -> list[dict]:
    """Drawing and verifying one node's candidates, for R rows at once."""
    rng = torch.Generator().manual_seed(0)
    uniforms, own = (torch.rand((len(p), n + 1), generator=rng, dtype=torch.float64) for _ in range(2))
    drawn = sample_candidates(DISTRIBUTIONS[law], q, n, uniforms)
    found = [{"what": "draw", "law": law,
              "ms": milliseconds(lambda: sample_candidates(DISTRIBUTIONS[law], q, n, uniforms))}]
    print(found[-1], flush=True)
    for rule in RULES.values():
        if law in rule.distributions and rule.count is None and rule.name != "mcss":
            verifier = Verifier(rule.name, law, n)
            spent = milliseconds(lambda verifier=verifier: verifier.verify(p, q, drawn, own))
            found.append({"what": "verify", "law": law, "rule": rule.name, "ms": spent})
            print(found[-1], flush=True)
    return found


def pair(vocabulary: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    x, z = (torch.randn(vocabulary, generator=rng) for _ in range(2))
    x = spread * x if spread else -torch.arange(1, vocabulary + 1).log()
    return torch.softmax(x, -1), torch.softmax(x + 0.5 * z, -1)


def milliseconds(call: Callable[[], object]) -> float:
    call()
    spent = []
    for _ in range(CALLS):
        started = time.thread_time()
        call()
        spent.append(time.thread_time() - started)
    return round(1e3 * float(np.median(spent)), 2)


if __name__ == "__main__":
    typer.run(main)
