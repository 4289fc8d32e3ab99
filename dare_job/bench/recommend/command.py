"""``bench recommend``: searches in turn, the tables of what they took, and the targets."""

import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from dare_job.bench.gpu import machine
from dare_job.bench.options import command, floats, ints, target_missed
from dare_job.bench.recommend import ablations, generate, measure, report, world
from dare_job.bench.recommend.measure import Measured, measured
from dare_job.bench.recommend.methods import FORCED, PLAIN, STRICT, TRIE, Makers, Method, tables
from dare_job.config.options import Device, device, option
from dare_job.decode.trie_search.draft_depth import DraftDepth
from dare_job.decode.trie_search.node_scores import RENORMALISED
from dare_job.errors import ConfigError
from dare_job.training.checks import require_at_least, require_each, require_temperatures

_LOG = logging.getLogger(__name__)
BEAUTY = "amazon-beauty-ids"


def _drafts(flag: str, given: list[str]) -> tuple[tuple[str, Path], ...]:
    """Names and folders of NAME=DIR."""
    found = []
    for one in given:
        name, _, place = one.partition("=")
        if not name or not place:
            raise ConfigError(f"{flag} {one!r}: write NAME=DIR, as in SFT=out/draft")
        found.append((name, Path(place)))
    return tuple(found)


@dataclass(frozen=True)
class Options:
    """Options of ``bench recommend``."""

    data: Path | None = option("Folder with sequential_train, _valid and _test.txt (.gz); else "
                               f"{BEAUTY} of DARE_DATA.", None)
    target: Path | None = option("A recommender's folder; without it a small shop with random weights is "
                                 "served.", None)
    drafts: Sequence[tuple[str, Path]] = option(
        "A draft model's folder and the name of its rows; repeatable.", (), flag="--draft",
        metavar="NAME=DIR", parse=_drafts, repeatable=True)
    users: int = option("Test users, sampled by --seed.", 200)
    ks: tuple[int, ...] = option("Numbers of recommendations per user.", (1, 3, 5, 10, 20), flag="--k",
                                 parse=ints)
    widths: tuple[int, ...] = option("N beside 40, at K = 10.", (20, 60), parse=ints)
    depths: tuple[int, ...] = option("gamma beside all, at K = 10.", (1, 2), parse=ints)
    temperatures: tuple[float, ...] = option("Of sampled lists, relaxed and exact.", (0.5, 1.0), parse=floats)
    batch: int = option("Users per batch.", 16)
    repeats: int = option("Times each runs; medians.", 1)
    generated: int = option("Users of the runs of generate.", 12)
    threads: int = option("torch threads while measuring.", 1)
    seed: int = option("Random seed.", 0)
    device: Device = device()
    quick: bool = option("Few users and settings: exercises the command.", False)

    def __post_init__(self):
        if self.data is None and self.target and (root := os.environ.get("DARE_DATA")):
            object.__setattr__(self, "data", Path(root) / BEAUTY)
        for flag, folder in (("--data", self.data), ("--target", self.target),
                             *(("--draft", folder) for folder in dict(self.drafts).values())):
            if folder and not folder.is_dir():
                raise ConfigError(f"{flag} {folder}: no such folder")
        if (self.data is None) != (self.target is None):
            raise ConfigError("--target needs sequences (--data, or DARE_DATA), and these a --target: both, "
                              "or neither for a small shop with random weights")
        if self.drafts and self.target is None:
            raise ConfigError("--draft needs the --target that it drafts for")
        require_at_least(self, users=1, batch=1, repeats=1, generated=1, threads=1, seed=0)
        if not self.ks:
            raise ConfigError("--k names none; write for example 5,10")
        for name, values in (("--k", self.ks), ("--widths", self.widths), ("--depths", self.depths)):
            require_each(name, values)
        require_temperatures("--temperatures", self.temperatures, greedy=False)


def run(options: Options) -> dict:
    """Top-K lists by drafted beam search: steps accepted, forwards saved, speed, Recall and NDCG.

    AtSpeed's tables 1 and 2 with given draft models, beside drafters without a model, strict, relaxed and
    exact; ablations, what forced tokens save, and generate as the peer. The last line of standard output is
    one JSON object. Exit code 1 where a target is missed.
    """
    options = _quick(options) if options.quick else options
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as work:
        if options.target is None:
            made = world.small(Path(work), options.users, options.seed, options.device)
        else:
            made = world.real(options.data, options.target, dict(options.drafts), options.users, options.seed,
                              options.device)
        return _measured(made, options)


def _measured(made: world.World, options: Options) -> dict:
    leaves = made.catalogue.trie.leaves
    if max(options.ks) > leaves:
        raise ConfigError(f"--k: {max(options.ks)} is more than the {leaves} ids of the recommender")
    makers, plains = Makers(made, options.seed), {}

    def plain_of(method: Method) -> Measured:
        if method.plain not in plains:
            plains[method.plain] = measured(makers, method.plain, options.batch, options.repeats)
        return plains[method.plain]

    rows = []
    for method in tables([*made.drafts], [*options.ks], [*options.widths], [*options.depths],
                         [*options.temperatures]):
        found = measured(makers, method, options.batch, options.repeats)
        rows.append(report.row(made, method, found, plain_of(method)))
        _LOG.info("%s %s, K = %d, N = %d, temperature %g: %.2f steps accepted, %.2f ms a user", method.name,
                  method.verification, method.k, method.width, method.temperature, found.accepted,
                  found.cpu_ms)
    for method, found in plains.items():
        rows.append(report.row(made, method, found, found))
    middle = 10 if 10 in options.ks else options.ks[-1]
    found = {
        "forced": _forced(rows), "renormalised": [_renormalised(makers, options, k) for k in options.ks],
        "generate": generate.compared(makers, max(options.ks), min(options.generated, options.users),
                                      options.batch),
        "scheduler": _scheduler(makers, options, middle),
        "ablations": ablations.of(makers, middle, options.batch, plain_of(Method(TRIE, k=middle)))}
    device = made.target.device
    aims = report.targets(rows, found["generate"], middle, device.type)
    report.show(rows, found, aims)
    trie = made.catalogue.trie
    return {"rows": rows, "targets": aims, **found, "users": len(made.histories), "ids": trie.leaves,
            "single_child_shares": [trie.single_share(level) for level in range(trie.length)],
            "parameters": {"target": made.target.model.num_parameters(),
                           **{name: one.model.num_parameters() for name, (_, one) in made.drafts.items()}},
            "batch": options.batch, "threads": options.threads, "machine": machine.describe(device),
            "memory_bound": measure.ABOUT}


def _forced(rows: list[dict]) -> list[dict]:
    """What drafting tokens without an alternative saves alone, scores being those of ``generate``."""
    return [{name: one[name] for name in ("k", "forwards_saved", "speedup_cpu", "speedup_memory_bound")}
            for one in rows if one["method"] == FORCED]


def _renormalised(makers: Makers, options: Options, k: int) -> dict:
    """What skipping them saves, where scores are renormalised over the children."""
    raw = measured(makers, Method(PLAIN, k=k), options.batch, options.repeats)
    found = measured(makers, Method(PLAIN, k=k, scores=RENORMALISED), options.batch, options.repeats)
    worth = makers.world.worth(found.leaves, k)
    return {"k": k, "forwards_saved": float(raw.forwards.mean() / found.forwards.mean()),
            "queries_saved": float(raw.queries.mean() / found.queries.mean()),
            "speedup_cpu": raw.cpu_ms / found.cpu_ms, "recall": worth[0], "ndcg": worth[1]}


def _scheduler(makers: Makers, options: Options, k: int) -> dict:
    """Drafts where they pay by what forwards cost on this machine; times are medians of three at least."""
    scheduler, repeats = DraftDepth(makers.world.catalogue.trie.length), max(3, options.repeats)
    plain = measured(makers, Method(PLAIN, k=k), options.batch, repeats)
    found = measured(makers, Method(TRIE, STRICT, k), options.batch, repeats, scheduler)
    forwards = scheduler.drafted + scheduler.undrafted
    return {"k": k, "drafted_share": scheduler.drafted / forwards if forwards else None,
            "speedup_cpu": plain.cpu_ms / found.cpu_ms,
            "identical": bool(np.array_equal(found.leaves, plain.leaves))}


def _quick(options: Options) -> Options:
    """Seconds: exercises the command, measures nothing of interest."""
    return replace(options, users=6, ks=(2, 4), widths=(5,), depths=(1,), temperatures=(1.0,), generated=2)


main = command(Options, target_missed)(run)
