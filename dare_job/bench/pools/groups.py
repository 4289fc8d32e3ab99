"""Users who rated alike: LightGCN vectors of the histories before tonight, and k-means over them.

Items are titles without their years, as in the prompts: two films of one title are one item.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import Progress

from dare_job.bench.profiles.data import LATER, Profile
from dare_job.config import EmbedSettings
from dare_job.embed import kmeans, lightgcn, vectors
from dare_job.embed.pairs import Pairs
from dare_job.workspace import committing, digest, is_done

_FILE = "vectors.parquet"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Groups:
    """members int64 (n,): group of each pool user; routes int64 (m,): of each of tonight's rows."""

    members: np.ndarray
    routes: np.ndarray


def learned(profiles: Sequence[Profile], work: Path) -> dict[str, np.ndarray]:
    """Vector of each user, float32 (d,); kept in ``work`` for the next call."""
    settings = EmbedSettings()
    name = digest([settings.model_dump(), LATER, [(p.user, p.titles) for p in profiles]])
    folder = work / f"vectors-{name[:12]}"
    if not is_done(folder, name):
        pairs = interactions(profiles)
        _LOG.info("vectors of %d users, %d pairs", len(pairs.users), len(pairs.user))
        with (committing(folder, name, {"pairs": len(pairs.user)}) as staging,
              Progress(console=Console(stderr=True), transient=True) as progress):
            found = lightgcn.train(pairs, settings, device="cpu", progress=progress)
            vectors.write(staging / _FILE, pairs.users, found.users)
    users, found = vectors.read(folder / _FILE)
    return dict(zip(users.to_pylist(), found, strict=True))


def interactions(profiles: Sequence[Profile]) -> Pairs:
    """What each user had rated when the earlier night's text was written."""
    profiles = sorted(profiles, key=lambda profile: profile.user)
    seen = [sorted(set(profile.titles[:-LATER])) for profile in profiles]
    items, item = np.unique(np.concatenate([np.array(titles, dtype=np.str_) for titles in seen]),
                            return_inverse=True)
    user = np.repeat(np.arange(len(profiles)), [len(titles) for titles in seen])
    return Pairs(pa.array([profile.user for profile in profiles]), pa.array(items.tolist()), user,
                 item.astype(np.int64), np.zeros(len(user), bool))


def cluster(pool: np.ndarray, rows: np.ndarray, size: int) -> Groups:
    """Groups of ``size`` pool users on average, by vectors pool (n, d); rows (m, d) join the nearest mean."""
    members = kmeans.assign(pool, kmeans.clusters(len(pool), size), seed=0)
    labels, members = np.unique(members, return_inverse=True)
    means = np.stack([pool[members == label].mean(axis=0) for label in range(len(labels))])
    distances = ((rows[:, None, :] - means[None]) ** 2).sum(axis=-1)  # (m, groups)
    return Groups(members, distances.argmin(axis=1))


def shuffled(groups: Groups, seed: int) -> Groups:
    """Groups of the same sizes for the same rows, their members drawn at random."""
    return Groups(np.random.default_rng(seed).permutation(groups.members), groups.routes)
