"""Checks that a draft model has the target model's tokenizer: drafts are token ids, which must mean the same.

Tokenizers are compared by named properties of how they split text into tokens. The post-processor, the
decoder, padding and truncation are not compared, as they do not change the token ids of a text.
"""

import json
import reprlib
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedTokenizerBase

from dare_job.errors import ConfigError

_IGNORED_FIELDS = {"type", "trim_offsets"}  # the type is compared separately; offsets change no token
_UNKNOWN_FIELDS = "unk_token", "unk_id", "fuse_unk"  # without effect if every byte has a token
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxlist = 80, 16

_TEXTS = ("Hello, world! It's 9:45, and 1234567 people don't KNOW.", "  two  spaces,\ttab\nand\n\nlines ",
          "Ångström e\u0301tude ﬁve ½ Ⅷ",
          "東京は日本の首都です。 Привет, мир! مرحبا", "🙂👩‍🚀 x_1 += f(a[0])  # ¿?")

_SAMPLED_TOKENS = 64  # tokens of the target's vocabulary that are decoded to text


def first_difference(target: PreTrainedTokenizerBase,
                     draft: PreTrainedTokenizerBase) -> tuple[str, Any, Any] | None:
    """First property in which two tokenizers with one vocabulary differ; None if they split text alike.

    Fast tokenizers are compared by normalizer, pre-tokenizer, model, merges and added tokens, read from the
    backend, which serializes them independently of the version that wrote the files. If a backend cannot be
    serialized, both tokenizers encode sample texts instead.

    Returns
    -------
    name : str
    target, draft
        The property's value in each tokenizer; None: not set.
    """
    backends = _backend(target), _backend(draft)
    if None in backends:
        texts = [*_TEXTS, *_sample_texts(target)]
        ours, theirs = ({f"the encoding of {text!r}": tokenizer.encode(text, add_special_tokens=False)
                         for text in texts} for tokenizer in (target, draft))
    else:
        ours, theirs = (dict(_properties(backend)) for backend in backends)
    return next(((name, ours.get(name), theirs.get(name)) for name in ours | theirs
                 if ours.get(name) != theirs.get(name)), None)


def _backend(tokenizer: PreTrainedTokenizerBase) -> dict | None:
    """Serialized backend of a fast tokenizer; None if there is none or it cannot be serialized."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    try:
        return None if inner is None else json.loads(inner.to_str())
    except Exception:  # tokenizers raises nothing narrower for a custom Python step
        return None


def _properties(backend: dict) -> Iterator[tuple[str, Any]]:
    """Named properties that are set: null, "" and false are left out, as versions write them differently."""
    model, parts = backend["model"], _parts(backend)
    yield "the model", model["type"]
    for kind, steps in parts.items():
        for number, step in enumerate(steps, 1):
            yield f"{kind} {number}", step["type"]
            yield from _fields(f"{kind} {number} ({step['type']}): ", step, _IGNORED_FIELDS)
    yield from _fields("", model, {"type", "vocab", "merges", *_UNKNOWN_FIELDS})
    if not model.get("byte_fallback") and all(step["type"] != "ByteLevel" for step in parts["pre_tokenizer"]):
        yield from _fields("", {name: model.get(name) for name in _UNKNOWN_FIELDS}, set())
    for number, pair in enumerate(model.get("merges", ()), 1):
        yield f"merge {number}", " ".join(pair)
    if isinstance(model["vocab"], list):  # a Unigram model
        yield from ((f"the score of {token!r}", score) for token, score in model["vocab"])
    for token in backend["added_tokens"]:
        yield f"added token {token['content']!r}", _added_token(token, bool(parts["normalizer"]))


def _parts(backend: dict) -> dict[str, list[dict]]:
    """Steps of normalizer and pre-tokenizer, in one form for all versions of Llama's tokenizer.

    Depending on the version, either of them adds the word marks, before the first piece or before each. The
    results differ only around added tokens and leading spaces.
    """
    normalizer, before = _steps(backend["normalizer"]), _steps(backend["pre_tokenizer"])
    if [step["type"] for step in normalizer] == ["Prepend", "Replace"]:
        mark = normalizer[0]["prepend"]
        if normalizer[1]["pattern"] == {"String": " "} and normalizer[1]["content"] == mark:
            marks = {"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": False}
            normalizer, before = [], [marks, *before]
    before = [{**step, "prepend_scheme": "always"} if step.get("prepend_scheme") == "first" else step
              for step in before]
    return {"normalizer": normalizer, "pre_tokenizer": before}


def _fields(prefix: str, values: dict, ignored: set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name not in ignored and value is not None and value is not False and value != "":
            yield prefix + name, value


def _steps(part: dict | None) -> list[dict]:
    """Flatten the steps of a part: sequences may be nested or hold a single step."""
    if part is None:
        return []
    inner = part.get("normalizers", part.get("pretokenizers"))
    return [part] if inner is None else [step for nested in inner for step in _steps(nested)]


def _added_token(token: dict, normalized: bool) -> str:
    """How an added token is matched in a text.

    ``normalized`` matters only if there is a normalizer. It is ignored for special tokens, for which versions
    of transformers write different values.
    """
    flags = ["single_word", "lstrip", "rstrip"]
    if normalized and not token["special"]:
        flags.append("normalized")
    return ", ".join(["matched as a whole", *(flag for flag in flags if token[flag])])


def _sample_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Texts of eight tokens each, evenly spaced over the vocabulary."""
    ids = sorted(tokenizer.get_vocab().values())
    sampled = ids[:: max(1, len(ids) // _SAMPLED_TOKENS)]
    return [tokenizer.decode(sampled[start : start + 8]) for start in range(0, len(sampled), 8)]


def require_same_tokenizer(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, vocabulary: int,
                           names: tuple[str, str] | None = None) -> None:
    """Check that two tokenizers have the same vocabulary and split text alike.

    A tokenizer that splits text differently would not bias the output, but the draft model would read
    sequences unlike its training data, and few of its drafts would be accepted.

    Parameters
    ----------
    target, draft
        The tokenizers.
    vocabulary
        Number of embeddings of the draft model; padded tables are longer than the tokenizer.
    names
        Names of target and draft model in messages; None: the paths of their tokenizers.

    Raises
    ------
    ConfigError
        The tokenizers differ, or there are fewer embeddings than tokens. The message names a difference.
    """
    first, second = names or (target.name_or_path, draft.name_or_path)
    advice = ("a draft model must have the target model's tokenizer: choose one of the same family, or train "
              "one with dare-job drafter train")
    ours, theirs = ({index: token for token, index in tokenizer.get_vocab().items()}
                    for tokenizer in (target, draft))
    for index in sorted(ours.keys() | theirs.keys()):
        if ours.get(index) != theirs.get(index):
            raise ConfigError(
                f"draft model {second} has another vocabulary than {first}: id {index} is "
                f"{_describe(ours.get(index), theirs)} in {first}, and "
                f"{_describe(theirs.get(index), ours)} in {second}; {advice}")
    if target.eos_token_id != draft.eos_token_id:
        raise ConfigError(f"draft model {second} has the end-of-text id {draft.eos_token_id}, {first} has "
                          f"{target.eos_token_id}; {advice}, or copy the target's tokenizer files into its "
                          "folder")
    if difference := first_difference(target, draft):
        name, our, their = difference
        raise ConfigError(
            f"draft model {second} splits text into other tokens than {first}: {name} is {_value(our)} in "
            f"{first}, and {_value(their)} in {second}; {advice}. If it was trained on the target's tokens, "
            "copy the target's tokenizer files into its folder")
    last = max(theirs)
    if vocabulary <= last:
        raise ConfigError(f"draft model {second} has {vocabulary} embeddings, but its tokenizer has ids up "
                          f"to {last} ({theirs[last]!r}): its weights do not belong to its tokenizer")


def _describe(token: str | None, other: dict[int, str]) -> str:
    """A token and its id in the other tokenizer."""
    if token is None:
        return "no token"
    index = next((index for index, text in other.items() if text == token), None)
    return f"{token!r} ({'absent' if index is None else f'id {index}'} in the other)"


def _value(value: Any) -> str:
    return "not set" if value is None else _SHORT.repr(value)
