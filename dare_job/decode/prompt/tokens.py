"""Token ids of prompts. The text of a prompt is data: nothing in it becomes a control token.

A prompt is tokenized as a whole, exactly as ``apply_chat_template`` does. If that gives other control tokens
than the format itself has, a title or attribute spells one, such as "<|im_end|>". The prompt is then cut
inside each such spelling and its pieces are tokenized one by one, so that they remain ordinary text. Where
the template marks turns with text that is no control token, ``markers`` breaks up that text in the prompt.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dare_job.decode.prompt.markers import TurnMarkers
from dare_job.decode.prompt.template import PLAIN, PromptFormat, Renderer, chat_template, prints_date
from dare_job.errors import RowError


def prompt_ids(tokenizer, prompt: str, prompt_format: PromptFormat = PLAIN) -> np.ndarray:
    """Tokenize one prompt.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    prompt : str
    prompt_format : PromptFormat

    Returns
    -------
    int32 (tokens,)

    Raises
    ------
    ConfigError
        The format does not suit the tokenizer's chat template.
    RowError
        The prompt spells a control token that cannot be written as text.
    """
    return encoder(tokenizer, prompt_format).ids(prompt)


def text_ids(tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of earlier texts, with an end-of-text token after each, to draft from.

    Control tokens that a text spells are left out: as a draft they would end it or begin a turn.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    controls = control_tokens(tokenizer, tokenizer.chat_template)
    return [[token for token in row if token not in controls] + end
            for row in tokenizer(list(texts), add_special_tokens=False)["input_ids"]] if texts else []


def encoder(tokenizer, prompt_format: PromptFormat) -> "PromptEncoder":
    """The encoder of a tokenizer and a format; the same one for equal formats."""
    template = chat_template(tokenizer, prompt_format.mode)
    if prompt_format.day is not None and not prints_date(template):
        prompt_format = replace(prompt_format, day=None)  # one encoder for all dates
    return _encoder(tokenizer, prompt_format, template)


@lru_cache(maxsize=16)
def _encoder(tokenizer, prompt_format: PromptFormat, template: str | None) -> "PromptEncoder":
    return PromptEncoder(tokenizer, prompt_format)


class PromptEncoder:
    """Turns the prompts of one format into token ids.

    Attributes
    ----------
    opens_thinking
        Whether the text before the answer opens a thinking block and does not close it.
    """

    def __init__(self, tokenizer, prompt_format: PromptFormat):
        self._tokenizer, self._renderer = tokenizer, Renderer(tokenizer, prompt_format)
        self._add_special = self._renderer.template is None  # a template prints its special tokens itself
        self._controls = control_tokens(tokenizer, self._renderer.template)
        self._control_ids = np.array(list(self._controls), np.int32)
        self._markers = TurnMarkers(self._renderer.gaps(), self._controls.values(), _normalizer(tokenizer))
        self.opens_thinking = self._renderer.opens_thinking
        self._frame = self._tokenize(self._renderer.text("\ue000"))
        spellings = sorted(map(re.escape, self._controls.values()), key=len, reverse=True)
        self._spelling = re.compile(f"(?=({'|'.join(spellings)}))" if spellings else r"(?!)")

    def ids(self, prompt: str) -> np.ndarray:
        """Token ids, int32 (tokens,), of what the model reads for a prompt.

        Raises
        ------
        ConfigError
            The chat template cannot be rendered.
        RowError
            The prompt spells a control token that the tokenizer cannot read as text.
        """
        prompt = self._markers.break_up(prompt)
        text = self._renderer.text(prompt)
        ids = self._tokenize(text)
        return ids if self._has_own_controls(ids) else self._as_text(prompt, text)

    def _tokenize(self, text: str) -> np.ndarray:
        return np.asarray(self._tokenizer(text, add_special_tokens=self._add_special)["input_ids"], np.int32)

    def _has_own_controls(self, ids: np.ndarray) -> bool:
        """Whether the control tokens are those of the format, in the same order."""
        return np.array_equal(*(part[np.isin(part, self._control_ids)] for part in (ids, self._frame)))

    def _as_text(self, prompt: str, text: str) -> np.ndarray:
        """Token ids of a prompt that spells control tokens."""
        spelled = list(self._spelling.finditer(prompt))
        before, after = self._renderer.before, self._renderer.after
        inside = next((part for part in (prompt, prompt.strip(), prompt.rstrip())
                       if after is not None and text == before + part + after), None)
        if inside is not None:
            start = len(before) - prompt.index(inside)  # where the prompt begins, with what was stripped
            cuts = [start + match.start() + 1 for match in spelled]
            pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            ids = self._joined(pieces)
            if self._has_own_controls(ids):
                return ids
        names = ", ".join(sorted({match[1] for match in spelled})) or "one that it does not spell literally"
        raise RowError(f"the prompt spells a control token of the model ({names}), which this tokenizer "
                       "cannot write as text: remove it from the title or attribute")

    def _joined(self, pieces: list[str]) -> np.ndarray:
        """Token ids of pieces of one text, with the special tokens of the whole if it has any."""
        ids = [token for piece in pieces for token in self._inner(piece)]
        if self._add_special:
            inner = self._inner(self._renderer.text("\ue000"))
            whole = self._frame.tolist()
            start = next(i for i in range(len(whole) + 1) if whole[i : i + len(inner)] == inner)
            ids = [*whole[:start], *ids, *whole[start + len(inner):]]
        return np.asarray(ids, np.int32)

    def _inner(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _normalizer(tokenizer) -> Callable[[str], str]:
    """What the tokenizer does to a text first, with spaces where SentencePiece writes U+2581."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    return (lambda text: normalizer.normalize_str(text).replace("\u2581", " ")) if normalizer else str


def control_tokens(tokenizer, template: str | None) -> dict[int, str]:
    """Tokens that structure a text, by id: special ones, and added ones that the chat template prints.

    The unknown token is none of them, unless it also ends texts: words outside the vocabulary become it.
    Other added tokens, such as runs of spaces, are ordinary text.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {})
    tokens = {token: str(entry.content) for token, entry in added.items()
              if entry.special or (template and entry.content.strip() and entry.content in template)}
    tokens |= dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    if tokenizer.unk_token_id not in (tokenizer.eos_token_id, tokenizer.bos_token_id):
        tokens.pop(tokenizer.unk_token_id, None)
    return tokens
