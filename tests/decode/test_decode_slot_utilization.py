"""Slot utilization over the synthetic data set, counted in steps regardless of their duration."""

from functools import cache

import numpy as np
import pytest
from transformers import AutoTokenizer

from dare_job import prompts
from dare_job.data.sample_world.simulate import DAYS, item_examples, simulate, user_examples
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.models import embedded_path
from pools.draft import DraftSettings
from pools.index import Index

# Users and items; WHOLE: as ``dare-job data sample`` generates.
FEW, PART, WHOLE = (32, 32), (104, 104), (400, 300)


@cache
def model() -> Target:
    return Target.load(embedded_path(), device="cpu")


@cache
def night(users: int, items: int) -> list[Request]:
    """Return requests for all rows of the sample, users first, with their own and the global pool."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    world, asked = simulate(users, items, 0), prompts.load(prompts.SAMPLE)

    def ids(text: str) -> np.ndarray:
        return np.array([*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id],
                        np.int32)

    requests = []
    for examples in (user_examples, item_examples):
        old = {example.row: ids(example.text) for example in examples(world, asked, DAYS - 1)}
        pool = Index.build(list(old.values()))
        for example in examples(world, asked, DAYS):
            own = old.get(example.row)
            pools = (pool,) if own is None else (Index.build([own], kind="own"), pool)
            prompt = prompt_ids(tokenizer, example.prompt)
            requests.append(Request((example.entity, example.row), prompt, pools, previous_ids=own))
    return requests


@pytest.mark.parametrize(("size", "batch_size", "score"), [
    (FEW, 4, "never"), pytest.param(FEW, 4, "always", marks=pytest.mark.slow),
    pytest.param(PART, 32, "never", marks=pytest.mark.slow),
    pytest.param(WHOLE, 32, "always", marks=pytest.mark.release)],
    ids=lambda value: str(value).replace(", ", "x"))
@pytest.mark.slow
def test_nine_slots_in_ten_are_in_use(size, batch_size, score):
    """Rows take from 0 to 40 steps, so waiting for the last row of each batch would leave slots empty.

    With prefix verification, half of the rows end in the prefill and the others take all steps. More slots
    are empty at the end of the run, so larger batches need more rows.
    """
    requests = night(*size)
    assert len(requests) > 0.95 * sum(size)
    settings = EngineSettings(max_new_tokens=192, batch_size=batch_size, nodes=8, score=score)
    results = list(Engine(model(), settings, RetrievalDrafter(DraftSettings(threads=1))).run(iter(requests)))
    assert len(results) == len(requests) and not any(result.error for result in results)
    steps = {result.id: result.target_steps for result in results}
    assert sum(steps.values()) / sum(result.slot_steps for result in results) >= 0.9
    in_order = [steps[request.id] for request in requests]
    batches = [in_order[first : first + batch_size] for first in range(0, len(in_order), batch_size)]
    waiting = sum(in_order) / sum(batch_size * max(batch) for batch in batches)
    assert waiting < 0.75, "rows so alike need no refill"
