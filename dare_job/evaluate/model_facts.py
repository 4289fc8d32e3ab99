"""What ``dare-job check`` tells about a loaded model, besides the comparison of texts."""

from rich.console import Console
from rich.markup import escape

from dare_job.decode.engine import generation_config
from dare_job.decode.engine.generation_config import GenerationRules
from dare_job.decode.model import quantized
from dare_job.decode.model.target import Target

BATCHES = (1, 8, 32, 128)  # rows whose cache is computed
_TOKENS = 2048  # of each of them, or the context if that is shorter


def describe(target: Target, rules: GenerationRules, adapted: bool) -> dict:
    """Facts about a model as JSON values.

    Returns
    -------
    dict
        "drafts": "tree", "chain" or "none", and "why" if there are none. "dtype" of the weights.
        "quantization" and "adapter": how the weights are stored. "generation_config": the fields that are
        "applied" with their values, and the names of those "without_effect". "memory": bytes of the weights,
        of a token's cache, of a row's states, and of the cache of several batches, all computed and not
        measured. Without drafts, the model's own cache counts as if it grew as in short prompts.
    """
    return {
        "drafts": target.drafts, "why": getattr(target, "reason", None),
        "dtype": str(target.dtype).removeprefix("torch."),
        "quantization": quantized.describe(target.model.config, target.device), "adapter": adapted,
        "generation_config": generation_config.effects(rules), "memory": _memory(target)}


def _memory(target: Target) -> dict:
    context = target.traits.context
    tokens = _TOKENS if context is None else min(context, _TOKENS)
    token_bytes, row_bytes = target.cache_bytes
    return {"weights": target.weight_bytes, "cache_per_token": token_bytes, "cache_per_row": row_bytes,
            "tokens": tokens,
            "cache": {str(rows): rows * (row_bytes + tokens * token_bytes) for rows in BATCHES}}


def show(console: Console, facts: dict) -> None:
    """Print the facts of ``describe``, one line each."""
    lines = [facts["quantization"] and f"weights: {facts['quantization']}",
             facts["adapter"] and "weights: with the adapter of the folder",
             _drafts(facts), _generation(facts["generation_config"]), _bytes(facts["memory"])]
    for line in filter(None, lines):
        console.print(escape(line), highlight=False, soft_wrap=True)


def _drafts(facts: dict) -> str | None:
    if facts["drafts"] == "none":  # the first line of the check says why
        return None
    kind = "trees" if facts["drafts"] == "tree" else "chains"
    why = f" ({facts['why']})" if facts["why"] else ""
    return f"drafts: {kind} of tokens, verified in one forward pass{why}"


def _generation(effects: dict) -> str:
    applied = ", ".join(f"{name} = {value}" for name, value in effects["applied"].items()) or "nothing"
    without = f"; without effect on greedy texts: {', '.join(effects['without_effect'])}"
    return f"generation config: applied: {applied}" + (without if effects["without_effect"] else "")


def _bytes(memory: dict) -> str:
    text = f"memory, computed and not measured: weights {_size(memory['weights'])}"
    if not any(memory["cache"].values()):
        return f"{text}; it keeps no cache: each step reads the whole texts again. Forward passes need more"
    caches = ", ".join(f"{_size(size)} for {rows}" for rows, size in memory["cache"].items())
    states = f" and {_size(memory['cache_per_row'])} per row" if memory["cache_per_row"] else ""
    return (f"{text}; cache {_size(memory['cache_per_token'])} per token{states}; with {memory['tokens']} "
            f"tokens per row, by rows at once: {caches}. Forward passes need more")


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} GB" if number < 1000 else f"{number:,.0f} GB"
