"""Models of six words, and the texts that they read."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

TEXTS = (("a b", "c c a d"), (None, "d b b"), ("c", "a b d a"))  # prompt, text
WORDS = ("<s>", "</s>", "a", "b", "c", "d")


def tokenizer(words=WORDS):
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="d"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
