"""Models with a causal mask of limited size (GPT-Neo). Near its end, too, a row's drafts depend only on its
own length, and its text does not depend on the batch.
"""


import numpy as np
import pytest
from decode_models import VOCABULARY, assert_written, generate, oracle, prompts, tiny, write

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import EngineSettings, Warp
from pools.draft import DraftSettings
from pools.index import Index

COLUMNS, NODES = 40, 9
TEXTS = prompts((5, 27, 13, 33, 1, 21, 37))
ENDS = [COLUMNS + 1 - len(text) for text in TEXTS]  # new tokens up to the end of the positions


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny("gpt_neo", max_position_embeddings=COLUMNS))


def drafter(kind: str):
    if kind == "retrieval":
        return RetrievalDrafter(DraftSettings(threads=1))
    near = tiny(kind, **({"n_positions": 64} if kind == "gpt2" else {"max_position_embeddings": 64}))
    return ModelDrafter(Target(near, check=False), "3x2")


def requests(old=()) -> list[Request]:
    rng = np.random.default_rng(0)
    pool = Index.build([rng.integers(0, VOCABULARY, 300).astype(np.int32)])
    return [Request(n, text, (pool,), None, old[n] if old else None) for n, text in enumerate(TEXTS)]


def by_row(engine: Engine, asked: list[Request]) -> dict:
    return {one.id: (one.token_ids.tolist(), one.step_tokens.tolist()) for one in engine.run(asked)}


def test_the_model_has_its_own_mask(target):
    assert target.traits.max_columns == COLUMNS and not target.fused


def test_strict_text_and_its_steps(target):
    expected = [generate(target.model, text, max_new_tokens=n) for text, n in zip(TEXTS, ENDS, strict=True)]
    alone, *together = (write(target, TEXTS, oracle(expected, error_rate=0), batch_size=size, nodes=NODES,
                              depth=4, max_new_tokens=99) for size in (1, 3, 7))
    for results in (alone, *together):
        assert_written(results, expected)
        for row, length in enumerate(map(len, TEXTS)):
            steps = results[row].step_tokens
            assert steps.tolist() == alone[row].step_tokens.tolist()
            drafting = length + np.cumsum(steps)[:-1] + NODES <= COLUMNS  # by its length before each step
            assert (steps[1:][~drafting] == 1).all() and (steps[1:][drafting] > 1).all()
            assert drafting.any() or length > COLUMNS - NODES


@pytest.mark.parametrize("kind", [pytest.param("retrieval", marks=pytest.mark.slow),
                                  *(pytest.param(kind, marks=pytest.mark.release)
                                    for kind in ("gpt2", "gpt_neo"))])
def test_sampled_text_does_not_depend_on_the_batch(target, kind):
    def texts(batch, asked):
        settings = EngineSettings(max_new_tokens=99, batch_size=batch, nodes=NODES, depth=4, score="always")
        return by_row(SamplingEngine(target, settings, Sampling(Warp(0.9), 3), drafter(kind)), asked)

    alone = texts(1, requests())
    assert [len(alone[row][0]) for row in range(7)] == ENDS
    assert any(max(steps[1:], default=1) > 1 for _, steps in alone.values())
    assert texts(3, requests()) == alone == texts(7, requests()[::-1])
    old = [np.array([*text[:3], 1], np.int32) for text, _ in (alone[row] for row in range(7))]
    assert texts(1, requests(old)) == texts(4, requests(old))


def test_relaxed_text_does_not_depend_on_the_batch(target):
    settings = dict(rule="relaxed", k=8, p=0.001, max_new_tokens=99, nodes=NODES, depth=4, score="always")
    alone, together = (by_row(Engine(target, EngineSettings(batch_size=size, **settings), drafter("gpt2")),
                              requests()) for size in (1, 7))
    assert alone == together
