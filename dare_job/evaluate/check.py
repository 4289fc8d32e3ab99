"""``dare-job check``: compares the engine's greedy tokens with those of transformers."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from transformers import AutoTokenizer
from transformers.utils import logging

from dare_job.config.gates import MAX_SHARE
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.generation_config import read_rules
from dare_job.decode.model import quantized
from dare_job.decode.model.target import Target
from dare_job.decode.model.undrafted import any_target
from dare_job.decode.prompt.answers import add_end_of_turn
from dare_job.decode.prompt.template import PromptFormat
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import DataError, ModelError, describe
from dare_job.evaluate import model_facts
from dare_job.evaluate.oracle import OracleDrafter
from dare_job.generate.preflight import require_supported
from dare_job.models.adapters import has_adapter
from dare_job.models.files import resolve

BUILT_IN = (
    "Describe this user's taste in films.",
    "A user watched Alien, Blade Runner and Brazil, and rated each of them five of five. What do they like?",
    "Hello",
    "Write what you know about the film The Third Man: its mood, its themes and who would like it. " * 3,
    "The user's history, oldest first: Heat; Ronin; Sneakers; The Conversation. Describe the preferences.",
    "1, 2, 3,",
    "Given the item's title, category and release year, say in a few words what kind of viewer it suits, and "
    "which mood it is for, without repeating the title.",
    "Summarise:",
)


def read_prompts(file: Path) -> list[tuple[str, str]]:
    """(prompt, its place) of a file's lines that are not blank: JSON with "prompt" if the first begins with a
    brace, else plain text.

    Raises
    ------
    DataError
        The file cannot be read or has no prompt, or a line has no valid one. The message names the file and,
        for a line, its number.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8").split("\n")  # JSON texts may hold other line ends
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"prompts file {file} cannot be read: {error}") from None
    prompts = [(line, f"prompts file {file}, line {i + 1}") for i, line in enumerate(lines) if line.strip()]
    if not prompts:
        raise DataError(f"prompts file {file} has no prompt: all lines are empty")
    if not prompts[0][0].lstrip().startswith("{"):
        return prompts
    return [(_prompt_of(line, place), place) for line, place in prompts]


def _prompt_of(line: str, place: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{place}: not a JSON object with the key \"prompt\" ({error})") from None
    if not isinstance(prompt, str) or not prompt.strip():
        raise DataError(f"{place}: \"prompt\" is {json.dumps(prompt)[:80]}; it must be a non-empty text")
    return prompt


_NEAR_TIE = {"float32": 0.0, "bfloat16": 0.03, "float16": 0.004}  # relative to the largest logit
_GENERATE_ERRORS = (TypeError, ValueError, AttributeError, LookupError, NotImplementedError, ImportError)
_TOKENS = 48  # decoded per prompt without --max-new-tokens: enough to compare, too few for whole texts
_BATCHES = ((1, 0), (1, 16), (3, 0), (3, 16))  # rows at once, draft nodes


def run_check(model: str, prompts: Path | None = None, rows: int = 8, *, dtype: str = "float32",
              device: str = "auto", max_new_tokens: int | None = None, chat_template: str = "auto",
              template_arguments: dict | None = None, trust_remote_code: bool = False,
              console: Console | None = None) -> dict:
    """Compare strict decoding with transformers' greedy ``generate`` on the same prompts and weights.

    Drafts contain ``generate``'s tokens among wrong branches, so that trees, compaction and the request
    scheduler are exercised with every model. Rows are decoded singly, then in batches with fewer slots than
    rows, with and without drafts. A model that cannot verify drafts is compared without.

    Parameters
    ----------
    prompts
        File with one prompt per line, or JSON lines with "prompt"; None: built-in ones.
    rows
        Number of prompts, repeated if there are fewer, and truncated to the context.
    max_new_tokens
        Tokens to decode per prompt. A number also warns if more than half of the texts would be cut off at
        it; None: 48, which says nothing about whole texts.

    Returns
    -------
    dict
        "equal", "rows", "cut_off", "rows_that_differ", "by_batch" and "first_difference". In float32 all
        tokens must be equal. In bfloat16 and float16 a row may differ after a near-tie: two logits within 3 %
        and 0.4 % of the largest logit, or closer than twice the difference that a cache makes to
        transformers' own logits. Quantized weights count as bfloat16. ``cut_off`` counts texts of
        ``generate`` that reach the number of tokens without an end-of-text token. ``rows_that_differ`` counts
        rows with another text than ``generate``'s in any of the settings, ``by_batch`` has the number for
        each. ``first_difference`` is a real difference if there is one, else the first near-tie or None. The
        keys of ``model_facts.describe`` are there too.

    Raises
    ------
    ModelError
        The model is missing, damaged or not supported, a prompt cannot be decoded, or the context is too
        short to compare.
    DataError
        The file of prompts is invalid, or a prompt has no token.
    ConfigError
        The device is not available, or the chat template cannot be used.
    RowError
        A prompt spells a control token that cannot be written as text.
    """
    console = console or Console(stderr=True)
    path = resolve(model, trust_remote_code, "--model")
    logging.disable_progress_bar()
    require_supported(path, trust_remote_code)
    target = Target.load(path, dtype, device, trust_remote_code, make=any_target)
    tokenizer = _tokenizer(path, trust_remote_code)
    prompt_format = PromptFormat(chat_template, arguments=template_arguments or {})
    if warning := add_end_of_turn(target.generation_config, tokenizer, prompt_format):
        console.print(f"[yellow]warning[/yellow]: {escape(warning)}")
    rules = read_rules(target.generation_config)
    facts = model_facts.describe(target, rules, has_adapter(path))
    console.print(f"[bold]{type(target.model).__name__}[/bold] {escape(model)} in {facts['dtype']} on "
                  f"{target.device.type}: supported, {_drafts(target)}, {_context(target)}")
    model_facts.show(console, facts)
    limit = max_new_tokens or _TOKENS
    max_prompt = _max_prompt(target, limit)
    texts = [text[:max_prompt]
             for text in _prompts(tokenizer, prompts, rows, prompt_format, target.vocabulary)]
    expected = [_generate(target, text, limit) for text in texts]
    differences, ties = [], _near_tie_type(target)
    for batch, nodes in _batches(target):
        decoded = _decode(target, texts, expected, batch, nodes, limit)
        differences += [
            _difference(target, texts, expected, decoded[row], row, batch, nodes, ties)
            for row in range(len(texts)) if not np.array_equal(decoded[row], expected[row])
        ]
    _report(console, differences, len(texts), _batches(target))
    cut_off = _cut_off(target, expected, limit)
    _report_ends(console, cut_off, len(texts), max_new_tokens)
    wrong = [d for d in differences if not d["near_tie"]]
    return {"equal": not wrong, "rows": len(texts), "cut_off": cut_off,
            "rows_that_differ": len({d["row"] for d in differences}),
            "by_batch": _by_batch(differences, _batches(target)),
            "first_difference": (wrong or differences or [None])[0], **facts}


def _cut_off(target: Target, expected: Sequence[np.ndarray], limit: int) -> int:
    """Number of texts of ``generate`` with ``limit`` tokens of which the last is not an end-of-text token."""
    ends = target.generation_config.eos_token_id
    return sum(len(tokens) == limit and (ends is None or not np.isin(tokens[-1], ends))
               for tokens in expected)


def _report_ends(console: Console, cut_off: int, rows: int, max_new_tokens: int | None) -> None:
    if max_new_tokens is None:
        console.print("Not checked: whether your texts end within decode.max_new_tokens. Only "
                      f"{_TOKENS} tokens were decoded per prompt: use `--max-new-tokens N --prompt-file "
                      "FILE`, or `dare-job preview`, which shows whole texts.")
    elif cut_off > MAX_SHARE["cut_off"] * rows:
        console.print(f"[yellow]warning[/yellow]: {cut_off} of {rows} texts reach {max_new_tokens} tokens "
                      "and would be cut off: raise decode.max_new_tokens, or ask for shorter texts")


def _by_batch(differences: Sequence[dict], batches=_BATCHES) -> list[dict]:
    """Number of rows that differ, for each number of rows decoded at once and of draft nodes."""
    counts = Counter((d["batch"], d["nodes"]) for d in differences)
    return [{"batch": batch, "nodes": nodes, "rows_that_differ": counts[batch, nodes]}
            for batch, nodes in batches]


def _batches(target: Target) -> list[tuple[int, int]]:
    return [(batch, nodes) for batch, nodes in _BATCHES if not nodes or target.drafts != "none"]


def _drafts(target: Target) -> str:
    if target.drafts == "none":
        return f"decoded without drafts ({escape(target.reason)}; batches: {target.batches})"
    attention, columns = f"{'fused' if target.fused else 'its own'} attention", target.traits.max_columns
    if columns not in (None, target.traits.context):
        attention += f", drafts up to {columns} tokens of prompt and text"
    return attention if target.drafts == "tree" else f"chains of drafts (its layers keep states), {attention}"


def _context(target: Target) -> str:
    traits = target.traits
    if traits.context is None:
        return "context without limit"
    if traits.max_length is None:
        return f"context {traits.context}, which texts may exceed"
    return f"context {traits.context}, where texts end: {traits.reason}"


def _max_prompt(target: Target, max_new_tokens: int) -> int:
    """Maximum tokens of a prompt. Raises ModelError if the context is too short for any."""
    traits = target.traits
    if traits.max_length is None:
        return traits.context or 1 << 30
    tokens = traits.max_length - max_new_tokens
    if tokens < 1:
        raise ModelError(f"{traits.reason} is {traits.context}: the context is too short to compare "
                         f"{max_new_tokens} tokens after a prompt; it must be at least {max_new_tokens}")
    return tokens


def _tokenizer(path: Path, trust: bool):
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"{path} has no tokenizer that can be loaded: {error}") from error


def _prompts(tokenizer, file: Path | None, rows: int, prompt_format: PromptFormat,
             vocabulary: int) -> list[np.ndarray]:
    texts = [(text, f"built-in prompt {i + 1}") for i, text in enumerate(BUILT_IN)]
    if file is not None:
        texts = read_prompts(file)
    texts = [texts[i % len(texts)] for i in range(rows)]
    ids = [prompt_ids(tokenizer, text, prompt_format) for text, _ in texts]
    for tokens, (_, place) in zip(ids, texts, strict=True):
        if not len(tokens):
            raise DataError(f"{place}: the prompt has no token in this model's tokenizer")
        if tokens.max() >= vocabulary:
            raise ModelError(f"{place}: the tokenizer gives token {tokens.max()}, and the model's vocabulary "
                             f"has only {vocabulary}: copy the tokenizer that belongs to the model")
    return ids


@torch.inference_mode()
def _generate(target: Target, prompt: np.ndarray, max_new_tokens: int) -> np.ndarray:
    ids = torch.from_numpy(prompt.astype(np.int64))[None].to(target.device)
    with target.as_transformers() as model:
        try:
            out = model.generate(ids, max_new_tokens=max_new_tokens, **_greedy(target, ids))
        except _GENERATE_ERRORS as error:
            raise ModelError(f"transformers' generate fails with this model: {describe(error)}") from error
    return out[0, len(prompt):].cpu().numpy()


def _greedy(target: Target, ids: torch.Tensor) -> dict:
    return {"do_sample": False, "attention_mask": torch.ones_like(ids),
            "pad_token_id": target.generation_config.pad_token_id or 0}


def _decode(target: Target, texts, expected, batch: int, nodes: int, max_new_tokens: int) -> dict:
    drafter = OracleDrafter(dict(enumerate(expected)), target.vocabulary) if nodes else None
    settings = EngineSettings(max_new_tokens=max_new_tokens, batch_size=batch, nodes=nodes)
    results = list(Engine(target, settings, drafter).run(Request(i, t) for i, t in enumerate(texts)))
    for result in results:
        if result.error:
            raise ModelError(f"prompt {result.id} cannot be decoded: {result.error}")
    return {result.id: result.token_ids for result in results}


@torch.inference_mode()
def _difference(target: Target, texts, expected, decoded, row: int, batch: int, nodes: int,
                dtype: str) -> dict:
    """Return the first token that differs from ``generate``'s, and the gap between the logits of both."""
    tokens = expected[row]
    length = min(len(tokens), len(decoded))
    place = next((i for i in range(length) if tokens[i] != decoded[i]), length)
    difference = {"row": row, "position": place, "batch": batch, "nodes": nodes}
    if place == length:
        return {**difference, "expected": None, "written": None, "logit_gap": None, "near_tie": False}
    ids = torch.from_numpy(np.concatenate((texts[row], tokens[:place])).astype(np.int64))[None]
    with target.as_transformers() as model:
        logits = model(input_ids=ids.to(target.device), use_cache=False).logits[0, -1].float()
    gap = (logits[tokens[place]] - logits[decoded[place]]).item()
    near_tie = dtype != "float32" and (
        abs(gap) <= _NEAR_TIE[dtype] * logits.abs().max().item()
        or abs(gap) <= 2 * _own_difference(target, ids, len(texts[row]), logits))
    return {**difference, "expected": int(tokens[place]), "written": int(decoded[place]), "logit_gap": gap,
            "near_tie": near_tie}


def _own_difference(target: Target, ids: torch.Tensor, prompt: int, uncached: torch.Tensor) -> float:
    """Return the largest difference of a logit (V,) between ``generate``, which uses a cache, and a forward
    pass without one: in half precision the experts of a token can change, and with them its logits.
    """
    ids, new = ids[:, :prompt].to(target.device), ids.shape[1] - prompt + 1
    with target.as_transformers() as model:
        out = model.generate(ids, max_new_tokens=new, output_logits=True, return_dict_in_generate=True,
                             **_greedy(target, ids))
    return (out.logits[-1][0].float() - uncached).abs().max().item()


def _near_tie_type(target: Target) -> str:
    """Type of the weights whose rule of near-ties applies. Quantized ones may round activations to 8 bits."""
    dtype = str(target.dtype).removeprefix("torch.")
    return "bfloat16" if dtype == "float32" and quantized.runs_quantized(target.model) else dtype


def _report(console: Console, differences: Sequence[dict], rows: int, batches=_BATCHES) -> None:
    if all(d["near_tie"] for d in differences):
        but = f" but for {len(differences)} near-ties" if differences else ""
        drafted = "with and without" if any(nodes for _, nodes in batches) else "without"
        console.print(f"[green]equal[/green]{but}: {rows} rows, singly and batched, {drafted} drafts")
    if differences:
        each = ", ".join(f"{group['rows_that_differ']} (batch {group['batch']}, {group['nodes']} nodes)"
                         for group in _by_batch(differences, batches))
        console.print(f"{len({d['row'] for d in differences})} of {rows} rows have another text than "
                      f"generate's: {each}")
    for d in differences[:10]:
        kind = "near-tie" if d["near_tie"] else "[red]different[/red]"
        console.print(f"{kind}: row {d['row']}, position {d['position']} (batch {d['batch']}, {d['nodes']} "
                      f"nodes): generate {d['expected']}, engine {d['written']}, logit gap {d['logit_gap']}")
