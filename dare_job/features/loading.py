"""A sentence encoder into memory, or one line that says what is wrong with its files."""

import pickle
from pathlib import Path

from safetensors import safe_open

from dare_job.errors import ModelError, describe
from dare_job.features import encoder_files

_NAMED = 3  # weights that a message names
_POOLER = "pooler."


def load(folder: Path, device: str):
    """The encoder of a folder, by sentence-transformers. Raises ModelError.

    No code is run that comes with it; of weights in pickles (``.bin``) tensors alone are read.
    """
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        found = SentenceTransformer(str(folder), device=device, trust_remote_code=False,
                                    local_files_only=True)
        missing = _missing(found, encoder_files.parts(Path(folder))[0])
    except Exception as error:  # what the loaders make of a damaged file is in no list
        if is_of_machine(error):
            raise
        raise ModelError(f"encoder {folder} cannot be loaded: {_why(folder, error)}") from error
    if missing:
        raise ModelError(f"encoder {folder} lacks weights, which would be random numbers: "
                         f"{', '.join(missing[:_NAMED])}{' and more' if len(missing) > _NAMED else ''}")
    return found


def _missing(model, folder: Path) -> list[str]:
    """Weights that the transformer's folder lacks; a pooler is not used, and mostly is not there.

    Names in the files tell of most encoders that all is there. transformers knows of names that it rewrites,
    and says it of a second load alone.
    """
    inner = getattr(model[0], "auto_model", None)
    if inner is None or not (folder / "config.json").exists():
        return []
    there = {name.removeprefix(f"{inner.base_model_prefix}.") for name in _names(folder)}
    if there.issuperset(name for name, _ in inner.named_parameters() if _POOLER not in name):
        return []
    _, report = type(inner).from_pretrained(folder, output_loading_info=True, local_files_only=True)
    return sorted(name for name in report["missing_keys"] if _POOLER not in name)


def _names(folder: Path) -> list[str]:
    """Of all tensors in a folder's safetensors files; none of pickles, which would have to be loaded."""
    names = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            names += tensors.keys()
    return names


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
