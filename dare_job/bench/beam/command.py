"""``dare-job bench beam``: beams, speculative sampling and DSBD on the same rows, quality beside speed."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from transformers import AutoTokenizer

from dare_job.bench.beam import plot, report
from dare_job.bench.beam.measure import Written, written
from dare_job.bench.beam.methods import Grid, Way, ways
from dare_job.bench.decode.night import working
from dare_job.bench.gpu import machine
from dare_job.bench.gpu.machine import Meter
from dare_job.bench.sampling import curve, world
from dare_job.bench.sampling import world as sampling_world
from dare_job.bench.sampling.world import BATCH, World
from dare_job.decode.settings import Beams
from dare_job.errors import ConfigError
from dare_job.models.files import EMBEDDED, resolve
from dare_job.training.checks import require_at_least, require_folder
from dare_job.training.drafter.settings import Settings

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What ``dare-job bench beam`` was asked.

    beams         temperature, laws, layers and seed; the rest follows from grid
    rows, tokens  that are written, and new tokens of each at most
    drafter       the draft model and its training; at least as much as ``bench sample`` does serves it too
    bounds        measure what any exact rule could pass, at most: takes longer
    work          folder that keeps the models for the next call; None: a temporary one
    svg           file that gets figure 4; None: none
    target        that writes: "embedded", a folder or a hub name
    device, dtype  of both models: "auto", "cpu" or "cuda"; "float32", "bfloat16" or "float16"
    """

    beams: Beams = field(default_factory=Beams)
    grid: Grid = field(default_factory=Grid)
    rows: int = 32
    tokens: int = 160
    users: int = 400
    items: int = 300
    drafter: Settings = field(default_factory=Settings)
    work: Path | None = None
    svg: Path | None = None
    bounds: bool = False
    target: str = EMBEDDED
    device: str = "auto"
    dtype: str = "float32"

    def __post_init__(self):
        require_at_least(self, rows=1, tokens=1)
        require_at_least(self.beams, layers=1, seed=0)
        require_folder("--work", self.work)
        try:
            ways(self.grid, self.beams)
        except ConfigError as error:
            raise ConfigError("--draft-widths, --thresholds, --min-widths and --widths hold what no beams "
                              f"can be asked: {error}") from error


def quick(options: Options) -> Options:
    """Seconds; measures nothing of interest."""
    return replace(options, grid=Grid((2, 3), (0.9,), (1,), (1, 2)), rows=3, tokens=16, users=24, items=20,
                   drafter=Settings(width=64, heads=2, steps=20, batch_tokens=512))


def run(options: Options) -> dict:
    """Train, write and print; returns the JSON object that the command prints last."""
    torch.set_num_threads(1)
    with working(options.work) as work:
        asked = sampling_world.sample_world(options.rows, options.users, options.items, options.tokens,
                                    options.drafter.seed, options.target)
        made = world.prepare(asked, options.tokens, options.drafter, work, options.device, options.dtype)
        compared = ways(options.grid, options.beams)
        found = _written(made, compared, options)
    rows = [report.line(way, found[way.name]) for way in compared]
    pairs = report.equal(compared, found)
    result = {"rows": rows, "equal_quality": pairs, "layers": report.bounds(compared, found),
              "targets": report.targets(pairs, made.target.device.type), "training": made.training["after"],
              "drafted_layers": options.beams.layers, "temperature": options.beams.warp.temperature,
              "batch": BATCH, "threads": 1,
              "parameters": made.target.model.num_parameters(), "dtype": options.dtype,
              "machine": machine.describe(made.target.device), "energy": Meter(made.target.device).source,
              "memory_bound": curve.ABOUT}
    report.show(result)
    if options.svg:
        about = f"tokens a second where forwards cost {curve.ABOUT}"
        options.svg.write_text(plot.draw(rows, "tokens_per_s_memory_bound", about), encoding="utf-8")
    return result


def _written(made: World, compared: list[Way], options: Options) -> dict[str, Written]:
    tokenizer = AutoTokenizer.from_pretrained(resolve(options.target))
    titles = {f"user:{one.row}": one.titles
              for one in sampling_world.examples(options.users, options.items, options.drafter.seed)}
    found = {}
    for way in compared:
        seen = written(made, way, options.tokens, options.beams.warp, options.beams.seed, titles, tokenizer,
                       options.bounds)
        found[way.name] = seen
        _LOG.info("%s: %.3f tokens a forward, %.4f nats a token, %.3f true, width %.2f, %.1f s", way.name,
                  seen.tokens.sum() / seen.steps.sum(), seen.per_token.mean(), seen.true, seen.width,
                  seen.seconds)
    return found
