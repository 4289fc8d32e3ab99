"""Out of memory, and devices that have failed: telling them from other errors; giving memory back."""

import gc

import torch

from dare_job.decode.target import Target
from dare_job.device_errors import is_device, is_short

__all__ = ["is_device", "is_short", "release"]


def release(target: Target) -> None:
    """Free caches that nobody uses; call it where no exception is held, whose frames keep theirs."""
    target.spare = None
    gc.collect()
    if target.device.type == "cuda":
        torch.cuda.empty_cache()
