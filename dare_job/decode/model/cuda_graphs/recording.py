"""Capture of CUDA graphs, apart from ``forward`` so that a test can give it a recorder for the CPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


def graph_pool():
    """Memory that graphs may share."""
    return torch.cuda.graph_pool_handle()


@contextmanager
def side_stream() -> Iterator[None]:
    """On a stream of its own, as runs before a recording must be."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


@contextmanager
def forbid_synchronization() -> Iterator[None]:
    """What waits for the device is a RuntimeError."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def record(run: Callable[[], T], pool) -> tuple[torch.cuda.CUDAGraph, T]:
    """The graph, and what ``run`` returned: tensors that each replay writes anew."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        return graph, run()
