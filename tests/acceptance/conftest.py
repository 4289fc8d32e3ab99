"""A target and a draft model of six words with their texts; the helpers of other tests."""

import json
import sys
from pathlib import Path

import pytest

for _name in ("decode", "sampling"):
    sys.path.append(str(Path(__file__).parents[1] / _name))

from acceptance_models import TEXTS, WORDS, tokenizer  # noqa: E402
from decode_models import tiny  # noqa: E402


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Return folders of a target, a draft model, and a model with another tokenizer."""
    root = tmp_path_factory.mktemp("models")
    others = (*WORDS[:4], "d", "c")
    for name, seed, words in (("target", 0, WORDS), ("draft", 1, WORDS), ("other", 1, others)):
        tiny("llama", seed, vocab_size=len(words)).save_pretrained(root / name)
        tokenizer(words).save_pretrained(root / name)
    return root


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rows = [{"prompt": prompt, "knowledge": text} for prompt, text in TEXTS]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path
