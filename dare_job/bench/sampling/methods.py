"""The ways of sampling that are compared at one temperature."""

import numpy as np

from dare_job.bench.sampling import curve
from dare_job.bench.sampling.measure import PLAIN, RETRIEVAL, Method
from dare_job.bench.sampling.tree_search import BestTree, fastest

SD_BEST, BEST = "SD (best depth)", "MCSD (best tree)"
HERE = "MCSD (best tree for this machine)"
ABLATION = (("MCSS with replacement", "iid", "mcss"), ("naive", "without_replacement", "naive"),
            ("K-SEQ", "iid", "k_seq"), ("greedy multi-draft", "greedy", "greedy"),
            ("traversal", "without_replacement", "traversal"))
_ANY = (2, 1)  # for the rules that are compared even if no tree pays
_RETRIEVED = 16  # draft tokens of retrieval


def methods(temperature: float, rates: dict[str, np.ndarray], here: dict, nodes: int,
            depth: int) -> tuple[list[Method], dict[str, float]]:
    """The methods, and the tokens per step that the search expected of some.

    rates  by drafter, float64 (levels, candidates); here: milliseconds of forward passes on this machine, by
           ``curve.here``
    nodes, depth  maxima of a tree
    """
    own = fastest(rates["after"], nodes, *curve.tables_here(here, nodes, depth))
    compared = [Method(PLAIN), Method(HERE, "after" if own.widths else "none", own.widths)]
    expected = {HERE: own.tokens}
    for drafter, suffix in (("after", ""), ("before", " (before)")):
        best, chain = (_fastest(table, nodes, depth) for table in (rates[drafter], rates[drafter][:, :1]))
        for title, widths, distribution, rule in (
                (SD_BEST, chain.widths, "iid", "speculative"),
                (BEST, best.widths, "without_replacement", "rrs")):
            compared.append(Method(title + suffix, drafter if widths else "none", widths, distribution, rule))
        expected |= {SD_BEST + suffix: chain.tokens, BEST + suffix: best.tokens}
        if drafter == "after" and temperature > 0:
            compared += [Method(title, drafter, best.widths or _ANY, distribution, rule)
                         for title, distribution, rule in ABLATION]
    return [*compared, Method(RETRIEVAL, RETRIEVAL, nodes=min(_RETRIEVED, nodes))], expected


def _fastest(rates: np.ndarray, nodes: int, depth: int) -> BestTree:
    """The tree that is fastest if memory bounds steps."""
    return fastest(rates, nodes, curve.target_table(nodes), curve.draft_table(depth))
