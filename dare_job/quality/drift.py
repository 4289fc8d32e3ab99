"""Are tonight's texts as long as those of the same entities before? Only where the same writer wrote both."""

import numpy as np
import pyarrow as pa

from dare_job import knowledge
from dare_job.job import Job
from dare_job.quality import lengths
from dare_job.quality.findings import OF_LENGTHS, Finding
from dare_job.quality.scan import Scan, readable


def compared(job: Job, entity: str, sample: pa.Table, checked: Scan) -> dict[str, Finding]:
    """The findings of lengths; rows out of bounds are listed with ``checked``."""
    gates = job.config.gates
    limits = {"length_ratio": gates.max_length_ratio, "length_distance": gates.max_length_distance}
    why, pairs = _incomparable(job, entity), None
    if why is None:
        old = knowledge.old_folder(job, entity)
        before = knowledge.dataset(old).to_batches(columns=["entity_id", "tokens"])
        pairs = lengths.pair(sample, readable(before, old, "publish that date again"))
        if len(pairs.new) < gates.min_length_pairs:
            why = f"{len(pairs.new)} pairs, fewer than gates.min_length_pairs = {gates.min_length_pairs}"
    if why is not None:
        return {check: Finding(0, 0, None, limits[check], why=why) for check in OF_LENGTHS}
    ratio, distance, found = pairs.median_ratio(), pairs.distance(), {}
    if gates.max_length_ratio is not None:
        _list("length_ratio", pairs, pairs.outside(gates.max_length_ratio), checked)
    for check, value, held in (("length_ratio", ratio, max(ratio, 1 / ratio)),
                               ("length_distance", distance, distance)):
        over = limits[check] is not None and held > limits[check]
        if over and check == "length_distance":
            _list(check, pairs, pairs.farthest(distance), checked)
        found[check] = Finding(checked.rows[check], len(pairs.new), value, limits[check], over,
                               checked.first.get(check, []))
    return found


def _list(check: str, pairs: lengths.Pairs, bad: np.ndarray, checked: Scan) -> None:
    """List the rows of a mask with their own ratio."""
    rows = pa.array(bad)
    checked.note(check, pairs.ids.filter(rows), pairs.ratio[bad], pairs.texts.filter(rows))


def _incomparable(job: Job, entity: str) -> str | None:
    """Why the lengths of tonight and before are not held against each other; None: they are."""
    old = knowledge.old_folder(job, entity)
    before = knowledge.manifest(old) if old else {}
    if not before:
        return "no text before that says who wrote it"
    changed = [what for what, _, _ in knowledge.changes(job, old, entity)]
    new_tokens = knowledge.writer(job)["new_tokens"]
    if before.get("new_tokens", new_tokens) != new_tokens:
        changed.append("number of new tokens")
    return f"another {' and '.join(changed)} before" if changed else None
