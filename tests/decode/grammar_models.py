"""A small model over bytes, forms of texts, and what ``generate`` writes in these forms."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from chat_models import tokenizer_with
from decode_models import ARCHITECTURES, tiny

llguidance = pytest.importorskip("llguidance", reason="grammars need the package llguidance (extra schema)")

from transformers import LogitsProcessor  # noqa: E402

from dare_job.decode.engine.grammar import Grammar, definition, token_table  # noqa: E402
from dare_job.decode.model.target import Target  # noqa: E402

TOKENIZER = tokenizer_with(None)
NEW = 120
VOCABULARY = len(TOKENIZER) + 9  # the last tokens have no text
ENDS = [TOKENIZER.convert_tokens_to_ids("<|im_end|>"), TOKENIZER.convert_tokens_to_ids("<|endoftext|>")]
FILM = json.dumps({
    "type": "object", "additionalProperties": False, "required": ["title", "year", "genres", "seen"],
    "properties": {
        "title": {"type": "string", "maxLength": 9}, "year": {"type": "integer", "minimum": 1900,
                                                              "maximum": 2030},
        "genres": {"type": "array", "minItems": 1, "maxItems": 3,
                   "items": {"enum": ["drama", "dramatic", "science fiction", "comédie"]}},
        "seen": {"type": "boolean"}, "note": {"type": ["string", "null"], "maxLength": 3}}})
TREE = json.dumps({"$ref": "#/$defs/node", "$defs": {"node": {
    "type": "object", "additionalProperties": False, "required": ["name"],
    "properties": {"name": {"type": "string", "pattern": "^[a-z]{1,3}$"},
                   "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}}}})
FORMS = {
    "film": ("json", FILM), "tree": ("json", TREE),
    "loop": ("json", '{"type": "array", "items": {"const": "drama"}, "minItems": 60}'),
    "regex": ("regex", r"(yes|no|maybe), because [a-z ]{3,12}\."),
    "choices": ("choices", ["drama", "dramatic irony", "comédie \"x\"", "科幻"]),
}


@cache
def table(ends=tuple(ENDS)):
    return token_table(TOKENIZER, VOCABULARY, ends)


@cache
def grammar(form: str, ends=tuple(ENDS)) -> Grammar:
    return Grammar(definition(*FORMS[form]), table(ends))


def model(name: str = "llama", among=ARCHITECTURES, ends=ENDS, seed: int = 0):
    made = tiny(name, seed, among=among, vocab_size=VOCABULARY)
    made.generation_config.eos_token_id = list(ends)
    return made


@cache
def target() -> Target:
    return Target(model(), check=False)


def allowed(form: str, tokens, ends=tuple(ENDS)) -> np.ndarray:
    """Which tokens may follow a text, bool (V,), by a parser that reads it from its start."""
    matcher = llguidance.LLMatcher(table(ends), definition(*FORMS[form]), log_level=0)
    assert not len(tokens) or matcher.consume_tokens([int(token) for token in tokens]), matcher.get_error()
    words = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return np.unpackbits(words, bitorder="little")[:VOCABULARY].astype(bool)


class ByTheLibrary(LogitsProcessor):
    """The reference: each prefix is parsed from its start."""

    def __init__(self, form: str, prompt: int, ends=tuple(ENDS)):
        self._form, self._prompt, self._ends = form, prompt, ends

    def __call__(self, input_ids, scores):
        for row, text in enumerate(input_ids[:, self._prompt:].tolist()):
            if not set(text) & set(self._ends):
                mask = torch.from_numpy(allowed(self._form, text, self._ends))
                scores[row, ~mask] = -torch.inf
        return scores


def generate(form: str, prompt: np.ndarray, of=None, ends=tuple(ENDS), **options) -> np.ndarray:
    """The greedy text of transformers in a form."""
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    with torch.inference_mode(), (of or target()).as_transformers() as made:
        out = made.generate(ids, **{
            "attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False,
            "pad_token_id": 0, "logits_processor": [ByTheLibrary(form, len(prompt), ends)], **options})
    return out[0, len(prompt):].numpy()


def prompts(lengths=(4, 9, 5, 12, 7, 3)) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(20, 300, size).astype(np.int32) for size in lengths]
