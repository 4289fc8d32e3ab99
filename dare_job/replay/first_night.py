"""A first night in waves: some rows are written before the others, whose pool their texts become."""

from collections.abc import Mapping, Sequence

import numpy as np

from dare_job.wave_sizes import rows_of_waves

CANDIDATES = ((50,), (100,), (250,), (500,), (1000,), (50, 500), (100, 1000), (500, 5000), (50, 250, 1000),
              (50, 500, 5000), (100, 1000, 10000), (500, 5000, 50000))
_LEAST_GAIN = 0.01  # of all steps: what another wave must save


def total_steps(rows: int, tokens: float, accepted: Mapping[int, float], sizes: Sequence[int]) -> float:
    """Steps of a whole night: rows of each wave draft from the texts of the waves before.

    rows, tokens  rows to write, and tokens a row
    accepted      accepted a step by texts in the pool, 0 among them; between two sizes linear in the
                  logarithm, behind the largest as there
    sizes         texts that are there after each wave, as ``waves.sizes``; the rest follows
    """
    known = sorted(accepted)
    places, values = np.log1p(known), [accepted[size] for size in known]
    done, total = 0, 0.0
    waves = rows_of_waves(sizes, rows)
    for wave in (*waves, rows - sum(waves)):
        total += wave * tokens / (1 + float(np.interp(np.log1p(done), places, values)))
        done += wave
    return total


def recommend(rows: int, tokens: float, accepted: Mapping[int, float]) -> dict:
    """The plan with the fewest waves whose steps are within 1 % of the best candidate's.

    Returns {"rows", "sizes" (empty: no waves), "steps", "steps_without", "ratio"}.
    """
    plain = total_steps(rows, tokens, accepted, ())
    plans = {(): plain} | {sizes: total_steps(rows, tokens, accepted, sizes) for sizes in CANDIDATES
                           if max(sizes) < rows}
    least = min(plans.values())
    good = [sizes for sizes, steps in plans.items() if steps <= least + _LEAST_GAIN * plain]
    sizes = min(good, key=lambda sizes: (len(sizes), plans[sizes]))
    return {"rows": rows, "sizes": list(sizes), "steps": round(plans[sizes]), "steps_without": round(plain),
            "ratio": round(plans[sizes] / plain, 4)}
