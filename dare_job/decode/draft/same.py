"""Whether a draft model's tokens are the target model's: drafts are token ids, which must mean the same."""

from transformers import PreTrainedTokenizerBase

from dare_job.errors import ConfigError


def require_same(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, vocabulary: int,
                 names: tuple[str, str] | None = None) -> None:
    """Raises ConfigError where two tokenizers differ, naming both and the first id at which they do.

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
                          f"{target.eos_token_id}; {advice}")
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
