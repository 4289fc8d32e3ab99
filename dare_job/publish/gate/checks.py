"""Checks of single texts, vectorized over the columns of a batch."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dare_job.config.gates import GateSettings
from dare_job.decode.engine.loops import loop_ends
from dare_job.publish.gate import content
from dare_job.tables import parsed

SHORT_TOKENS = 8  # a finished text with fewer tokens is too short
COLUMNS = ("entity_id", "knowledge", "token_ids", "tokens", "finish_reason", "error", "prompt_sha256",
           "relaxed_tokens", "copied_words")
COPIED = 1 / 3  # of its words: a text with more copied ones copies its prompt

OF_FREE_TEXTS = ("short", "shell", "same_text", "shared")  # have no limit where decode.schema gives a form

_UNPRINTABLE = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x{9f}\\x{fffd}]"  # control characters and U+FFFD


def limit(gates: GateSettings, check: str, form: str | None) -> float | None:
    """The limit of a check of texts; None: it has none. ``form``: as in ``failing_texts``."""
    return None if form and check in OF_FREE_TEXTS else gates.limit(check)


class Texts:
    """Rows of KNOWLEDGE without ``error``, as columns (N,).

    Parameters
    ----------
    numbers : bool (V,)
        The tokens that are numbers.

    Attributes
    ----------
    text
        Valid UTF-8 without nulls.
    tokens
        Number of tokens, including the end-of-text token.
    """

    def __init__(self, batch: pa.RecordBatch, numbers: np.ndarray):
        rows = batch.filter(pc.is_null(batch["error"]))
        self._numbers, self._finish_reason = numbers, rows["finish_reason"]
        self.ids, self._token_ids = rows["entity_id"], rows["token_ids"]
        self.text = _valid_utf8(rows["knowledge"])
        self.tokens, self.relaxed_tokens = _integers(rows["tokens"]), _integers(rows["relaxed_tokens"])
        self.prompts, self.copied_words = rows["prompt_sha256"], _integers(rows["copied_words"])
        self.cut_off = _mask(self._finished("length"))
        self.empty = _mask(pc.equal(pc.binary_length(pc.utf8_trim_whitespace(self.text)), 0))

    def __len__(self) -> int:
        return len(self.ids)

    def _finished(self, *reasons: str) -> pa.Array:
        """(N,) bool: the text ended for one of these reasons."""
        return pc.is_in(self._finish_reason, pa.array(reasons))

    def unfinished(self, form: str | None) -> np.ndarray:
        """(N,) bool: the text ended before its form allows it. ``form``: as in ``failing_texts``."""
        if form is None:
            return np.zeros(len(self), np.bool_)
        finished = _mask(self._finished("eos"))
        if form == "json":  # cut off right after its end, a text is complete
            texts = self.text.to_pylist()
            finished = finished | [parsed.json_value(text) is not None for text in texts]
        return ~finished

    def loop_tokens(self) -> np.ndarray:
        """(N,) int32: number of tokens with which each text is first found to loop; 0: it does not."""
        flat = pc.fill_null(pc.list_flatten(self._token_ids), -1).to_numpy()
        lengths = _integers(pc.list_value_length(self._token_ids))
        stops = np.cumsum(lengths)
        ended = _mask(self._finished("eos")) & (lengths > 0)
        return loop_ends(flat.astype(np.int32), stops - lengths, stops - ended, self._numbers)

    def unprintable(self) -> np.ndarray:
        """(N,) int64: number of unprintable characters.

        An incomplete character at the end of a text that was cut off or looped does not count.
        """
        whole = pc.utf8_rtrim(self.text, characters="\ufffd")
        text = pc.if_else(self._finished("length", "loop"), whole, self.text)
        return _integers(pc.count_substring_regex(text, _UNPRINTABLE))


def failing_texts(texts: Texts, gates: GateSettings, script: str | None = None,
                  form: str | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each check of single texts: (N,) bool, the rows that fail it, and (N,) the checked values.

    Parameters
    ----------
    script
        That of the prompts (``content.SCRIPTS``); None: unknown, so no text is in another one.
    form
        Kind of ``decode.schema`` that the texts were held to; None: none.
    """
    tokens, cut_off, empty = texts.tokens, texts.cut_off, texts.empty
    loops, unprintable = texts.loop_tokens(), texts.unprintable()
    relaxed = texts.relaxed_tokens / np.maximum(tokens, 1)
    copied = texts.copied_words / np.maximum(content.words(texts.text), 1)
    foreign = content.foreign_share(texts.text, script)
    max_relaxed = gates.limit("relaxed")
    return {
        "empty": (empty, tokens),
        "short": (~empty & ~cut_off & (tokens < SHORT_TOKENS), tokens),
        "cut_off": (cut_off, tokens),
        "schema": (texts.unfinished(form), tokens),
        "loop": (loops > 0, loops),
        "unprintable": (unprintable > 0, unprintable),
        "copied": (copied > COPIED, copied),
        "refusal": (content.refusals(texts.text, gates.refusal_patterns), tokens),
        "wrong_script": (content.wrong_script(foreign), foreign),
        "thinking": (content.thinking(texts.text), tokens),
        "shell": (~empty & content.shells(texts.text), tokens),
        "relaxed": (relaxed > (1.0 if max_relaxed is None else max_relaxed), relaxed),
    }


def _valid_utf8(text: pa.Array) -> pa.Array:
    """The texts without nulls; invalid bytes, such as lone surrogates, become U+FFFD."""
    try:
        text = text.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raw = text.cast(pa.binary()).to_pylist()
        text = pa.array([value and value.decode("utf-8", "replace") for value in raw], pa.string())
    return pc.fill_null(text, "")


def _integers(column: pa.Array) -> np.ndarray:
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _mask(column: pa.Array) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False)
