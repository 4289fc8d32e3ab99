"""What is published of an answer, and where an answer ends."""

import types

import pytest
from chat_models import CHATML, TEMPLATES, tokenizer_with

from dare_job.decode.prompt import answers
from dare_job.decode.prompt.answers import add_end_of_turn, end_of_turn
from dare_job.decode.prompt.template import THINKING_TAGS, PromptFormat, Renderer

TOKENIZER = tokenizer_with(CHATML)


def answer(text: str, opened: bool = False) -> str | None:
    return answers.answer(TOKENIZER, TOKENIZER(text)["input_ids"], opened)


@pytest.mark.parametrize(("text", "opened", "expected"), [
    ("Likes noir.<|im_end|>", False, "Likes noir."),
    ("<think>Well, Heat.</think>Likes noir.<|im_end|>", False, "Likes noir."),
    ("Well, Heat.</think>\nLikes noir.", True, "\nLikes noir."),
    ("Well, Heat.</think>\nLikes noir.", False, "\nLikes noir."),
    ("<think>a</think>b<think>c</think>d", False, "d"),
    ("<think>Well, Heat.", False, None),
    ("Well, Heat.", True, None),
    ("<think>a</think>b<think>c", False, None),
    ("<thinking>Well.</thinking>Likes noir.", False, "Likes noir."),
    ("[THINK]Well.[/THINK]Likes noir.", False, "Likes noir."),
    ("[THINK]Well.", False, None),
    ("<think></think>", False, ""),
])
def test_the_text_after_the_thinking_block_is_the_answer(text, opened, expected):
    assert answer(text, opened) == expected


def test_tags_that_decoding_leaves_out_are_found():
    """In some tokenizers the tags are special tokens."""
    tokenizer = tokenizer_with(CHATML)
    tokenizer.add_tokens(["<thinking>", "</thinking>"], special_tokens=True)
    for text, expected in (("<thinking>Well.</thinking>Noir.", "Noir."), ("<thinking>Well.", None)):
        ids = tokenizer(text)["input_ids"]
        assert "<thinking>" not in tokenizer.decode(ids, skip_special_tokens=True)
        assert answers.answer(tokenizer, ids, False) == expected


CHANNELS = ("<|channel|>", "<|channel|>final<|message|>")
PAIRS = [pair for pair in THINKING_TAGS if pair != CHANNELS]


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_the_thinking_block_of_every_family_is_cut(pair, special):
    """Its tags are special tokens, other added tokens, or ordinary text (None)."""
    tokenizer, (opening, closing) = tokenizer_with(CHATML), pair
    if special is not None:
        tokenizer.add_tokens(list(pair), special_tokens=special)
    for text, opened, expected in (
            (f"{opening}Well, Heat.{closing}\nLikes noir.<|im_end|>", False, "\nLikes noir."),
            (f"Well, Heat.{closing}Likes noir.", True, "Likes noir."), ("Well, Heat.", True, None),
            (f"{opening}Well, Heat.", False, None), (f"{opening}a{closing}b{opening}c", False, None)):
        ids = tokenizer(text)["input_ids"]
        assert (opening in tokenizer.decode(ids, skip_special_tokens=True)) == (
            opening in text and not special)
        assert answers.answer(tokenizer, ids, opened) == expected


ANALYSIS = "<|channel|>analysis<|message|>We need to describe the viewer.<|end|>"
COMMENTARY = "<|start|>assistant<|channel|>commentary<|message|>Now I write."
FINAL = "<|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("text", "opened", "expected"), [
    (f"{ANALYSIS}{FINAL}Likes noir.", False, "Likes noir."),
    (f"{ANALYSIS}{COMMENTARY}<|end|>{FINAL}Likes noir.", False, "Likes noir."),
    (f"We need to.<|end|>{FINAL}Likes noir.", True, "Likes noir."),
    ("<|channel|>final<|message|>Likes noir.", False, "Likes noir."), ("Likes noir.", False, "Likes noir."),
    (ANALYSIS, False, None), (f"{ANALYSIS}{COMMENTARY}", False, None), ("We need to", True, None),
    ("<|channel|>ana", False, None), (f"{ANALYSIS}<|start|>assistant<|channel|>final", False, None),
    (f"{FINAL}Likes noir.<|end|><|start|>assistant{ANALYSIS}", False, None)])
def test_only_the_final_channel_is_the_answer(text, opened, expected, special):
    """If the tokens of channels are special, decoding leaves "analysisWe need to describe"."""
    tokenizer = tokenizer_with(CHATML)
    if special:
        tokenizer.add_tokens(["<|channel|>", "<|message|>", "<|start|>", "<|end|>"], special_tokens=True)
    assert answers.answer(tokenizer, tokenizer(text)["input_ids"], opened) == expected


@pytest.mark.parametrize(("prompt_end", "opened"), [
    ("<|start|>assistant<|channel|>analysis<|message|>", True), (FINAL, False), ("<|start|>assistant", False),
    ("<seed:think>", True), ("<seed:think></seed:think>", False), ("<|START_THINKING|>", True),
    ("<|START_THINKING|><|END_THINKING|>", False), ("<|channel>thought\n<channel|>", False)])
def test_a_template_opens_the_thinking_block_of_any_family(prompt_end, opened):
    template = CHATML.replace("assistant\n{% endif %}", f"assistant\n{prompt_end}{{% endif %}}")
    assert Renderer(tokenizer_with(template), PromptFormat()).opens_thinking == opened


@pytest.mark.parametrize(("name", "expected"), [
    ("chatml", "<|im_end|>"), ("reasoning", "<|im_end|>"), ("dated", "<|eot|>"), ("no system", "</turn>"),
    ("without ends", None)])
def test_the_template_says_where_an_answer_ends(name, expected):
    tokenizer = tokenizer_with(TEMPLATES[name])
    token = end_of_turn(tokenizer, PromptFormat())
    assert token == (expected and tokenizer.convert_tokens_to_ids(expected))
    assert end_of_turn(tokenizer, PromptFormat("never")) is None


@pytest.mark.parametrize("ends", [None, 2, [2, 3]])
def test_a_missing_end_of_turn_is_added_once_and_named(ends):
    config, token = types.SimpleNamespace(eos_token_id=ends), TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    warning = add_end_of_turn(config, TOKENIZER, PromptFormat())
    assert f"<|im_end|> (token {token})" in warning and "generation_config.json" in warning
    assert config.eos_token_id == [*([] if ends is None else [ends] if ends == 2 else ends), token]
    assert add_end_of_turn(config, TOKENIZER, PromptFormat()) is None
    config = types.SimpleNamespace(eos_token_id=token)
    assert add_end_of_turn(config, TOKENIZER, PromptFormat()) is None and config.eos_token_id == token
