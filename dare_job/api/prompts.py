"""Token ids of prompts, conversations and texts that a user passes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dare_job.config.settings import JobConfig
from dare_job.decode.prompt.tokens import prompt_ids, text_ids
from dare_job.errors import ConfigError, RowError
from dare_job.inference.prompt_format import model_format
from dare_job.inference.tokenizer import load_tokenizer
from dare_job.models import files

Messages = Sequence[Mapping[str, str]]
Prompt = str | Messages
Text = str | Sequence[int] | np.ndarray  # a text, or its token ids with the end-of-text token


def as_list(name: str, value: Iterable) -> list:
    """The entries of the argument ``name``: a list, a column of a table, or another iterable.

    Raises
    ------
    ConfigError
        It is one text, or not iterable.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} is one {type(value).__name__}: pass a list, such as {name}=[...]")
    return list(value)


def token_ids(prompt: Prompt, tokenizer, config: JobConfig) -> np.ndarray:
    """Token ids of a prompt, int32 (tokens,).

    The system message, and earlier turns of a conversation, are rendered as in a prompt set of the job.

    Raises
    ------
    RowError
        The prompt is empty, or its messages are not those of a conversation that the model can continue.
    """
    system, turns, text = ("", (), prompt) if isinstance(prompt, str) else _conversation(prompt)
    if not text.strip():
        raise RowError("the prompt is empty")
    return prompt_ids(tokenizer, text, model_format(config, None, system, turns))


def _conversation(messages: Messages) -> tuple[str, tuple[tuple[str, str], ...], str]:
    """System text, earlier turns (user, assistant) and the last user message of a conversation."""
    try:
        said = [(message["role"], message["content"]) for message in messages]
    except (TypeError, KeyError, IndexError):
        raise RowError("a prompt is a string, or a list of messages such as {'role': 'user', 'content': "
                       "'...'}") from None
    if not all(isinstance(content, str) for _, content in said):
        raise RowError("the content of each message must be a string")
    system = said.pop(0)[1] if said and said[0][0] == "system" else ""
    roles = [role for role, _ in said]
    if len(said) % 2 != 1 or roles != ["user", "assistant"] * (len(said) // 2) + ["user"]:
        raise RowError(f"the messages have the roles {', '.join(roles) or 'none'}: they must be user and "
                       "assistant in turn, after at most one system message, and end with user")
    texts = [content for _, content in said]
    return system, tuple(zip(texts[:-1:2], texts[1::2], strict=True)), texts[-1]


@dataclass(frozen=True)
class Tokens:
    """What pools and previous texts need to know of a model.

    Attributes
    ----------
    hash
        SHA-256 (hex) of the tokenizer's files; equal hashes mean equal token ids.
    size
        Number of token ids.
    """

    tokenizer: Any
    hash: str
    size: int

    @classmethod
    def of_model(cls, model: str, trust_remote_code: bool) -> "Tokens":
        """Load the tokenizer of a model, named as for ``LLM``."""
        folder = files.resolve(model, trust_remote_code, setting="model")
        return cls.of_folder(folder, load_tokenizer(folder, trust_remote_code), trust_remote_code)

    @classmethod
    def of_folder(cls, folder: Path, tokenizer, trust_remote_code: bool) -> "Tokens":
        return cls(tokenizer, files.tokenizer_hash(folder), files.vocabulary(folder, trust_remote_code))

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def ids(self, name: str, texts: Sequence[Text | None]) -> list[np.ndarray | None]:
        """Token ids, int32 (tokens,), of texts; None where there is none.

        Raises
        ------
        ConfigError
            An entry of the argument ``name`` is no text, or has ids that the model has not.
        """
        ids: list[np.ndarray | None] = [None] * len(texts)
        words = {place: text for place, text in enumerate(texts) if isinstance(text, str)}
        for place, tokens in zip(words, text_ids(self.tokenizer, list(words.values())), strict=True):
            ids[place] = np.array(tokens if words[place] else [], np.int32)  # an empty text has no end either
        for place, text in enumerate(texts):
            if text is not None and place not in words:
                ids[place] = self._checked(f"{name}[{place}]", text)
        return ids

    def all_ids(self, name: str, texts: Sequence[Text]) -> list[np.ndarray]:
        """As ``ids``, of texts that must all be there.

        Raises
        ------
        ConfigError
            One is None, or as ``ids``.
        """
        ids = self.ids(name, texts)
        if missing := [place for place, entry in enumerate(ids) if entry is None]:
            raise ConfigError(f"{name}[{missing[0]}] is None: leave it out")
        return ids

    def previous_ids(self, previous: Iterable[Text | None] | None, of: str,
                     count: int) -> list[np.ndarray | None]:
        """Token ids of the argument ``previous``, which has an entry for each of ``count`` entries of ``of``.

        Raises
        ------
        ConfigError
            It has another number of entries, or as ``ids``.
        """
        if previous is None:
            return [None] * count
        previous = [None if isinstance(text, float) and math.isnan(text) else text  # as tables say it
                    for text in as_list("previous", previous)]
        if len(previous) != count:
            raise ConfigError(f"previous has {len(previous)} entries and {of} has {count}: give one for "
                              "each, and None where there is no previous text")
        return self.ids("previous", previous)

    def _checked(self, name: str, text: Any) -> np.ndarray:
        array = np.asarray(text)
        if array.ndim != 1 or array.size and array.dtype.kind not in "iu":
            raise ConfigError(f"{name} is {text!r:.60}: pass a text, or its token ids")
        if array.size and not 0 <= array.min() <= array.max() < self.size:
            raise ConfigError(f"{name} has token ids from {array.min()} to {array.max()}, and the model has "
                              f"{self.size}: pass the text instead, or ids of this model")
        return array.astype(np.int32)
