"""What a forward costs: a latency curve from a file, or measured with a model here."""

import json
from collections.abc import Sequence
from pathlib import Path

from dare_job.decode.cost import Curve
from dare_job.errors import ConfigError, DataError

_QUERIES = (1, 2, 3, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129, 257, 513)


def read(path: Path) -> Curve:
    """The curve of a JSON file: as ``measure`` has it, or under ``latency_ms`` as ``check`` prints it.

    Raises DataError naming the file and what is wrong.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"--latency {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"--latency {path} is not JSON: {error}") from None
    if isinstance(found, dict) and "latency_ms" in found:
        found = found["latency_ms"]
    return Curve.of(found, f"--latency {path}")


def measure(model: str, batches: Sequence[int], nodes: int, dtype: str = "float32",
            device: str = "auto") -> dict[str, dict[str, float]]:
    """{batch: {queries a row: ms}} of a model on this machine, up to ``nodes`` drafts a row.

    Prints each batch size as it is done. Raises ModelError, ConfigError as loading the model does.
    """
    from dare_job.decode import Target
    from dare_job.decode.latency import latency_ms
    from dare_job.model_files import resolve

    target = Target.load(resolve(model), dtype, device, False)
    queries = sorted({q for q in _QUERIES if q <= nodes} | {nodes + 1})
    found = {}
    for batch in batches:
        found |= latency_ms(target, [batch], queries, repeats=11)
        times = ", ".join(f"{q}: {ms}" for q, ms in found[str(batch)].items())
        print(f"batch {batch}, milliseconds by queries a row: {times}", flush=True)
    return found


def within(curve: Curve, batches: Sequence[int], nodes: int) -> None:
    """Raises ConfigError where the curve does not reach a batch size, or a draft of ``nodes``."""
    low, high = curve.batches[0], curve.batches[-1]
    for batch in batches:
        if not low <= batch <= high:
            raise ConfigError(f"--batch {batch}: the latency curve has batch sizes from {low} to {high}")
    if nodes + 1 > curve.queries:
        raise ConfigError(f"the latency curve ends at {curve.queries} queries a row, {nodes} nodes need "
                          f"{nodes + 1}: measure further")
