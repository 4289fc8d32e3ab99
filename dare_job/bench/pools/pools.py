"""Pools of all users, of random users, of users who rated alike and of the row itself, and the cells.

A cell is a pool, a retrieval rule and a verification rule; a block of cells is timed together. Users who
rated alike: k-means over LightGCN vectors of the histories before the later date.

Items are titles without their years, as in the prompts: two films of one title are one item.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from dare_job.bench.kept import keep_named
from dare_job.bench.profiles.data import LATER, Profile
from dare_job.bench.profiles.two_dates import TwoDates
from dare_job.embed import kmeans, vectors
from dare_job.embed.lightgcn import Pairs
from dare_job.training import lightgcn
from dare_job.workspace import digest
from pools.index import Index

_FILE = "vectors.parquet"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Groups:
    """members int64 (n,): group of each pool user; routes int64 (m,): of each row."""

    members: np.ndarray
    routes: np.ndarray


def user_vectors(profiles: Sequence[Profile], work: Path) -> dict[str, np.ndarray]:
    """Vector of each user, float32 (d,); kept in ``work`` for the next call."""
    settings = lightgcn.Training()

    def fill(folder: Path) -> dict:
        pairs = interactions(profiles)
        _LOG.info("vectors of %d users, %d pairs", len(pairs.users), len(pairs.user))
        trained = lightgcn.train(pairs, settings, device="cpu")
        vectors.write_vectors(folder / _FILE, pairs.users, trained.users)
        return {"pairs": len(pairs.user)}

    folder = keep_named(work, "vectors", [asdict(settings), LATER, [(p.user, p.titles) for p in profiles]],
                        fill)
    users, rows = vectors.read_vectors(folder / _FILE)
    return dict(zip(users.to_pylist(), rows, strict=True))


def interactions(profiles: Sequence[Profile]) -> Pairs:
    """What each user had rated when the earlier date's text was generated."""
    return distinct_pairs({profile.user: profile.titles[:-LATER] for profile in profiles})


def distinct_pairs(histories: Mapping[str, Sequence[str]]) -> Pairs:
    """Distinct pairs of users and items; no pair is marked as the last one."""
    users = sorted(histories)
    distinct = [sorted(set(histories[user])) for user in users]
    items, item = np.unique(np.concatenate([np.array(own, dtype=np.str_) for own in distinct]),
                            return_inverse=True)
    user = np.repeat(np.arange(len(users)), [len(own) for own in distinct])
    return Pairs(pa.array(users), pa.array(items.tolist()), user, item.astype(np.int64),
                 np.zeros(len(user), bool))


def cluster(pool: np.ndarray, rows: np.ndarray, size: int) -> Groups:
    """Groups of ``size`` pool users on average, by vectors pool (n, d); rows (m, d) join the nearest mean."""
    members = kmeans.cluster(pool, kmeans.cluster_count(len(pool), size), seed=0)
    labels, members = np.unique(members, return_inverse=True)
    means = np.stack([pool[members == label].mean(axis=0) for label in range(len(labels))])
    distances = ((rows[:, None, :] - means[None]) ** 2).sum(axis=-1)  # (m, groups)
    return Groups(members, distances.argmin(axis=1))


def shuffled(groups: Groups, seed: int) -> Groups:
    """Groups of the same sizes for the same rows, with random members."""
    return Groups(np.random.default_rng(seed).permutation(groups.members), groups.routes)


NONE = "none"
GRP, RRP, CRP = "GRP", "RRP", "CRP"  # of a size, by DARE's names: global, random, customised
OWN, GROUP, GLOBAL, BLEND = "own", "group", "global", "own + group + global"


class Pools:
    """Pools of the rows by kind and size, built on first use.

    Attributes
    ----------
    fingerprint
        Digest of the users with their prompts, texts and vectors: figures of others are measured again.
    """

    def __init__(self, dates: TwoDates, vectors: Mapping[str, np.ndarray]):
        """vectors: float32 (d,) by user, of the pool and of the rows."""
        self._texts = list(dates.pool.values())
        self._previous = dates.previous
        self.users = list(dates.prompts)
        self._members = np.stack([vectors[user] for user in dates.pool])  # (n, d)
        self._rows = np.stack([vectors[user] for user in self.users])
        ids = [[[user, own.tolist()] for user, own in by_user.items()]
               for by_user in (dates.prompts, dates.previous, dates.pool, dates.texts)]
        self.fingerprint = digest([ids, self._members.tolist(), self._rows.tolist()])
        self.largest = len(self._texts)
        self.all_users, self._groups = cache(self._all_users), cache(self._grouped)

    def of(self, kind: str, size: int) -> dict[str, tuple[Index, ...]]:
        """Each row's pools by user, nearest first. size: texts of a pool, or of a group on average."""
        if kind == NONE:
            return dict.fromkeys(self.users, ())
        if kind == GRP:
            return dict.fromkeys(self.users, (self.all_users(size),))
        if kind in (RRP, CRP):
            return {user: (index,) for user, index in self._groups(kind, size).items()}
        chosen = (OWN, GROUP, GLOBAL) if kind == BLEND else (kind,)
        sources = {OWN: lambda user: self._own[user], GROUP: lambda user: self._groups(CRP, size)[user],
                   GLOBAL: lambda user: self.all_users(self.largest)}
        return {user: tuple(sources[name](user) for name in chosen) for user in self.users}

    def _all_users(self, size: int) -> Index:
        """The first texts of the pool, which are a sample, because the pool is ordered by a hash."""
        return Index.build(self._texts[:size])

    def _grouped(self, kind: str, size: int) -> dict[str, Index]:
        groups = cluster(self._members, self._rows, size)
        if kind == RRP:
            groups = shuffled(groups, seed=size)
        built = {group: Index.build([self._texts[i] for i in np.flatnonzero(groups.members == group)],
                                    kind="collaborative") for group in np.unique(groups.routes).tolist()}
        return {user: built[group] for user, group in zip(self.users, groups.routes.tolist(), strict=True)}

    @cached_property
    def _own(self) -> dict[str, Index]:
        return {user: Index.build([self._previous[user]], kind="own") for user in self.users}


BLENDED, PUBLISHED = "blend", "published"
SOURCES, RULES = "sources", "rules"  # the blocks that are not of a size
K, P = (2, 4, 8), (0.3, 0.1, 0.03)  # of figure 5; DARE recommends 2 and 0.1


@dataclass(frozen=True)
class Cell:
    """One measured setting. Pool ``NONE`` is autoregressive decoding.

    Attributes
    ----------
    pool, size
        As in ``Pools.of``.
    retrieval
        ``BLENDED`` or ``PUBLISHED``.
    rule, k, p
        As in ``EngineSettings``.
    """

    pool: str
    size: int
    retrieval: str = BLENDED
    rule: str = "strict"
    k: int = 2
    p: float = 0.1

    @property
    def strict(self) -> bool:
        return self.rule == "strict"

    @property
    def named(self) -> str:
        """The rule with its parameters."""
        if self.pool == NONE:
            return "autoregressive decoding"
        k, p = (f"k={self.k}", f"p={self.p}")
        parameters = {"top_k": [k], "threshold": [p], "relaxed": [k, p], "literal": [k, p]}
        return " ".join([self.rule, *parameters.get(self.rule, [])])


PLAIN = Cell(NONE, 0)


def blocks(sizes: Sequence[int], largest: int, group: int) -> dict[str, list[Cell]]:
    """Cells by block, autoregressive decoding first in each.

    Parameters
    ----------
    sizes
        Sizes of pools, each below ``largest``.
    largest
        Size of the pool of all users.
    group
        Size of the groups that are blended with other sources.
    """
    cells = {f"size-{size}": [PLAIN, *_of_size(size, (GRP, RRP, CRP))] for size in sizes}
    cells[f"size-{largest}"] = [PLAIN, *_of_size(largest, (GRP,))]
    cells[SOURCES] = [PLAIN, *(Cell(pool, group, rule=rule) for pool in (OWN, GROUP, GLOBAL, BLEND)
                               for rule in ("strict", "relaxed"))]
    cells[RULES] = [PLAIN, *_rules(group)]
    return cells


def _of_size(size: int, pools: Sequence[str]) -> list[Cell]:
    ours = [Cell(pool, size, rule=rule) for pool in pools for rule in ("strict", "relaxed")]
    return ours + [Cell(pool, size, PUBLISHED) for pool in pools if pool != RRP]


def _rules(group: int) -> list[Cell]:
    """Top-1, top-k alone, the threshold alone, both, and both as equation 8 is printed."""
    both = [(k, P[1]) for k in K] + [(K[0], p) for p in P if p != P[1]]
    return [Cell(BLEND, group),
            *(Cell(BLEND, group, rule="top_k", k=k) for k in K),
            *(Cell(BLEND, group, rule="threshold", p=p) for p in P),
            *(Cell(BLEND, group, rule="relaxed", k=k, p=p) for k, p in both),
            Cell(BLEND, group, rule="literal", k=K[0], p=P[1])]
