"""Supported architectures, recognized by their configuration."""

import inspect
import re
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from dare_job.decode.model import alibi, quantized
from dare_job.errors import ModelError

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
INDEXED = "indexed_attention"  # the mask of FULL, from which the model's code selects
# types of layers that keep states, for which a model may expect a mask
STATES = {"linear_attention", "conv", "hybrid", "mamba", "recurrent"}
# Masks of layers that have a state too, or an index over blocks of earlier tokens (Qwen4-exp). An index over
# columns, with ``index_topk``, chooses among equal scores by their number, which is another one in a chain.
_ATTENTION = {"hybrid": FULL, "attention": FULL, INDEXED: FULL, "hybrid_sliding": SLIDING}
# Layers that see the same tokens however many columns of padding are before the text.
_RELATIVE = {FULL, SLIDING, "linear_attention", "conv", "hybrid", "hybrid_sliding", "mlp", "moe", "mamba",
             "recurrent", "attention"}
_ALIBI = {"bloom", "mpt", "jais", "baichuan"}
_ANY_LENGTH = {"xglm"}  # its position table grows
_WHOLE_PROMPTS = {"cpmant", "paligemma"}  # models trained to continue texts whose tokens all see each other
# Fields with such names limit what a query sees, in a way defined only by the architecture's code.
_LIMITING = re.compile(r"window|local_att|local_block|attention_chunk|sparse_att|blocksparse|index_topk")
_UNDERSTOOD = re.compile(r"sliding_window|attention_chunk_size|.*(_layers|_pattern|_prob)")
_PICKED_BY_CONTENT = {"keep_window_size", "index_topk", "index_topk_blocks"}


NOT_CAUSAL = "its attention is not causal; use a model that is trained to continue texts"


class DraftError(ModelError):
    """The model cannot verify drafts. ``generate`` may be able to run it.

    Attributes
    ----------
    reason : str
    """

    def __init__(self, name: str, reason: str):
        super().__init__(f"{name} is not supported: {reason}")
        self.name, self.reason = name, reason

    def __reduce__(self):
        return type(self), (self.name, self.reason)


@dataclass(frozen=True)
class Traits:
    """Properties of an architecture that the engine depends on.

    Attributes
    ----------
    kinds : tuple of str
        Mask kinds of the layers: FULL, SLIDING, CHUNKED, or FULL and one of the others.
    window : int, optional
        Positions that a SLIDING layer sees, including the query's own; or positions of a chunk: a query in a
        CHUNKED layer sees those of its own chunk.
    context : int, optional
        Maximum tokens of a prompt. None: unlimited.
    reason : str
        What limits the context.
    max_length : int, optional
        Maximum tokens of a text, including its prompt. None: unlimited.
    max_columns : int, optional
        Maximum cache columns of a forward pass with drafts: the size of the model's own causal mask, or the
        number of tokens that INDEXED layers select. Rows near this limit have no drafts; longer ones, which
        only an index allows, are read alone. None: unlimited.
    packs : bool
        Whether rows may be packed: not where the model's code counts queries of one row.
    logit_cost : float
        Cost of a token with its logits, relative to a prompt's token.
    """

    kinds: tuple[str, ...]
    window: int | None
    context: int | None
    reason: str
    max_length: int | None
    max_columns: int | None = None
    packs: bool = True
    logit_cost: float = 1.0


def traits(model: PreTrainedModel) -> Traits:
    """Return the traits of a loaded model.

    Raises
    ------
    ModelError
        The model is not a causal language model.
    DraftError
        Its architecture has no drafts.
    """
    _require_causal(model)
    config = model.config.get_text_config(decoder=True)

    def refuse(reason: str):
        raise DraftError(type(model).__name__, reason)

    kinds = _kinds(config)
    if reads_whole_prompts(model):
        refuse("it reads prompts in both directions, which the engine does not implement")
    if getattr(model, "_is_stateful", False) and not _has_attention_only(config):
        refuse("it has a recurrent state, from which rejected drafts cannot be removed")
    if uses_alibi(model) and alibi.by_position(model) is None:
        refuse("ALiBi derives positions from cache columns, which do not match positions in draft trees")
    if unknown := [kind for kind in kinds if kind not in (FULL, SLIDING, CHUNKED, INDEXED)]:
        refuse(f"it has layers of type {', '.join(unknown)}")
    if field := _hidden_limit(config, kinds):
        refuse(f"{field} limits its attention in a way that the engine does not implement")
    if SLIDING in kinds and CHUNKED in kinds:
        refuse(f"it has layers of type {SLIDING} and {CHUNKED}")
    window = getattr(config, "sliding_window", None) if SLIDING in kinds else None
    window = config.attention_chunk_size if CHUNKED in kinds else window
    context, reason, longest = _lengths(model, config)
    by_column = _scaled_by_column(config, context)
    if by_column is not None:
        context, reason, longest = by_column, "floor_scale of its attention temperature", by_column + 1
    own_mask = any(buffer.shape[-2:] == (context, context) for buffer in model.buffers())
    own_mask = own_mask or by_column is not None
    columns = context if own_mask else None
    if INDEXED in kinds:
        columns = min(config.index_topk, columns or config.index_topk)
    return Traits(kinds, window, context, reason, longest, columns, by_column is None, _logit_cost(model))


def undrafted_traits(model: PreTrainedModel) -> Traits:
    """Return the traits of a model that runs through its own cache, whatever limits its attention.

    Raises
    ------
    ModelError
        The model is not a causal language model.
    """
    _require_causal(model)
    context, reason, longest = _lengths(model, model.config.get_text_config(decoder=True))
    return Traits((), None, context, reason, longest, logit_cost=_logit_cost(model))


def reads_whole_prompts(model: PreTrainedModel) -> bool:
    """Return whether tokens of a prompt see later ones, while those of the text after it do not."""
    return model.config.model_type in _WHOLE_PROMPTS


def uses_alibi(model: PreTrainedModel) -> bool:
    """Return whether attention depends on distances that the model counts in cache columns."""
    config = model.config.get_text_config(decoder=True)
    return bool(getattr(config, "alibi", False)) or config.model_type in _ALIBI


def keeps_states(model: PreTrainedModel) -> bool:
    """Return whether the model has recurrent or convolutional layers."""
    kinds = _kinds(model.config.get_text_config(decoder=True))
    return bool(getattr(model, "_is_stateful", False) or STATES & {*kinds})


def chain_traits(model: PreTrainedModel) -> Traits:
    """Return the traits of a model that keeps states beside attention.

    Raises
    ------
    DraftError
        Its attention is limited in a way that no mask of the engine shows.
    ModelError
        The model is not a causal language model.
    """
    traits, config = undrafted_traits(model), model.config.get_text_config(decoder=True)
    attention = [_ATTENTION.get(kind, kind) for kind in _kinds(config) if kind not in STATES - {"hybrid"}]
    kinds = tuple(dict.fromkeys(kind for kind in attention if kind not in ("mlp", "moe"))) or (FULL,)
    limit = "ALiBi" if uses_alibi(model) else _hidden_limit(config, kinds)
    if limit or not {*kinds} <= {FULL, SLIDING, CHUNKED} or {SLIDING, CHUNKED} <= {*kinds}:
        limit = limit or ", ".join(kinds)
        raise DraftError(type(model).__name__, f"it has states beside attention that is limited ({limit})")
    window = config.sliding_window if SLIDING in kinds else None
    window = config.attention_chunk_size if CHUNKED in kinds else window
    return replace(traits, kinds=kinds, window=window)


def pads(model: PreTrainedModel) -> bool:
    """Return whether rows may be padded: not where places in the text, counted from the first column, decide
    what a query sees, which short texts do not show.
    """
    config = model.config.get_text_config(decoder=True)
    kinds = _kinds(config)
    relative = all(kind in _RELATIVE for kind in kinds)
    return relative and _hidden_limit(config, kinds) is None


def _require_causal(model: PreTrainedModel) -> None:
    config, reason = model.config.get_text_config(decoder=True), None
    if model.config.is_encoder_decoder:
        reason = "it is an encoder-decoder; use a decoder-only model"
    elif reads_whole_prompts(model):
        return
    elif not getattr(config, "is_causal", True) or _is_bidirectional(config) or _is_masked(config):
        reason = NOT_CAUSAL
    elif getattr(config, "is_decoder", None) is False and _has_switch(model):
        reason = ("its attention is not causal: is_decoder is false in its configuration. Use a model that "
                  "is trained to continue texts")
    if reason:
        raise ModelError(f"{type(model).__name__} is not supported: {reason}")


def _kinds(config: PreTrainedConfig) -> tuple[str, ...]:
    types = getattr(config, "layer_types", None)
    if types is not None:
        return tuple(dict.fromkeys(types))
    if getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True):
        return (SLIDING,)
    if getattr(config, "attention_chunk_size", None) is not None:
        return (CHUNKED,)
    return (FULL,)


def _is_bidirectional(config: PreTrainedConfig) -> bool:
    """Return whether tokens of texts see later ones: with "vision" only tokens of images do."""
    return getattr(config, "use_bidirectional_attention", None) not in (None, False, "vision")


def _is_masked(config: PreTrainedConfig) -> bool:
    """Return whether all tokens see later ones: in XLM unless it is causal."""
    return config.model_type == "xlm" and not config.causal


def _has_attention_only(config: PreTrainedConfig) -> bool:
    """Return whether a hybrid's ``layer_types`` name no recurrent layer; its class has them all the same."""
    types = getattr(config, "layer_types", None)
    return bool(types) and set(types) <= {FULL, SLIDING}


def _scaled_by_column(config: PreTrainedConfig, context: int | None) -> int | None:
    """Return where queries begin to be scaled by their column in the cache, which is not their position."""
    if config.model_type != "llama4_text" or not getattr(config, "attn_temperature_tuning", False):
        return None
    first = int(config.floor_scale) - 1
    return first if context is None or first < context else None


def _has_switch(model: PreTrainedModel) -> bool:
    """Return whether layers read ``is_decoder``: some causal models have the field but do not use it."""
    return any(getattr(module, "is_decoder", None) is False for module in model.modules())


def _hidden_limit(config: PreTrainedConfig, kinds: tuple[str, ...]) -> str | None:
    """Return an active field and its value that limit attention beyond ``kinds``; None if there is none."""
    if "local" in (layers := getattr(config, "attention_layers", None) or ()):
        return f"attention_layers with 'local' of window_size {getattr(config, 'window_size', None)}"
    if getattr(config, "attention_type", None) == "block_sparse":
        return "attention_type 'block_sparse'"
    implemented = {"index_topk"} if INDEXED in kinds else set()
    if getattr(config, "layer_types", None) and kinds == (FULL,):
        implemented |= {"index_topk_blocks", "index_local_blocks"}  # of layers with another type
    for field, value in vars(config).items():
        limiting = _LIMITING.search(field) and not _UNDERSTOOD.fullmatch(field)
        if not limiting or field in implemented or not _limits(value):
            continue
        windows = {SLIDING, CHUNKED} & set(kinds)
        covered = windows or layers or field == "local_attention" and hasattr(config, "layer_types")
        if field in _PICKED_BY_CONTENT or not covered:
            return f"{field} {value}"
    return None


def _limits(value) -> bool:
    """Return whether a field's value is one or several positive numbers of positions."""
    values = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in values)


def _lengths(model: PreTrainedModel, config: PreTrainedConfig) -> tuple[int | None, str, int | None]:
    """Return the context, what limits it, and the maximum text length.

    Rotary positions continue beyond the context, as in ``generate``. Position tables do not. Neither do
    rotary types that, beyond the context, scale every position by the length of the longest row: texts would
    depend on the batch composition. The last token of a text is never read, so it needs no position.
    """
    reason = "max_seq_len" if config.model_type == "mpt" else "max_position_embeddings"
    context = getattr(config, reason, None)
    context = None if context == -1 else context  # XLNet: no limit
    ropes = _ropes(config)
    by_length = [rope for rope in ropes if "dynamic" in rope["rope_type"] or rope["rope_type"] == "longrope"]
    for rope in by_length:
        end = rope.get("original_max_position_embeddings") if rope["rope_type"] == "longrope" else context
        if end is not None and (context is None or end <= context):
            context, reason = end, f"original context of its {rope['rope_type']} rotary positions"
    if context is None:
        return None, reason, None
    unlimited = config.model_type in _ANY_LENGTH or ropes and not by_length and not _has_table(model, context)
    return context, reason, None if unlimited else context + 1


def _ropes(config: PreTrainedConfig) -> list[dict]:
    """Return the rotary parameters of all layers, or of each kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [rope for rope in parameters.values() if isinstance(rope, dict)] or [parameters]
    return [{"rope_type": "default", **rope} for rope in kinds if rope]


def _has_table(model: PreTrainedModel, context: int) -> bool:
    """Return whether the model has a position table: an embedding or buffer of about ``context`` rows."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    sizes = {module.weight.shape[0] for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    sizes.update(size for buffer in model.buffers() for size in buffer.shape[:-1])
    return any(context <= size <= context + 2 for size in sizes - {vocabulary})


def _logit_cost(model: PreTrainedModel) -> float:
    """Return the cost of a token with its logits, relative to one without, by the numbers of weights.

    1 where every token of a prompt gets logits, or weights are packed so that they cannot be counted.
    """
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    selects = "logits_to_keep" in inspect.signature(model.forward).parameters
    if not selects or not hasattr(head, "weight") or quantized.runs_quantized(model):
        return 1.0
    sizes = {id(weight): weight.numel() for weight in model.parameters()}  # shared ones count once
    outer = {id(part.weight): part.weight.numel() for part in (head, embeddings)}
    return 1 + head.weight.numel() / max(sum(sizes.values()) - sum(outer.values()), 1)
