"""``bench sample``: ways of sampling in turn, and the tables of what they took."""

import logging
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dare_job.bench.decode.night import working
from dare_job.bench.options import command, floats
from dare_job.bench.sampling import curve, methods, report, world
from dare_job.bench.sampling.measure import Measured, once
from dare_job.bench.sampling.report import PROBES, QUICK_PROBES, Acceptance
from dare_job.bench.sampling.world import Source, World
from dare_job.cli.options import writable
from dare_job.config.options import option
from dare_job.decode.draft.sampled_tree import MAX_TREE_NODES
from dare_job.errors import ConfigError
from dare_job.models.files import EMBEDDED
from dare_job.training.checks import require_at_least, require_folder, require_temperatures
from dare_job.training.drafter.settings import Settings
from pools.draft import warm_up

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options(world.Options):
    """Options of ``bench sample``; probes: trees by which acceptance is measured."""

    temperatures: tuple[float, ...] = option("Sampling temperatures; 0: greedy decoding.",
                                             (0.0, 0.7, 1.0, 1.75), parse=floats)
    nodes: int = option("Maximum number of nodes per draft tree.", 32)
    depth: int = option("Maximum depth of the draft tree.", 16)
    repeats: int = option("Times each method runs; medians.", 3)
    probes: tuple[str, ...] = PROBES
    width: int = option("Hidden size of the draft model.", Settings.width)
    layers: int = option("Layers of the draft model.", Settings.layers)
    data: Path | None = option(
        "Folder with knowledge/ml1m_users_llama3chatqa.jsonl.gz and ml-1m: samples the model of bench "
        "decode, without noise, in place of the embedded one.", None)
    plot: Path | None = option("SVG file of acceptance over the number of candidates, before and after "
                               "distillation.", None)

    def __post_init__(self):
        if not self.temperatures:
            raise ConfigError("--temperatures names none; write for example 0,1")
        require_temperatures("--temperatures", self.temperatures)
        require_at_least(self, rows=1, tokens=2, nodes=1, depth=1, repeats=1, seed=0)
        require_folder("--work", self.work)
        if self.nodes > MAX_TREE_NODES:
            raise ConfigError(f"--nodes {self.nodes}: a row's tree has at most {MAX_TREE_NODES}")
        if self.data and self.target != EMBEDDED:
            raise ConfigError("--data samples the model of real profiles and --target another one: give one "
                              "of them")
        if self.plot:
            writable("--plot", self.plot)

    @property
    def drafter(self) -> Settings:
        """Of the draft model and its training."""
        if self.quick:
            return world.QUICK_DRAFTER
        return Settings(width=self.width, layers=self.layers, steps=self.steps)


def quick(options: Options) -> Options:
    """Seconds for each temperature."""
    return replace(options, rows=3, tokens=16, users=24, items=20, nodes=8, depth=3, repeats=1,
                   probes=QUICK_PROBES, quick=True)


def run(options: Options) -> dict:
    """Train, measure and print."""
    torch.set_num_threads(1)
    warm_up()
    with working(options.work) as work:
        made = replace(world.prepare(_source(options, work), options.tokens, options.drafter, work,
                                     options.device, options.dtype), seed=options.seed)
    rows, found = [], {"acceptance": [], "orders": [], "entropy": []}
    found["forward_ms"] = curve.here(made, options.nodes)
    for temperature in options.temperatures:
        found["entropy"].append({"temperature": temperature, **world.entropy(made, temperature,
                                                                            options.tokens)})
        rates = {name: report.measured(made, name, temperature, options.tokens, options.probes, options.depth)
                 for name in made.drafters}
        found["acceptance"] += [line for name, each in rates.items()
                                for line in report.acceptance(temperature, name, each)]
        most = min(options.nodes, methods.MOST)
        limits = methods.by_limit(rates["after"].rates, most, most)
        found["orders"] += [{"temperature": temperature, **line} for line in limits]
        rows += _temperature(made, options, temperature, rates, found["forward_ms"])
    targets = report.targets(rows, found["orders"], made.target.device.type)
    report.show(rows, found, targets)
    return {"rows": rows, "targets": targets, **found, "training": made.training,
            **curve.about(made, options.dtype)}


def _source(options: Options, work: Path) -> Source:
    if options.data:
        return world.real_profiles(options.data, work, options.rows, options.users, options.tokens)
    return world.sample_world(options.rows, options.users, options.items, options.tokens,
                              options.drafter.seed, options.target)


def _temperature(made: World, options: Options, temperature: float,
                 rates: dict[str, Acceptance], here: dict) -> list[dict]:
    """Lines of all methods, which take turns."""
    compared, expected = methods.methods(temperature, rates, here, options.nodes, options.depth)
    some = replace(made, requests=made.requests[:2])
    for method in compared:  # compiled and warm
        once(some, method, temperature, 8)
    found: dict[str, Measured] = {}
    for repeat in range(options.repeats):
        for method in compared:
            seen = once(made, method, temperature, options.tokens)
            found[method.name] = seen.after(found.get(method.name))
            _LOG.info("temperature %g, %d of %d: %s %s, %.3f tokens a step, %.1f s", temperature, repeat + 1,
                      options.repeats, method.name, methods.named(method.widths), seen.per_step,
                      seen.seconds[0])
    return [report.line(temperature, method, found, expected.get(method.name)) for method in compared]


def _missed(options: Options, found: dict) -> bool:
    """Whether a target that must be met is missed, after a line that names it."""
    missed = None if options.quick else report.missed(found["targets"])
    if missed:
        print(f"dare-job: targets missed: {missed}", file=sys.stderr, flush=True)
    return bool(missed)


@command(Options, _missed)
def main(options: Options) -> dict:
    """Sample by draft trees under each rule of verification, beside plain sampling, in one run.

    The target samples the sample world's texts; a draft model is made of the same tokenizer, before and after
    distillation on them. Acceptance is measured by level and number of candidates, the best tree under the
    node limit is searched, and each way of sampling is timed. The last line of standard output is one JSON
    object. Exit code 1 where temperature 1 is among those asked for, and its best tree misses a target (2
    times fewer forwards, 1.8 times the speed where memory bounds steps, and on a GPU in wall-clock time);
    never with --quick.
    """
    found = run(quick(options) if options.quick else options)
    if options.plot:
        options.plot.write_text(report.draw(found["acceptance"]), encoding="utf-8")
    return found
