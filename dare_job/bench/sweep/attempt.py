"""One tiny model: loaded as the job loads it, and its texts compared with those of ``generate``."""

import logging
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.utils import logging as transformers_logging

from dare_job.bench.sweep import models
from dare_job.bench.sweep.shrink import VOCABULARY
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model import loading
from dare_job.decode.model.target import Target
from dare_job.decode.model.undrafted import any_target
from dare_job.decode.request import Drafter, Request, Result
from dare_job.decode.settings import EngineSettings
from dare_job.errors import DareJobError, ModelError
from dare_job.evaluate.oracle import OracleDrafter
from pools.draft import DraftSettings
from pools.index import Index

LENGTHS, NEW_TOKENS = (5, 33, 1, 18), 40
_BATCHES = (1, 3)
_RESERVED = 20  # last tokens of the vocabulary, which configurations may use for images; not in prompts
CHANGED = 15  # every how many tokens the repeated text is another


def attempt(name: str) -> dict:
    """Return the outcome for one of ``models.names``.

    Returns
    -------
    dict
        "name", "class", "outcome", "reason" and "seconds". The outcome is tree, chain or none (the drafts
        that the engine verifies; all texts equal those of ``generate``), wrong (a text differs), crash,
        refused, no_text (``generate`` cannot continue a text with this class) or not_built. With texts also
        "accepted_per_step" and "steps" of the model from repeated text, and "undrafted_steps".
    """
    started = time.perf_counter()
    outcome = {"name": name, "class": None} | _attempt(name)
    return outcome | {"seconds": round(time.perf_counter() - started, 1)}


def in_own_process(name: str) -> dict:
    """As ``attempt``, with settings of the whole process: one thread, and no warnings."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    return attempt(name)


def _attempt(name: str) -> dict:
    try:
        model = models.tiny(name)
    except Exception as error:  # of any class: a configuration can be wrong in any way
        return {"outcome": "not_built", "reason": _line(error)}
    kind = {"class": type(model).__name__}
    prompts = _prompts()
    with tempfile.TemporaryDirectory() as folder:
        texts = _texts(model, prompts)
        try:
            loaded = _reloaded(model, Path(folder))
        except DareJobError as error:
            return kind | _refused(error, texts)
        if not isinstance(texts, str):  # of the weights as they are loaded
            texts = _texts(loaded, prompts)
        try:
            target = any_target(loaded)
        except DareJobError as error:
            return kind | _refused(error, texts)
        if isinstance(texts, str):
            return kind | {"outcome": "no_text", "reason": texts}
        return kind | _compared(target, prompts, texts)


def _reloaded(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return the model as the job loads it; itself if transformers loads it within another model only."""
    if type(model.config) not in AutoModelForCausalLM._model_mapping and (
            type(model.config) not in AutoModelForImageTextToText._model_mapping):
        return model
    model.save_pretrained(folder)
    return loading.load(folder, "float32", False)


def _prompts() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(2, VOCABULARY - _RESERVED, length).astype(np.int32) for length in LENGTHS]


@torch.inference_mode()
def _texts(model: PreTrainedModel, prompts: Sequence[np.ndarray]) -> list[np.ndarray] | str:
    """Return the greedy texts of ``generate``, or why it fails."""
    try:
        return [_generate(model, prompt) for prompt in prompts]
    except Exception as error:  # of any class: the model's own code
        return _line(error)


def _generate(model: PreTrainedModel, prompt: np.ndarray) -> np.ndarray:
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False,
                         pad_token_id=0)
    return out[0, len(prompt):].numpy().astype(np.int32)


def _refused(error: DareJobError, texts: list[np.ndarray] | str) -> dict:
    if isinstance(texts, str):
        return {"outcome": "no_text", "reason": texts}
    return {"outcome": "refused", "reason": _line(error)}


def _compared(target: Target, prompts: Sequence[np.ndarray], texts: Sequence[np.ndarray]) -> dict:
    """Decode with and without drafts, in batches and singly, and from repeated text."""
    undrafted = [_decode(target, prompts, batch) for batch in _BATCHES]
    drafted = [_decode(target, prompts, batch, OracleDrafter(dict(enumerate(texts)), VOCABULARY))
               for batch in _BATCHES]
    repeated = _decode(target, prompts, max(_BATCHES), RetrievalDrafter(DraftSettings(threads=1)),
                       (Index.build([_changed(text) for text in texts]),))
    for title, results in (("without drafts", undrafted), ("with drafts", [*drafted, repeated])):
        for result in (result for decoded in results for result in decoded):
            if result.error:
                return {"outcome": "crash", "reason": f"{title}: {result.error}"}
            if not np.array_equal(result.token_ids, texts[result.id]):
                return {"outcome": "wrong", "reason": f"{title}: {_difference(result, texts[result.id])}"}
    steps = sum(result.target_steps for result in repeated)
    return {"outcome": target.drafts, "reason": getattr(target, "reason", ""),
            "accepted_per_step": round(sum(result.accepted_tokens for result in repeated) / steps, 2),
            "steps": steps, "undrafted_steps": sum(result.target_steps for result in undrafted[0])}


def _decode(target: Target, prompts: Sequence[np.ndarray], batch: int, drafter: Drafter | None = None,
            pools: tuple = ()) -> list[Result]:
    settings = EngineSettings(max_new_tokens=NEW_TOKENS, batch_size=batch, nodes=16 if drafter else 0)
    requests = [Request(row, prompt, pools) for row, prompt in enumerate(prompts)]
    return sorted(Engine(target, settings, drafter).run(requests), key=lambda result: result.id)


def _changed(text: np.ndarray) -> np.ndarray:
    """Return a text with another token in some places."""
    changed = text.copy()
    changed[CHANGED - 1 :: CHANGED] = (changed[CHANGED - 1 :: CHANGED] + 1) % VOCABULARY
    return changed


def _difference(result: Result, expected: np.ndarray) -> str:
    length = min(len(expected), len(result.token_ids))
    place = next((i for i in range(length) if expected[i] != result.token_ids[i]), length)
    return (f"text {result.id} (prompt of {result.prompt_tokens} tokens) differs from position {place} of "
            f"{len(expected)}")


def _line(error: Exception) -> str:
    """Return a message of the job, or the first sentence of another error."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ModelError) else f"{type(error).__name__}: {text.split('. ')[0][:300]}"
