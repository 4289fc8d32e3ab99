"""Release memory, and continue with smaller batches."""

import ctypes
import gc
import logging

import torch

from dare_job.decode.model.target import Target

_LOG = logging.getLogger("dare_job")


def release(target: Target) -> None:
    """Free unused caches. Call it outside of ``except``: an exception's frames keep their tensors alive."""
    target.spare_cache = None
    gc.collect()
    if target.device.type == "cuda":
        torch.cuda.empty_cache()
    elif hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc keeps what was freed
        libc.malloc_trim(0)


def halved(batch_size: int, setting: str) -> int:
    """Return half of a batch size that ran out of memory, after a warning. ``setting``: its name."""
    _LOG.warning("out of memory with %d rows in a batch (%s): this worker continues with %d",
                 batch_size, setting, batch_size // 2)
    return batch_size // 2
