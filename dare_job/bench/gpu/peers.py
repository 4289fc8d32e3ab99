"""``generate`` and ``generate_batch`` of transformers on the same prompts.

Also compares the texts of strict decoding with those of ``generate`` on this device, in float32.
"""

from copy import deepcopy

import numpy as np
import torch
from transformers import ContinuousBatchingConfig

from dare_job.bench.gpu.machine import Budget, Meter, release
from dare_job.bench.gpu.shapes import TINY, tiny
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.evaluate.measured import timed
from dare_job.evaluate.oracle import OracleDrafter

_WARM_UP = 8  # tokens


def step_ms(target: Target, task, batch: int) -> float:
    """Milliseconds per token of ``generate``, estimated from a few tokens."""
    ids, mask = _padded_prompts(target, task, batch)
    with target.as_transformers() as model:
        _generate(model, ids, 2, mask)
        return 1e3 * timed(lambda: _generate(model, ids, _WARM_UP, mask), target.device)[1] / _WARM_UP


def generate(target: Target, task, meter: Meter) -> tuple[float, float | None]:
    """Seconds and joules of one call for all prompts, after a short call.

    Raises
    ------
    RuntimeError
        The number of generated tokens is not that of the longest text.
    """
    (ids, mask), new = _padded_prompts(target, task, len(task.requests)), task.longest
    with target.as_transformers() as model:
        _generate(model, ids, _WARM_UP, mask)
        (out, seconds, _), joules = meter.joules(
            lambda: timed(lambda: _generate(model, ids, new, mask), target.device))
    if out.shape[1] != ids.shape[1] + new:
        raise RuntimeError(f"generate wrote {out.shape[1] - ids.shape[1]} tokens, not {new}")
    return seconds, joules


def generate_batch(target: Target, task, meter: Meter) -> tuple[float, None]:
    """Seconds of continuous batching, from the first prompt's start to the last text's end.

    The set-up with memory and graphs comes before that. Joules would include it, so there are none.

    Raises
    ------
    RuntimeError
        A text is missing, or its number of tokens is not that of the longest text.
    """
    new = task.longest
    with target.as_transformers() as model:
        before = model.config._attn_implementation
        try:
            results = model.generate_batch(
                [request.prompt_ids.tolist() for request in task.requests], max_new_tokens=new,
                generation_config=_greedy(model, new), continuous_batching_config=_batching(target, task))
        finally:
            model.set_attn_implementation(before)
    written = [len(result.generated_tokens) for result in results.values() if result.error is None]
    if written != [new] * len(task.requests):
        raise RuntimeError(f"generate_batch wrote {sum(written)} tokens in {len(written)} texts, not {new} "
                           f"in each of {len(task.requests)}")
    spans = np.array([result.lifespan for result in results.values()])
    return float(spans[:, 1].max() - spans[:, 0].min()), None


def _batching(target: Target, task) -> ContinuousBatchingConfig:
    """The defaults on a GPU; on a CPU they would take most of the memory."""
    if target.device.type == "cuda":
        return ContinuousBatchingConfig()
    count = len(task.requests)
    pages = -(-(max(len(request.prompt_ids) for request in task.requests) + task.longest) // 32)
    # transformers 5.17 calls it block_size.
    size = "page_size" if "page_size" in ContinuousBatchingConfig.__dataclass_fields__ else "block_size"
    return ContinuousBatchingConfig(**{size: 32}, num_blocks=2 * count * (pages + 1), max_batch_tokens=256,
                                    max_requests_per_batch=count)


def _greedy(model, new: int):
    config = deepcopy(model.generation_config)
    config.do_sample, config.max_new_tokens, config.eos_token_id = False, new, -1  # -1: no text ends before
    return config


def _padded_prompts(target: Target, task, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts padded on the left, int64 (count, P), and their mask."""
    prompts = [request.prompt_ids for request in task.requests[:count]]
    longest = max(map(len, prompts))
    mask = np.stack([np.arange(longest) >= longest - len(prompt) for prompt in prompts])
    ids = np.stack([np.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
    return _on(target.device, ids), _on(target.device, mask)


def _on(device: torch.device, prompts: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(prompts.astype(np.int64)).to(device)


@torch.inference_mode()
def _generate(model, ids: torch.Tensor, new: int, mask: torch.Tensor | None = None) -> torch.Tensor:
    mask = torch.ones_like(ids) if mask is None else mask
    return model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False)


WAYS = {"generate": generate, "generate_batch": generate_batch}
_NEW = 40
_PROMPTS = (5, 17, 1, 30, 9, 22, 11)
_CASES = ((1, 0), (3, 0), (1, 15), (3, 15), (8, 31))  # batch size, draft nodes


def measure(device: torch.device, budget: Budget, small: bool) -> list[dict]:
    """A row per tiny model: number of equal texts, of all texts, and accepted tokens per step."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows = []
    for name in list(TINY)[: 2 if small else None]:
        rows.append(_row(name, device))
        budget.say("strict against generate, {model}: {equal} of {texts} texts equal".format(**rows[-1]))
        release(device)
    return rows


def _row(name: str, device: torch.device) -> dict:
    rng = np.random.default_rng(0)
    model = tiny(name, device)
    prompts = [rng.integers(2, 120, n).astype(np.int32) for n in _PROMPTS]
    expected = [_generate(model, _on(device, prompt[None]), _NEW)[0, len(prompt):].cpu().numpy()
                for prompt in prompts]
    target = Target(model, paged=True)
    equal = accepted = steps = 0
    for batch_size, nodes in _CASES:
        drafter = OracleDrafter(dict(enumerate(expected)), 120, seed=nodes)
        settings = EngineSettings(max_new_tokens=_NEW, batch_size=batch_size, nodes=nodes)
        for result in Engine(target, settings, drafter).run(Request(i, p) for i, p in enumerate(prompts)):
            equal += result.error is None and np.array_equal(result.token_ids, expected[result.id])
            accepted += result.accepted_tokens if nodes else 0
            steps += result.target_steps if nodes else 0
    return {"model": name, "texts": len(prompts) * len(_CASES), "equal": equal,
            "accepted_per_step": round(accepted / steps, 2),
            "recorded": target.paged is not None and target.paged.records}
