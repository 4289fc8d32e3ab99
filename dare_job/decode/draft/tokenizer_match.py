"""Whether a draft model's tokens are the target model's: drafts are token ids, which must mean the same.

How a tokenizer cuts a text into tokens, as facts with names that two tokenizers can be compared by.

What stands around a text (the post-processor, a beginning of text), how tokens become text again (the
decoder), padding and truncation are left out: drafts are made of token ids, which they do not change.
"""

import json
import reprlib
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedTokenizerBase

from dare_job.errors import ConfigError

_OFFSETS_ALONE = {"type", "trim_offsets"}  # fields of a step that are its name, or move no token

_OF_UNKNOWN = "unk_token", "unk_id", "fuse_unk"  # without effect where every byte has a token

_TEXTS = ("Hello, world! It's 9:45, and 1234567 people don't KNOW.", "  two  spaces,\ttab\nand\n\nlines ",
          "Ångström e\u0301tude ﬁve ½ Ⅷ",
          "東京は日本の首都です。 Привет, мир! مرحبا", "🙂👩‍🚀 x_1 += f(a[0])  # ¿?")

_PIECES = 64  # tokens of the target that are read again as text


def first_difference(target: PreTrainedTokenizerBase,
               draft: PreTrainedTokenizerBase) -> tuple[str, Any, Any] | None:
    """The first fact in which two tokenizers of one vocabulary differ: its name, and both values, None where
    it is not set. None: they cut alike.

    Of fast tokenizers these are normalizer, pre-tokenizer, model, merges and added tokens, read from the
    backend, which writes them in one form whatever version wrote the files. Where one has no backend that
    can be written down, both cut some texts.
    """
    ours, theirs = (_backend(one) for one in (target, draft))
    if ours is None or theirs is None:
        texts = [*_TEXTS, *_pieces(target)]
        ours, theirs = ({f"what {text!r} is cut into": one.encode(text, add_special_tokens=False)
                         for text in texts} for one in (target, draft))
    else:
        ours, theirs = (dict(_facts(one)) for one in (ours, theirs))
    return next(((name, ours.get(name), theirs.get(name)) for name in ours | theirs
                 if ours.get(name) != theirs.get(name)), None)


def _backend(tokenizer: PreTrainedTokenizerBase) -> dict | None:
    inner = getattr(tokenizer, "backend_tokenizer", None)
    try:
        return None if inner is None else json.loads(inner.to_str())
    except Exception:  # tokenizers raises no narrower one where a step is somebody's own Python code
        return None


def _facts(backend: dict) -> Iterator[tuple[str, Any]]:
    """Those that are set: older files leave out, or write as null or "", what newer ones write as false."""
    model, parts = backend["model"], _parts(backend)
    yield "the model", model["type"]
    for kind, steps in parts.items():
        for number, step in enumerate(steps, 1):
            yield f"{kind} {number}", step["type"]
            yield from _fields(f"{kind} {number} ({step['type']}): ", step, _OFFSETS_ALONE)
    yield from _fields("", model, {"type", "vocab", "merges", *_OF_UNKNOWN})
    if not model.get("byte_fallback") and all(step["type"] != "ByteLevel" for step in parts["pre_tokenizer"]):
        yield from _fields("", {name: model.get(name) for name in _OF_UNKNOWN}, set())
    for number, pair in enumerate(model.get("merges", ()), 1):
        yield f"merge {number}", " ".join(pair)
    if isinstance(model["vocab"], list):  # of a Unigram model
        yield from ((f"the score of {token!r}", score) for token, score in model["vocab"])
    for token in backend["added_tokens"]:
        yield f"added token {token['content']!r}", _taken(token, bool(parts["normalizer"]))


def _parts(backend: dict) -> dict[str, list[dict]]:
    """Steps of normalizer and pre-tokenizer. Llama's tokenizer puts its word marks by either, and in front of
    the first piece or of each, by the version that made it: all the same but around added tokens and spaces
    that begin a text.
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


def _fields(of: str, values: dict, but: set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name not in but and value is not None and value is not False and value != "":
            yield of + name, value


def _steps(part: dict | None) -> list[dict]:
    """One after the other: sequences may be nested, or hold one step."""
    if part is None:
        return []
    inner = part.get("normalizers", part.get("pretokenizers"))
    return [part] if inner is None else [step for one in inner for step in _steps(one)]


def _taken(token: dict, normalized: bool) -> str:
    """How it is found in a text. Whether in the normalized one matters where something is normalized, and is
    written differently of the same special token by versions of transformers.
    """
    flags = ["single_word", "lstrip", "rstrip"]
    if normalized and not token["special"]:
        flags.append("normalized")
    return ", ".join(["taken whole", *(flag for flag in flags if token[flag])])


def _pieces(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Texts of tokens from the whole vocabulary, eight in each."""
    ids = sorted(tokenizer.get_vocab().values())
    some = ids[:: max(1, len(ids) // _PIECES)]
    return [tokenizer.decode(some[start : start + 8]) for start in range(0, len(some), 8)]

_SHORT = reprlib.Repr()

_SHORT.maxstring, _SHORT.maxlist = 80, 16


def require_same_tokenizer(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, vocabulary: int,
                 names: tuple[str, str] | None = None) -> None:
    """Raises ConfigError where two tokenizers differ, naming both and the first difference: an id of their
    vocabularies, or what decides how text is cut into tokens (``cutting``). The latter would change no law,
    but the draft model would read what it was not trained on, and its drafts would seldom pass.

    vocabulary  lines of the draft model's table of embeddings: it may be longer than its tokenizer, as tables
                are padded, but not shorter
    names       of target and draft model in messages; None: where their tokenizers came from
    """
    first, second = names or (target.name_or_path, draft.name_or_path)
    advice = ("a draft model must have the target model's tokenizer: choose one of the same family, or make "
              "one with dare-job train-drafter")
    ours, theirs = ({index: token for token, index in one.get_vocab().items()} for one in (target, draft))
    for index in sorted(ours.keys() | theirs.keys()):
        if ours.get(index) != theirs.get(index):
            raise ConfigError(
                f"draft model {second} has other tokens than {first}: id {index} is "
                f"{_told(ours.get(index), theirs)} in {first}, and {_told(theirs.get(index), ours)} in "
                f"{second}; {advice}")
    if target.eos_token_id != draft.eos_token_id:
        raise ConfigError(f"draft model {second} ends a text with id {draft.eos_token_id}, {first} with "
                          f"{target.eos_token_id}; {advice}, or copy the target's tokenizer files into its "
                          "folder")
    if found := first_difference(target, draft):
        name, our, their = found
        raise ConfigError(
            f"draft model {second} cuts text into other tokens than {first}: {name} is {_set(our)} in "
            f"{first}, and {_set(their)} in {second}; {advice}. If it was trained on the target's tokens, "
            "copy the target's tokenizer files into its folder")
    last = max(theirs)
    if vocabulary <= last:
        raise ConfigError(f"draft model {second} has {vocabulary} embeddings, but its tokenizer has ids to "
                          f"{last} ({theirs[last]!r}): its weights are not those of its tokenizer")


def _told(token: str | None, other: dict[int, str]) -> str:
    """A token, and its id in the other tokenizer."""
    if token is None:
        return "no token"
    elsewhere = next((index for index, one in other.items() if one == token), None)
    return f"{token!r} ({f'id {elsewhere}' if elsewhere is not None else 'not there at all'} in the other)"


def _set(value: Any) -> str:
    return "not set" if value is None else _SHORT.repr(value)
