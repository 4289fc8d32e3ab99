"""The ways of sampling that are compared at one temperature."""

import numpy as np

from dare_job.bench.sampling import curve, orders, report
from dare_job.bench.sampling.acceptance import Acceptance
from dare_job.bench.sampling.measure import PLAIN, RETRIEVAL, Method
from dare_job.decode.sampling.search import Found, fastest

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
    orders_of_one = [Method(orders.named(widths), "after", widths) for widths in orders.MEASURED]
    found += [each for each in orders_of_one if each.size <= nodes and len(each.widths) <= depth]
    return [*found, Method(RETRIEVAL, RETRIEVAL, nodes=min(_RETRIEVED, nodes))], expected


def _searched(rates: np.ndarray, nodes: int, depth: int) -> Found:
    """The tree that is fastest where memory bounds steps."""
    return fastest(rates, nodes, curve.target_table(nodes), curve.draft_table(depth))
