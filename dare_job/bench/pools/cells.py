"""What is measured: cells of a pool, a retrieval rule and a rule of verification; a block is timed as one."""

from collections.abc import Sequence
from dataclasses import dataclass

from dare_job.bench.pools.pools import BLEND, CRP, GLOBAL, GROUP, GRP, NONE, OWN, RRP

BLENDED, PUBLISHED = "blend", "published"
SOURCES, RULES = "sources", "rules"  # blocks beside those of the sizes
K, P = (2, 4, 8), (0.3, 0.1, 0.03)  # of figure 5; DARE's own are 2 and 0.1


@dataclass(frozen=True)
class Cell:
    """pool and size as in ``Pools.of``; retrieval: ``BLENDED`` or ``PUBLISHED``; rule, k, p: EngineSettings'.

    Pool ``NONE`` is plain decoding.
    """

    pool: str
    size: int
    retrieval: str = BLENDED
    rule: str = "strict"
    k: int = 2
    p: float = 0.1

    @property
    def strict(self) -> bool:
        return self.rule == "strict"

    @property
    def named(self) -> str:
        """The rule with the numbers that it reads."""
        if self.pool == NONE:
            return "plain decoding"
        k, p = (f"k={self.k}", f"p={self.p}")
        read = {"top_k": [k], "threshold": [p], "relaxed": [k, p], "literal": [k, p]}
        return " ".join([self.rule, *read.get(self.rule, [])])


PLAIN = Cell(NONE, 0)


def blocks(sizes: Sequence[int], largest: int, group: int) -> dict[str, list[Cell]]:
    """Cells by block, plain decoding first in each.

    sizes    of pools, below ``largest``, the size of the pool of everybody
    group    size of the groups that are blended with other sources
    """
    found = {f"size-{size}": [PLAIN, *_of_size(size, (GRP, RRP, CRP))] for size in sizes}
    found[f"size-{largest}"] = [PLAIN, *_of_size(largest, (GRP,))]
    found[SOURCES] = [PLAIN, *(Cell(pool, group, rule=rule) for pool in (OWN, GROUP, GLOBAL, BLEND)
                               for rule in ("strict", "relaxed"))]
    found[RULES] = [PLAIN, *_rules(group)]
    return found


def _of_size(size: int, pools: Sequence[str]) -> list[Cell]:
    ours = [Cell(pool, size, rule=rule) for pool in pools for rule in ("strict", "relaxed")]
    return ours + [Cell(pool, size, PUBLISHED) for pool in pools if pool != RRP]


def _rules(group: int) -> list[Cell]:
    """Top-1, top-k alone, the threshold alone, both, and both as equation 8 is printed."""
    both = [(k, P[1]) for k in K] + [(K[0], p) for p in P if p != P[1]]
    return [Cell(BLEND, group),
            *(Cell(BLEND, group, rule="top_k", k=k) for k in K),
            *(Cell(BLEND, group, rule="threshold", p=p) for p in P),
            *(Cell(BLEND, group, rule="relaxed", k=k, p=p) for k, p in both),
            Cell(BLEND, group, rule="literal", k=K[0], p=P[1])]
