"""Worker utilization and beam statistics of the stage generate, read from the footers of its chunk files."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from dare_job.generate.shard_plan import ShardPlan
from dare_job.refresh import acceptance
from dare_job.storage.paths import AnyPath, map_paths
from dare_job.tables import chunk_files

if TYPE_CHECKING:
    from dare_job.decode.request import Result


MAX_SPANS = 1000  # of all workers together
_Span = list[float]  # start and end in seconds since 1970, shard, wave


def committed_files(work: ShardPlan) -> set[AnyPath]:
    """Files of all committed chunks."""
    return {path for folder in work.entities for path in folder.glob("part-*.parquet")}


def read_footers(work: ShardPlan) -> dict[AnyPath, dict]:
    """``chunk_files.read_records`` of all committed chunks, by file."""
    files = sorted(committed_files(work))
    return dict(zip(files, map_paths(chunk_files.read_records, files), strict=True))


def utilization_record(work: ShardPlan, before: set[AnyPath], footers: dict[AnyPath, dict]) -> dict | None:
    """Utilization of the workers that committed chunks not in ``before``, as JSON values.

    None if there is no such chunk. ``footers`` are those of ``read_footers``.

    Returns
    -------
    imbalance
        Busy seconds of the busiest worker / mean busy seconds, summed per wave, as waves are barriers.
    waited_s
        Seconds that the mean worker waited for the busiest one, over all waves.
    batch_size
        Smallest batch size that a worker was reduced to.
    concurrent
        Most workers that decoded at the same time, also in earlier commands.
    spans
        By worker, [start, end, shard, wave] of the time that it decoded, in seconds since 1970, at most
        MAX_SPANS; also those of earlier commands.
    """
    seconds: dict[int, Counter[str]] = defaultdict(Counter)
    sizes: dict[str, int] = {}
    spans: dict[str, list[_Span]] = defaultdict(list)
    if not footers.keys() - before:
        return None
    for path, records in footers.items():
        if maker := records.get("maker"):
            worker, batch_size, busy_s = maker["worker"], maker["batch_size"], records["totals"]["busy_s"]
            shard, _ = chunk_files.numbers(path)
            wave = _wave(work, shard)
            if ended := maker.get("ended"):
                spans[worker].append([round(ended - busy_s, 3), ended, shard, wave])
            if path not in before:
                seconds[wave][worker] += busy_s
                sizes[worker] = min(batch_size, sizes.get(worker, batch_size))
    if not sizes:
        return None
    busiest = sum(max(busy.values()) for busy in seconds.values())
    mean = sum(busy.total() / len(busy) for busy in seconds.values())
    return {"workers": len(sizes), "imbalance": round(busiest / mean, 3) if mean else None,
            "waited_s": round(busiest - mean, 1), "batch_size": min(sizes.values()),
            "busy_s": {worker: round(sum(busy[worker] for busy in seconds.values()), 2)
                       for worker in sorted(sizes)},
            "concurrent": _concurrent(spans), "spans": merged_spans(spans)}


def _concurrent(spans: dict[str, list[_Span]]) -> int:
    """The largest number of spans that overlap."""
    changes = [(at, change) for parts in spans.values() for start, end, *_ in parts
               for at, change in ((start, 1), (end, -1))]  # at equal times, the end comes first
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def merged_spans(spans: dict[str, list[_Span]], max_spans: int = MAX_SPANS) -> dict[str, list[_Span]]:
    """Join each worker's consecutive spans of one shard; if more than ``max_spans`` remain, those with the
    shortest gaps as well."""
    gap_s, merged = 1.0, {worker: _joined(parts, 1.0, True) for worker, parts in sorted(spans.items())}
    while sum(map(len, merged.values())) > max(max_spans, len(merged)):
        merged = {worker: _joined(parts, gap_s, False) for worker, parts in merged.items()}
        gap_s *= 2
    return merged


def _joined(spans: Iterable[_Span], gap_s: float, same_shard: bool) -> list[_Span]:
    """Join consecutive spans with gaps of at most ``gap_s``, which keep the first one's shard and wave."""
    joined: list[_Span] = []
    for span in sorted(spans):
        near = joined and span[0] - joined[-1][1] <= gap_s
        if near and (not same_shard or span[2] == joined[-1][2]):
            joined[-1][1] = max(joined[-1][1], span[1])
        else:
            joined.append(list(span))
    return joined


def _wave(work: ShardPlan, shard: int) -> int:
    return next(wave for wave in range(1, 1 + len(work.waves)) if shard in work.shards_of(wave))


def pool_totals(entries: Iterable[tuple[dict, dict]]) -> dict[str, list]:
    """[kind, steps, tokens] by pool, of the rows that had no previous text to draft from.

    ``entries`` are planned rows with their rows of KNOWLEDGE. Rows with an error are left out. The name of
    rows without a pool is "".
    """
    sums: dict[str, list] = {}
    for row, finished in entries:
        if not row.get("own_ids") and finished.get("target_steps"):
            pool = sums.setdefault(finished["pool"] or "", [finished["pool_kind"], 0, 0])
            pool[1] += finished["target_steps"]
            pool[2] += finished["tokens"]
    return sums


def pool_record(footers: dict[AnyPath, dict], entity: str, date: str, mode: str) -> dict:
    """``acceptance.record`` of the chunks of an entity type. Steps of a killed command count as well."""
    chunks = (records.get(acceptance.KEY, {}) for path, records in footers.items()
              if path.parent.name == f"entity={entity}")
    return acceptance.record(acceptance.total(chunks), date, mode)


def beam_totals(outcome: "Result | str") -> Counter[str]:
    """Sums of ``BeamStatistics`` of one row; empty if it was not generated in mode beam.

    Returns
    -------
    layers, beams
        Layers, and beams of all layers.
    verified
        Draft layers that were verified.
    passed, passed_beams
        Draft layers that were accepted, and their beams.
    """
    beams = getattr(outcome, "beams", None)
    if beams is None:
        return Counter()
    return Counter(layers=beams.layers, beams=beams.width * beams.layers, verified=beams.verified,
                   passed=beams.passed, passed_beams=beams.passed_width * beams.passed)


def beam_statistics(paths: list[AnyPath]) -> dict | None:
    """Beam statistics of all rows in some files, as JSON values; None if no row was generated in mode beam.

    Returns
    -------
    width
        Mean beams per layer.
    verified, passed
        Draft layers that were verified, and that were accepted.
    passed_width
        Mean beams of accepted draft layers; None if there are none.
    """
    total: Counter[str] = Counter()
    for records in map_paths(chunk_files.read_records, paths):
        total.update(records.get("beams", {}))
    if not total["layers"]:
        return None
    return {"layers": total["layers"], "width": round(total["beams"] / total["layers"], 4),
            "verified": total["verified"], "passed": total["passed"],
            "passed_width": round(total["passed_beams"] / total["passed"], 4) if total["passed"] else None}
