"""Admission of requests: checks, and limits of a text's length."""

import logging
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from dare_job.decode.engine import generation_config
from dare_job.decode.engine.generation_config import GenerationRules
from dare_job.decode.engine.grammar import TextParser
from dare_job.decode.engine.prefill import usable_previous_text
from dare_job.decode.model.support import Traits
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import RowError

_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Admission:
    """A request that can be decoded.

    Attributes
    ----------
    max_length, min_length : int
        Limits of the text's length in tokens, including the prompt.
    processors : LogitsProcessorList, optional
        The row's own logits processors.
    previous : int32 (tokens,)
        The part of the row's previous text that can be verified.
    parser : TextParser, optional
        The parser of the row's text, if it has a grammar.
    """

    request: Request
    max_length: int
    min_length: int
    processors: object | None
    previous: np.ndarray
    parser: TextParser | None = None


def admit(request: Request, target: Target, rules: GenerationRules, settings: EngineSettings,
          is_eos: np.ndarray) -> Admission:
    """Check a request and compute its limits.

    The text may be as long as that of ``generate``, or end where the model's positions end.

    Parameters
    ----------
    is_eos : bool (V,)

    Raises
    ------
    RowError
        The request cannot be decoded, for instance because the prompt exceeds the model's context.
    """
    prompt, traits = np.asarray(request.prompt_ids), target.traits
    if not len(prompt):
        raise RowError("the prompt is empty")
    if prompt.min() < 0 or prompt.max() >= target.vocabulary:
        raise RowError(f"the prompt has a token id outside the model's vocabulary of {target.vocabulary}")
    if traits.context is not None and len(prompt) > traits.context:
        raise _prompt_too_long(prompt, traits.reason, traits.context)
    positions = getattr(target.model.config, "max_position_embeddings", None)
    max_length, min_length = generation_config.limits(rules, settings, len(prompt),
                                                      request.max_new_tokens, positions)
    if len(prompt) >= max_length:
        by_default = rules.config.max_length is None and max_length == positions
        raise _prompt_too_long(prompt, "max_position_embeddings" if by_default else "max_length", max_length)
    if traits.max_length is not None and max_length > traits.max_length:
        max_length = traits.max_length
        _warn(traits)
    processors = None
    if rules.processors:
        ids = torch.from_numpy(prompt.astype(np.int64))[None].to(target.device)
        processors = generation_config.processors(rules, target.model, ids, max_length, min_length)
    limit = max_length if traits.max_columns is None else min(max_length, traits.max_columns + 1)
    previous = usable_previous_text(request.previous_ids, target.vocabulary, is_eos,
                                    limit - len(prompt) - 1)
    parser = None
    if request.grammar is not None:
        parser = TextParser(request.grammar)
        previous = previous[: parser.allowed_prefix(previous)]
    return Admission(request, max_length, min_length, processors, previous, parser)


def _prompt_too_long(prompt: np.ndarray, limit: str, length: int) -> RowError:
    return RowError(f"the prompt has {len(prompt)} tokens and {limit} is {length}: no room to generate")


@lru_cache(maxsize=8)  # warn once per model
def _warn(traits: Traits) -> None:
    _LOG.warning("texts are limited to %d tokens including the prompt: %s is %d", traits.max_length,
                 traits.reason, traits.context)
