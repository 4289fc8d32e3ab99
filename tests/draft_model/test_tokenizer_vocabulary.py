"""A draft model with another vocabulary is refused with the first difference."""

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


def _tokenizer(words, eos="<eos>"):
    vocabulary = {word: index for index, word in enumerate(words) if word}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos, unk_token="<unk>")


def test_the_same_tokenizer_passes_also_with_a_padded_table():
    embedded = AutoTokenizer.from_pretrained(embedded_path())
    again = AutoTokenizer.from_pretrained(embedded_path())
    for size in (len(embedded), len(embedded) + 128):
        assert require_same_tokenizer(embedded, again, size) is None
    with pytest.raises(ConfigError, match="embeddings, but its tokenizer has ids up to"):
        require_same_tokenizer(embedded, again, len(embedded) - 1)


@pytest.mark.parametrize("words,message", [
    (["<unk>", "<eos>", "a", "c", "b"], r"draft model D has another vocabulary than T: id 3 is 'b' \(id 4 "
                                        r"in the other\) in T, and 'c' \(id 4 in the other\) in D"),
    (["<unk>", "<eos>", "a", "x", "c"], r"id 3 is 'b' \(absent in the other\) in T, and 'x'"),
    (["<unk>", "<eos>", "a", "b"], r"id 4 is 'c' .* in T, and no token in D"),
    ([*WORDS, "d"], r"id 5 is no token in T, and 'd' .* in D"),
])
def test_the_first_difference_is_named(words, message):
    with pytest.raises(ConfigError, match=message):
        require_same_tokenizer(_tokenizer(WORDS), _tokenizer(words), 9, ("T", "D"))


def test_another_end_of_text_and_too_few_embeddings():
    with pytest.raises(ConfigError, match="has the end-of-text id 4, T has 1"):
        require_same_tokenizer(_tokenizer(WORDS), _tokenizer(WORDS, eos="c"), 5, ("T", "D"))
    with pytest.raises(ConfigError, match=r"D has 4 embeddings, but its tokenizer has ids up to 4 \('c'\)"):
        require_same_tokenizer(_tokenizer(WORDS), _tokenizer(WORDS), 4, ("T", "D"))


@pytest.mark.parametrize("size", [90, 150])
def test_padded_tables_draft_only_tokens_of_the_target(size):
    """The target has 120 tokens: the short table lacks some of them, the long table has more."""
    model, rng = tiny("llama"), np.random.default_rng(1)
    texts = [rng.integers(2, 120, n).astype(np.int32) for n in (5, 17, 9)]
    assert any((text >= 90).any() for text in texts)
    drafter = ModelDrafter(Target(tiny("llama", vocab_size=size), check=False), "4x2", vocabulary=120)
    results = write(Target(model), texts, drafter, nodes=12)
    assert_written(results, [generate(model, text) for text in texts])
