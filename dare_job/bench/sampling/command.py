"""``dare-job bench sample``: ways of sampling in turn, and the tables of what they took."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from dare_job.bench.decode.night import working
from dare_job.bench.gpu import machine
from dare_job.bench.gpu.machine import Meter
from dare_job.bench.sampling import (
    curve,
    report,
    world,
)
from dare_job.bench.sampling import (
    methods as sampling_methods,
)
from dare_job.bench.sampling import (
    report as sampling_report,
)
from dare_job.bench.sampling import (
    world as sampling_world,
)
from dare_job.bench.sampling.measure import Measured, once
from dare_job.bench.sampling.methods import methods
from dare_job.bench.sampling.report import PROBES, QUICK_PROBES, Acceptance
from dare_job.bench.sampling.world import Source, World
from dare_job.decode.draft.sampled_tree import MAX_TREE_NODES
from dare_job.errors import ConfigError
from dare_job.models.files import EMBEDDED
from dare_job.training.checks import require_at_least, require_folder, require_temperatures
from dare_job.training.drafter.settings import Settings
from pools.draft import warm_up

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What ``dare-job bench sample`` was asked.

    rows, tokens  that are sampled, and new tokens of each at most
    nodes, depth  of a draft tree, at most
    probes        trees by which acceptance is measured
    drafter       the draft model and its training
    data          folder of real profiles, whose model is sampled; None: the target
    target        that samples the sample world's texts: "embedded", a folder or a hub name
    device, dtype  of both models: "auto", "cpu" or "cuda"; "float32", "bfloat16" or "float16"
    work          folder that keeps the models for the next call; None: a temporary one
    seed          of what is sampled; world and draft models are the same for all
    """

    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0, 1.75)
    rows: int = 32
    tokens: int = 160
    users: int = 400
    items: int = 300
    nodes: int = 32
    depth: int = 16
    repeats: int = 3
    probes: tuple[str, ...] = PROBES
    drafter: Settings = field(default_factory=Settings)
    work: Path | None = None
    data: Path | None = None
    seed: int = 0
    target: str = EMBEDDED
    device: str = "auto"
    dtype: str = "float32"

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


def quick(options: Options) -> Options:
    """Seconds for each temperature."""
    return replace(options, rows=3, tokens=16, users=24, items=20, nodes=8, depth=3, repeats=1,
                   probes=QUICK_PROBES, drafter=Settings(width=64, heads=2, steps=20, batch_tokens=512))


def run(options: Options) -> dict:
    """Train, measure and print; returns the JSON object that the command prints last."""
    with working(options.work) as work:
        return _run(options, work)


def _run(options: Options, work: Path) -> dict:
    torch.set_num_threads(1)
    warm_up()
    made = replace(world.prepare(_source(options, work), options.tokens, options.drafter, work,
                                 options.device, options.dtype), seed=options.seed)
    rows, found = [], {"acceptance": [], "orders": [], "entropy": []}
    found["forward_ms"] = curve.here(made, options.nodes)
    for temperature in options.temperatures:
        found["entropy"].append({"temperature": temperature, **world.entropy(made, temperature,
                                                                            options.tokens)})
        rates = {name: sampling_report.measured(made, name, temperature, options.tokens, options.probes,
                                           options.depth) for name in made.drafters}
        found["acceptance"] += [line for name, each in rates.items()
                                for line in report.acceptance(temperature, name, each)]
        most = min(options.nodes, sampling_methods.MOST)
        limits = sampling_methods.by_limit(rates["after"].rates, most, most)
        found["orders"] += [{"temperature": temperature, **line} for line in limits]
        rows += _temperature(made, options, temperature, rates, found["forward_ms"])
    device = made.target.device
    targets = report.targets(rows, found["orders"], device.type)
    about = {"parameters": made.target.model.num_parameters(), "training": made.training, "threads": 1,
             "dtype": options.dtype, "machine": machine.describe(device), "energy": Meter(device).source,
             "memory_bound": curve.ABOUT}
    report.show(rows, found, targets)
    return {"rows": rows, "targets": targets, **found, **about}


def _source(options: Options, work: Path) -> Source:
    if options.data:
        return sampling_world.real_profiles(options.data, work, options.rows, options.users, options.tokens)
    return sampling_world.sample_world(options.rows, options.users, options.items, options.tokens,
                               options.drafter.seed, options.target)


def _temperature(made: World, options: Options, temperature: float,
                 rates: dict[str, Acceptance], here: dict) -> list[dict]:
    """Lines of all methods, which take turns."""
    compared, expected = methods(temperature, rates, here, options.nodes, options.depth)
    some = replace(made, requests=made.requests[:2])
    for method in compared:  # compiled and warm
        once(some, method, temperature, 8)
    found: dict[str, Measured] = {}
    for repeat in range(options.repeats):
        for method in compared:
            seen = once(made, method, temperature, options.tokens)
            found[method.name] = seen.after(found.get(method.name))
            _LOG.info("temperature %g, %d of %d: %s %s, %.3f tokens a step, %.1f s", temperature, repeat + 1,
                      options.repeats, method.name, "x".join(map(str, method.widths)), seen.per_step,
                      seen.seconds[0])
    return [report.line(temperature, method, found, expected.get(method.name)) for method in compared]
