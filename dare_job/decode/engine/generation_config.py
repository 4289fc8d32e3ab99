"""A model's generation config: each field is applied, has no effect on greedy decoding, or is rejected.

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

# Applied by the engine to all nodes at once, unless one of PROCESSORS is set too.
NATIVE = {"repetition_penalty", "no_repeat_ngram_size"}

# Applied by the logits processors of transformers, to the prefix of each node.
PROCESSORS = {
    "sequence_bias", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "renormalize_logits",
}

# Rejected fields, with the values that have no effect.
REJECTED = {
    "max_time": (None,), "stop_strings": (None,), "num_beams": (None, 1), "num_beam_groups": (None, 1),
    "num_return_sequences": (None, 1), "use_mtp": (None, False), "token_healing": (None, False),
    "guidance_scale": (None, 1), "watermarking_config": (None,), "penalty_alpha": (None, 0),
    "dola_layers": (None,), "constraints": (None,), "force_words_ids": (None,),
    "cache_implementation": (None, "dynamic", "static", "hybrid", "sliding_window", "offloaded",
                             "offloaded_static", "offloaded_hybrid"),
}

_USUAL = {"transformers_version", "use_cache", "pad_token_id", "bos_token_id", "decoder_start_token_id"}
_INSTEAD = {"stop_strings": ", and set decode.stop to these strings"}

# Sampling (the job decodes greedily whatever do_sample is), beams (rejected by num_beams), outputs, caches
# and speed, tokens that greedy decoding of a causal model does not use, and drafting by transformers itself.
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
    """Effects of a generation config on greedy decoding.

    Attributes
    ----------
    config : GenerationConfig
    eos : tuple of int
        End-of-text tokens.
    penalty : float
        Repetition penalty; 1.0: none.
    ngram : int
        Size of n-grams that may not repeat; 0: none.
    processors : tuple of str
        Fields of PROCESSORS that are set.
    """

    config: GenerationConfig
    eos: tuple[int, ...]
    penalty: float
    ngram: int
    processors: tuple[str, ...]


def read_rules(config: GenerationConfig, repetition_penalty: float | None = None) -> GenerationRules:
    """Read a generation config.

    ``repetition_penalty`` replaces the one of the config; None: as in the config.

    Raises
    ------
    ModelError
        A field is not supported or invalid.
    """
    if repetition_penalty is not None:
        config = copy.deepcopy(config)
        config.repetition_penalty = float(repetition_penalty)
    listed = LENGTHS | NATIVE | PROCESSORS | WITHOUT_EFFECT | REJECTED.keys()
    for field in (field for field in vars(GenerationConfig()) if not field.startswith("_")):
        value = getattr(config, field, None)
        if field not in listed and value is not None or field in REJECTED and value not in REJECTED[field]:
            raise ModelError(f"generation_config.{field} is {value!r}, which the engine does not support; "
                             f"remove it from the model's generation_config.json{_INSTEAD.get(field, '')}")
    _check_values(config)
    if getattr(config, "exponential_decay_length_penalty", None) is not None and config.eos_token_id is None:
        raise ModelError("generation_config.exponential_decay_length_penalty needs an eos_token_id: set it "
                         "in the model's generation_config.json, or remove the penalty")
    penalty = getattr(config, "repetition_penalty", None)
    return GenerationRules(config, _tokens(config.eos_token_id), 1.0 if penalty is None else float(penalty),
                           getattr(config, "no_repeat_ngram_size", None) or 0, _set_processors(config))


def effects(rules: GenerationRules) -> dict:
    """Return which fields of a generation config are applied, with their values, and which have no effect.

    Only fields that are set are named: "applied" is a dict, "without_effect" a list of names, without those
    that nobody expects to change a text.
    """
    fields = rules.config.to_diff_dict()
    applied = {field: fields[field] for field in sorted((LENGTHS | NATIVE | PROCESSORS) & fields.keys())}
    without = sorted(field for field in (WITHOUT_EFFECT | REJECTED.keys()) & fields.keys() - _USUAL
                     if fields[field])
    return {"applied": applied, "without_effect": without}


def _tokens(value) -> tuple:
    return () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)


def _check_values(config: GenerationConfig) -> None:
    """Raise ModelError for a field with an invalid value, such as a number written as text."""
    def require(field: str, is_valid, expected: str):
        value = getattr(config, field, None)
        if value is not None and not is_valid(value):
            raise ModelError(f"generation_config.{field} is {value!r}; it must be {expected}: correct the "
                             "model's generation_config.json")

    for field in ("repetition_penalty", "encoder_repetition_penalty"):
        require(field, lambda x: _number(x) and 0 < np.float32(x) < float("inf"),
               "a number above 0 that float32 can hold")
    for field, minimum in _MIN_VALUES.items():
        require(field, lambda x, minimum=minimum: _whole(x, minimum), f"a whole number of at least {minimum}")
    require("eos_token_id", lambda x: all(_whole(token, 0) for token in _tokens(x)), "token ids")


def _number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _set_processors(config: GenerationConfig) -> tuple[str, ...]:
    return tuple(field for field in sorted(PROCESSORS) if getattr(config, field, None) is not None
                 and getattr(config, field) != _NEUTRAL.get(field))


def limits(rules: GenerationRules, settings: EngineSettings, prompt: int, max_new: int | None,
           positions: int | None) -> tuple[int, int]:
    """Return the maximum and minimum length of a text in tokens, including the prompt, as in ``generate``.

    Parameters
    ----------
    rules : GenerationRules
    settings : EngineSettings
    prompt : int
        Tokens of the prompt.
    max_new : int, optional
        Limit of the request. None: that of the settings, else ``max_new_tokens`` of the config, else its
        ``max_length``, else 20 tokens.
    positions : int, optional
        The model's ``max_position_embeddings``, which limits only the default of 20 tokens.
    """
    config = rules.config
    new = next((n for n in (max_new, settings.max_new_tokens, config.max_new_tokens) if n is not None), None)
    if new is not None:
        max_length = prompt + new
    elif config.max_length is not None:
        max_length = config.max_length
    else:
        max_length = prompt + 20 if positions is None else min(prompt + 20, positions)
    if settings.min_new_tokens:
        min_length = prompt + settings.min_new_tokens
    elif config.min_new_tokens is not None:
        min_length = prompt + config.min_new_tokens
    else:
        min_length = config.min_length or 0
    return max_length, min_length


def processors(rules: GenerationRules, model, prompt_ids: torch.Tensor, max_length: int,
               min_length: int) -> LogitsProcessorList:
    """Return the logits processors of ``generate`` for one row, for any number of the row's prefixes at once.

    ``prompt_ids`` int64 (1, P) on the device.
    """
    config = copy.deepcopy(rules.config)
    config.do_sample, config.max_length, config.min_length = False, max_length, min_length
    config.min_new_tokens = None
    device = prompt_ids.device
    config._eos_token_tensor = torch.tensor(rules.eos, device=device) if rules.eos else None
    built = model._get_logits_processor(config, prompt_ids.shape[1], prompt_ids, device=device)
    return LogitsProcessorList(
        _SharedPromptPenalty(processor, prompt_ids)
        if isinstance(processor, EncoderRepetitionPenaltyLogitsProcessor) else processor
        for processor in built)


class _SharedPromptPenalty(LogitsProcessor):
    """Applies the penalty to all prefixes; before transformers 5.19, it would apply to the first only."""

    def __init__(self, processor: EncoderRepetitionPenaltyLogitsProcessor, prompt_ids: torch.Tensor):
        self._processor, self._prompt_ids = processor, prompt_ids

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._processor.encoder_input_ids = self._prompt_ids.expand(len(scores), -1)
        return self._processor(input_ids, scores)
