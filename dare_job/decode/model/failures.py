"""Recognize out-of-memory and device failures, release memory, and continue with smaller batches."""

import ctypes
import gc
import logging

import torch

_LOG = logging.getLogger("dare_job")
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "Cannot allocate memory", "DefaultCPUAllocator",
                  "ALLOC_FAILED")
_DEVICE_FAILURE = ("CUDA error", "CUDA driver error", "cuDNN error", "Triton Error", "HIP error")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception means out of memory: of the device, torch's allocator or Python.

    Also if it only followed one: memory that runs out within the recording of a graph makes the end of the
    recording fail with an error of its own.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or (
                isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def is_device_failure(error: BaseException) -> bool:
    """Return whether an exception means that the device failed, other than by lack of memory.

    After most CUDA errors (illegal memory access, failed assertion, ECC) the context is lost, and every
    further call in the process raises the same error.
    """
    return isinstance(error, RuntimeError) and not is_out_of_memory(error) and (
        isinstance(error, torch.AcceleratorError) or any(words in str(error) for words in _DEVICE_FAILURE))


def release(target) -> None:
    """Free a ``Target``'s unused caches. Call it outside of ``except``: its frames keep tensors alive."""
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
