"""``bench recommend``: searches in turn, the table of their figures, and the targets."""

import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from dare_job.bench.cli import command, floats, ints, target_missed
from dare_job.bench.gpu import machine
from dare_job.bench.recommend import report, world
from dare_job.bench.recommend.measure import ABOUT, Measured, compare_with_generate, measure
from dare_job.bench.recommend.methods import PLAIN, STRICT, TRIE, Makers, Method, tables
from dare_job.config.options import Device, device, option
from dare_job.decode.trie_search.draft_depth import DraftDepth
from dare_job.decode.trie_search.node_scores import RENORMALISED
from dare_job.errors import ConfigError
from dare_job.training.checks import require_at_least, require_each, require_temperatures

_LOG = logging.getLogger(__name__)
BEAUTY = "amazon-beauty-ids"


def _drafts(flag: str, words: list[str]) -> tuple[tuple[str, Path], ...]:
    """Names and folders of NAME=DIR."""
    drafts = []
    for word in words:
        name, _, folder = word.partition("=")
        if not name or not folder:
            raise ConfigError(f"{flag} {word!r}: write NAME=DIR, as in SFT=out/draft")
        drafts.append((name, Path(folder)))
    return tuple(drafts)


@dataclass(frozen=True)
class Options:
    """Options of ``bench recommend``."""

    data: Path | None = option("Folder with sequential_train, _valid and _test.txt (.gz). Default: "
                               f"{BEAUTY} of DARE_DATA.", None)
    target: Path | None = option("A recommender's folder. Default: a small catalogue with random weights.",
                                 None, flag="--model")
    drafts: Sequence[tuple[str, Path]] = option(
        "A draft model's folder and the name of its rows; repeatable.", (), flag="--draft",
        metavar="NAME=DIR", parse=_drafts, repeatable=True)
    users: int = option("Test users, sampled by --seed.", 200)
    ks: tuple[int, ...] = option("Numbers of recommendations per user.", (1, 3, 5, 10, 20), flag="--k",
                                 parse=ints)
    widths: tuple[int, ...] = option("Numbers of beams of the draft models (N), compared at K = 10 with the "
                                     "default of 40.", (20, 60), parse=ints)
    depths: tuple[int, ...] = option("Numbers of levels that the draft models draft (gamma), compared at "
                                     "K = 10 with all levels.", (1, 2), parse=ints)
    temperatures: tuple[float, ...] = option("Temperatures of sampled recommendations, each with relaxed and "
                                             "with exact verification.", (0.5, 1.0), parse=floats)
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
        for flag, folder in (("--data", self.data), ("--model", self.target),
                             *(("--draft", folder) for folder in dict(self.drafts).values())):
            if folder and not folder.is_dir():
                raise ConfigError(f"{flag} {folder}: no such folder")
        if (self.data is None) != (self.target is None):
            raise ConfigError("--model and sequences (--data, or DARE_DATA) go together: give both, or "
                              "neither to measure a small catalogue with random weights")
        if self.drafts and self.target is None:
            raise ConfigError("--draft needs --model, the recommender that it drafts for")
        require_at_least(self, users=1, batch=1, repeats=1, generated=1, threads=1, seed=0)
        if not self.ks:
            raise ConfigError("--k is empty; write for example 5,10")
        for name, values in (("--k", self.ks), ("--widths", self.widths), ("--depths", self.depths)):
            require_each(name, values)
        require_temperatures("--temperatures", self.temperatures, greedy=False)


def run(options: Options) -> dict:
    """Top-K items by drafted beam search: accepted steps, forward passes saved, speed, Recall and NDCG.

    AtSpeed's tables 1 and 2 with these draft models, beside drafters without a model, strict, relaxed and
    exact; renormalised scores, automatic draft depth, and generate of transformers. The last line of standard
    output is one JSON object. Exit code 1 if a target is missed.
    """
    options = _quick(options) if options.quick else options
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as work:
        if options.target is None:
            users = world.small(Path(work), options.users, options.seed, options.device)
        else:
            users = world.real(options.data, options.target, dict(options.drafts), options.users,
                               options.seed, options.device)
        return _measure(users, options)


def _measure(users: world.World, options: Options) -> dict:
    trie, device = users.catalogue.trie, users.target.device
    if max(options.ks) > trie.leaves:
        raise ConfigError(f"--k: {max(options.ks)} is more than the {trie.leaves} ids of the recommender")
    makers, plain = Makers(users, options.seed), {}
    rows = []
    for method in tables([*users.drafts], [*options.ks], [*options.widths], [*options.depths],
                         [*options.temperatures]):
        if method.plain not in plain:
            plain[method.plain] = measure(makers, method.plain, options.batch, options.repeats)
        measured = measure(makers, method, options.batch, options.repeats)
        rows.append(report.row(users, method, measured, plain[method.plain]))
        _LOG.info("%s %s, K = %d, N = %d, temperature %g: %.2f accepted steps, %.2f ms per user", method.name,
                  method.verification, method.k, method.width, method.temperature, measured.accepted,
                  measured.cpu_ms)
    rows += [report.row(users, method, measured, measured) for method, measured in plain.items()]
    middle = 10 if 10 in options.ks else options.ks[-1]
    others = {
        "renormalised": [_renormalised(makers, options, k, plain[Method(PLAIN, k=k).plain])
                         for k in options.ks],
        "generate": compare_with_generate(makers, max(options.ks), min(options.generated, options.users),
                                          options.batch),
        "draft_depth": _draft_depth(makers, options, middle)}
    targets = report.targets(rows, others["generate"], middle, device.type)
    report.show(rows, others, targets)
    return {"rows": rows, "targets": targets, **others, "users": len(users.histories), "ids": trie.leaves,
            "single_child_shares": [trie.single_share(level) for level in range(trie.length)],
            "parameters": {"target": users.target.model.num_parameters(),
                           **{name: draft.model.num_parameters() for name, (_, draft) in
                              users.drafts.items()}},
            "batch": options.batch, "threads": options.threads, "machine": machine.describe(device),
            "memory_bound": ABOUT}


def _renormalised(makers: Makers, options: Options, k: int, raw: Measured) -> dict:
    """What skipping forced tokens saves if scores are renormalised over the children."""
    measured = measure(makers, Method(PLAIN, k=k, scores=RENORMALISED), options.batch, options.repeats)
    recall, ndcg = makers.world.quality(measured.leaves, k)
    return {"k": k, "forwards_saved": float(raw.forwards.mean() / measured.forwards.mean()),
            "queries_saved": float(raw.queries.mean() / measured.queries.mean()),
            "speedup_cpu": raw.cpu_ms / measured.cpu_ms, "recall": recall, "ndcg": ndcg}


def _draft_depth(makers: Makers, options: Options, k: int) -> dict:
    """Automatic draft depth by the cost of forward passes here; times are medians of at least three."""
    depth, repeats = DraftDepth(makers.world.catalogue.trie.length), max(3, options.repeats)
    plain = measure(makers, Method(PLAIN, k=k), options.batch, repeats)
    measured = measure(makers, Method(TRIE, STRICT, k), options.batch, repeats, depth)
    forwards = depth.drafted + depth.undrafted
    return {"k": k, "drafted_share": depth.drafted / forwards if forwards else None,
            "speedup_cpu": plain.cpu_ms / measured.cpu_ms,
            "identical": bool(np.array_equal(measured.leaves, plain.leaves))}


def _quick(options: Options) -> Options:
    """Seconds: exercises the command, measures nothing of interest."""
    return replace(options, users=6, ks=(2, 4), widths=(5,), depths=(1,), temperatures=(1.0,), generated=2)


main = command(Options, target_missed)(run)
