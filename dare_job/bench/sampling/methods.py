"""The ways of sampling that are compared at one temperature.

The monotonic rule: are the best trees those whose levels do not get wider?
"""

from collections.abc import Iterator

import numpy as np

from dare_job.bench.sampling import curve, report
from dare_job.bench.sampling.measure import PLAIN, RETRIEVAL, Method
from dare_job.bench.sampling.report import Acceptance
from dare_job.evaluate.acceptance.tree_search import BestTree, expected_tokens, fastest, largest, nodes_of

MOST = 64  # nodes of trees that are all tried: seconds, of 128 minutes
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


def best_of_each_kind(rates: np.ndarray, nodes: int, depth: int) -> dict[bool, dict[int, BestTree]]:
    """By whether trees narrow, and by node limit, the best one; limits that hold none are not there."""
    best: dict[bool, dict[int, BestTree]] = {True: {}, False: {}}
    for widths in trees(nodes, depth, rates.shape[1]):
        kind, size, tokens = best[narrowing(widths)], nodes_of(widths), expected_tokens(rates, widths)
        if size not in kind or tokens > kind[size].tokens:
            kind[size] = BestTree(widths, tokens)
    for kind in best.values():
        for limit in range(nodes + 1):
            within = [each for each in (kind.get(limit - 1), kind.get(limit)) if each]
            if within:
                kind[limit] = max(within, key=lambda each: each.tokens)
    return best


def carried_on(rates: np.ndarray, levels: int) -> np.ndarray:
    """Rates of so many levels, float64 (levels, candidates): those behind the last one measured are as it."""
    return np.concatenate([rates, np.repeat(rates[-1:], max(0, levels - len(rates)), 0)])[:levels]


def by_limit(rates: np.ndarray, nodes: int, depth: int) -> list[dict]:
    """For every node limit: the best tree, that the search finds, and the best of those that narrow and of
    those that get wider somewhere; lost: the share of tokens that the former lose to the best.

    depth  of the trees. Below nodes it takes from the rule what it says: nodes that a chain cannot use, as
           it is as deep as it may be, can only go to the width of lower levels
    """
    rates = carried_on(rates, depth)
    kinds, rows = best_of_each_kind(rates, nodes, depth), []
    for limit in range(1, nodes + 1):
        best, narrow, wide = largest(rates, limit, depth), kinds[True][limit], kinds[False].get(limit)
        rows.append({"nodes": limit, "tree": named(best.widths), "tokens": round(best.tokens, 4),
                     "narrowing": named(narrow.widths), "narrowing_tokens": round(narrow.tokens, 4),
                     "widening": named(wide.widths) if wide else None,
                     "widening_tokens": round(wide.tokens, 4) if wide else None,
                     "lost": round(max(0.0, 1 - narrow.tokens / best.tokens), 5)})
    return rows


def named(widths: tuple[int, ...]) -> str:
    return "x".join(map(str, widths))

_ANY = (2, 1)  # for the rules that are compared where no tree pays
_RETRIEVED = 16  # nodes of retrieval


def methods(temperature: float, rates: dict[str, Acceptance], here: dict, nodes: int,
            depth: int) -> tuple[list[Method], dict[str, float]]:
    """What is run, and the tokens a step that the search expected of some.

    rates  by drafter; here: milliseconds of forwards on this machine, by ``curve.here``
    nodes, depth  of a tree, at most
    """
    own = fastest(rates["after"].rates, nodes, *curve.tables_here(here, nodes, depth))
    found = [Method(PLAIN), Method(report.HERE, "after" if own.widths else "none", own.widths)]
    expected = {report.HERE: own.tokens}
    for name, suffix in (("after", ""), ("before", " (before)")):
        best, chain = (_searched(table, nodes, depth) for table in (rates[name].rates,
                                                                    rates[name].rates[:, :1]))
        same = (1,) * len(best.widths)
        for title, widths, law, rule in ((report.SD_SAME, same, "iid", "speculative"),
                                         (report.SD_BEST, chain.widths, "iid", "speculative"),
                                         (report.BEST, best.widths, "without_replacement", "rrs")):
            if title != report.SD_SAME or name == "after":
                found.append(Method(title + suffix, name if widths else "none", widths, law, rule))
        expected |= {report.SD_BEST + suffix: chain.tokens, report.BEST + suffix: best.tokens}
        if name == "after" and best.widths:
            found.append(Method(report.PATHS, name, best.widths, paths=True))
        if name == "after" and temperature > 0:
            found += [Method(title, name, best.widths or _ANY, law, rule)
                      for title, law, rule in report.ABLATION]
    orders_of_one = [Method(named(widths), "after", widths) for widths in MEASURED]
    found += [each for each in orders_of_one if each.size <= nodes and len(each.widths) <= depth]
    return [*found, Method(RETRIEVAL, RETRIEVAL, nodes=min(_RETRIEVED, nodes))], expected


def _searched(rates: np.ndarray, nodes: int, depth: int) -> BestTree:
    """The tree that is fastest where memory bounds steps."""
    return fastest(rates, nodes, curve.target_table(nodes), curve.draft_table(depth))
