"""A small world of sequences with a rule that can be learned."""

import numpy as np
import pytest
from recommend_world import ITEMS, World, some_ids


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> World:
    """120 users who walk a ring of items, most by steps of 7."""
    folder, rng, ids = tmp_path_factory.mktemp("sequences"), np.random.default_rng(1), some_ids()
    lines = {part: [] for part in ("train", "valid", "test")}
    for user in range(120):
        steps = np.where(rng.random(12) < 0.9, 7, rng.integers(1, ITEMS, 12))
        items = (rng.integers(ITEMS) + np.cumsum(steps)) % ITEMS + 1
        for part, row in zip(lines, (items[:10], items[10:11], items[11:] if user % 2 else []), strict=True):
            lines[part].append(f"{user} {' '.join(map(str, row))}")
    for part, rows in lines.items():
        (folder / f"sequential_{part}.txt").write_text("\n".join(rows) + "\n")
    ids.save(folder / "ids.json")
    return World(folder, folder / "ids.json", ids)
