"""Does strict decoding on this device write what ``generate`` writes there, token for token, in float32?"""

import numpy as np
import torch

from dare_job.bench.gpu.budget import Budget, release
from dare_job.bench.gpu.shapes import TINY, tiny
from dare_job.decode import Engine, EngineSettings, Request, Target
from dare_job.decode.draft.oracle import OracleDrafter

_NEW = 40
_PROMPTS = (5, 17, 1, 30, 9, 22, 11)
_CASES = ((1, 0), (3, 0), (1, 15), (3, 15), (8, 31))  # batch size, draft nodes


def measure(device: torch.device, budget: Budget, small: bool) -> list[dict]:
    """A line for each tiny model: texts that agree, of how many, and what was accepted of drafts."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    lines = []
    for name in list(TINY)[: 2 if small else None]:
        lines.append(_line(name, device))
        budget.say("strict against generate, {model}: {equal} of {texts} texts equal".format(**lines[-1]))
        release(device)
    return lines


def _line(name: str, device: torch.device) -> dict:
    rng = np.random.default_rng(0)
    model = tiny(name, device)
    prompts = [rng.integers(2, 120, n).astype(np.int32) for n in _PROMPTS]
    expected = [_generate(model, prompt) for prompt in prompts]
    target = Target(model, static=True)
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
            "recorded": target.static is not None and device.type == "cuda"}


@torch.inference_mode()
def _generate(model, prompt: np.ndarray) -> np.ndarray:
    ids = torch.from_numpy(prompt.astype(np.int64))[None].to(model.device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=_NEW, do_sample=False)
    return out[0, len(prompt):].cpu().numpy()
