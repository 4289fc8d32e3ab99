"""The monotonic rule: are the best trees those whose levels do not get wider?"""

from collections.abc import Iterator

import numpy as np

from dare_job.decode.sampling.search import Found, expected_tokens, largest, nodes_of

MEASURED = ((4, 2, 2), (2, 4, 2), (2, 2, 4))  # one tree's widths in three orders: 16 paths each


def narrowing(widths: tuple[int, ...]) -> bool:
    """Whether no level is wider than the one above it."""
    return all(a >= b for a, b in zip(widths, widths[1:], strict=False))


def trees(nodes: int, levels: int, candidates: int) -> Iterator[tuple[int, ...]]:
    """Widths of all trees within the limits, none at all among them."""
    yield ()
    if levels:
        for width in range(1, min(candidates, nodes) + 1):
            yield from ((width, *rest) for rest in trees(nodes // width - 1, levels - 1, candidates))


def best_others(rates: np.ndarray, nodes: int, depth: int) -> dict[int, Found]:
    """By node limit, the best tree of those that get wider somewhere; limits that hold none are not there."""
    found: dict[int, Found] = {}
    for widths in trees(nodes, depth, rates.shape[1]):
        if not narrowing(widths):
            size, tokens = nodes_of(widths), expected_tokens(rates, widths)
            if size not in found or tokens > found[size].tokens:
                found[size] = Found(widths, tokens)
    best: dict[int, Found] = {}
    for limit in range(nodes + 1):
        within = [each for each in (best.get(limit - 1), found.get(limit)) if each]
        if within:
            best[limit] = max(within, key=lambda each: each.tokens)
    return best


def by_limit(rates: np.ndarray, nodes: int, depth: int) -> list[dict]:
    """For every node limit: the best tree, and the best of those that get wider somewhere."""
    others, rows = best_others(rates, nodes, depth), []
    for limit in range(1, nodes + 1):
        best, other = largest(rates, limit, depth), others.get(limit)
        rows.append({"nodes": limit, "tree": "x".join(map(str, best.widths)), "tokens": round(best.tokens, 4),
                     "narrowing": narrowing(best.widths),
                     "widening": "x".join(map(str, other.widths)) if other else None,
                     "widening_tokens": round(other.tokens, 4) if other else None})
    return rows
