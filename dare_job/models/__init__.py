"""The embedded model: a small Llama that imitates the synthetic data set's grammar, with all that made it."""

from pathlib import Path


def embedded_path() -> Path:
    """Folder with the embedded model and its tokenizer, in the layout of ``from_pretrained``."""
    return Path(__file__).parent / "embedded"
