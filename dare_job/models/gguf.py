"""Models in GGUF files: converted once into an ordinary model folder in the user's cache."""

from pathlib import Path

from dare_job.errors import ModelError, describe, install_hint
from dare_job.storage.local_copy import make_once, user_cache


def model_folder(file: Path, digest: str) -> Path:
    """Folder with the dequantized weights, the tokenizer and the chat template of a GGUF file.

    The first call converts the file to float32, because only float32 holds the dequantized weights exactly.
    Later calls find the folder.

    Parameters
    ----------
    digest
        SHA-256 of the file, which is part of the folder's name.

    Raises
    ------
    ModelError
        A package is missing, transformers cannot read the file, or the file lacks weights.
    """
    folder = user_cache("gguf") / f"{file.stem}-{digest[:16]}"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_once(folder, lambda partial: _convert(file, partial))
    return folder


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelError(f"{file} needs the package {error.name}: {install_hint('gguf')}") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model, report = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, output_loading_info=True,
            quantization_config=GgufConfig(dequantize=True))
    except Exception as error:  # transformers raises many kinds for files that it cannot read
        raise ModelError(f"transformers cannot read {file} as a GGUF file: {describe(error)}") from error
    if missing := sorted(report["missing_keys"]):  # they are random now
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{file} lacks weights of {type(model).__name__}: {missing[0]}{more}; download the "
                         "file again, or use the model's folder with safetensors")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
