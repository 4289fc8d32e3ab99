"""A substitute for CUDA graphs on a CPU: records the operations of a run and replays them.

A replay repeats the operations in order on the tensors of the recording, whose memory it reads and writes.
Python code does not run again, so values that it computed stay constant, as in a CUDA graph.
"""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dare_job.decode.model.paged import recording

_SYNCHRONIZING = {f"aten::{name}" for name in ("item", "_local_scalar_dense", "nonzero", "masked_select")}


class Tape(TorchDispatchMode):
    """The operations of one recording."""

    def __init__(self):
        super().__init__()
        self._lines = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self._lines.append((function, args, kwargs or {}, result))
        return result

    def __len__(self) -> int:
        return len(self._lines)

    @torch.inference_mode()
    def replay(self) -> None:
        for function, args, kwargs, before in self._lines:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(before), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _ForbidSynchronization(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name in _SYNCHRONIZING:
            raise RuntimeError(f"{function} waits for the device")
        return function(*args, **(kwargs or {}))


class Recorder:
    """Replaces the functions of ``recording``; ``tapes``: all recordings; ``log``: calls in order."""

    def __init__(self, monkeypatch):
        self.tapes, self.log = [], []
        for name in ("graph_pool", "side_stream", "forbid_synchronization", "record_graph"):
            monkeypatch.setattr(recording, name, getattr(self, name))

    def graph_pool(self):
        return "memory"

    @contextmanager
    def side_stream(self):
        self.log.append("side stream")
        yield

    @contextmanager
    def forbid_synchronization(self):
        self.log.append("forbid synchronization")
        with _ForbidSynchronization():
            yield

    def record_graph(self, run, pool):
        assert pool == "memory"
        self.log.append("record")
        tape = Tape()
        with tape:
            answer = run()
        self.tapes.append(tape)
        return tape, answer
