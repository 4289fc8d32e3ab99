"""``bench sample``: ways of sampling in turn, and the tables of their figures."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dare_job.bench.cli import command, floats, target_missed
from dare_job.bench.kept import work_folder
from dare_job.bench.sampling import acceptance, curve, report, world
from dare_job.bench.sampling.acceptance import PROBES, QUICK_PROBES, Acceptance
from dare_job.bench.sampling.measure import compared_methods, generate_rows
from dare_job.bench.sampling.world import Source, World
from dare_job.cli.options import writable
from dare_job.config.options import option
from dare_job.decode.draft.sampled_tree import MAX_TREE_NODES
from dare_job.errors import ConfigError
from dare_job.evaluate.measured import take_turns
from dare_job.models.files import EMBEDDED
from dare_job.training.checks import require_at_least, require_folder, require_temperatures
from dare_job.training.drafter.settings import Settings
from pools.draft import warm_up


@dataclass(frozen=True)
class Options(world.Options):
    """Options of ``bench sample``; probes: trees with which acceptance is measured."""

    temperatures: tuple[float, ...] = option("Sampling temperatures; 0: greedy decoding.",
                                             (0.0, 0.7, 1.0, 1.75), parse=floats)
    nodes: int = option("Maximum number of nodes per draft tree.", 32)
    depth: int = option("Maximum depth of the draft tree.", 16)
    repeats: int = option("Times each method runs; medians.", 3)
    probes: tuple[str, ...] = PROBES
    width: int = option("Hidden size of the draft model.", Settings.width)
    data: Path | None = option(
        "Folder with knowledge/ml1m_users_llama3chatqa.jsonl.gz and ml-1m: samples the model of bench "
        "decode, without noise, in place of the embedded one.", None)
    plot: Path | None = option("SVG file of acceptance over the number of candidates, before and after "
                               "distillation.", None)

    def __post_init__(self):
        if not self.temperatures:
            raise ConfigError("--temperatures is empty; write for example 0,1")
        require_temperatures("--temperatures", self.temperatures)
        require_at_least(self, rows=1, tokens=2, nodes=1, depth=1, repeats=1, seed=0)
        require_folder("--work", self.work)
        if self.nodes > MAX_TREE_NODES:
            raise ConfigError(f"--nodes {self.nodes}: a row's tree has at most {MAX_TREE_NODES}")
        if self.data and self.target != EMBEDDED:
            raise ConfigError("--data samples the model of real profiles and --model another one: give one "
                              "of them")
        if self.plot:
            writable("--plot", self.plot)

    @property
    def drafter(self) -> Settings:
        """Settings of the draft model and its training."""
        return world.QUICK_DRAFTER if self.quick else Settings(width=self.width, steps=self.steps)


def quick(options: Options) -> Options:
    """Seconds for each temperature."""
    return replace(options, rows=3, tokens=16, users=24, items=20, nodes=8, depth=3, repeats=1,
                   probes=QUICK_PROBES, quick=True)


def run(options: Options) -> dict:
    """Train, measure and print."""
    torch.set_num_threads(1)
    warm_up()
    with work_folder(options.work) as work:
        models = replace(world.prepare(_source(options, work), options.tokens, options.drafter, work,
                                       options.device, options.dtype), seed=options.seed)
    result = {"rows": [], "targets": [], "acceptance": [], "entropy": [],
              "forward_ms": curve.here(models, options.nodes)}
    for temperature in options.temperatures:
        result["entropy"].append({"temperature": temperature,
                                  **world.entropy(models, temperature, options.tokens)})
        accepted = {name: acceptance.measure(models, name, temperature, options.tokens, options.probes,
                                             options.depth) for name in models.drafters}
        for name, measured in accepted.items():
            result["acceptance"] += report.acceptance_rows(temperature, name, measured)
        result["rows"] += _rows(models, options, temperature, accepted, result["forward_ms"])
    result["targets"] = report.targets(result["rows"], models.target.device.type)
    report.show(result)
    return {**result, "training": models.training, **curve.about(models, options.dtype)}


def _source(options: Options, work: Path) -> Source:
    if options.data:
        return world.real_profiles(options.data, work, options.rows, options.users, options.tokens)
    return world.sample_world(options.rows, options.users, options.items, options.tokens,
                              options.drafter.seed, options.target)


def _rows(models: World, options: Options, temperature: float, accepted: dict[str, Acceptance],
          here: dict) -> list[dict]:
    """Rows of all methods, which take turns."""
    compared, expected = compared_methods(temperature, {name: each.rates for name, each in accepted.items()},
                                          here, options.nodes, options.depth)
    few = replace(models, requests=models.requests[:2])
    for method in compared:  # compiled and warm
        generate_rows(few, method, temperature, 8)
    by_name = {method.name: method for method in compared}
    measured = take_turns(by_name, lambda name: generate_rows(models, by_name[name], temperature,
                                                              options.tokens), options.repeats)
    return report.rows(temperature, compared, measured, expected)


@command(Options, target_missed)
def main(options: Options) -> dict:
    """Sample with draft trees under each rule of verification, beside sampling without drafts, in one run.

    The target samples texts of the synthetic data set; a draft model with the same tokenizer is trained,
    before and after distillation on them. Acceptance is measured by level and number of candidates, the best
    tree under the node limit is searched, and each way of sampling is timed. The last line of standard output
    is one JSON object. Exit code 1 if temperature 1 is among --temperatures and its best tree misses a
    target (2 times fewer forward passes, 1.8 times the speed if memory bounds steps, and on a GPU in
    wall-clock time); never with --quick.
    """
    result = run(quick(options) if options.quick else options)
    if options.plot:
        options.plot.write_text(report.draw(result["acceptance"]), encoding="utf-8")
    return result
