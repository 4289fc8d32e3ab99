"""May a request start, and how long may its text become?"""

import logging
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from dare_job.decode.engine import generation_config
from dare_job.decode.engine.generation_config import GenerationRules
from dare_job.decode.engine.prefill import usable_previous_text
from dare_job.decode.model.support import Traits
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import RowError

_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Admission:
    """A request that may start.

    longest, least  length of its text in tokens, prompt included
    processors      its own logits processors
    old             int32 (tokens,): what of its old text may be scored
    """

    request: Request
    max_length: int
    min_length: int
    processors: object | None
    previous: np.ndarray


def admit(request: Request, target: Target, rules: GenerationRules, settings: EngineSettings,
          is_eos: np.ndarray) -> Admission:
    """Check a request; is_eos bool (V,). Raises RowError saying why it cannot be decoded.

    A prompt must fit the model's context. Its text is as long as ``generate`` makes it, or up to where the
    model's positions end.
    """
    prompt, traits = np.asarray(request.prompt_ids), target.traits
    if not len(prompt):
        raise RowError("the prompt is empty")
    if prompt.min() < 0 or prompt.max() >= target.vocabulary:
        raise RowError(f"the prompt holds a token outside the model's {target.vocabulary}")
    if traits.context is not None and len(prompt) > traits.context:
        raise _prompt_too_long(prompt, traits.reason, traits.context)
    positions = getattr(target.model.config, "max_position_embeddings", None)
    longest, least = generation_config.limits(rules, settings, len(prompt), request.max_new_tokens, positions)
    if len(prompt) >= longest:
        by_default = rules.config.max_length is None and longest == positions
        raise _prompt_too_long(prompt, "max_position_embeddings" if by_default else "max_length", longest)
    if traits.max_length is not None and longest > traits.max_length:
        longest = traits.max_length
        _warn(traits)
    processors = None
    if rules.processors:
        ids = torch.from_numpy(prompt.astype(np.int64))[None].to(target.device)
        processors = generation_config.processors(rules, target.model, ids, longest, least)
    room = longest if traits.max_columns is None else min(longest, traits.max_columns + 1)
    old = usable_previous_text(request.previous_ids, target.vocabulary, is_eos, room - len(prompt) - 1)
    return Admission(request, longest, least, processors, old)


def _prompt_too_long(prompt: np.ndarray, limit: str, length: int) -> RowError:
    return RowError(f"the prompt has {len(prompt)} tokens and {limit} is {length}: no room to write")


@lru_cache(maxsize=8)  # once for a model
def _warn(traits: Traits) -> None:
    _LOG.warning("texts end at %d tokens, prompt included: %s is %d", traits.max_length, traits.reason,
                 traits.context)
