"""``cuda_graphs.recording`` for a CPU: the operations of a run are recorded one by one and replayed.

A replay has what a CUDA graph has: the operations in their order, on the tensors of the recording, whose
memory they read and write anew. Python does not run, so that a number which it chose stays as it was.
"""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WAITING = {f"aten::{name}" for name in ("item", "_local_scalar_dense", "nonzero", "masked_select")}


class Tape(TorchDispatchMode):
    """The operations of one recording; ``replay`` does them again."""

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


class _NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name in _WAITING:
            raise RuntimeError(f"{function} waits for the device")
        return function(*args, **(kwargs or {}))


class Recorder:
    """Stands in for the module; ``tapes`` are all that were recorded, ``log`` says what was done in order."""

    def __init__(self):
        self.tapes, self.log = [], []

    def graph_pool(self):
        return "memory"

    @contextmanager
    def side_stream(self):
        self.log.append("aside")
        yield

    @contextmanager
    def forbid_synchronization(self):
        self.log.append("without waiting")
        with _NoWaiting():
            yield

    def record(self, run, pool):
        assert pool == "memory"
        self.log.append("record")
        tape = Tape()
        with tape:
            answer = run()
        self.tapes.append(tape)
        return tape, answer
