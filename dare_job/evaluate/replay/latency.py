"""Latency curves of forward passes: read from a file, or measured with a model."""

import json
from collections.abc import Sequence
from pathlib import Path

from dare_job.decode.engine.latency import LatencyCurve
from dare_job.errors import DataError
from dare_job.observe import progress

_QUERIES = (1, 2, 3, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129, 257, 513)


def read(path: Path) -> LatencyCurve:
    """The curve under ``latency_ms`` of a JSON file.

    Raises
    ------
    DataError
        The file cannot be read, or its curve is missing or invalid. The message names the file and what is
        wrong.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"--latency {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"--latency {path} is not JSON: {error}") from None
    table = content.get("latency_ms") if isinstance(content, dict) else None
    return LatencyCurve.of(table, f"--latency {path}")


def measure(model: str, batches: Sequence[int], nodes: int, dtype: str = "float32",
            device: str = "auto") -> dict[str, dict[str, float]]:
    """{batch: {queries per row: ms}} of a model on this machine, up to ``nodes`` draft tokens per row.

    Raises
    ------
    ModelError
        The model is missing, damaged or not supported.
    ConfigError
        The device is not available.
    """
    from dare_job.decode.engine.latency import latency_ms
    from dare_job.decode.model.target import Target
    from dare_job.models.files import resolve

    queries = sorted({q for q in _QUERIES if q <= nodes} | {nodes + 1})
    table = {}
    with progress.counting(f"measuring forward passes of {model}", len(batches), unit="batches") as counter:
        target = Target.load(resolve(model), dtype, device, False)
        for batch in batches:
            counter.details = f"batch size {batch}"
            table |= latency_ms(target, [batch], queries, repeats=11)
            counter.advance()
    return table
