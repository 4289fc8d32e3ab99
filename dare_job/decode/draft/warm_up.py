"""Compiles what steps run, so that first rows, and what is learned from their steps, do not pay for it."""

from functools import lru_cache

import numpy as np
import torch

from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.draft_budget import DraftBudget
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from pools.draft import DraftSettings
from pools.index import Index

_TOKENS = 8  # of the vocabulary: whatever the model says is found in the pool
_CHEAP = LatencyCurve.of({"1": {"1": 1.0, "9": 1.1}, "4": {"1": 1.0, "9": 1.1}}, "made up: drafts always pay")


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Decode a few rows with a model of some hundred weights; once a process.

    After an installation that takes some twenty seconds of a processor, later what loading from the cache on
    disk takes, which a worker would spend on its first rows.
    """
    target, pool = Target(_tiny(), check=False), Index.build([np.tile(_chain(), 2)])
    requests = [Request(n, _chain()[:3 + n], (pool,), max_new_tokens=6 + n, previous_ids=old)
                for n, old in enumerate((None, _chain()[2:20], None, _chain()[5:9], None, None))]
    for rule in ("strict", "relaxed"):
        for scheduler in (DraftBudget(_CHEAP, 8), None):
            settings = EngineSettings(rule=rule, batch_size=4, nodes=8, depth=6, score="always")
            list(Engine(target, settings, RetrievalDrafter(DraftSettings(depth=6)),
                        draft_budget=scheduler).run(requests))
    list(Engine(target, EngineSettings(batch_size=4, nodes=0)).run(requests[:3]))


def _tiny():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_TOKENS, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=128, bos_token_id=None, eos_token_id=None)
    with torch.random.fork_rng(devices=[]):  # whoever has set a seed keeps what follows from it
        return LlamaForCausalLM(config)


def _chain() -> np.ndarray:
    """Each token behind each other one."""
    first, second = np.divmod(np.arange(_TOKENS**2), _TOKENS)
    return np.stack([first, second], 1).astype(np.int32).reshape(-1)
