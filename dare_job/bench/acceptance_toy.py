"""What each rule accepts of drafts of each law, beside the optimum, on seeded random pairs of laws.

    python -m dare_job.bench.acceptance_toy [--vocabulary 1000] [--pairs 10] [--trees 20]

One node: mean acceptance rate, over pairs p = softmax(3 x), q = softmax(3 x + noise z), x and z normal.
Paths of two tokens, and trees of two levels with two candidates each, over four tokens, x not times 3: mean
accepted tokens a step, by enumeration.
Exact but where a standard error stands. The last line is JSON.
"""

import json
from typing import Annotated

import numpy as np
import torch
import typer

from dare_job.bench.acceptance_trees import World, all_drafts, laid_out, law_of_three
from dare_job.decode.sampling.distributions import DISTRIBUTIONS
from dare_job.decode.sampling.rules import RULES
from dare_job.decode.sampling.traversal import traversal_distribution
from dare_job.decode.sampling.verify import tree_distribution
from dare_job.evaluate.acceptance.optimum import optimum
from dare_job.evaluate.acceptance.rates import rate

NOISES, COUNTS, TOKENS = (0.5, 1.5), (2, 4, 8), 4


def main(
    vocabulary: Annotated[int, typer.Option(help="Tokens of the pairs for one node.")] = 1000,
    pairs: Annotated[int, typer.Option(help="Pairs for each noise.")] = 10,
    trees: Annotated[int, typer.Option(help="Worlds of four tokens for each noise.")] = 20,
) -> None:
    """Print both tables; it takes about half a minute."""
    torch.set_num_threads(1)
    rows = [row for noise in NOISES for n in COUNTS for law in DISTRIBUTIONS
            for row in one_node(law, n, noise, vocabulary, pairs)]
    for noise in NOISES:
        rows += two_levels("iid", (1, 1), noise, trees)
        for law in DISTRIBUTIONS:
            rows += two_levels(law, (2, 2), noise, trees)
    print(json.dumps({"rows": rows, "vocabulary": vocabulary, "pairs": pairs, "trees": trees}))


def one_node(law: str, n: int, noise: float, vocabulary: int, pairs: int) -> list[dict]:
    """The optimum of a law and the rates of its rules, means over pairs."""
    if DISTRIBUTIONS[law].count not in (None, n):
        return []
    laws = [pair(vocabulary, noise, seed) for seed in range(pairs)]
    best = float(np.mean([optimum(law, p, q, n) for p, q in laws]))
    rows = []
    for rule in RULES.values():
        if law in rule.distributions and rule.count in (None, n) and rule.name != "mcss":
            found = [rate(rule.name, law, p, q, n, draws=200) for p, q in laws]
            error = float(np.sqrt(np.mean([each.error**2 for each in found]) / pairs))
            rows.append({"noise": noise, "n": n, "law": law, "optimum": round(best, 4), "rule": rule.name,
                         "rate": round(float(np.mean([each.value for each in found])), 4),
                         "error": round(error, 4)})
            show(rows[-1])
    return rows


def pair(vocabulary: int, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x, z = (torch.randn(vocabulary, generator=rng) for _ in range(2))
    return torch.softmax(3 * x, -1), torch.softmax(3 * x + noise * z, -1)


def two_levels(law: str, widths: tuple[int, int], noise: float, trees: int) -> list[dict]:
    """Mean accepted tokens a step of every rule node by node, and of traversal."""
    names = [rule.name for rule in RULES.values()
             if law in rule.distributions and rule.count in (None, widths[0]) and rule.name != "mcss"]
    found = {name: [] for name in (*names, "traversal")}
    for seed in range(trees):
        world = random_world(noise, seed)
        first, second, chances = all_drafts(law, world, widths)
        tree, p, q = laid_out(world, first, second)
        for name, each in found.items():
            by_path = name == "traversal"
            ends = (
                traversal_distribution(law, tree, p, q)
                if by_path
                else tree_distribution(name, law, tree, p, q)
            )
            each.append(law_of_three(world, tree, ends, chances, widths)[1])
    rows = [{"noise": noise, "tree": "{}x{}".format(*widths), "law": law, "rule": name,
             "accepted": round(float(np.mean(each)), 4)}
            for name, each in found.items()]
    for row in rows:
        show(row)
    return rows


def random_world(noise: float, seed: int) -> World:
    rng, p, q = torch.Generator().manual_seed(seed), [], []
    for depth in (1, 2, 3):
        x, z = (torch.randn((TOKENS,) * depth, generator=rng) for _ in range(2))
        p.append(torch.softmax(x, -1))
        q.append(torch.softmax(x + noise * z, -1))
    return World(p, q)


def show(row: dict) -> None:
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    typer.run(main)
