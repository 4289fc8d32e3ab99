"""The pools that are compared: of everybody, of random users, of users who rated alike, and of the row."""

from collections.abc import Mapping
from functools import cache

import numpy as np

from dare_job.bench.decode.night import Night
from dare_job.bench.pools import groups
from dare_job.bench.pools.groups import Groups
from pools.index import Index

NONE = "none"
GRP, RRP, CRP = "GRP", "RRP", "CRP"  # of a size, by DARE's names: global, random, customised
OWN, GROUP, GLOBAL, BLEND = "own", "group", "global", "own + group + global"


class Pools:
    """Pools of tonight's rows by kind and size, built when they are asked for."""

    def __init__(self, night: Night, vectors: Mapping[str, np.ndarray]):
        """vectors: float32 (d,) by user, of the pool and of tonight's rows."""
        self._texts = list(night.pool.values())
        self._old = night.old
        self.users = list(night.asked)
        self._members = np.stack([vectors[user] for user in night.pool])  # (n, d)
        self._rows = np.stack([vectors[user] for user in self.users])
        self.largest = len(self._texts)
        self.everybody = cache(self._everybody)
        self._groups = cache(self._grouped)
        self._own = cache(self._owned)

    def of(self, kind: str, size: int) -> dict[str, tuple[Index, ...]]:
        """Each row's pools by user, nearest first. size: texts of a pool, or of a group on average."""
        if kind == NONE:
            return dict.fromkeys(self.users, ())
        if kind == GRP:
            return dict.fromkeys(self.users, (self.everybody(size),))
        if kind in (RRP, CRP):
            return {user: (index,) for user, index in self._groups(kind, size).items()}
        chosen = (OWN, GROUP, GLOBAL) if kind == BLEND else (kind,)
        sources = {OWN: lambda user: self._own()[user], GROUP: lambda user: self._groups(CRP, size)[user],
                   GLOBAL: lambda user: self.everybody(self.largest)}
        return {user: tuple(sources[name](user) for name in chosen) for user in self.users}

    def _everybody(self, size: int) -> Index:
        """The first texts of the pool: it stands in the order of a hash, so this is a sample."""
        return Index.build(self._texts[:size])

    def _grouped(self, kind: str, size: int) -> dict[str, Index]:
        found = groups.cluster(self._members, self._rows, size)
        if kind == RRP:
            found = groups.shuffled(found, seed=size)
        built = {group: self._group(found, group) for group in np.unique(found.routes).tolist()}
        return {user: built[group] for user, group in zip(self.users, found.routes.tolist(), strict=True)}

    def _group(self, found: Groups, group: int) -> Index:
        return Index.build([self._texts[i] for i in np.flatnonzero(found.members == group)],
                           kind="collaborative")

    def _owned(self) -> dict[str, Index]:
        return {user: Index.build([self._old[user]], kind="own") for user in self.users}
