"""Indexed attention: drafts while the index selects every token; longer rows are read as in ``generate``.

``test_decode_equal`` has texts on both sides of the limit.
"""

import numpy as np
import pytest
import transformers as hf
from decode_models import INDEX, assert_written, generate, oracle, prompts, tiny, write

from dare_job.decode.model.target import Target
from dare_job.errors import ModelError
from dare_job.evaluate.check import _drafts

SMALL, NODES, NEW = 16, 8, 12


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny("deepseek_v32", index_topk=SMALL))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_rows_draft_until_the_index_is_full(target, batch_size):
    """Afterwards many tokens have the score 0, among which the selection depends on the number of columns."""
    head, read, update = prompts((40,), seed=5)[0], [], target.prefix_cache.update
    texts = [np.concatenate((head, tail)) for tail in prompts((5, 17, 1, 20, 9, 11, 2, 14, 6), seed=3)]
    texts += prompts((5, 1, 9, 13))
    target.prefix_cache.update = lambda *args: update(*args) or read.extend(target.prefix_cache._prefixes)
    with target.as_transformers() as model:
        expected = [generate(model, text, max_new_tokens=NEW) for text in texts]
    results = write(target, texts, oracle(expected, error_rate=0), batch_size=batch_size, nodes=NODES,
                    max_new_tokens=NEW)
    assert_written(results, expected)
    assert {len(prefix) for prefix in read} == {len(head)}  # longer than the index, so it is read again
    for row, text in enumerate(texts):
        steps = results[row].step_tokens
        drafting = len(text) + np.cumsum(steps)[:-1] + NODES <= SMALL  # by its length before each step
        assert (steps[1:][drafting] > 1).all() and (steps[1:][~drafting] == 1).all()
    assert sum(result.accepted_tokens for result in results.values()) > 5
    assert f"drafts up to {SMALL} tokens of prompt and text" in _drafts(target)


def test_index_keys_take_memory():
    indexed, plain = (Target(tiny(name), check=False) for name in ("deepseek_v32", "llama"))
    latent, index = 16 + 8, 16
    assert indexed.cache_bytes == (2 * (latent + index) * 4, 0)  # two layers
    assert indexed.traits.max_columns == INDEX and plain.traits.max_columns is None


def test_an_index_of_blocks_has_no_trees():
    """It takes blocks of cache columns, which end elsewhere in a tree than in its paths."""
    model = tiny("llama")
    model.config = hf.MiniMaxM3VLTextConfig(num_hidden_layers=1, layer_types=["minimax_m3_sparse"])
    with pytest.raises(ModelError, match="it has layers of type minimax_m3_sparse"):
        Target(model, check=False)
