"""A sentence encoder into memory, or one line that says what is wrong with its files."""

import pickle
from pathlib import Path

from dare_job.errors import ModelError, describe
from dare_job.features import encoder_files


def load(folder: Path, device: str):
    """The encoder of a folder, by sentence-transformers. Raises ModelError.

    No code is run that comes with it; of weights in pickles (``.bin``) tensors alone are read.
    """
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        return SentenceTransformer(str(folder), device=device, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # what the loaders make of a damaged file is in no list
        if is_of_machine(error):
            raise
        raise ModelError(f"encoder {folder} cannot be loaded: {_why(folder, error)}") from error


def _why(folder: Path, error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):
        found = [path for path in encoder_files.files(folder) if path.suffix == ".bin"]
        named = ", ".join(path.relative_to(folder).as_posix() for path in found)
        return (f"{named}: damaged, or more than tensors, and code in a pickle is never run; convert the "
                "weights to safetensors")
    if "ignore_mismatched_sizes" in str(error):
        return "its weights have other shapes than its config.json says"
    return describe(error)


def is_of_machine(error: Exception) -> bool:
    """Whether memory was short or a device has failed: no fault of the encoder."""
    from dare_job import device_errors  # needs torch, which drivers that encode nothing do without

    return device_errors.is_short(error) or device_errors.is_device(error)
