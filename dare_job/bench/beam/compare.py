"""``bench beam``: beams, speculative sampling and DSBD on the same rows, quality beside speed."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoTokenizer

from dare_job.bench.beam import report
from dare_job.bench.beam.measure import Generated, generate_rows
from dare_job.bench.beam.methods import Grid, Way, ways
from dare_job.bench.cli import command, target_missed
from dare_job.bench.kept import work_folder
from dare_job.bench.sampling import curve, world
from dare_job.bench.sampling.world import BATCH, World
from dare_job.cli.options import writable
from dare_job.config.options import option
from dare_job.decode.settings import Beams, Warp
from dare_job.errors import ConfigError
from dare_job.models.files import resolve
from dare_job.training.checks import require_at_least, require_folder, require_temperatures
from dare_job.training.drafter.settings import Settings

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options(world.Options):
    """Options of ``bench beam``."""

    temperature: float = option("At 1 the embedded model is nearly deterministic.", 1.75)
    layers: int = option("Drafted layers per step.", 4)
    grid: Grid = Grid()
    distribution: str = option("Distribution of beams: iid or without_replacement.", "iid")
    draft_distribution: str = option("Distribution of drafts: iid or without_replacement.", "iid")
    plot: Path | None = option("SVG file of quality over speed.", None)

    def __post_init__(self):
        require_temperatures("--temperature", [self.temperature])
        require_at_least(self, rows=1, tokens=1)
        require_at_least(self.beams, layers=1, seed=0)
        require_folder("--work", self.work)
        try:
            ways(self.grid, self.beams)
        except ConfigError as error:
            raise ConfigError("--draft-widths, --thresholds, --min-widths and --widths have no valid beams: "
                              f"{error}") from error
        if self.plot:
            writable("--plot", self.plot)

    @property
    def beams(self) -> Beams:
        """Temperature, distributions, layers and seed; the rest follows from the grid."""
        return Beams(layers=self.layers, warp=Warp(self.temperature), distribution=self.distribution,
                     draft_distribution=self.draft_distribution, seed=self.seed)

    @property
    def drafter(self) -> Settings:
        """Settings of the draft model and its training."""
        return world.QUICK_DRAFTER if self.quick else Settings(steps=self.steps)


def _quick(options: Options) -> Options:
    """Seconds; measures nothing of interest."""
    return replace(options, grid=Grid((2, 3), (0.9,), (1,), (1, 2)), rows=3, tokens=16, users=24, items=20)


def run(options: Options) -> dict:
    """Generate with beams, DSBD and speculative sampling, in one run: quality against speed.

    The target generates texts of the synthetic data set's users, drafted by a model distilled on its texts.
    Quality is the texts' log-likelihood and their share of true statements. The last line of standard output
    is one JSON object; the exit code is 1 if a target at equal quality is missed.
    """
    options = _quick(options) if options.quick else options
    torch.set_num_threads(1)
    with work_folder(options.work) as work:
        source = world.sample_world(options.rows, options.users, options.items, options.tokens,
                                    options.drafter.seed, options.target)
        models = world.prepare(source, options.tokens, options.drafter, work, options.device, options.dtype)
        compared = ways(options.grid, options.beams)
        generated = _generate(models, compared, options)
    rows = [report.row(way, generated[way.name]) for way in compared]
    pairs = report.equal_quality(compared, generated)
    result = {"rows": rows, "equal_quality": pairs, "layers": report.layers(compared, generated),
              "targets": report.targets(pairs, models.target.device.type),
              "training": models.training["after"], "drafted_layers": options.beams.layers,
              "temperature": options.temperature, "batch": BATCH, **curve.about(models, options.dtype)}
    report.show(result)
    if options.plot:
        about = f"tokens per second, with forward passes as computed for {curve.ABOUT}"
        options.plot.write_text(report.draw(rows, "tokens_per_s_memory_bound", about), encoding="utf-8")
    return result


def _generate(models: World, compared: list[Way], options: Options) -> dict[str, Generated]:
    tokenizer = AutoTokenizer.from_pretrained(resolve(options.target))
    titles = {f"user:{example.row}": example.titles
              for example in world.examples(options.users, options.items, options.drafter.seed)}
    generated = {}
    for way in compared:
        own = generate_rows(models, way, options.tokens, options.beams.warp, options.beams.seed, titles,
                            tokenizer)
        generated[way.name] = own
        _LOG.info("%s: %.3f tokens per forward pass, %.4f nats per token, %.3f true, width %.2f, %.1f s",
                  way.name, own.tokens.sum() / own.steps.sum(), own.per_token.mean(), own.true, own.width,
                  own.seconds)
    return generated


main = command(Options, target_missed)(run)
