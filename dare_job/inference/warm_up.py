"""Compiles the kernels of a process before the first rows are decoded."""

from functools import lru_cache

import numpy as np
import torch

from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.draft_budget import AdaptiveBudget
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from pools.draft import DraftSettings
from pools.index import Index

_VOCABULARY = 8  # of the warm-up; small enough that its pool contains every pair of tokens
_CHEAP = LatencyCurve.of({"1": {"1": 1.0, "9": 1.1}, "4": {"1": 1.0, "9": 1.1}}, "fictitious: cheap drafts")


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Compile the kernels of decoding with a model of a few hundred weights, once per process.

    Otherwise compilation would distort latency measurements of the first rows. The first call after an
    installation compiles for about 40 s of CPU time; later calls load the cache.
    """
    target, pool = Target(_tiny_model(), check=False), Index.build([np.tile(_all_pairs(), 2)])
    requests = [Request(n, _all_pairs()[:3 + n], (pool,), max_new_tokens=6 + n, previous_ids=old)
                for n, old in enumerate((None, _all_pairs()[2:20], None, _all_pairs()[5:9], None, None))]
    for rule in ("strict", "relaxed"):
        for draft_budget in (AdaptiveBudget(_CHEAP, 8), None):
            settings = EngineSettings(rule=rule, batch_size=4, nodes=8, depth=6, score="always")
            list(Engine(target, settings, RetrievalDrafter(DraftSettings(depth=6)),
                        draft_budget=draft_budget, numbers=np.zeros(_VOCABULARY, np.bool_)).run(requests))
    list(Engine(target, EngineSettings(batch_size=4, nodes=0)).run(requests[:3]))


def _tiny_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=128, bos_token_id=None,
        eos_token_id=None)
    with torch.random.fork_rng(devices=[]):  # leaves the global generator of the caller as it is
        return LlamaForCausalLM(config)


def _all_pairs() -> np.ndarray:
    """Text that contains every pair of tokens."""
    first, second = np.divmod(np.arange(_VOCABULARY**2), _VOCABULARY)
    return np.stack([first, second], 1).astype(np.int32).reshape(-1)
