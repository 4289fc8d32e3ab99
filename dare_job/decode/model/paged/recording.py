"""Recording and replaying of CUDA graphs. Tests replace these functions on a CPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import torch

T = TypeVar("T")


def graph_pool():
    """Return memory that graphs can share."""
    return torch.cuda.graph_pool_handle()


@lru_cache(maxsize=16)
def _streams(device: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Return the streams of a device for runs before a recording, and for recordings.

    Each stream keeps memory of its own, so there are two of them and not two for each graph.
    """
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


@contextmanager
def side_stream() -> Iterator[None]:
    """Run on a separate stream, as CUDA requires of runs before a recording."""
    side, current = _streams(torch.cuda.current_device())[0], torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


@contextmanager
def forbid_synchronization() -> Iterator[None]:
    """Forbid operations that wait for the device while the block runs.

    Raises
    ------
    RuntimeError
        An operation waits for the device.
    """
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def record_graph(run: Callable[[], T], pool) -> tuple[torch.cuda.CUDAGraph, T]:
    """Record a CUDA graph; return it and the result of ``run``, tensors that each replay overwrites."""
    graph, stream = torch.cuda.CUDAGraph(), _streams(torch.cuda.current_device())[1]
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        return graph, run()
