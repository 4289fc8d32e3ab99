"""Small files in the formats that ``dare_job.bench.profiles.data`` reads, and small models of them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from dare_job.bench.profiles import data, noise, train

USERS, MOVIES = 40, 30
_KINDS = ["quiet dramas", "loud comedies", "old westerns", "space operas"]


def write(root: Path) -> None:
    """Write forty users with a profile and a history; user 7 has too few ratings."""
    (root / "knowledge").mkdir()
    (root / "ml-1m").mkdir()
    rng = np.random.default_rng(0)
    rows = [{"user": u, "plain": f" The user seems to enjoy {_KINDS[u % 4]} and {_KINDS[u // 4 % 4]}, above "
             f"all those with {rng.integers(2, 9)} heroes. A calm mood is likely.\n", "fields": {}}
            for u in range(USERS)]
    with gzip.open(root / data.PROFILES, "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    movies = [f"{i + 1}::Film Number {i + 1}, Thé ({1960 + i})::Drama" for i in range(MOVIES)]
    (root / "ml-1m/movies.dat").write_text("\n".join(movies) + "\n", encoding="latin-1")
    items = [f'{i + 1} {MOVIES - 1 - i} "Film Number {i + 1}" Drama' for i in range(MOVIES)]
    (root / "ml-1m/item_list.txt").write_text("org_id remap_id title category\n" + "\n".join(items))
    users = [f"{u + 1} {u + 100}" for u in range(USERS)]
    (root / "ml-1m/user_list.txt").write_text("org_id remap_id\n" + "\n".join(users))
    with gzip.open(root / "ml-1m/sequences_full.txt.gz", "wt") as file:
        for u in range(USERS):
            count = data.LATER if u == 7 else 20
            file.write(f"{u + 100} {' '.join(map(str, rng.permutation(MOVIES)[:count]))}\n")


def small_models(patch: pytest.MonkeyPatch) -> None:
    """Make models of profiles small, of few tokens a text: Muon's bfloat16 products are slow on CPUs."""
    for name, size in {"_WIDTH": 64, "_LAYERS": 2, "_INNER": 2 * noise.UNITS}.items():
        patch.setattr(noise, name, size)
    patch.setattr(train, "TEXT_TOKENS", 40)
    patch.setattr(train, "_BATCH_TOKENS", 512)
