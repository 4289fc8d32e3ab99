"""Model files: resolving names to folders, fingerprints, adapters, GGUF, and the embedded model."""

from pathlib import Path


def embedded_path() -> Path:
    """Folder with the embedded model and its tokenizer, in the layout of ``from_pretrained``."""
    return Path(__file__).parent / "embedded"
