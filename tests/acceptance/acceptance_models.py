"""Models of six words, the texts that they read, and the command."""

import json

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from dare_job.cli import app

TEXTS = (("a b", "c c a d"), (None, "d b b"), ("c", "a b d a"))  # prompt, text
WORDS = ("<s>", "</s>", "a", "b", "c", "d")


def tokenizer(words=WORDS):
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="d"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def run(*arguments):
    return CliRunner().invoke(app, ["lab", "acceptance", *map(str, arguments)])


def last(*arguments) -> dict:
    """Return the last line's JSON."""
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])
