"""A model's generation config, field by field: honoured, without effect on greedy decoding, or refused.

Every field of ``GenerationConfig`` is in exactly one of the tables below; a test fails when a new release
of transformers adds one. Source: ``GenerationMixin._get_logits_processor``, ``_get_stopping_criteria`` and
``_prepare_generated_length`` of transformers 5.17 to 5.23.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from transformers import (
    EncoderRepetitionPenaltyLogitsProcessor,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
)

from dare_job.decode.settings import EngineSettings
from dare_job.errors import ModelError

LENGTHS = {"max_length", "max_new_tokens", "min_length", "min_new_tokens", "eos_token_id"}

# Applied by the engine for all nodes at once, unless one of PROCESSORS is set too.
NATIVE = {"repetition_penalty", "no_repeat_ngram_size"}

# Applied by the objects that transformers builds for them, to each node's own prefix.
PROCESSORS = {
    "sequence_bias", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "renormalize_logits",
}

# Field: the values that ask for nothing.
REFUSED = {
    "max_time": (None,), "stop_strings": (None,), "num_beams": (None, 1), "num_beam_groups": (None, 1),
    "num_return_sequences": (None, 1), "use_mtp": (None, False), "token_healing": (None, False),
    "guidance_scale": (None, 1), "watermarking_config": (None,), "penalty_alpha": (None, 0),
    "dola_layers": (None,), "constraints": (None,), "force_words_ids": (None,),
    "cache_implementation": (None, "dynamic", "static", "hybrid", "sliding_window", "offloaded",
                             "offloaded_static", "offloaded_hybrid"),
}

# Sampling (the job decodes greedily whatever do_sample says), beams (refused by num_beams), outputs, caches
# and speed, tokens that greedy decoding of a causal model does not read, drafting by transformers itself.
WITHOUT_EFFECT = {
    "do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff",
    "eta_cutoff", "early_stopping", "length_penalty", "diversity_penalty", "low_memory",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    "use_cache", "cache_config", "max_cache_len", "prefill_chunk_size", "compile_config", "disable_compile",
    "continuous_batching_config", "pad_token_id", "bos_token_id", "decoder_start_token_id", "is_assistant",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind",
    "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "transformers_version",
}

_NEUTRAL = {"encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0,
            "remove_invalid_values": False, "renormalize_logits": False}

_MIN_VALUES = {"max_length": 1, "max_new_tokens": 1, "min_length": 0, "min_new_tokens": 0,
          "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0}


@dataclass(frozen=True)
class GenerationRules:
    """What a generation config asks of greedy decoding.

    config      the config itself
    eos         end-of-text tokens
    penalty     of repetition; 1.0: none
    ngram       tokens of which no run comes twice; 0: none
    processors  fields of PROCESSORS that are set
    """

    config: GenerationConfig
    eos: tuple[int, ...]
    penalty: float
    ngram: int
    processors: tuple[str, ...]


def read_rules(config: GenerationConfig) -> GenerationRules:
    """Read a generation config. Raises ModelError naming a field that cannot be honoured."""
    known = LENGTHS | NATIVE | PROCESSORS | WITHOUT_EFFECT | REFUSED.keys()
    for field in (field for field in vars(GenerationConfig()) if not field.startswith("_")):
        value = getattr(config, field, None)
        if field not in known and value is not None or field in REFUSED and value not in REFUSED[field]:
            raise ModelError(
                f"generation_config.{field} is {value!r}, which the engine does not support; remove it from "
                "the model's generation_config.json"
            )
    _check_values(config)
    if getattr(config, "exponential_decay_length_penalty", None) is not None and config.eos_token_id is None:
        raise ModelError("generation_config.exponential_decay_length_penalty needs an eos_token_id: name the "
                         "token in the model's generation_config.json, or remove the penalty")
    penalty = getattr(config, "repetition_penalty", None)
    return GenerationRules(config, _tokens(config.eos_token_id), 1.0 if penalty is None else float(penalty),
                 getattr(config, "no_repeat_ngram_size", None) or 0, _set_processors(config))


def _tokens(value) -> tuple:
    return () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)


def _check_values(config: GenerationConfig) -> None:
    """Raises ModelError naming a field whose value is of no use, such as a number written as text."""
    def demand(field: str, fits, what: str):
        value = getattr(config, field, None)
        if value is not None and not fits(value):
            raise ModelError(f"generation_config.{field} is {value!r}; it must be {what}: correct the "
                             "model's generation_config.json")

    for field in ("repetition_penalty", "encoder_repetition_penalty"):
        demand(field, lambda x: _number(x) and 0 < np.float32(x) < float("inf"),
               "a number above 0 that float32 can hold")
    for field, least in _MIN_VALUES.items():
        demand(field, lambda x, least=least: _whole(x, least), f"a whole number from {least}")
    demand("eos_token_id", lambda x: all(_whole(token, 0) for token in _tokens(x)), "a token id or several")


def _number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _set_processors(config: GenerationConfig) -> tuple[str, ...]:
    return tuple(
        field for field in sorted(PROCESSORS)
        if getattr(config, field, None) is not None and getattr(config, field) != _NEUTRAL.get(field)
    )


def limits(rules: GenerationRules, settings: EngineSettings, prompt: int, max_new: int | None,
           positions: int | None) -> tuple[int, int]:
    """Longest text and length before which it may not end, in tokens with the prompt, as in ``generate``.

    max_new    the request's own limit; None: the settings', else the config's max_new_tokens, else its
               max_length, else 20 tokens
    positions  the model's max_position_embeddings, which only those 20 tokens do not pass
    """
    config = rules.config
    new = next((n for n in (max_new, settings.max_new_tokens, config.max_new_tokens) if n is not None), None)
    if new is not None:
        longest = prompt + new
    elif config.max_length is not None:
        longest = config.max_length
    else:
        longest = prompt + 20 if positions is None else min(prompt + 20, positions)
    if settings.min_new_tokens:
        least = prompt + settings.min_new_tokens
    elif config.min_new_tokens is not None:
        least = prompt + config.min_new_tokens
    else:
        least = config.min_length or 0
    return longest, least


def processors(rules: GenerationRules, model, prompt_ids: torch.Tensor, longest: int,
               least: int) -> LogitsProcessorList:
    """The objects that ``generate`` would run for one row; called with any number of its prefixes at once.

    prompt_ids int64 (1, P) on the device.
    """
    config = copy.deepcopy(rules.config)
    config.do_sample, config.max_length, config.min_length = False, longest, least
    config.min_new_tokens = None
    device = prompt_ids.device
    config._eos_token_tensor = torch.tensor(rules.eos, device=device) if rules.eos else None
    found = model._get_logits_processor(config, prompt_ids.shape[1], prompt_ids, device=device)
    return LogitsProcessorList(
        _SharedPromptPenalty(each, prompt_ids) if isinstance(each, EncoderRepetitionPenaltyLogitsProcessor)
        else each
        for each in found)


class _SharedPromptPenalty(LogitsProcessor):
    """Gives every prefix the prompt's ids: before transformers 5.19 only the first would be changed."""

    def __init__(self, processor: EncoderRepetitionPenaltyLogitsProcessor, prompt_ids: torch.Tensor):
        self._processor, self._prompt_ids = processor, prompt_ids

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._processor.encoder_input_ids = self._prompt_ids.expand(len(scores), -1)
        return self._processor(input_ids, scores)
