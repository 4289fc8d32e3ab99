"""How much of a target's greedy text a draft model says itself."""

import copy

import numpy as np
from transformers import LlamaForCausalLM

from dare_job.decode import Engine, EngineSettings, Request, Target
from dare_job.decode.draft.model import ModelDrafter
from dare_job.drafter.teacher import lessons
from dare_job.drafter.texts import Row
from dare_job.errors import ModelError

CHAIN = 4  # tokens that are drafted a step


def greedy(target: Target, model: LlamaForCausalLM, rows: list[Row], max_new_tokens: int | None) -> dict:
    """Over the rows, written strictly with a chain of ``CHAIN`` drafts a step.

    accepted         share of the drafted tokens that the target took
    tokens_per_step  of a row, the target's own included
    first_choice     share of the text's tokens that are the draft model's first choice behind those before
    """
    draft = Target(copy.deepcopy(model).to(target.device), check=False)
    settings = EngineSettings(batch_size=8, nodes=CHAIN, depth=CHAIN, score="never",
                              max_new_tokens=max_new_tokens)
    drafter = ModelDrafter(draft, "x".join("1" * CHAIN), vocabulary=target.vocabulary)
    requests = [Request(row.name, row.prompt.astype(np.int32)) for row in rows]
    results = {result.id: result for result in Engine(target, settings, drafter).run(requests)}
    if failed := [result for result in results.values() if result.error]:
        raise ModelError(f"held-out text {failed[0].id} could not be written: {failed[0].error}")
    steps = sum(result.target_steps for result in results.values())
    accepted = sum(result.accepted_tokens for result in results.values())
    tokens = sum(len(result.token_ids) for result in results.values())
    written = [Row(row.name, row.prompt, results[row.name].token_ids.astype(np.int64), True) for row in rows]
    same = sum(int((lesson.tokens[:, 0] == lesson.row.text).sum()) for lesson in lessons(draft, written))
    return {"rows": len(rows), "tokens": tokens, "accepted": _share(accepted, CHAIN * steps),
            "tokens_per_step": _share(accepted + steps, steps), "first_choice": _share(same, tokens)}


def _share(part: int, whole: int) -> float:
    return round(part / max(1, whole), 4)
