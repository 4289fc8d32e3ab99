"""``dare-job bench pools``: blocks of cells in turn, each kept in the work folder once it is measured."""

import json
import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

import pools
from dare_job import decode
from dare_job.bench import pools as bench
from dare_job.bench.decode import night
from dare_job.bench.decode.night import Night
from dare_job.bench.pools import figures
from dare_job.bench.pools import figures as pools_figures
from dare_job.bench.pools import pools as pools_pools
from dare_job.bench.pools.measure import Bench, Budget
from dare_job.bench.pools.pools import Cell, Pools
from dare_job.bench.profiles import data
from dare_job.bench.profiles.train import Settings
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError
from dare_job.models.files import fingerprint
from dare_job.workspace import digest, write_json
from pools.draft import warm_up

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What ``dare-job bench pools`` was asked; the fields' names are those of its options.

    sizes  texts of a pool, below ``pool``
    group  texts of the group that is blended with other sources
    pool   old texts of everybody's pool
    """

    data: Path
    work: Path | None = None
    sizes: tuple[int, ...] = (50, 100, 250, 500)
    group: int = 250
    pool: int = 1000
    rows: int = 20
    repeats: int = 1
    nodes: int = 16
    tokens: int = 384
    model: Settings = Settings()
    threads: int = 1

    def __post_init__(self):
        for name in ("rows", "repeats", "nodes", "tokens", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)} must be at least 1")
        for name, values in (("sizes", self.sizes), ("group", (self.group,))):
            for value in values:
                if not 0 < value < self.pool:
                    raise ConfigError(f"--{name} {value} must be above 0 and below --pool {self.pool}")
        if self.rows > self.model.test_users:
            raise ConfigError(f"--rows {self.rows} must be at most {self.model.test_users}, the test users")


def run(options: Options) -> dict:
    """Prepare, measure and print; returns the JSON object that the command prints last."""
    with night.working(options.work) as work:
        return _run(options, work)


def _run(options: Options, work: Path) -> dict:
    logging.getLogger("faiss").setLevel(logging.WARNING)
    tonight = night.prepare(options.data, work, options.model, options.pool, options.rows)
    likeness = night.likeness(tonight)
    made = Pools(tonight, pools_pools.learned(data.load(options.data), work))
    torch.set_num_threads(options.threads)
    warm_up()
    seen = _measured(tonight, made, options, work)
    lines, compared = figures.lines(seen), figures.comparisons(seen)
    pools_figures.show(lines, compared, f"{options.rows} rows at batch 1, {options.nodes} draft nodes, "
                f"{len(tonight.tonight)} known texts, {options.threads} torch thread(s), medians of "
                f"{options.repeats}")
    return {"rows": lines, "comparisons": compared, "texts": likeness, "model": tonight.model.name,
            "nodes": options.nodes, "rows_decoded": options.rows, "repeats": options.repeats,
            "threads": options.threads, **_machine()}


def _code() -> str:
    """Digest of the code that is measured and measures: other code's figures are no use."""
    folders = [Path(package.__file__).parent for package in (pools, decode, bench)]
    return digest([path.read_text(encoding="utf-8") for folder in folders
                   for path in sorted(folder.rglob("*.py"))])


def _machine() -> dict:
    return {"cores": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__,
            "transformers": transformers.__version__}


def _measured(tonight: Night, made: Pools, options: Options, work: Path) -> figures.Seen:
    """By block: of each repeat, the figures of its cells. What ``work`` holds is not measured again."""
    target = Target.load(tonight.model, device="cpu")
    measurer = Bench(target, made, tonight.asked, tonight.tonight, options.rows,
                     Budget(options.nodes, options.tokens))
    blocks = pools_pools.blocks(options.sizes, made.largest, options.group)
    same = digest([_code(), fingerprint(tonight.model), list(tonight.asked), list(tonight.pool), options.rows,
                   options.nodes, options.tokens, options.threads, _machine()])
    seen: dict[str, list[dict[Cell, dict]]] = {block: [] for block in blocks}
    for repeat in range(options.repeats):
        for number, (block, some) in enumerate(blocks.items(), 1):
            name = digest([same, [asdict(cell) for cell in some], repeat])
            path = work / "pools" / f"{block}-{name[:12]}.json"
            if not path.exists():
                _LOG.info("%s, block %d of %d, repeat %d of %d", block, number, len(blocks), repeat + 1,
                          options.repeats)
                _measure(measurer, some, path)
            seen[block].append(dict(zip(some, json.loads(path.read_text()), strict=True)))
    return seen


def _measure(measurer: Bench, some: Sequence[Cell], path: Path) -> None:
    """Measure a block and write its figures."""
    measurer.warm_up(some)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, measurer.block(some))
