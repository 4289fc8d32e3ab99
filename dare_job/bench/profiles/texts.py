"""Texts that a small model generates for prompts, how many of them differ, and how they draft each other."""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from transformers import AutoTokenizer, GenerationConfig

from dare_job.bench.kept import keep_named
from dare_job.bench.profiles.data import Profile
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ModelError
from dare_job.evaluate.replay.drafters import Blend
from dare_job.evaluate.replay.measure import replay
from dare_job.models.files import fingerprint
from pools.draft import DraftSettings
from pools.index import Index

BATCH = 32
NODES = 6  # draft tokens per row; right for 32 rows on a CPU
_ROUNDS = (64, 448)  # rows before the rest: each round drafts from those before it
_FILE = "texts.parquet"
_LOG_EVERY_S = 20.0
_LOG = logging.getLogger(__name__)


def generate(model: Path, work: Path, prompts: Mapping[str, str]) -> dict[str, np.ndarray]:
    """As ``generate_from_ids``, of prompts that are text."""
    return generate_from_ids(model, work, encode(model, prompts))


def generate_from_ids(model: Path, work: Path, prompts: Mapping[str, np.ndarray], dtype: str = "float32",
                      max_new_tokens: int | None = None,
                      repetition_penalty: float | None = None) -> dict[str, np.ndarray]:
    """Greedy text int32 (tokens,) of each prompt by its id, with its end of text; kept in ``work``.

    Texts of earlier rows draft the later ones, which changes no strict text.

    Parameters
    ----------
    prompts
        Token ids int32 (tokens,) by id.
    max_new_tokens, repetition_penalty
        Default: the model's own.

    Raises
    ------
    ModelError
        A row fails.
    """
    def fill(folder: Path) -> dict:
        settings = EngineSettings(max_new_tokens=max_new_tokens, batch_size=BATCH, nodes=NODES, score="never",
                                  repetition_penalty=repetition_penalty)
        texts = _generate(Target.load(model, dtype=dtype), prompts, settings)
        table = {"id": list(prompts), "token_ids": [texts[key] for key in prompts]}
        parquet.write_table(pa.table(table), folder / _FILE)
        return {"model": model.name, "texts": len(prompts)}

    made_of = [fingerprint(model), dtype, max_new_tokens, repetition_penalty,
               [(key, ids.tolist()) for key, ids in prompts.items()]]
    folder = keep_named(work, "texts", made_of, fill)
    table = parquet.read_table(folder / _FILE)
    return {key: np.asarray(ids, np.int32) for key, ids in
            zip(table["id"].to_pylist(), table["token_ids"].to_pylist(), strict=True)}


def encode(model: Path, prompts: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Prompts as token ids, int32 (tokens,)."""
    ids = AutoTokenizer.from_pretrained(model)(list(prompts.values()))["input_ids"]
    return {key: np.asarray(row, np.int32) for key, row in zip(prompts, ids, strict=True)}


def recorded(model: Path, profiles: Sequence[Profile]) -> dict[str, np.ndarray]:
    """The real profiles by user as the model's token ids, int32 (tokens,).

    They include the end of text and are cut at the model's maximum.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer([profile.text for profile in profiles], add_special_tokens=False)["input_ids"]
    max_tokens = GenerationConfig.from_pretrained(model).max_new_tokens
    return {profile.user: np.asarray([*row, tokenizer.eos_token_id][:max_tokens], np.int32)
            for profile, row in zip(profiles, ids, strict=True)}


def distinct(texts: Sequence[np.ndarray]) -> float:
    """Share of different texts."""
    return len({text.tobytes() for text in texts}) / len(texts)


def accepted_per_step(texts: Sequence[np.ndarray], pool: Sequence[np.ndarray], nodes: int = 16) -> float:
    """Draft tokens accepted per step when ``texts`` are replayed with drafts from ``pool``.

    Each text is int32 (tokens,).
    """
    index = Index.build(pool)
    drafter = Blend([(index,)] * len(texts), DraftSettings(threads=1))
    return replay([text for text in texts if text.size > 1], drafter, nodes)["accepted_per_step"]


def _generate(target: Target, prompts: Mapping[str, np.ndarray],
              settings: EngineSettings) -> dict[str, np.ndarray]:
    """Texts by id, in rounds."""
    texts: dict[str, np.ndarray] = {}
    waiting, start, logged = list(prompts), time.monotonic(), time.monotonic()
    for size in (*_ROUNDS, len(waiting)):
        round_ids, waiting = sorted(waiting[:size], key=lambda key: len(prompts[key])), waiting[size:]
        pools = (Index.build(list(texts.values())),) if texts else ()
        engine = Engine(target, settings, RetrievalDrafter(DraftSettings(threads=1)) if pools else None)
        for result in engine.run(Request(key, prompts[key], pools) for key in round_ids):
            if result.error:
                raise ModelError(f"no text for {result.id}: {result.error}")
            texts[result.id] = result.token_ids
            if time.monotonic() - logged > _LOG_EVERY_S:
                logged = time.monotonic()
                _LOG.info("%d of %d texts, %.0f s", len(texts), len(prompts), logged - start)
    return texts
