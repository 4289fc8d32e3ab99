"""Check that a model gives the nodes of a tree the same logits as ordinary forward passes."""

import logging

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from dare_job.decode.model import failures, quantized
from dare_job.decode.model.llama_forward import LlamaForward, Unsupported
from dare_job.decode.model.prefix_cache import Prefix
from dare_job.decode.model.support import NOT_CAUSAL, DraftError
from dare_job.decode.model.tree import build
from dare_job.errors import ModelError
from pools.tree import ROOT, DraftBatch, empty_drafts

_LOG = logging.getLogger("dare_job")
MODEL_ERRORS = (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError, AssertionError)
_LENGTHS = (13, 8)  # tokens before the root, of two rows
_MAX_WINDOW = 64  # longer windows are not filled: the check would take longer than loading
_PARENTS = np.array([[ROOT, ROOT, 0, 1, 1, 3], [ROOT, 0, ROOT, 2, 3, 4]], np.int32)
_SEEDS = (2, 3, 4)  # of texts to compare
_TOLERANCE = 1e-3  # relative to the influence of a text's other tokens on the logits
# Relative to the standard deviation of the logits.
_ROUNDING = {torch.float32: 3e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def cache_shapes(model: PreTrainedModel) -> list[tuple[int, ...] | None]:
    """Return (heads, key_dim, value_dim) of each layer's cache, and the dimension of its index keys if it has
    any; None for layers that use another layer's.

    Raises
    ------
    DraftError
        The model has no ordinary key-value cache.
    """
    name = type(model).__name__
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    try:
        with torch.inference_mode():
            model(input_ids=ids, past_key_values=cache, use_cache=True)
        if any(hasattr(layer, "conv_states") for layer in cache.layers):
            raise TypeError("a layer holds a recurrent state")
        return [entry_shape(layer) for layer in cache.layers]
    except MODEL_ERRORS as error:
        _LOG.debug("the cache of %s: %s", name, error)
        raise DraftError(name, "it has no ordinary key-value cache") from error


def entry_shape(layer) -> tuple[int, ...] | None:
    """Return the shape of one layer of a transformers cache that has read a token, as ``cache_shapes``."""
    if getattr(layer, "keys", None) is None:
        return None
    index = getattr(layer, "indexer_keys", None)
    return (layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3],
            *(index.shape[2:] if index is not None else ()))


@torch.inference_mode()
def check_logits(target) -> None:
    """Compare prompts, cached prefixes, single tokens and trees with ordinary forward passes.

    Raises
    ------
    DraftError
        The logits differ by more than rounding.
    ModelError
        The model is not causal, or its logits are NaN.
    """
    name = type(target.model).__name__
    try:
        backward, forward = _influence(target)
        cases = [_case(target, lengths) for lengths in _lengths(target.traits)]
    except MODEL_ERRORS as error:
        _LOG.debug("a token tree in %s: %s", name, error)
        raise DraftError(name, "its code cannot run a token tree") from error
    ours, expected = (torch.cat(logits) for logits in zip(*cases, strict=True))
    require_numbers(target, expected)
    spread = expected.std().clamp_min(1e-6).item()
    noise = _rounding(target) * spread
    if backward > max(noise, 0.01 * forward):
        raise ModelError(f"{name} is not supported: {NOT_CAUSAL}")
    difference = (ours - expected).square().mean().sqrt().item()
    # The influence of other tokens bounds the difference that confusing them would make.
    if not difference <= max(noise, _TOLERANCE * min(spread, forward)):
        raise DraftError(name, "its logits over a token tree differ from a forward pass without one by "
                               f"{difference / spread:.2g} standard deviations")


def require_numbers(target, logits: torch.Tensor) -> None:
    """Require logits (..., V) without NaN.

    Raises
    ------
    ModelError
        A logit is NaN.
    """
    if logits.isnan().any():
        raise ModelError(f"{target.model.name_or_path}: {type(target.model).__name__} gives NaN logits: its "
                         f"weights are damaged, or exceed the range of {target.dtype}")


_CHAINS = (4, 2)  # draft tokens of two rows
_ACCEPTED = np.array([2, 2])  # of each, before the next forward pass
_SUBMITTED, _KEPT = (3, 2), np.array([1, 2])  # tokens after two prompts, and those that are kept


@torch.inference_mode()
def check_chains(target) -> None:
    """Compare prompts, single tokens and chains, before and after some of a chain is accepted, and chains in
    the forward pass of their prompts, with ordinary forward passes.

    Raises
    ------
    DraftError
        The model cannot run a chain, or the logits differ by more than rounding.
    ModelError
        The model is not causal, or its logits are NaN.
    """
    name = type(target.model).__name__
    try:
        influence = require_causal(target)
        ours, expected = (torch.stack(logits) for logits in zip(*_chain_case(target), strict=True))
    except MODEL_ERRORS as error:
        _LOG.debug("a chain in %s: %s", name, error)
        raise DraftError(name, "its code cannot run a chain of drafts") from error
    require_numbers(target, expected)
    if not close_to(target, ours, expected, influence):
        difference = (ours - expected).square().mean().sqrt() / expected.std().clamp_min(1e-6)
        raise DraftError(name, "its logits over a chain differ from a forward pass without one by "
                               f"{difference.item():.2g} standard deviations")


def _chain_case(target) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return logits (V,) of two rows by the engine's forward passes, each with those of an ordinary one."""
    rng = np.random.default_rng(0)
    lengths = _lengths(target.traits)[-1]  # before the root
    if target.traits.max_length is not None:
        lengths = np.clip(lengths, 1, max(1, target.traits.max_length - sum(_CHAINS) - 4))
    texts = rng.integers(0, target.vocabulary, (2, lengths.max() + 10))
    cache, pairs = target.new_cache(2), []
    with target.as_transformers() as model:
        ids = [torch.from_numpy(text)[None].to(target.device) for text in texts]
        expected = [model(input_ids=text, use_cache=False).logits[0].float() for text in ids]

    def compare(logits: torch.Tensor, places: list[tuple[int, int]]) -> None:
        pairs.extend((ours.float(), expected[row][at])
                     for ours, (row, at) in zip(logits, places, strict=True))

    def step(before: np.ndarray, sizes: tuple[int, ...], accepted: np.ndarray) -> None:
        """Read each row's next tokens; keep the root and the accepted ones."""
        rows, width = len(before), max(sizes)
        tokens = np.stack([texts[r, before[r] + 1 : before[r] + 1 + width] for r in range(rows)])
        parents = np.tile(np.arange(-1, width - 1, dtype=np.int32), (rows, 1))
        drafts = DraftBatch(tokens.astype(np.int32), parents, np.array(sizes, np.int32), None, None)
        tree = build(texts[np.arange(rows), before], drafts, np.full(rows, width))
        logits = target.forward(cache, tree.to(target.device), before)
        compare(logits, [(r, before[r] + t) for r in range(rows) for t in range(sizes[r] + 1)])
        target.commit(cache, before, np.zeros((rows, width + 1), np.int64), accepted)

    compare(target.prefill(cache, np.arange(2), texts[:, : lengths.max()], lengths),
            [(row, length - 1) for row, length in enumerate(lengths)])
    step(lengths, (0, 0), np.zeros(2, np.int64))
    step(lengths + 1, _CHAINS, _ACCEPTED)
    step(lengths + 2 + _ACCEPTED, (2, 2), np.array([0, 2]))
    step((lengths + 3 + _ACCEPTED)[:1], (0,), np.zeros(1, np.int64))
    ids, counts = texts[:, : lengths.max() + max(_SUBMITTED)], np.array(_SUBMITTED)
    compare(target.prefill(cache, np.arange(2), ids, lengths, counts),
            [(row, length - 1 + t) for row, length in enumerate(lengths) for t in range(counts[row] + 1)])
    target.commit_prefill(cache, _KEPT)
    step(lengths + _KEPT, (1, 1), np.zeros(2, np.int64))
    return pairs


def require_causal(target, required: bool = True) -> float:
    """Return the influence of earlier tokens on logits, as a change in them.

    Parameters
    ----------
    required : bool
        False: return it for any model.

    Raises
    ------
    ModelError
        Later tokens change earlier logits.
    """
    backward, forward = _influence(target)
    if required and backward > max(_rounding(target), 0.01) * forward:
        raise ModelError(f"{type(target.model).__name__} is not supported: {NOT_CAUSAL}")
    return forward


def close_to(target, logits: torch.Tensor, expected: torch.Tensor, influence: float) -> bool:
    """Return whether logits (T, V) differ by no more than rounding; ``influence`` as in ``require_causal``.

    Outside float32, rounding can send a token to other experts, so the median token decides.
    """
    spread = expected.std().clamp_min(1e-6).item()
    differences = (logits - expected).square().mean(-1)
    difference = differences.mean() if target.dtype == torch.float32 else differences.median()
    return difference.sqrt().item() <= max(_rounding(target) * spread, _TOLERANCE * min(spread, influence))


@torch.inference_mode()
def supports_packed(target) -> bool:
    """Return whether trees of different sizes give the same logits packed as padded."""
    logits = []
    try:
        for target.packed in (True, False):
            logits.append(_logits_of_uneven_trees(target))
    except MODEL_ERRORS:
        return False
    return _equal_logits(target, *logits)


@torch.inference_mode()
def enable_paged(target, paged) -> None:
    """Enable passes over pages if they give the same logits as other ones; otherwise log a warning."""
    expected = _logits_of_uneven_trees(target)
    target.paged = paged
    try:
        equal = _equal_logits(target, _logits_of_uneven_trees(target), expected)
        problem = None if equal else "it gives different logits"
    except MODEL_ERRORS as error:
        if failures.is_out_of_memory(error) or failures.is_device_failure(error):
            raise
        problem = f"{type(error).__name__}: {error}".split("\n")[0]
    if problem:
        _LOG.warning("%s does not run over pages (%s): continuing without them, slower",
                     type(target.model).__name__, problem)
        target.paged = None


@torch.inference_mode()
def llama_forward(target) -> LlamaForward | None:
    """Return ``LlamaForward`` of a target if it gives the same logits as the model; else None.

    In bfloat16 some texts turn a difference in rounding into other logits, so one of a few must agree.
    """
    try:
        ours = LlamaForward(target.model)
        for seed in _SEEDS:
            target.llama = None
            expected = _logits_of_uneven_trees(target, seed)
            target.llama = ours
            if _equal_logits(target, _logits_of_uneven_trees(target, seed), expected, _TOLERANCE):
                return ours
        _LOG.warning("%s has the parts of Llama and other logits: continuing with its own code, slower",
                     type(target.model).__name__)
        return None
    except (Unsupported, *MODEL_ERRORS):
        return None
    finally:
        target.llama = None


def _logits_of_uneven_trees(target, seed: int = _SEEDS[0]) -> torch.Tensor:
    """Return the logits (T, V) of two rows with trees of different sizes."""
    drafts = DraftBatch(_PARENTS + 1, _PARENTS, np.array([2, 6], np.int32), None, None)
    lengths = _lengths(target.traits)[0]
    ids = np.random.default_rng(seed).integers(0, target.vocabulary, (2, lengths.max()))
    cache = target.new_cache(2)
    target.prefill(cache, np.arange(2), ids, lengths)
    tree = build(ids[:, 0], drafts, np.full(2, 3)).to(target.device)
    return target.forward(cache, tree, lengths).float()


def _equal_logits(target, logits: torch.Tensor, expected: torch.Tensor, tolerance: float = 0.0) -> bool:
    """Compare logits; ``tolerance``, relative to their standard deviation, may be above that of rounding."""
    noise = max(_rounding(target), tolerance) * expected.std().clamp_min(1e-6)
    return bool((logits - expected).square().mean().sqrt() <= noise)


def _rounding(target) -> float:
    """Return the rounding of a model's logits. Quantized weights may go with activations of eight bits."""
    rounding = _ROUNDING[target.dtype]
    return max(rounding, _ROUNDING[torch.bfloat16]) if quantized.runs_quantized(target.model) else rounding


def _lengths(traits) -> list[np.ndarray]:
    """Return tokens before the roots of two rows: shorter than the window, and longer if that is cheap."""
    lengths = np.array(_LENGTHS)
    cases = [lengths]
    if traits.window is not None and traits.window <= _MAX_WINDOW:
        cases = [np.minimum(lengths, traits.window), lengths + traits.window]
    if traits.max_length is not None:  # the root and three levels of drafts must fit
        cases = [np.clip(lengths, 1, traits.max_length - 5) for lengths in cases]
    if traits.max_columns is not None:  # the root and its drafts must fit
        cases = [np.clip(lengths, 1, max(1, traits.max_columns - 1 - _PARENTS.shape[1])) for lengths in cases]
    return cases


def _case(target, lengths: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits (M, V) of two rows by the engine's forward passes and by ordinary ones, in one order.

    These are the logits of the prompts' last tokens; of the roots alone, in one row and in two; of whole
    trees; and of the first prompt's last token after a cached prefix.
    """
    rng = np.random.default_rng(0)
    texts = rng.integers(0, target.vocabulary, (2, lengths.max() + 1))
    tokens = rng.integers(0, target.vocabulary, _PARENTS.shape).astype(np.int32)
    drafts = DraftBatch(tokens, _PARENTS, np.full(2, 6, np.int32), np.zeros(tokens.shape, np.float32),
                        np.zeros(tokens.shape, np.uint8))
    roots = texts[np.arange(2), lengths]
    cache = target.new_cache(2)
    ours = [target.prefill(cache, np.arange(2), texts[:, : lengths.max()], lengths)]
    for rows, nodes in ((1, empty_drafts(1)), (2, empty_drafts(2)), (2, drafts)):
        tree = build(roots[:rows], nodes, np.full(rows, 3))
        ours.append(target.forward(cache, tree.to(target.device), lengths[:rows]))
    half = int(lengths[0]) // 2
    prefix = Prefix(texts[0, :half], cache.entries(0, half)) if half else None
    ours.append(target.prefill(cache, np.arange(1), texts[:1, : lengths[0]], lengths[:1], None, prefix))
    rows = (_expected(target, texts[r, : lengths[r] + 1], tree, r) for r in range(2))
    before, trees = zip(*rows, strict=True)
    heads = torch.stack([logits[0] for logits in trees])
    return torch.cat(ours).float(), torch.cat((*before, heads[:1], heads, *trees, before[0]))


def _expected(target, text: np.ndarray, tree, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits (1, V) before the root and (Q, V) of each node, by a forward pass for each prefix."""
    out, (start, end) = [], tree.starts[row : row + 2]
    with target.as_transformers() as model:
        for node in range(end - start):
            path = tree.tokens[start:end][tree.ancestors[start + node, : end - start]][1:]
            ids = torch.cat((torch.from_numpy(text), path))[None].to(target.device)
            logits = model(input_ids=ids, use_cache=False).logits[0].float()
            if not node:
                before = logits[-2:-1]
            out.append(logits[-1])
    return before, torch.stack(out)


def _influence(target) -> tuple[float, float]:
    """Return r.m.s. changes: of earlier logits by the last token, of the last logits by earlier tokens."""
    length = min(_LENGTHS[0], target.traits.context or _LENGTHS[0])
    texts = np.random.default_rng(1).integers(0, target.vocabulary, (2, length))
    texts = np.stack((texts[0], texts[0], texts[1]))
    texts[1, -1], texts[2, -1] = texts[2, -1], texts[0, -1]
    with target.as_transformers() as model:
        ids = torch.from_numpy(texts).to(target.device)
        base, later, earlier = model(input_ids=ids, use_cache=False).logits.float()
    return tuple(change.square().mean().sqrt().item() for change in (later[:-1] - base[:-1],
                                                                   earlier[-1] - base[-1]))
