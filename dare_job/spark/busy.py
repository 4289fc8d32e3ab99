"""How evenly a stage's workers were busy, and with how many rows at once: read from the files they wrote."""

from collections import Counter

from dare_job.files import AnyPath, each
from dare_job.spark import chunks
from dare_job.spark.cut import Cut


def files(work: Cut) -> set[AnyPath]:
    """Chunks that are there."""
    return {folder / chunks.name(*chunk) for folder in work.entities for chunk in chunks.committed(folder)}


def record(work: Cut, before: set[AnyPath]) -> dict | None:
    """The workers of the chunks that are not in ``before``, as JSON values; None: there is no such chunk.

    imbalance   busy seconds of the busiest worker over their mean, each wave's own, as a wave waits for all
    waited_s    how long the mean worker waited for the busiest, all waves together
    batch_size  rows at once, of the worker that had to go down the most
    """
    seconds: dict[int, Counter[str]] = {}
    sizes: dict[str, int] = {}
    new = list(files(work) - before)
    for path, (maker, busy_s) in zip(new, each(chunks.read_maker, new), strict=True):
        if maker is not None:
            shard = int(path.name.split("-")[1])
            seconds.setdefault(_wave(work, shard), Counter())[maker.worker] += busy_s
            sizes[maker.worker] = min(maker.batch_size, sizes.get(maker.worker, maker.batch_size))
    if not sizes:
        return None
    most = sum(max(busy.values()) for busy in seconds.values())
    mean = sum(busy.total() / len(busy) for busy in seconds.values())
    return {"workers": len(sizes), "imbalance": round(most / mean, 3) if mean else None,
            "waited_s": round(most - mean, 1), "batch_size": min(sizes.values()),
            "busy_s": {worker: round(sum(busy[worker] for busy in seconds.values()), 2)
                       for worker in sorted(sizes)}}


def _wave(work: Cut, shard: int) -> int:
    return next(wave for wave in range(1, 1 + len(work.waves)) if shard in work.shards_of(wave))
