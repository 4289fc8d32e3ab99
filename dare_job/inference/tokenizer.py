"""Loads the tokenizer of a model."""

from pathlib import Path

from dare_job.errors import ModelError
from dare_job.models import files


def load_tokenizer(folder: Path, trust_remote_code: bool):
    """The tokenizer in a model's folder, a PreTrainedTokenizerBase.

    Raises
    ------
    ModelError
        There is none, or it cannot be loaded.
    """
    from transformers import AutoTokenizer

    files.tokenizer_hash(folder)  # its message is clearer where there is none
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"{folder} has no tokenizer that can be loaded: {error}") from error
