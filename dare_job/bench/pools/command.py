"""``bench pools``: blocks of cells in turn, each kept in the work folder once it is measured."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import pools
from dare_job import decode
from dare_job.bench import measured
from dare_job.bench import pools as bench
from dare_job.bench.decode import night
from dare_job.bench.decode.night import Night
from dare_job.bench.options import command, ints
from dare_job.bench.pools import figures
from dare_job.bench.pools.measure import Bench, Budget
from dare_job.bench.pools.pools import Cell, Pools, blocks, learned
from dare_job.bench.profiles import data
from dare_job.config.options import option
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError
from dare_job.models.files import fingerprint
from dare_job.workspace import digest, write_json
from pools.draft import warm_up

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options(night.Options):
    """Options of ``bench pools``."""

    sizes: tuple[int, ...] = option("Texts of a pool, below --pool.", (50, 100, 250, 500), parse=ints)
    group: int = option("Texts of the group that is blended with a row's own text and everybody's.", 250)
    rows: int = option("Test users whose texts are decoded.", 20)
    repeats: int = option("Times that each is decoded.", 1)
    nodes: int = option("Draft tokens per forward pass.", 16)
    tokens: int = option("New tokens of a row, at most: so many that texts may run on.", 384)

    def __post_init__(self):
        self.check(rows=self.rows, repeats=self.repeats, nodes=self.nodes, tokens=self.tokens)
        for name, values in (("sizes", self.sizes), ("group", (self.group,))):
            for value in values:
                if not 0 < value < self.pool:
                    raise ConfigError(f"--{name} {value} must be above 0 and below --pool {self.pool}")


def run(options: Options) -> dict:
    """Compare pools, sources and rules of verification, at batch 1 on the CPU.

    With the model of bench decode and two nights of its texts: pools of everybody (GRP), of random users
    (RRP) and of users who rated alike (CRP) by size, strict and relaxed, by our retrieval and by the
    published rule; own, group, global and all blended; top-1, top-k, threshold and both. The last line of
    standard output is one JSON object.
    """
    logging.getLogger("faiss").setLevel(logging.WARNING)
    with night.working(options.work) as work:
        tonight = night.prepare(options.data, work, options.model, options.pool, options.rows)
        likeness = night.likeness(tonight)
        made = Pools(tonight, learned(data.load(options.data), work))
        torch.set_num_threads(options.threads)
        warm_up()
        seen = _measured(tonight, made, options, work)
    lines, compared = figures.lines(seen), figures.comparisons(seen)
    figures.show(lines, compared, f"{options.rows} rows at batch 1, {options.nodes} draft nodes, "
                 f"{len(tonight.tonight)} known texts, {options.threads} torch thread(s), medians of "
                 f"{options.repeats}")
    return {"rows": lines, "comparisons": compared, "texts": likeness, "model": tonight.model.name,
            "nodes": options.nodes, "rows_decoded": options.rows, "repeats": options.repeats,
            "threads": options.threads, **measured.machine()}


def _code() -> str:
    """Digest of the code that is measured and measures: other code's figures are no use."""
    folders = [Path(package.__file__).parent for package in (pools, decode, bench)]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return digest([path.read_text(encoding="utf-8") for path in [*files, Path(measured.__file__)]])


def _measured(tonight: Night, made: Pools, options: Options, work: Path) -> figures.Seen:
    """By block: of each repeat, the figures of its cells. What ``work`` holds is not measured again."""
    target = Target.load(tonight.model, device="cpu")
    measurer = Bench(target, made, tonight.asked, tonight.tonight, options.rows,
                     Budget(options.nodes, options.tokens))
    asked = blocks(options.sizes, made.largest, options.group)
    same = digest([_code(), fingerprint(tonight.model), list(tonight.asked), list(tonight.pool), options.rows,
                   options.nodes, options.tokens, options.threads, measured.machine()])
    seen: dict[str, list[dict[Cell, dict]]] = {block: [] for block in asked}
    for repeat in range(options.repeats):
        for number, (block, some) in enumerate(asked.items(), 1):
            name = digest([same, [asdict(cell) for cell in some], repeat])
            path = work / "pools" / f"{block}-{name[:12]}.json"
            if not path.exists():
                _LOG.info("%s, block %d of %d, repeat %d of %d", block, number, len(asked), repeat + 1,
                          options.repeats)
                _measure(measurer, some, path)
            seen[block].append(dict(zip(some, json.loads(path.read_text()), strict=True)))
    return seen


def _measure(measurer: Bench, some: Sequence[Cell], path: Path) -> None:
    """Measure a block and write its figures."""
    measurer.warm_up(some)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, measurer.block(some))


main = command(Options)(run)
