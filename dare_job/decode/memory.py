"""Out of memory: telling it from other errors, and giving back what can be given back."""

import gc

import torch

from dare_job.decode.target import Target

_WORDS = ("out of memory", "not enough memory", "Cannot allocate memory", "DefaultCPUAllocator",
          "ALLOC_FAILED")


def is_short(error: BaseException) -> bool:
    """Whether an exception says that there was no memory: on the device, in torch's allocator or Python's."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS))


def release(target: Target) -> None:
    """Free caches that nobody uses; call it where no exception is held, whose frames keep theirs."""
    target.spare = None
    gc.collect()
    if target.device.type == "cuda":
        torch.cuda.empty_cache()
