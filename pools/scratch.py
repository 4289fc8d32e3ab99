"""Working memory of the drafter: made once for each thread and shape, handed over as addresses."""

import threading

import numpy as np

from pools.frontier import MOST
from pools.frontier import SLOTS as TABLE_SLOTS
from pools.intervals import MOST_RUNS
from pools.live import LIMIT, MAX_WINDOW
from pools.live import SLOTS as LIVE_SLOTS

_local = threading.local()


def scratch(nodes: int, pools: int, orders: int) -> np.ndarray:
    """int64 addresses of this thread's arrays, in the order that the kernel takes them.

    The last shape is kept. The arrays live as long as the thread or until it asks for another shape.
    """
    shape = (nodes, pools, orders)
    if getattr(_local, "shape", None) != shape:
        _local.arrays = _arrays(*shape)
        _local.addresses = np.array([array.ctypes.data for array in _local.arrays], np.int64)
        _local.shape = shape
    return _local.addresses


def _arrays(nodes: int, pools: int, orders: int) -> list[np.ndarray]:
    def zeros(kind, *shape):
        return np.zeros(shape, kind)

    i32, i64, f64, u8 = np.int32, np.int64, np.float64, np.uint8
    return [
        zeros(i64, 2),
        # live.Branch
        zeros(i64, LIVE_SLOTS), zeros(i64, 1), zeros(i32, MAX_WINDOW),
        zeros(i32, LIMIT), zeros(i32, LIMIT), zeros(u8, LIMIT),
        # frontier.Table
        zeros(i64, TABLE_SLOTS), zeros(i32, MOST), zeros(f64, MOST), zeros(u8, MOST), zeros(i32, MOST, pools),
        zeros(i32, MOST, pools),
        # frontier.Frontier
        zeros(i32, nodes + 1), zeros(f64, nodes + 1), zeros(i32, nodes + 1), zeros(i32, nodes + 1),
        zeros(u8, nodes + 1), zeros(i32, nodes + 1, pools), zeros(i32, nodes + 1, pools),
        # blend.State
        zeros(i32, orders), zeros(i32, pools), zeros(i32, pools), zeros(i32, pools), zeros(i64, pools),
        zeros(f64, pools), zeros(i32, pools), zeros(i32, pools), zeros(i32, pools),
        zeros(i32, pools, MOST_RUNS), zeros(i32, pools, MOST_RUNS), zeros(i32, pools, MOST_RUNS),
        zeros(i32, 2, orders + 1), zeros(f64, 2, orders + 1), zeros(i64, orders),
        # depth of each node
        zeros(i32, nodes + 1),
    ]
