"""The ways of generating that are compared."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from dare_job.bench.cli import floats, ints
from dare_job.bench.sampling.measure import Method
from dare_job.config.options import option
from dare_job.decode.settings import Beams, Warp
from dare_job.errors import ConfigError
from dare_job.training.checks import require_each

BEAM, DSBD, SINGLE, SEARCH = "beam sampling", "DSBD", "DSBD, one cache", "beam search"
SAMPLING, SPECULATIVE, TREE = "sampling", "speculative sampling", "token tree sampling"


@dataclass(frozen=True)
class Way:
    """beams or sampling: settings of the beam engine, or of the sampling engine."""

    method: str
    beams: Beams | None = None
    sampling: Method | None = None
    drafted: bool = False

    @property
    def name(self) -> str:
        if self.beams is None:
            return self.method
        beams = self.beams
        if not self.drafted:
            return f"{self.method} W={beams.width}"
        if beams.min_width == beams.width < beams.draft_width:
            return f"{self.method} W_S={beams.draft_width} W={beams.width}"
        return f"{self.method} W_S={beams.draft_width} t={beams.threshold:g} W_min={beams.min_width}"


@dataclass(frozen=True)
class Grid:
    """Settings of DSBD, and the widths of standard beams; with ``fixed`` there is no single cache.

    Raises
    ------
    ConfigError
        An option is empty or has a width below 1, or every one of ``min_widths`` exceeds all of
        ``draft_widths``.
    """

    draft_widths: tuple[int, ...] = option(
        "Numbers of draft beams of DSBD (W_S).", (2, 3, 4, 5, 6), parse=ints)
    thresholds: tuple[float, ...] = option("Thresholds of DSBD (t).", (0.7, 0.9), parse=floats)
    min_widths: tuple[int, ...] = option(
        "Minimum numbers of beams of DSBD (W_min), each at most W_S.", (1, 2, 3), parse=ints)
    widths: tuple[int, ...] = option(
        "Numbers of beams of the search without drafts; the last is the target's.", (1, 2, 3, 4), parse=ints)
    fixed: bool = option("DSBD with the widths of standard beams, and so with their distributions, instead "
                         "of --thresholds and --min-widths.", False)

    def __post_init__(self):
        for name in ("draft_widths", "thresholds", "min_widths", "widths"):
            flag, values = f"--{name.replace('_', '-')}", getattr(self, name)
            if not values:
                raise ConfigError(f"{flag} is empty; write numbers between commas")
            if name != "thresholds":
                require_each(flag, values)
        if min(self.min_widths) > max(self.draft_widths):
            raise ConfigError(f"--min-widths: the smallest is {min(self.min_widths)}, but the largest of "
                              f"--draft-widths is {max(self.draft_widths)}")


def ways(grid: Grid, base: Beams) -> list[Way]:
    """base: temperature, distributions, layers and seed of all beams."""
    plain = [Way(BEAM, replace(base, width=width, min_width=1, layers=0)) for width in grid.widths]
    widest = max(grid.draft_widths)
    single = [Way(SINGLE, replace(base, width=widest, draft_width=widest, min_width=min_width,
                                  single_cache=True, threshold=max(grid.thresholds)), drafted=True)
              for min_width in grid.min_widths if min_width <= widest and not grid.fixed]
    warp = base.warp
    greedy = replace(base, width=max(grid.widths), draft_width=max(grid.widths), layers=0,
                     warp=Warp(0.0, warp.top_k, warp.top_p))
    chain, tree = (1,) * base.layers, (4, 2, 1, 1)[: base.layers]
    sampling = [Way(SAMPLING, sampling=Method("plain")),
                Way(SPECULATIVE, sampling=Method(SPECULATIVE, "after", chain, "iid", "speculative"),
                    drafted=True),
                Way(TREE, sampling=Method(TREE, "after", tree), drafted=True)]
    return [*sampling, *plain, *_dsbd(grid, base), *single, Way(SEARCH, greedy)]


def _dsbd(grid: Grid, base: Beams) -> Iterator[Way]:
    """Each as wide as its drafts at most, or as the standard beams."""
    if grid.fixed:
        for width, drafts in product(grid.widths, grid.draft_widths):
            if width <= drafts:
                yield Way(DSBD, replace(base, width=width, draft_width=drafts, min_width=width), drafted=True)
        return
    for drafts, threshold, min_width in product(grid.draft_widths, grid.thresholds, grid.min_widths):
        if min_width <= drafts:
            yield Way(DSBD, replace(base, width=drafts, draft_width=drafts, min_width=min_width,
                                    threshold=threshold), drafted=True)
