"""A draft model of other tokens is refused by name, with the first difference."""

import numpy as np
import pytest
from decode_models import assert_written, generate, tiny, write
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.tokenizer_match import require_same_tokenizer
from dare_job.decode.model.target import Target
from dare_job.errors import ConfigError
from dare_job.models import embedded_path

WORDS = ["<unk>", "<eos>", "a", "b", "c"]


def _of(words, eos="<eos>"):
    vocabulary = {word: index for index, word in enumerate(words) if word}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos, unk_token="<unk>")


def test_the_same_tokenizer_passes_and_a_padded_table_with_it():
    embedded = AutoTokenizer.from_pretrained(embedded_path())
    require_same_tokenizer(embedded, AutoTokenizer.from_pretrained(embedded_path()), len(embedded))
    require_same_tokenizer(embedded, embedded, len(embedded) + 128)


@pytest.mark.parametrize("words,told", [
    (["<unk>", "<eos>", "a", "c", "b"], r"draft model D has other tokens than T: id 3 is 'b' \(id 4 in the "
                                        r"other\) in T, and 'c' \(id 4 in the other\) in D"),
    (["<unk>", "<eos>", "a", "x", "c"], r"id 3 is 'b' \(not there at all in the other\) in T, and 'x'"),
    (["<unk>", "<eos>", "a", "b"], r"id 4 is 'c' .* in T, and no token in D"),
    ([*WORDS, "d"], r"id 5 is no token in T, and 'd' .* in D"),
])
def test_the_first_difference_is_named(words, told):
    with pytest.raises(ConfigError, match=told):
        require_same_tokenizer(_of(WORDS), _of(words), 9, ("T", "D"))


def test_another_end_of_text_and_too_few_embeddings():
    with pytest.raises(ConfigError, match="ends a text with id 4, T with 1"):
        require_same_tokenizer(_of(WORDS), _of(WORDS, eos="c"), 5, ("T", "D"))
    with pytest.raises(ConfigError, match=r"D has 4 embeddings, but its tokenizer has ids to 4 \('c'\)"):
        require_same_tokenizer(_of(WORDS), _of(WORDS), 4, ("T", "D"))


@pytest.mark.parametrize("size", [90, 150])
def test_tables_of_another_length_draft_nothing_that_the_target_lacks(size):
    """120 tokens in the target: some that the short table lacks, or some that only the long one has."""
    model, rng = tiny("llama"), np.random.default_rng(1)
    texts = [rng.integers(2, 120, n).astype(np.int32) for n in (5, 17, 9)]
    assert any((text >= 90).any() for text in texts)
    drafter = ModelDrafter(Target(tiny("llama", vocab_size=size), check=False), "4x2", vocabulary=120)
    results = write(Target(model), texts, drafter, nodes=12)
    assert_written(results, [generate(model, text) for text in texts])
