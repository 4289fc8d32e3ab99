"""Whether a draft model's tokens are the target model's: drafts are token ids, which must mean the same."""

import reprlib
from typing import Any

from transformers import PreTrainedTokenizerBase

from dare_job.decode.draft.cutting import difference
from dare_job.errors import ConfigError

_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxlist = 80, 16


def require_same(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, vocabulary: int,
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
    if found := difference(target, draft):
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
