"""``dare-job pools corrections``: learns which corrections recur from the texts of published dates."""

from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from dare_job.errors import DataError
from dare_job.observe import progress
from dare_job.schemas import ENTITIES
from dare_job.storage import paths
from dare_job.tables import published
from dare_job.verifiers import corrections
from dare_job.workspace import Workspace

_STRICT = pc.field("error").is_null() & pc.field("token_ids").is_valid() & ~(
    pc.coalesce(pc.field("relaxed_tokens"), pc.scalar(0)) > 0) & ~pc.coalesce(
        pc.field("copied"), pc.scalar(False))


def run(out: str, save: Path, dt: date | None = None, nights: int = 7, rows: int = 20_000,
        same: int = 5) -> dict:
    """Learn, write the memory, and return what was found.

    Parameters
    ----------
    out
        Output folder with at least two published dates.
    save
        File of the memory.
    dt
        Newest date to learn from; None: the newest of all.
    nights
        Dates whose new texts are compared with those of the date before.
    rows
        Texts of each date and entity type that are compared, at random.
    same
        Tokens after a correction that have to be those of the draft.

    Raises
    ------
    DataError
        There are fewer than two published dates, or their texts share no tokenizer.
    """
    space = Workspace(paths.path(out, "--out"), dt or date.max)
    dates = [dt for dt in space.published_dates() if dt <= space.dt][-1 - nights:]
    if len(dates) < 2:
        raise DataError(f"{out} has {len(dates)} published dates up to {space.dt}; corrections show "
                        "between the texts of two dates")
    pairs = []
    with progress.doing("comparing texts of successive dates"):
        for old, new in pairwise(dates):
            for entity in ENTITIES:
                pairs += _pairs(space, entity, old, new, rows)
        if not pairs:
            raise DataError(f"{out}: no strict text of {', '.join(dates[1:])} has one of the date "
                            "before with the same tokenizer")
        counts = corrections.learn(pairs, same)
    corrections.save(save, counts)
    harmless = np.array([count for count, _ in counts.values()], int)
    return {"memory": str(save), "dates": dates, "texts": len(pairs), "corrections": len(counts),
            "without_consequence": int((harmless > 0).sum()), "recurring": int((harmless > 1).sum())}


def _pairs(space: Workspace, entity: str, old: str, new: str,
           rows: int) -> Iterator[tuple[list[int], list[int]]]:
    """Token ids of previous and new texts: of those that were written strictly, or with the same result."""
    before, after = space.knowledge(entity, old), space.knowledge(entity, new)
    if published.read_manifest(before).get("tokenizer") != published.read_manifest(after).get("tokenizer"):
        return
    written = published.dataset(after).to_table(
        columns=["entity_id", "token_ids"], filter=_STRICT & (pc.field("generated_dt") == new))
    if len(written) > rows:
        written = written.take(np.sort(np.random.default_rng(0).permutation(len(written))[:rows]))
    known = published.rows_by_id(before, written["entity_id"].to_pylist(), ["token_ids"])
    for row in written.to_pylist():
        draft = known.get(row["entity_id"], {}).get("token_ids")
        if draft:
            yield draft, row["token_ids"]
