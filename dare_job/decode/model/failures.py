"""Recognize out-of-memory and device failures among errors."""

import torch

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
