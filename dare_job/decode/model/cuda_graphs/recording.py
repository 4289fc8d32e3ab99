"""Capture of CUDA graphs. A separate module, which tests replace by a recorder for CPUs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


def graph_pool():
    """Return memory that graphs can share."""
    return torch.cuda.graph_pool_handle()


@contextmanager
def side_stream() -> Iterator[None]:
    """Run on a separate stream, as CUDA requires of runs before a recording."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


@contextmanager
def forbid_synchronization() -> Iterator[None]:
    """Raise RuntimeError for operations that wait for the device."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def record(run: Callable[[], T], pool) -> tuple[torch.cuda.CUDAGraph, T]:
    """Record a CUDA graph; return it and the result of ``run``, tensors that each replay overwrites."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        return graph, run()
