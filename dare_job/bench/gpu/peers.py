"""What transformers itself takes for the same prompts and as many tokens, as it loaded the model."""

import time
from copy import deepcopy

import numpy as np
import torch
from transformers import ContinuousBatchingConfig

from dare_job.bench.gpu.budget import wait
from dare_job.bench.gpu.power import Meter
from dare_job.decode import Target

_WARM_UP = 8  # tokens


def step_ms(target: Target, task, batch: int) -> float:
    """Milliseconds of a token of ``generate``, roughly: from a few tokens."""
    ids = _ids(target, task, batch)
    with target.as_transformers() as model:
        _generate(model, ids, 2)
        wait(target.device)
        started = time.perf_counter()
        _generate(model, ids, _WARM_UP)
        wait(target.device)
    return 1e3 * (time.perf_counter() - started) / _WARM_UP


def generate(target: Target, task, meter: Meter) -> tuple[float, float | None]:
    """Seconds and joules of one call for all prompts, after a short one."""
    ids, new = _ids(target, task, len(task.requests)), len(task.texts[0])

    def run():
        started = time.perf_counter()
        out = _generate(model, ids, new)
        wait(target.device)
        if out.shape[1] != ids.shape[1] + new:
            raise RuntimeError(f"generate wrote {out.shape[1] - ids.shape[1]} tokens, not {new}")
        return time.perf_counter() - started

    with target.as_transformers() as model:
        _generate(model, ids, _WARM_UP)
        return meter.joules(run)


def generate_batch(target: Target, task, meter: Meter) -> tuple[float, None]:
    """Seconds of continuous batching, from the first prompt's start to the last text's end.

    Setting up, memory and graphs included, happens before that; joules would count it, so there are none.
    """
    new = len(task.texts[0])
    with target.as_transformers() as model:
        before = model.config._attn_implementation
        try:
            results = model.generate_batch(
                [request.prompt_ids.tolist() for request in task.requests], max_new_tokens=new,
                generation_config=_greedy(model, new), continuous_batching_config=_room(target, task))
        finally:
            model.set_attn_implementation(before)
    written = [len(result.generated_tokens) for result in results.values() if result.error is None]
    if written != [new] * len(task.requests):
        raise RuntimeError(f"generate_batch wrote {sum(written)} tokens in {len(written)} texts, not {new} "
                           f"in each of {len(task.requests)}")
    spans = np.array([result.lifespan for result in results.values()])
    return float(spans[:, 1].max() - spans[:, 0].min()), None


def _room(target: Target, task) -> ContinuousBatchingConfig:
    """As it chooses for itself on a GPU; on a CPU it would take most of the memory."""
    if target.device.type == "cuda":
        return ContinuousBatchingConfig()
    count = len(task.requests)
    pages = -(-(len(task.requests[0].prompt_ids) + len(task.texts[0])) // 32)
    # transformers 5.17 calls it block_size.
    size = "page_size" if "page_size" in ContinuousBatchingConfig.__dataclass_fields__ else "block_size"
    return ContinuousBatchingConfig(**{size: 32}, num_blocks=2 * count * (pages + 1), max_batch_tokens=256,
                                    max_requests_per_batch=count)


def _greedy(model, new: int):
    config = deepcopy(model.generation_config)
    config.do_sample, config.max_new_tokens, config.eos_token_id = False, new, -1  # -1: no text ends before
    return config


def _ids(target: Target, task, count: int) -> torch.Tensor:
    prompts = np.stack([request.prompt_ids for request in task.requests[:count]]).astype(np.int64)
    return torch.from_numpy(prompts).to(target.device)


@torch.inference_mode()
def _generate(model, ids: torch.Tensor, new: int) -> torch.Tensor:
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
