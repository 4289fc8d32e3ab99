"""Encodes texts as vectors with a sentence encoder (sentence-transformers).

A text longer than the encoder's input is split into windows of similar size that end between words. Its
vector is the mean of the window vectors weighted by tokens, normalized if the encoder normalizes. No text is
truncated.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from dare_job.errors import ModelError, describe
from dare_job.publish.features import encoder_files

_NAMED = 3  # weights named in an error message
_POOLER = "pooler."


def load(folder: Path, device: str):
    """Load the encoder of a folder with sentence-transformers.

    Code in the folder is never run, and pickle files (``.bin``) may contain only tensors.

    Raises
    ------
    ModelError
        The encoder cannot be loaded, or it lacks weights.
    """
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        model = SentenceTransformer(str(folder), device=device, trust_remote_code=False,
                                    local_files_only=True)
        missing = _missing(model, encoder_files.parts(Path(folder))[0])
    except Exception as error:  # loaders raise many kinds of errors for a damaged file
        if is_infrastructure_error(error):
            raise
        raise ModelError(f"encoder {folder} cannot be loaded: {_why(folder, error)}") from error
    if missing:
        raise ModelError(f"encoder {folder} lacks weights, which would be initialized randomly: "
                         f"{', '.join(missing[:_NAMED])}{' and more' if len(missing) > _NAMED else ''}")
    return model


def _missing(model, folder: Path) -> list[str]:
    """Weights that the transformer's folder lacks, except for the pooler, which is not used.

    For most encoders the names in the files suffice. Otherwise a second load reports the missing weights:
    transformers renames some.
    """
    inner = getattr(model[0], "auto_model", None)
    if inner is None or not (folder / "config.json").exists():
        return []
    present = {name.removeprefix(f"{inner.base_model_prefix}.") for name in _names(folder)}
    if present.issuperset(name for name, _ in inner.named_parameters() if _POOLER not in name):
        return []
    _, report = type(inner).from_pretrained(folder, output_loading_info=True, local_files_only=True)
    return sorted(name for name in report["missing_keys"] if _POOLER not in name)


def _names(folder: Path) -> list[str]:
    """Names of all tensors in the safetensors files of a folder; pickles would have to be loaded."""
    names = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            names += tensors.keys()
    return names


def _why(folder: Path, error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):
        pickled = [path for path in encoder_files.files(folder) if path.suffix == ".bin"]
        named = ", ".join(path.relative_to(folder).as_posix() for path in pickled)
        return (f"{named}: damaged, or not only tensors, and code in a pickle is never run; convert the "
                "weights to safetensors")
    if "ignore_mismatched_sizes" in str(error):
        return "the shapes of its weights do not match config.json"
    return describe(error)


def is_infrastructure_error(error: Exception) -> bool:
    """Whether memory ran out or a device failed."""
    from dare_job.decode.model import failures  # imports torch

    return failures.is_out_of_memory(error) or failures.is_device_failure(error)


_TOKENIZED = 512  # texts tokenized at a time


@dataclass(frozen=True)
class Encoded:
    """Encoded texts.

    Attributes
    ----------
    vectors : float32 (n, d)
    long
        Number of texts with more than one window.
    windows
        Number of windows.
    tokens
        Number of tokens in all windows, including special tokens.
    padded
        Number of encoded positions, tokens and padding.
    """

    vectors: np.ndarray
    long: int
    windows: int
    tokens: int
    padded: int


class Encoder:
    """A loaded encoder.

    Parameters
    ----------
    device
        Torch device, such as "cpu" or "cuda".
    batch_size
        Number of windows per batch.

    Raises
    ------
    ModelError
        The folder contains no encoder, or one without a fast tokenizer.
    """

    def __init__(self, folder: Path, device: str, batch_size: int):
        self._name, self._batch_size = str(folder), batch_size
        self._model = model = load(folder, device)
        self._tokenizer = model.tokenizer
        if not getattr(self._tokenizer, "is_fast", False):
            raise ModelError(f"encoder {folder} has no tokenizer.json (a fast tokenizer), which is needed to "
                             "split long texts: save the encoder with one")
        self._special = self._tokenizer.num_special_tokens_to_add(pair=False)
        self._special += len(self._ids([model.prompts.get(model.default_prompt_name) or ""])[0])
        maximum = model.max_seq_length or 2**31  # tokens per window
        self._max_text_tokens = maximum - self._special
        if self._max_text_tokens < 1:
            raise ModelError(f"encoder {folder} reads at most {maximum} tokens, and {self._special} of them "
                             "are special tokens or its prompt: no token is left for the text")
        self._normalizes = any(type(module).__name__ == "Normalize" for module in model)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode texts, in their order.

        Raises
        ------
        ModelError
            Encoding fails, or a vector is not finite.
        """
        windows, sizes, owners = [], [], []
        for number, (text, parts) in enumerate(zip(texts, self._split(texts), strict=True)):
            windows += [text[start:end] for start, end, _ in parts]
            sizes += [size + self._special for _, _, size in parts]
            owners += [number] * len(parts)
        sizes, owners = np.array(sizes, np.int64), np.array(owners, np.int64)
        try:
            vectors, padded = self._by_length(windows, sizes)
        except (RuntimeError, IndexError) as error:
            if is_infrastructure_error(error):
                raise
            raise ModelError(f"encoder {self._name} cannot encode: {describe(error)}: its files do not "
                             "match each other") from error
        counts = np.bincount(owners, minlength=len(texts))
        if len(windows) > len(texts):
            vectors = self._means(vectors, sizes, owners, counts)
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            raise ModelError(f"encoder {self._name} returns NaN or Inf for the text {texts[bad[0]][:80]!r}")
        return Encoded(vectors, int((counts > 1).sum()), len(windows), int(sizes.sum()), padded)

    def _by_length(self, windows: list[str], sizes: np.ndarray) -> tuple[np.ndarray, int]:
        """Vectors of windows, batched by length, and the number of encoded positions."""
        order, vectors, padded = np.argsort(-sizes, kind="stable"), [], 0
        for start in range(0, len(order), self._batch_size):
            rows = order[start:start + self._batch_size]
            vectors.append(self._model.encode([windows[row] for row in rows], batch_size=len(rows),
                                              show_progress_bar=False, convert_to_numpy=True))
            padded += len(rows) * int(sizes[rows].max())
        vectors = np.concatenate(vectors).astype(np.float32)
        vectors[order] = vectors.copy()
        return vectors, padded

    def _means(self, vectors: np.ndarray, sizes: np.ndarray, owners: np.ndarray,
               counts: np.ndarray) -> np.ndarray:
        """Vectors of texts: means of their windows weighted by tokens."""
        sums = np.zeros((len(counts), vectors.shape[1]))
        np.add.at(sums, owners, vectors * sizes[:, None])
        means = sums / np.bincount(owners, sizes)[:, None]
        if self._normalizes:
            means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        means[counts == 1] = vectors[(counts == 1)[owners]]
        return means.astype(np.float32)

    def _split(self, texts: Sequence[str]):
        """The windows of each text: start and end character, and number of tokens without special tokens."""
        for start in range(0, len(texts), _TOKENIZED):
            batch = list(texts[start:start + _TOKENIZED])
            encoding = self._tokenizer(batch, add_special_tokens=False, truncation=False, padding=False,
                                       return_offsets_mapping=True, return_attention_mask=False)
            for number, text in enumerate(batch):
                offsets = encoding["offset_mapping"][number]
                if len(offsets) <= self._max_text_tokens:
                    yield [(0, len(text), len(offsets))]
                else:
                    yield _windows(text, offsets, encoding.word_ids(number), self._max_text_tokens)

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts, add_special_tokens=False)["input_ids"]


def _windows(text: str, offsets: list[tuple[int, int]], words: list[int | None],
             max_tokens: int) -> list[tuple[int, int, int]]:
    """Split a text into windows of similar size with at most ``max_tokens`` tokens.

    Windows end between words, except within a word that is longer than a window.
    """
    windows, first = [], 0
    while first < len(offsets):
        left = len(offsets) - first
        end = first + -(-left // -(-left // max_tokens))
        border = end
        while first < border < len(offsets) and words[border] == words[border - 1]:
            border -= 1
        end = border if border > first else end
        begin = offsets[first][0] if windows else 0
        until = offsets[end][0] if end < len(offsets) else len(text)
        windows.append((begin, until, end - first))
        first = end
    return windows
