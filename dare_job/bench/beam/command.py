"""``bench beam``: beams, speculative sampling and DSBD on the same rows, quality beside speed."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoTokenizer

from dare_job.bench.beam import report
from dare_job.bench.beam.measure import Written, written
from dare_job.bench.beam.methods import Grid, Way, ways
from dare_job.bench.decode.night import working
from dare_job.bench.options import command, target_missed
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
    """Options of ``bench beam``.

    The draft model and its training: at least as much as ``bench sample`` does serves it too.
    """

    temperature: float = option("Of what is sampled; at 1 the embedded model leaves little to chance.", 1.75)
    layers: int = option("Drafted layers of a step.", 4)
    grid: Grid = Grid()
    law: str = option("Of beams: iid or without_replacement.", "iid")
    draft_law: str = option("Of drafts, the same.", "iid")
    bounds: bool = option("Measure how many drafted layers any exact rule could pass, at most.", False)
    taught_temperature: float = option("train-drafter's --temperature.", Settings.temperature)
    taught_kept: int = option("train-drafter's --kept.", Settings.kept)
    svg: Path | None = option("File for quality over speed, as SVG.", None)

    def __post_init__(self):
        require_temperatures("--temperature", [self.temperature])
        require_at_least(self, rows=1, tokens=1)
        require_at_least(self.beams, layers=1, seed=0)
        require_folder("--work", self.work)
        try:
            ways(self.grid, self.beams)
        except ConfigError as error:
            raise ConfigError("--draft-widths, --thresholds, --min-widths and --widths hold what no beams "
                              f"can be asked: {error}") from error
        if self.svg:
            writable("--svg", self.svg)

    @property
    def beams(self) -> Beams:
        """Temperature, distributions, layers and seed; the rest follows from the grid."""
        return Beams(layers=self.layers, warp=Warp(self.temperature), distribution=self.law,
                     draft_distribution=self.draft_law, seed=self.seed)

    @property
    def drafter(self) -> Settings:
        """Of the draft model and its training."""
        if self.quick:
            return world.QUICK_DRAFTER
        return Settings(steps=self.steps, temperature=self.taught_temperature, kept=self.taught_kept)


def _quick(options: Options) -> Options:
    """Seconds; measures nothing of interest."""
    return replace(options, grid=Grid((2, 3), (0.9,), (1,), (1, 2)), rows=3, tokens=16, users=24, items=20)


def run(options: Options) -> dict:
    """Write by beams, by DSBD and by speculative sampling, in one run: quality against speed.

    The target writes texts of the sample world's users, drafted by a model distilled on its texts. Quality is
    the texts' log-likelihood and their share of true statements. The last line of standard output is one JSON
    object; the exit code is 1 where a target at equal quality is missed.
    """
    options = _quick(options) if options.quick else options
    torch.set_num_threads(1)
    with working(options.work) as work:
        asked = world.sample_world(options.rows, options.users, options.items, options.tokens,
                                   options.drafter.seed, options.target)
        made = world.prepare(asked, options.tokens, options.drafter, work, options.device, options.dtype)
        compared = ways(options.grid, options.beams)
        found = _written(made, compared, options)
    rows = [report.line(way, found[way.name]) for way in compared]
    pairs = report.equal(compared, found)
    result = {"rows": rows, "equal_quality": pairs, "layers": report.bounds(compared, found),
              "targets": report.targets(pairs, made.target.device.type), "training": made.training["after"],
              "drafted_layers": options.beams.layers, "temperature": options.temperature, "batch": BATCH,
              **curve.about(made, options.dtype)}
    report.show(result)
    if options.svg:
        about = f"tokens a second where forwards cost {curve.ABOUT}"
        options.svg.write_text(report.draw(rows, "tokens_per_s_memory_bound", about), encoding="utf-8")
    return result


def _written(made: World, compared: list[Way], options: Options) -> dict[str, Written]:
    tokenizer = AutoTokenizer.from_pretrained(resolve(options.target))
    titles = {f"user:{one.row}": one.titles
              for one in world.examples(options.users, options.items, options.drafter.seed)}
    found = {}
    for way in compared:
        seen = written(made, way, options.tokens, options.beams.warp, options.beams.seed, titles, tokenizer,
                       options.bounds)
        found[way.name] = seen
        _LOG.info("%s: %.3f tokens a forward, %.4f nats a token, %.3f true, width %.2f, %.1f s", way.name,
                  seen.tokens.sum() / seen.steps.sum(), seen.per_token.mean(), seen.true, seen.width,
                  seen.seconds)
    return found


main = command(Options, target_missed)(run)
