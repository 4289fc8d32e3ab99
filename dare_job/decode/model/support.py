"""Which models the engine can decode, told from their configuration; the rest is refused by name."""

import re
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from dare_job.errors import ModelError

FULL, SLIDING = "full_attention", "sliding_attention"
_ALIBI = {"bloom", "mpt", "jais", "baichuan"}
_ANY_LENGTH = {"xglm"}  # a table that grows
# A field of such a name limits what a query sees, in a way that only its own architecture's code tells.
_LIMITS_SIGHT = re.compile(r"window|local_att|local_block|attention_chunk|sparse_att|blocksparse|index_topk")
_UNDERSTOOD = re.compile(r"sliding_window|attention_chunk_size|.*(_layers|_pattern|_prob)")
_PICKED_BY_CONTENT = {"keep_window_size", "index_topk", "index_topk_blocks"}


@dataclass(frozen=True)
class Traits:
    """What the engine has to know of an architecture.

    kinds    mask kind of each kind of layer present: FULL, SLIDING or both
    window   positions that a SLIDING layer sees, the query's own included
    context  tokens that a prompt may have; None where nothing bounds it
    reason   why the context ends there
    longest  tokens that a text may have, its prompt included; None: as many as are asked for
    columns  cache columns that a forward may use: those of a causal mask of the model's own, near whose end a
             row drafts nothing; None: any number
    """

    kinds: tuple[str, ...]
    window: int | None
    context: int | None
    reason: str
    max_length: int | None
    max_columns: int | None = None


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
    context, reason, longest = _lengths(model, config)
    own_mask = any(buffer.shape[-2:] == (context, context) for buffer in model.buffers())
    return Traits(kinds, window, context, reason, longest, context if own_mask else None)


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


def _lengths(model: PreTrainedModel, config: PreTrainedConfig) -> tuple[int | None, str, int | None]:
    """Context, its reason, and the longest text.

    Rotary positions go on behind the context, as they do in ``generate``. Tables end there, and so do the
    rotary types that from there on turn every position by the length of the longest row: texts of a batch
    would depend on each other. The last token of a text is never read, so it needs no position.
    """
    context, reason = getattr(config, "max_position_embeddings", None), "max_position_embeddings"
    ropes = _ropes(config)
    by_length = [rope for rope in ropes if "dynamic" in rope["rope_type"] or rope["rope_type"] == "longrope"]
    for rope in by_length:
        end = rope.get("original_max_position_embeddings") if rope["rope_type"] == "longrope" else context
        if end is not None and (context is None or end <= context):
            context, reason = end, f"original context of its {rope['rope_type']} rotary positions"
    if context is None:
        return None, reason, None
    goes_on = config.model_type in _ANY_LENGTH or ropes and not by_length and not _has_table(model, context)
    return context, reason, None if goes_on else context + 1


def _ropes(config: PreTrainedConfig) -> list[dict]:
    """Rotary parameters of all layers, or of each kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    kinds = [rope for rope in found.values() if isinstance(rope, dict)] or [found]
    return [{"rope_type": "default", **rope} for rope in kinds if rope]


def _has_table(model: PreTrainedModel, context: int) -> bool:
    """Whether it looks positions up in something with a line for each, or a few more, by code of its own."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    sizes = {module.weight.shape[0] for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    sizes.update(size for buffer in model.buffers() for size in buffer.shape[:-1])
    return any(context <= size <= context + 2 for size in sizes - {vocabulary})
