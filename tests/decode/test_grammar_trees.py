"""Masks and drafts of grammars on random trees, and messages about what the library does not take."""

import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from chat_models import CHATML, tokenizer_with
from grammar_models import ENDS, TOKENIZER, VOCABULARY, allowed, generate, grammar, prompts
from transformers import PreTrainedTokenizerFast

from dare_job.config.settings import JobConfig
from dare_job.decode.engine.grammar import Grammar, TextParser, children_of, definition, token_table
from dare_job.decode.engine.grammar_drafts import constrain
from dare_job.decode.engine.grammar_masks import _forbid_tokens, _unpacked, forbid, verify_allowed
from dare_job.decode.model.tree import build
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify import verifier
from dare_job.decode.verify.penalty import PenaltyContext
from dare_job.decode.verify.result import longest_accepted
from dare_job.errors import ConfigError
from dare_job.inference.grammars import check_schema
from pools.tree import ROOT, DraftBatch, empty_drafts


def random_tree(rng, form: str, prefix: list[int], nodes: int) -> tuple[list[int], list[int]]:
    """A draft tree after a text, about half of whose tokens are allowed."""
    tokens, parents, paths = [], [], {ROOT: prefix}
    for node in range(nodes):
        parent = int(rng.integers(-1, node))
        path = paths[parent]
        choice = np.flatnonzero(allowed(form, path)) if path is not None and rng.random() < 0.7 else (
            np.arange(VOCABULARY))
        token = int(rng.choice(choice))
        siblings = {tokens[other] for other in range(node) if parents[other] == parent}
        if token in siblings:
            token = next(other for other in range(VOCABULARY) if other not in siblings)
        allows = path is not None and allowed(form, path)[token] and token not in ENDS
        tokens, parents = [*tokens, token], [*parents, parent]
        paths[node] = [*path, token] if allows else None
    return tokens, parents


def is_allowed(form, tokens, parents, node, prefix) -> bool:
    path, place = [], node
    while place != ROOT:
        path, place = [tokens[place], *path], parents[place]
    return all(allowed(form, prefix + path[:n])[token] for n, token in enumerate(path)
               ) and not set(path[:-1]) & set(ENDS)


@pytest.mark.parametrize("form", ["film", "tree", "regex", "choices"])
def test_masks_and_pruned_trees_are_those_of_each_path(form):
    """Masks of a parser that goes down and back again equal those of one that reads each path from its start;
    pruned trees keep exactly the allowed nodes, but for those beside forced tokens.
    """
    rng = np.random.default_rng(3)
    text, parser = generate(form, prompts()[0]), TextParser(grammar(form))
    for length in sorted({0, 1, len(text) // 3, len(text) // 2, len(text) - 2}):
        prefix = text[:length].tolist()
        parser.follow(text[:length].astype(np.int32))
        tokens, parents = random_tree(rng, form, prefix, 14)
        masks = np.full((15, grammar(form).words), -1, np.int32)
        parser.fill_masks(tokens, parents, masks)
        masks = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :VOCABULARY].astype(bool)
        assert np.array_equal(masks[0], allowed(form, prefix))
        for node in range(14):
            if tokens[node] in ENDS or not is_allowed(form, tokens, parents, node, prefix):
                continue
            path, place = [], node
            while place != ROOT:
                path, place = [tokens[place], *path], parents[place]
            assert np.array_equal(masks[node + 1], allowed(form, prefix + path))
        drafts = DraftBatch(*(np.array([part]) for part in (
            np.array(tokens, np.int32), np.array(parents, np.int32))), np.array([14], np.int32),
            np.linspace(1, 0.1, 14, dtype=np.float32)[None], np.ones((1, 14), np.uint8))
        kept = constrain(drafts, [parser], np.array([40]), np.array([20]))
        kept_tokens, kept_parents = kept.tokens[0].tolist(), kept.parents[0].tolist()
        assert all(is_allowed(form, kept_tokens, kept_parents, node, prefix) for node in range(kept.sizes[0]))
        assert all(parent < node for node, parent in enumerate(kept_parents))
        assert (np.diff(kept.scores[0]) <= 0).all()
        assert len(set(zip(kept_tokens, kept_parents, strict=True))) == kept.sizes[0]
        wanted = sum(is_allowed(form, tokens, parents, node, prefix) for node in range(14))
        from_drafts = kept.sources[0] == 1
        assert from_drafts.sum() == wanted
        few = constrain(drafts, [parser], np.array([3]), np.array([1]))
        assert few.sizes[0] <= 3 and (few.parents[0] == ROOT).all()


@pytest.mark.parametrize(("kind", "value"), [
    ("regex", "[a-z]{3}"), ("regex", "[a-z]{1,3}"), ("regex", r"[a-z]{1,9}\."), ("regex", "(yes|no)(, sir)?"),
    ("regex", "(ab|abc)"), ("regex", "drama"), ("choices", ["a", "ab", "abc"]),
    ("json", '{"type": "integer", "minimum": 1, "maximum": 99}'),
    ("json", '{"type": "string", "maxLength": 3}'), ("json", '{"enum": ["drama", "dramatic"]}')])
def test_the_end_is_forced_where_the_mask_has_nothing_else(kind, value):
    """Also right after the last character of a regular expression, and after drafts were read and left."""
    of_one_end = token_table(TOKENIZER, VOCABULARY, ENDS[:1])
    rng, made, ends = np.random.default_rng(1), Grammar(definition(kind, value), of_one_end), 0
    for _ in range(20):
        parser, text, only_end = TextParser(made), [], False
        while not only_end and len(text) < 12:
            mask = np.full((1, made.words), -1, np.int32)
            parser.fill_masks([], [], mask)
            allowed_ids = np.flatnonzero(_unpacked(torch.from_numpy(mask), VOCABULARY).numpy()[0])
            only_end = allowed_ids.tolist() == ENDS[:1]
            assert parser.forced_end() == (ENDS[0] if only_end else None)
            fresh = TextParser(made)
            fresh.follow(np.array(text, np.int32))
            assert fresh.forced_end() == parser.forced_end()
            more = [int(token) for token in allowed_ids if token != ENDS[0]]
            for _ in parser.visit(more[:5], children_of([ROOT] * len(more[:5]))):
                pass
            assert parser.forced_end() == fresh.forced_end()
            text += [int(rng.choice(more))] if more else []
            parser.follow(np.array(text, np.int32))
        ends += only_end
    assert ends >= 5


def three_trees(rng, form, text) -> tuple:
    """Trees after a text, scores of their nodes that tend to accept drafts, and parsers of two of them."""
    rows = [random_tree(rng, form, text.tolist(), 14) for _ in range(3)]
    tokens, parents = (np.array(part, np.int32) for part in zip(*rows, strict=True))
    drafts = DraftBatch(tokens, parents, np.full(3, 14, np.int32), np.ones((3, 14), np.float32),
                        np.ones((3, 14), np.uint8))
    tree = build(np.full(3, prompts()[0][-1]), drafts, np.full(3, 14))
    scores = rng.normal(size=(len(tree), VOCABULARY)).astype(np.float32)
    scores[tree.host[1], tree.host[0]] += 3 * rng.random(len(tree), np.float32)
    parsers = [TextParser(grammar(form)), None, TextParser(grammar(form))]
    for parser in (parsers[0], parsers[2]):
        parser.follow(text)
    return tree, scores, parsers


@pytest.mark.parametrize("penalty", [1.0, 1.4, 0.7])
def test_the_strict_rule_needs_masks_only_where_the_argmax_is_forbidden(penalty):
    """The result is that of the masks of all nodes; the scores stay after nodes whose argmax is allowed, and
    after those that the rule does not visit.
    """
    rng, whole, accepted = np.random.default_rng(8), generate("film", prompts()[0]), 0
    saved, verify = 0, verifier(EngineSettings(), torch.tensor(ENDS))
    for length in range(1, len(whole) - 1, 7):
        tree, drawn, parsers = three_trees(rng, "film", whole[:length])
        context, results = np.tile(whole[:length].astype(np.int32), (3, 1)), []
        for on_path in (False, True):
            of_text = PenaltyContext(context, np.full(3, length), np.zeros(VOCABULARY + 1, np.int64), penalty)
            scores = torch.from_numpy(drawn.copy())
            if on_path:
                result = longest_accepted(tree, verify_allowed(scores, tree, parsers, of_text))
            else:
                forbid(scores, tree, parsers)
                result = verify(scores, tree, None, of_text)
            masked = (scores.numpy() != drawn).any(1)
            counts, _, tokens, *_ = result
            results.append([line[: count + 1].tolist() for line, count in zip(tokens, counts, strict=True)])
            assert result.finite.all() and result.all_finite
        assert results[0] == results[1]
        for row, (*drafted, _) in enumerate(results[0]):
            visited = 0 if row == 1 else 1 + len(drafted) - bool({*drafted} & {*ENDS})
            needed = masked[tree.starts[row] : tree.starts[row + 1]].sum()
            assert needed <= visited
            saved += visited - needed
            accepted += len(drafted)
    assert accepted > 20 and saved > 0


@pytest.mark.parametrize("form", ["film", "tree", "regex", "choices"])
def test_a_token_is_allowed_without_a_mask_where_the_mask_has_it(form):
    """End-of-text tokens aside, for which a mask is needed; also where tokens are forced."""
    text, parser, forced = generate(form, prompts()[0]), TextParser(grammar(form)), 0
    for length in range(len(text)):
        parser.follow(text[:length].astype(np.int32))
        in_mask = allowed(form, text[:length].tolist())
        in_mask[ENDS] = False
        assert [parser.allows(token) for token in range(VOCABULARY)] == in_mask.tolist()
        assert not parser.allows(VOCABULARY)
        forced += in_mask.sum() == 1
    assert forced


@pytest.mark.parametrize("columns", [1, 31, 64, 70, 96, 120])
def test_compiled_masks_are_those_of_numpy(columns):
    """Tokens that the masks do not have stay, in vocabularies of any size."""
    rng = np.random.default_rng(1)
    masks = rng.integers(-2**31, 2**31, (4, 3)).astype(np.int32)
    masks[1], masks[2, 0], masks[3] = -1, -1, 0
    scores = rng.normal(size=(4, columns)).astype(np.float32)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :columns].astype(bool)
    bits = np.pad(bits, ((0, 0), (0, columns - bits.shape[1])), constant_values=True)
    expected = np.where(bits, scores, np.float32(-np.inf))
    _forbid_tokens(masks, scores)
    assert np.array_equal(scores, expected)


def test_bits_of_masks_are_unpacked_on_devices_as_by_numpy():
    words = np.random.default_rng(0).integers(-2**31, 2**31, (5, 7)).astype(np.int32)
    expected = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)
    for columns in (1, 33, 224):
        assert np.array_equal(_unpacked(torch.from_numpy(words), columns).numpy(), expected[:, :columns])


def test_scores_without_a_grammar_stay():
    tree = build(np.array([3, 4]), empty_drafts(2), np.array([0, 0]))
    scores = torch.zeros(2, VOCABULARY)
    forbid(scores, tree, [None, None])
    assert (scores == 0).all()
    forbid(scores, tree, [None, TextParser(grammar("choices"))])
    assert (scores[0] == 0).all() and np.array_equal(scores[1] == 0, allowed("choices", []))


@pytest.mark.parametrize(("kind", "value", "message"), [
    ("json", '{"type": "strin"}', "strin"), ("json", '{"type": "string", "format": "iri"}', "iri"),
    ("json", '{"not": {}}', "not"), ("regex", "(a", "regex|unclosed|parenthes")])
def test_what_the_library_does_not_take_is_refused_in_its_words(kind, value, message):
    with pytest.raises(ConfigError, match=message):
        definition(kind, value)


def test_a_tokenizer_without_bytes_is_refused():
    from tokenizers import Tokenizer, models

    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(ConfigError, match="llguidance does not support this model's tokenizer"):
        token_table(words)


@pytest.mark.parametrize(("prompt_end", "refused"), [
    ("", False), ("<think>\n", True), ("<think>\n\n</think>\n\n", False),
    ("<|channel|>analysis<|message|>", True), ("<|channel|>final<|message|>", False)])
def test_a_chat_template_that_opens_a_thinking_block_is_refused(tmp_path, prompt_end, refused):
    template = CHATML.replace("assistant\n{% endif %}", f"assistant\n{prompt_end}{{% endif %}}")
    tokenizer_with(template).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    config = JobConfig.model_validate({"decode": {"schema": {"choices": ["drama", "comedy"]}}})
    with pytest.raises(ConfigError, match="opens a thinking block") if refused else nullcontext():
        check_schema(config, lambda: tmp_path)


def test_the_engine_needs_no_library_and_a_grammar_names_the_extra():
    code = ("import sys; sys.modules['llguidance'] = None\n"
            "from dare_job.decode.engine import engine, grammar\n"
            "from dare_job.errors import ConfigError\n"
            "try: grammar.definition('regex', 'a')\n"
            "except ConfigError as error: print(error)\n")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "decode.schema needs the package llguidance" in found and "EXTRAS=schema" in found
