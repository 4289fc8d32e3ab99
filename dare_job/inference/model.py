"""A model in memory with its tokenizer, and the text of what it generates."""

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from dare_job.config.settings import JobConfig
from dare_job.decode.engine.grammar import Grammar, token_table
from dare_job.decode.engine.loops import number_tokens
from dare_job.decode.model import failures
from dare_job.decode.model.target import Target
from dare_job.decode.model.undrafted import any_target
from dare_job.decode.prompt import answers
from dare_job.decode.prompt.answers import add_end_of_turn
from dare_job.decode.prompt.template import PromptFormat
from dare_job.decode.prompt.tokens import encoder
from dare_job.errors import InfrastructureError, RowError, describe
from dare_job.inference.prompt_format import model_format
from dare_job.inference.tokenizer import load_tokenizer
from dare_job.inference.warm_up import warm_up

_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory with its tokenizer.

    Attributes
    ----------
    learned
        What engines with the same settings learn and share, by these settings: ``inference.engines``.
    grammars
        Compiled so far, by ``inference.grammars``.
    """

    target: Target
    tokenizer: object
    learned: dict = field(default_factory=dict, repr=False)
    grammars: dict[str, Grammar] = field(default_factory=dict, repr=False)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The end-of-text tokens."""
        eos = self.target.generation_config.eos_token_id
        return () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (eos,)

    @cached_property
    def token_table(self):
        """The tokens, for grammars (``grammar.token_table``). Raises ConfigError."""
        target = self.target
        return token_table(self.tokenizer, max(target.vocabulary, target.logit_columns), self.ends)

    @cached_property
    def numbers(self) -> np.ndarray:
        """The tokens that are numbers, bool (V,)."""
        return number_tokens(self.tokenizer)


def load(folder: str, dtype: str, device: str, trust_remote_code: bool,
         prompt_format: PromptFormat) -> LoadedModel:
    """Load a model and its tokenizer, after a warm-up.

    Parameters
    ----------
    prompt_format
        Its chat template names the token that ends an answer.

    Raises
    ------
    ModelError, ConfigError, InfrastructureError
        As ``load_target``.
    """
    tokenizer = load_tokenizer(Path(folder), trust_remote_code)
    warm_up()
    target = load_target(folder, dtype, device, trust_remote_code, any_target)
    target.release_weights()
    failures.release(target)
    if warning := add_end_of_turn(target.generation_config, tokenizer, prompt_format):
        _LOG.warning("%s", warning)
    return LoadedModel(target, tokenizer)


def load_target(folder: str, dtype: str, device: str, trust_remote_code: bool,
                make: Callable[..., Target] | None = None) -> Target:
    """Load a model onto its device.

    ``make`` as for ``Target.load``: with ``any_target``, a model without drafts is loaded too.

    Raises
    ------
    ModelError, ConfigError
        As ``Target.load``.
    InfrastructureError
        The model does not fit into memory, or its device failed.
    """
    with memory_errors("the model"):
        return Target.load(Path(folder), dtype, device, trust_remote_code, make=make)


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Convert memory and device failures of the block, which loads ``what``.

    Raises
    ------
    InfrastructureError
        ``what`` does not fit into memory, or the device failed.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not failures.is_out_of_memory(error) and not failures.is_device_failure(error):
            raise
        raise InfrastructureError(
            f"{socket.gethostname()}: {what} does not fit into memory, or the device failed: "
            f"{describe(error)}; give each task more memory, or run fewer tasks per machine") from error


def decode_text(token_ids, loaded: LoadedModel, config: JobConfig, max_new_tokens: int | None = None) -> str:
    """Text of generated token ids: after a thinking block, before a stop string, without special tokens.

    Parameters
    ----------
    token_ids : int (tokens,)
    max_new_tokens
        Limit that the text was generated with; None: ``decode.max_new_tokens``.

    Raises
    ------
    RowError
        The text ends inside its thinking block.
    """
    ids, decode = np.asarray(token_ids), config.decode
    if len(ids) and ids[-1] in loaded.ends:
        ids = ids[:-1]  # an end-of-text token that the tokenizer does not mark as special would be decoded
    opened = encoder(loaded.tokenizer, model_format(config)).opens_thinking
    text = answers.answer(loaded.tokenizer, ids, opened)
    if text is None:
        limit = decode.max_new_tokens if max_new_tokens is None else max_new_tokens
        cause = ("a string of decode.stop occurs there: remove it from decode.stop"
                 if decode.stop and len(token_ids) < limit else "raise decode.max_new_tokens")
        raise RowError(f"the text ends inside its thinking block, after {len(token_ids)} tokens: {cause}, or "
                       "switch thinking off (model.template_arguments, or another model)")
    for string in decode.stop:
        text = text.partition(string)[0]
    return text.strip()
