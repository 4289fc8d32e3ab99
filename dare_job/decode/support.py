"""Which models the engine can decode, told from their configuration; the rest is refused by name."""

import re
from dataclasses import dataclass

from transformers import PreTrainedConfig, PreTrainedModel

from dare_job.errors import ModelError

FULL, SLIDING = "full_attention", "sliding_attention"
_ALIBI = {"bloom", "mpt", "jais", "baichuan"}
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
# A field of such a name limits what a query sees, in a way that only its own architecture's code tells.
_LIMITS_SIGHT = re.compile(r"window|local_att|local_block|attention_chunk|sparse_att|blocksparse|index_topk")
_UNDERSTOOD = re.compile(r"sliding_window|attention_chunk_size|.*(_layers|_pattern|_prob)")
_PICKED_BY_CONTENT = {"keep_window_size", "index_topk", "index_topk_blocks"}


@dataclass(frozen=True)
class Traits:
    """What the engine has to know of an architecture.

    kinds    mask kind of each kind of layer present: FULL, SLIDING or both
    window   positions that a SLIDING layer sees, the query's own included
    context  longest text in tokens, prompt included; None where nothing bounds it
    reason   why the context ends there
    """

    kinds: tuple[str, ...]
    window: int | None
    context: int | None
    reason: str


def traits(model: PreTrainedModel) -> Traits:
    """Traits of a loaded model. Raises ModelError naming the architecture and what is not supported."""
    config = model.config.get_text_config(decoder=True)
    name = type(model).__name__

    def refuse(why: str):
        raise ModelError(f"{name} is not supported: {why}")

    if model.config.is_encoder_decoder:
        refuse("it is an encoder-decoder; the engine decodes decoder-only causal models")
    if getattr(model, "_is_stateful", False):
        refuse("it keeps a recurrent state, which a rejected draft cannot be removed from")
    if not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", None):
        refuse("its attention is not causal")
    if getattr(config, "is_decoder", None) is False and _has_switch(model):
        refuse("its attention is not causal: is_decoder is false in its configuration")
    if getattr(config, "alibi", False) or config.model_type in _ALIBI:
        refuse("ALiBi attaches positions to cache columns, which draft branches share")
    kinds = _kinds(config)
    if unknown := [kind for kind in kinds if kind not in (FULL, SLIDING)]:
        refuse(f"layers of type {', '.join(unknown)}")
    if field := _hidden_limit(config, kinds):
        refuse(f"{field} limits its attention in a way that the engine does not know")
    window = getattr(config, "sliding_window", None) if SLIDING in kinds else None
    return Traits(kinds, window, *_context(config))


def _kinds(config: PreTrainedConfig) -> tuple[str, ...]:
    types = getattr(config, "layer_types", None)
    if types is not None:
        return tuple(dict.fromkeys(types))
    if getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True):
        return (SLIDING,)
    if getattr(config, "attention_chunk_size", None) is not None:
        return ("chunked_attention",)
    return (FULL,)


def _has_switch(model: PreTrainedModel) -> bool:
    """Whether its layers read ``is_decoder``: some causal models have the field and no use for it."""
    return any(getattr(module, "is_decoder", None) is False for module in model.modules())


def _hidden_limit(config: PreTrainedConfig, kinds: tuple[str, ...]) -> str | None:
    """A field in force that hides text from a query and is not among ``kinds``, with its value; or None."""
    if "local" in (layers := getattr(config, "attention_layers", None) or ()):
        return f"attention_layers with 'local' of window_size {getattr(config, 'window_size', None)}"
    if getattr(config, "attention_type", None) == "block_sparse":
        return "attention_type 'block_sparse'"
    for field, value in vars(config).items():
        if not _LIMITS_SIGHT.search(field) or _UNDERSTOOD.fullmatch(field) or not _limits(value):
            continue
        told = SLIDING in kinds or layers or field == "local_attention" and hasattr(config, "layer_types")
        if field in _PICKED_BY_CONTENT or not told:
            return f"{field} {value}"
    return None


def _limits(value) -> bool:
    """Whether a field's value is a number of positions or several of them."""
    values = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in values)


def _context(config: PreTrainedConfig) -> tuple[int | None, str]:
    """Longest text. Some rotary types change every position's angle once the longest row of a batch passes
    the original context; up to there they are ordinary."""
    longest, reason = getattr(config, "max_position_embeddings", None), "max_position_embeddings"
    ropes = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in ropes:
        ropes = {"": ropes}
    for rope in ropes.values():
        kind = rope.get("rope_type") if isinstance(rope, dict) else None
        if kind in _LENGTH_DEPENDENT_ROPE:
            original = rope.get("original_max_position_embeddings") or longest
            if original is not None and (longest is None or original < longest):
                longest, reason = original, f"original context of its {kind} rotary positions"
    return longest, reason
