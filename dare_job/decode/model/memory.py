"""Out of memory, and devices that have failed: telling them from other errors; giving memory back.

Out of memory, and devices that have failed: telling them from other errors of torch.
"""

import gc

import torch

from dare_job.decode.model.target import Target

_OUT_OF_MEMORY = ("out of memory", "not enough memory", "Cannot allocate memory", "DefaultCPUAllocator",
          "ALLOC_FAILED")

_DEVICE_FAILURE = ("CUDA error", "CUDA driver error", "cuDNN error", "Triton Error", "HIP error")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that there was no memory: on the device, in torch's allocator or Python's."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY))


def is_device_failure(error: BaseException) -> bool:
    """Whether an exception says that the device has failed, and not that its memory was short.

    After most of CUDA's errors (a memory access or an assertion that failed, ECC) its context is lost, and
    every call says the same until the process ends.
    """
    return isinstance(error, RuntimeError) and not is_out_of_memory(error) and (
        isinstance(error, torch.AcceleratorError) or any(words in str(error) for words in _DEVICE_FAILURE))

def release(target: Target) -> None:
    """Free caches that nobody uses; call it where no exception is held, whose frames keep theirs."""
    target.spare_cache = None
    gc.collect()
    if target.device.type == "cuda":
        torch.cuda.empty_cache()
