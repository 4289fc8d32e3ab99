"""``bench pools``: blocks of cells in turn, each kept in the work folder once it is measured."""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import pools
from dare_job import bench, decode
from dare_job.bench.cli import command, ints
from dare_job.bench.gpu import machine
from dare_job.bench.kept import code_digest, keep_figures, work_folder
from dare_job.bench.pools import figures
from dare_job.bench.pools.measure import Bench, Budget
from dare_job.bench.pools.pools import Pools, blocks, user_vectors
from dare_job.bench.profiles import data, two_dates
from dare_job.bench.profiles.two_dates import TwoDates
from dare_job.config.options import option
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError
from dare_job.models.files import fingerprint
from dare_job.workspace import digest
from pools.draft import warm_up

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cells:
    """Options of ``bench pools`` and ``bench run-pools`` that choose what is measured."""

    sizes: tuple[int, ...] = option("Texts of a pool, below --pool.", (50, 100, 250, 500), parse=ints)
    group: int = option("Texts of the group that is blended with a row's own text and the others.", 250)
    rows: int = option("Test users whose texts are decoded.", 20, min=1)
    repeats: int = option("Times that each is decoded.", 1, min=1)
    nodes: int = option("Draft tokens per forward pass.", 16, min=1)
    tokens: int = option("Maximum number of new tokens per row, so large that texts may run on.", 384, min=1)

    def check_sizes(self, pool: int) -> None:
        """Check the sizes of pools.

        Raises
        ------
        ConfigError
            A size is not above 0 and below ``pool``.
        """
        for name, values in (("sizes", self.sizes), ("group", (self.group,))):
            for value in values:
                if not 0 < value < pool:
                    raise ConfigError(f"--{name} {value} must be above 0 and below --pool {pool}")


@dataclass(frozen=True)
class Options(Cells, two_dates.Options):
    """Options of ``bench pools``."""

    def __post_init__(self):
        self.check(rows=self.rows, repeats=self.repeats, nodes=self.nodes, tokens=self.tokens)
        self.check_sizes(self.pool)


def run(options: Options) -> dict:
    """Compare pools, sources and rules of verification, at batch 1 on the CPU.

    With the model of bench decode and its texts of two dates: pools of all users (GRP), of random users (RRP)
    and of users who rated alike (CRP) by size, strict and relaxed, by our retrieval and by the published
    rule; own, group, global and all blended; top-1, top-k, threshold and both. The last line of standard
    output is one JSON object.
    """
    logging.getLogger("faiss").setLevel(logging.WARNING)
    with work_folder(options.work) as work:
        dates = two_dates.prepare(options.data, work, options.model, options.pool, options.rows)
        likeness = two_dates.likeness(dates)
        by_kind = Pools(dates, user_vectors(data.load(options.data), work))
        return compare(dates, by_kind, options, options.threads, work) | {"texts": likeness}


def compare(dates: TwoDates, by_kind: Pools, options: Cells, threads: int, work: Path,
            dtype: str = "float32", repetition_penalty: float | None = None) -> dict:
    """Measure all blocks and print the tables. Returns the JSON object of the command."""
    torch.set_num_threads(threads)
    warm_up()
    budget = Budget(options.nodes, options.tokens, repetition_penalty)
    measured = _measure(dates, by_kind, options, work, dtype, budget)
    rows, compared = figures.rows(measured), figures.comparisons(measured)
    figures.show(rows, compared)
    return {"rows": rows, "comparisons": compared, "model": dates.model.name, "dtype": dtype,
            "repetition_penalty": repetition_penalty, "nodes": options.nodes,
            "rows_decoded": options.rows, "repeats": options.repeats, "threads": threads,
            "machine": machine.describe(torch.device("cpu"))}


def _measure(dates: TwoDates, by_kind: Pools, options: Cells, work: Path, dtype: str,
             budget: Budget) -> figures.Repeats:
    """By block: of each repeat, the sums of its cells. A block that ``work`` holds is not measured again."""
    target = Target.load(dates.model, dtype=dtype, device="cpu")
    measurer = Bench(target, by_kind, dates.prompts, dates.texts, options.rows, budget)
    of_block = blocks(options.sizes, by_kind.largest, options.group)
    code = code_digest(*(Path(package.__file__).parent for package in (pools, decode, figures)),
                       Path(bench.__file__).with_name("measured.py"))
    made_of = digest([code, fingerprint(dates.model), by_kind.fingerprint, options.rows, asdict(budget),
                      torch.get_num_threads(), dtype, machine.describe(target.device)])
    measured: dict[str, list] = {block: [] for block in of_block}
    for repeat in range(options.repeats):
        for block, cells in of_block.items():
            _LOG.info("%s, repeat %d of %d", block, repeat + 1, options.repeats)
            name = digest([made_of, [asdict(cell) for cell in cells], repeat])
            sums = keep_figures(work / "pools" / f"{block}-{name[:12]}.json",
                                lambda cells=cells: measurer.block(cells))
            measured[block].append(dict(zip(cells, sums, strict=True)))
    return measured


main = command(Options)(run)
