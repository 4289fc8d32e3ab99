"""What a way of writing costs where memory bounds forwards, by the data-sheet curve of ``bench sample``.

The target is charged as Mistral-7B and the draft model as Qwen2.5-0.5B, both on one H100, so many rows
together: a forward of the target by the mean queries that its rows had, and a forward of the draft model a
layer. Beams of a row share what they have in common of keys and values, which are charged once a row.
Verdicts are not charged, nor is drawing.
"""

import math

from dare_job.bench.beam.measure import Written
from dare_job.bench.beam.methods import Way
from dare_job.bench.sampling import curve
from dare_job.bench.sampling.world import BATCH
from dare_job.replay.roofline import H100, QWEN, forward_ms


def step_ms(way: Way, seen: Written, rows: int = BATCH) -> float:
    """Of one step of this many rows."""
    queries = math.ceil(seen.queries.sum() / max(1, seen.steps.sum()))
    target = curve.target_ms(max(1, queries), rows)
    if not way.drafted:
        return target
    if way.beams is None:
        return target + curve.draft_ms(way.drawn.widths, seen.tokens.sum() / max(1, seen.steps.sum()), rows)
    return target + way.beams.layers * forward_ms(H100, QWEN, rows, way.beams.draft_width)


def tokens_per_s(way: Way, seen: Written, rows: int = BATCH) -> float:
    """Tokens of texts a second, of as many rows together; prompts are not charged."""
    return float(1e3 * rows * seen.tokens.sum() / (seen.steps.sum() * step_ms(way, seen, rows)))
