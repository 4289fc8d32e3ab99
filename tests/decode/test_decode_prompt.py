"""Tokenization of prompts, with and without a chat template."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from dare_job.decode.prompt.template import PromptFormat
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.errors import ConfigError

WORDS = ["[UNK]", "<s>", "<user>", "<model>", "tell", "me", "more"]


@pytest.fixture
def tokenizer():
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", bos_token="<s>")


def test_bare_text(tokenizer):
    for how in ("auto", "never"):
        assert prompt_ids(tokenizer, "tell me more", PromptFormat(how)).tolist() == [1, 4, 5, 6]
    with pytest.raises(ConfigError, match="no|none"):
        prompt_ids(tokenizer, "tell me", PromptFormat("always"))


def test_chat_template_adds_its_own_special_tokens(tokenizer):
    tokenizer.chat_template = (
        "{{ bos_token }} {% for m in messages %}<user> {{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}<model>{% endif %}"
    )
    for how in ("auto", "always"):
        assert prompt_ids(tokenizer, "tell me", PromptFormat(how)).tolist() == [1, 2, 4, 5, 3]
    assert prompt_ids(tokenizer, "tell me", PromptFormat("never")).tolist() == [1, 4, 5]
    with pytest.raises(ConfigError, match="sometimes"):
        prompt_ids(tokenizer, "tell me", PromptFormat("sometimes"))
