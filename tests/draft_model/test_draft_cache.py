"""The cache of a draft model while rows come, go, change slots and wait."""

import numpy as np
import pytest
import torch
from decode_models import VOCABULARY, generate, prompts, tiny, write

from dare_job.decode.draft.draft_cache import CachedDraftModel
from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gpt_neo"])
def test_logits_equal_those_of_whole_texts(name):
    """Some rows are read each time; the others have any number of unread tokens."""
    rng, target = np.random.default_rng(4), Target(tiny(name))
    model_cache, texts, rows = CachedDraftModel(target), {}, []
    for count in (1, 4, 3, 5, 2, 6, 6, 1, 4, 5, 5, 5):
        staying = [rows[n] for n in rng.permutation(len(rows))][:max(0, count - int(rng.integers(0, 3)))]
        fresh = [Request(len(texts) + n, rng.integers(2, VOCABULARY, int(length), dtype=np.int32))
                 for n, length in enumerate(rng.integers(1, 30, count - len(staying)))]
        for row in staying:
            more = rng.integers(2, VOCABULARY, int(rng.integers(1, 9)), dtype=np.int32)
            texts[row.id] = np.concatenate([texts[row.id], more])
        texts |= {row.id: row.prompt_ids for row in fresh}
        rows = [(staying + fresh)[n] for n in rng.permutation(count)]
        current = [texts[row.id] for row in rows]
        wanted = rng.random(count) < 0.7
        lengths = np.array([len(text) for text in current], np.int32)
        context = np.full((count, lengths.max() + int(rng.integers(0, 5))), 1, np.int32)
        for row, text in enumerate(current):
            context[row, : len(text)] = text
        found, logits = model_cache.read(tuple(rows), context, lengths, wanted)
        assert found.tolist() == np.flatnonzero(wanted).tolist()
        for row, vector in zip(found, logits, strict=True):
            assert torch.allclose(vector, _plain(target, current[row]), atol=2e-5)


def test_each_token_is_read_once_if_drafts_are_right():
    """A draft model that is always right reads the prompts, and then as many tokens as are generated."""
    texts, target, draft = prompts(), Target(tiny("llama")), Target(tiny("llama"))
    read, extend = [], draft.extend
    draft.extend = lambda cache, level: read.append(len(level.tokens)) or extend(cache, level)
    results = write(target, texts, ModelDrafter(draft, "1x1x1"), nodes=3, max_new_tokens=41)
    assert [results[i].target_steps for i in range(7)] == [10] * 7
    assert sum(read) == 7 * (10 * 4 - 2)  # the first step's two come with the prompt


def test_accepted_paths_of_wider_trees_stay_in_the_cache():
    """The next logits equal those of whole texts after the entries of siblings are removed."""
    rng, draft = np.random.default_rng(3), Target(tiny("qwen2-window"))
    rows = tuple(Request(i, text) for i, text in enumerate(prompts()[:4]))
    drafter = ModelDrafter(draft, "3x3x3")
    texts = [row.prompt_ids for row in rows]
    for _ in range(6):
        lengths = np.array([len(text) for text in texts], np.int32)
        context = np.zeros((4, lengths.max()), np.int32)
        for row, text in enumerate(texts):
            context[row, : len(text)] = text
        fours = np.full(4, 4, np.int32)
        _, logits = drafter.model.read(rows, context, lengths, np.ones(4, np.bool_))
        for text, vector in zip(texts, logits, strict=True):
            assert torch.allclose(vector, _plain(draft, text), atol=2e-5)
        found = drafter.draft(rows, context, lengths, 5 * fours, fours)
        for row in range(4):  # the path to some node, and a token of the target's own
            path, at = [int(rng.integers(2, VOCABULARY))], int(rng.integers(-1, found.sizes[row]))
            while at >= 0:
                path, at = [int(found.tokens[row, at]), *path], found.parents[row, at]
            texts[row] = np.concatenate((texts[row], np.array(path, np.int32)))
        order = rng.permutation(4)
        rows, texts = tuple(rows[n] for n in order), [texts[n] for n in order]


def test_a_changed_text_is_read_from_the_first_difference():
    """One request may be two rows, and a text may change: the tokens that were read are compared."""
    target = Target(tiny("llama"))
    model_cache, request = CachedDraftModel(target), Request(0, np.array([5], np.int32))
    both = np.ones(2, np.bool_)
    first = np.array([[5, 6, 7, 8, 9], [5, 6, 8, 8, 8]], np.int32)
    model_cache.read((request, request), first, np.array([5, 4], np.int32), both)
    second = np.array([[5, 6, 8, 8, 3], [5, 7, 7, 0, 0]], np.int32)
    lengths = np.array([5, 3], np.int32)
    _, logits = model_cache.read((request, request), second, lengths, both)
    for row, vector in enumerate(logits):
        assert torch.allclose(vector, _plain(target, second[row, : lengths[row]]), atol=2e-5)


def test_nonfinite_logits_draft_nothing_and_affect_no_other_row(job_log):
    texts, model = prompts()[:4], tiny("llama")
    expected = [generate(model, prompt) for prompt in texts]
    copy = tiny("llama")
    with torch.no_grad():
        copy.model.embed_tokens.weight[int(texts[1][2])] = torch.nan  # in the second prompt
    others = [row for row in range(4) if texts[1][2] not in (*texts[row], *expected[row])]
    assert len(others) >= 2
    results = write(Target(model), texts, ModelDrafter(Target(copy, check=False), "2x1x1"), nodes=7)
    assert all(np.array_equal(results[row].token_ids, text) for row, text in enumerate(expected))
    assert results[1].accepted_tokens == 0 and all(results[row].target_steps == 10 for row in others)
    assert sum("row 1: the draft model's logits are non-finite" in line for line in job_log) == 1


@pytest.mark.parametrize("batch_size", [1, 3])
def test_nonfinite_nodes_affect_no_later_row_of_the_slot(batch_size, job_log):
    """The draft model drafts a token whose embedding is NaN, after the prompt of the first row."""
    texts, model, copy = prompts(), tiny("llama"), tiny("llama")
    expected = [generate(model, prompt) for prompt in texts]
    bad = int(expected[0][6])
    assert bad not in (*texts[0], *expected[0][:6])
    with torch.no_grad():
        copy.model.embed_tokens.weight[bad] = torch.nan
    drafter = ModelDrafter(Target(copy, check=False), "1x1x1")
    results = write(Target(model), texts, drafter, nodes=3, batch_size=batch_size, max_new_tokens=41)
    clean = [row for row in range(7) if bad not in (*texts[row], *expected[row])]
    assert len(clean) >= 3 and all(np.array_equal(results[r].token_ids[:40], expected[r]) for r in range(7))
    assert all(results[row].target_steps == 10 for row in clean) and results[0].target_steps > 30
    assert {line.split(":")[0] for line in job_log} == {f"row {row}" for row in set(range(7)) - set(clean)}


@pytest.mark.parametrize("name", ["gpt2", "gpt_neo"])
def test_a_text_beyond_the_draft_models_positions_continues_without_drafts(name):
    """32 positions: two rows exceed them, the third does not."""
    model, texts = tiny("llama"), prompts((5, 17, 1))
    expected = [generate(model, prompt, max_new_tokens=25) for prompt in texts]
    short = dict(n_positions=32) if name == "gpt2" else dict(max_position_embeddings=32)
    drafter = ModelDrafter(Target(tiny(name, **short), check=False), "2x2")
    results = write(Target(model), texts, drafter, nodes=6, max_new_tokens=25)
    assert all(np.array_equal(results[row].token_ids, text) for row, text in enumerate(expected))


def _plain(target: Target, text: np.ndarray) -> torch.Tensor:
    with target.as_transformers() as model, torch.inference_mode():
        return model(input_ids=torch.from_numpy(text.astype(np.int64))[None]).logits[0, -1]
