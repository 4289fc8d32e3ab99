"""A sentence encoder: texts to vectors, by sentence-transformers.

A text that is longer than the encoder reads at once is divided into windows of like size that end between
words; its vector is the mean of theirs, each counted by its tokens, with length 1 where the encoder's vectors
have that. So nothing of a text is cut off.

A sentence encoder into memory, or one line that says what is wrong with its files.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from dare_job.errors import ModelError, describe
from dare_job.publish.features import encoder_files

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
    from dare_job.decode.model import memory  # needs torch, which drivers that encode nothing do without

    return memory.is_out_of_memory(error) or memory.is_device_failure(error)

_AT_ONCE = 512  # texts whose tokens are counted at once


@dataclass(frozen=True)
class Encoded:
    """What texts became.

    vectors  (n, d) float32
    long     texts of more than one window
    windows  encoded, of all texts
    tokens   in them, special ones included
    padded   positions that the encoder went through: tokens and padding
    """

    vectors: np.ndarray
    long: int
    windows: int
    tokens: int
    padded: int


class Encoder:
    """A loaded encoder.

    device      of torch: "cpu", "cuda"
    batch_size  windows encoded at once
    window      most tokens read at once, special ones included; None: as many as the encoder can
    Raises ModelError where the folder holds none, or one without a fast tokenizer.
    """

    def __init__(self, folder: Path, device: str, batch_size: int, window: int | None = None):
        self._name, self._batch_size = str(folder), batch_size
        self._model = model = load(folder, device)
        self._tokenizer = model.tokenizer
        if not getattr(self._tokenizer, "is_fast", False):
            raise ModelError(f"encoder {folder} has no tokenizer.json (a fast tokenizer), by which texts are "
                             "divided: save it with one")
        self._special = self._tokenizer.num_special_tokens_to_add(pair=False)
        self._special += len(self._ids([model.prompts.get(model.default_prompt_name) or ""])[0])
        most = min(number for number in (window, model.max_seq_length, 2**31) if number)
        self._room = most - self._special
        if self._room < 1:
            raise ModelError(f"encoder {folder} reads {most} tokens at once, and {self._special} are its own "
                             "(special tokens, prompt): nothing is left for a text")
        self._normalises = any(type(module).__name__ == "Normalize" for module in model)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Vectors of texts, in their order. Raises ModelError where one is no number, or none can be made."""
        windows, sizes, owners = [], [], []
        for number, (text, parts) in enumerate(zip(texts, self._divided(texts), strict=True)):
            windows += [text[start:end] for start, end, _ in parts]
            sizes += [size + self._special for _, _, size in parts]
            owners += [number] * len(parts)
        sizes, owners = np.array(sizes, np.int64), np.array(owners, np.int64)
        try:
            vectors, padded = self._by_length(windows, sizes)
        except (RuntimeError, IndexError) as error:
            if is_of_machine(error):
                raise
            raise ModelError(f"encoder {self._name} cannot encode: {describe(error)}: its files do not "
                             "belong together") from error
        counts = np.bincount(owners, minlength=len(texts))
        if len(windows) > len(texts):
            vectors = self._means(vectors, sizes, owners, counts)
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            raise ModelError(f"encoder {self._name} gives no numbers for the text {texts[bad[0]][:80]!r}")
        return Encoded(vectors, int((counts > 1).sum()), len(windows), int(sizes.sum()), padded)

    def _by_length(self, windows: list[str], sizes: np.ndarray) -> tuple[np.ndarray, int]:
        """Vectors of windows, those of like length together, and the positions that they took."""
        order, found, padded = np.argsort(-sizes, kind="stable"), [], 0
        for start in range(0, len(order), self._batch_size):
            rows = order[start:start + self._batch_size]
            found.append(self._model.encode([windows[row] for row in rows], batch_size=len(rows),
                                            show_progress_bar=False, convert_to_numpy=True))
            padded += len(rows) * int(sizes[rows].max())
        vectors = np.concatenate(found).astype(np.float32)
        vectors[order] = vectors.copy()
        return vectors, padded

    def _means(self, vectors: np.ndarray, sizes: np.ndarray, owners: np.ndarray,
               counts: np.ndarray) -> np.ndarray:
        """The vectors of texts, from those of their windows."""
        sums = np.zeros((len(counts), vectors.shape[1]))
        np.add.at(sums, owners, vectors * sizes[:, None])
        means = sums / np.bincount(owners, sizes)[:, None]
        if self._normalises:
            means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        means[counts == 1] = vectors[(counts == 1)[owners]]
        return means.astype(np.float32)

    def _divided(self, texts: Sequence[str]):
        """Of each text its windows: first and last character, and tokens without special ones."""
        for start in range(0, len(texts), _AT_ONCE):
            batch = list(texts[start:start + _AT_ONCE])
            found = self._tokenizer(batch, add_special_tokens=False, truncation=False, padding=False,
                                    return_offsets_mapping=True, return_attention_mask=False)
            for number, text in enumerate(batch):
                offsets = found["offset_mapping"][number]
                if len(offsets) <= self._room:
                    yield [(0, len(text), len(offsets))]
                else:
                    yield _windows(text, offsets, found.word_ids(number), self._room)

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts, add_special_tokens=False)["input_ids"]


def _windows(text: str, offsets: list[tuple[int, int]], words: list[int | None],
             room: int) -> list[tuple[int, int, int]]:
    """Windows of at most ``room`` tokens and of like size; a word longer than that is divided."""
    found, first = [], 0
    while first < len(offsets):
        left = len(offsets) - first
        end = first + -(-left // -(-left // room))
        border = end
        while first < border < len(offsets) and words[border] == words[border - 1]:
            border -= 1
        end = border if border > first else end
        begin = offsets[first][0] if found else 0
        until = offsets[end][0] if end < len(offsets) else len(text)
        found.append((begin, until, end - first))
        first = end
    return found
