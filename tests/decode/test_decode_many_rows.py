"""A large batch: each row still has the text of ``generate``."""

import numpy as np
import pytest
from decode_models import VOCABULARY, assert_written, generate, oracle, prompts, tiny

from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings

SLOTS, ROWS, MOST = 96, 110, 10


@pytest.mark.parametrize(("name", "paged"), [
    ("mistral-window", False),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (("gpt2", False), ("qwen2-window", True))),
    *(pytest.param(*case, marks=pytest.mark.release)
      for case in (("llama", False), ("mixtral", False), ("phi", False), ("llama", True)))], ids=str)
def test_strict_equals_generate_in_a_batch_of_96(name, paged):
    """More rows than slots and texts of different lengths, so that rows move and slots are reused."""
    rng = np.random.default_rng(3)
    model, texts = tiny(name), prompts(rng.integers(1, 18, ROWS))
    most = rng.integers(MOST // 2, MOST + 1, ROWS).tolist()
    expected = [generate(model, text, max_new_tokens=n) for text, n in zip(texts, most, strict=True)]
    assert len({token for text in expected for token in text}) > VOCABULARY / 3
    target, sizes = Target(model, paged=paged), []
    commit = target.commit

    def counted(cache, lengths, *rest):
        sizes.append(len(lengths))
        return commit(cache, lengths, *rest)

    target.commit = counted
    for nodes in (0, 7):
        engine = Engine(target, EngineSettings(batch_size=SLOTS, nodes=nodes), oracle(expected, seed=nodes))
        requests = [Request(row, text, max_new_tokens=n)
                    for row, (text, n) in enumerate(zip(texts, most, strict=True))]
        results = {result.id: result for result in engine.run(requests)}
        assert_written(results, expected)
        assert max(sizes) == SLOTS and sum(size > 64 for size in sizes) >= 3
    assert sum(result.accepted_tokens for result in results.values()) > ROWS
    assert (target.paged is not None) == paged
