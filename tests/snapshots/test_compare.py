"""Two snapshots joined by id, against the same thing done with dictionaries."""

import random

import numpy as np
import pytest
from small_dates import publish, row

from dare_job.publish.snapshots import compare
from dare_job.tables.published import rows_at

BEFORE, AFTER = "2026-01-01", "2026-01-02"


def by_hand(before: list[dict], after: list[dict]) -> dict:
    old, new = ({row["entity_id"]: row for row in rows} for rows in (before, after))
    both = [(old[name], new[name]) for name in old if name in new]
    texts = [(a, b) for a, b in both if a["knowledge"] is not None and b["knowledge"] is not None]
    same = [b for a, b in texts if a["knowledge"] == b["knowledge"]]
    return {
        "before": len(old), "after": len(new), "added": len(set(new) - set(old)),
        "removed": len(set(old) - set(new)), "changed": len(texts) - len(same), "same": len(same),
        "same_written_anew": sum(b["generated_dt"] == AFTER for b in same),
        "text_gained": sum(a["knowledge"] is None and b["knowledge"] is not None for a, b in both),
        "text_lost": sum(a["knowledge"] is not None and b["knowledge"] is None for a, b in both),
        "errors_before": sum(row["error"] is not None for row in before),
        "errors_after": sum(row["error"] is not None for row in after),
        "errors_new": sum(a["error"] is None and b["error"] is not None for a, b in both)}


@pytest.mark.parametrize("seed", range(12))
def test_counts_lengths_and_places_are_those_found_by_hand(tmp_path, seed):
    """Other files and other orders on the two dates; empty texts are texts; some dates share no id."""
    chance = random.Random(seed)
    words, errors = ["", "one", "two words", None], [None, None, "too long"]

    def rows(day: str, first: int) -> list[dict]:
        ids = chance.sample(range(first, first + 40), chance.randint(1, 30))
        return [row(f"u{n}", chance.choice(words), chance.choice([BEFORE, day]), chance.randint(1, 9),
                    chance.choice(errors)) for n in ids]

    before, after = rows(BEFORE, 0), rows(AFTER, 1000 if seed == 0 else 5)
    spaces = [publish(tmp_path, BEFORE, before, cut=7), publish(tmp_path, AFTER, after, cut=4)]
    folders = [space.knowledge("user") for space in spaces]
    found = compare.compare(*(compare.read(space.knowledge("user"), space.dt) for space in spaces))
    assert found.counts == by_hand(before, after)
    old, new = ({row["entity_id"]: row for row in rows} for rows in (before, after))
    pairs = [(old[name], new[name]) for name in old
             if name in new and None not in (old[name]["knowledge"], new[name]["knowledge"])]
    if pairs:
        assert found.lengths["before"]["mean"] == round(np.mean([a["tokens"] for a, _ in pairs]), 1)
        assert found.lengths["after"]["median"] == np.median([b["tokens"] for _, b in pairs])
    differing = [(a, b) for a, b in pairs if a["knowledge"] != b["knowledge"]]
    assert found.lengths["longer"] == sum(b["tokens"] > a["tokens"] for a, b in differing)
    texts = [[tuple(row.values()) for row in rows_at(folder, numbers, ["entity_id", "knowledge"])]
             for folder, numbers in zip(folders, found.changed.T.tolist(), strict=True)]
    assert sorted(zip(*texts, strict=True)) == sorted(
        tuple((row["entity_id"], row["knowledge"]) for row in pair) for pair in differing)


def test_a_snapshot_without_rows_can_be_compared(tmp_path):
    full = compare.read(publish(tmp_path, BEFORE).knowledge("user"), BEFORE)
    empty = compare.read(tmp_path, AFTER)
    assert compare.compare(empty, empty).counts["after"] == 0
    assert compare.compare(full, empty).counts["removed"] == 1
    assert compare.compare(empty, full).counts["added"] == 1
