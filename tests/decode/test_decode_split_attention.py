"""Attention over pages against attention with a mask as wide as the texts, and the pages of rows."""

import numpy as np
import pytest
import torch
from decode_models import assert_written, generate, oracle, prompts, tiny, write

from dare_job.decode.engine.latency import chains
from dare_job.decode.model import failures, tree_attention
from dare_job.decode.model import target as model_target
from dare_job.decode.model.masks import level_of_trees
from dare_job.decode.model.paged import attention
from dare_job.decode.model.paged.attention import text_attention
from dare_job.decode.model.paged.forward import PagedForward
from dare_job.decode.model.paged.pool import PAGE, PagedCache
from dare_job.decode.model.target import Target

HEADS, GROUPS, DIM, WIDTH = 4, 2, 8, 6  # WIDTH: of a value
SHAPES = [(2, 4, 6), None, (2, 4, 6)]


def pool(rng, pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of a pool whose spare page is NaN."""
    keys, values = (torch.from_numpy(rng.standard_normal((pages * PAGE, GROUPS, dim), np.float32))
                    for dim in (DIM, WIDTH))
    keys[:PAGE] = values[:PAGE] = torch.nan
    return keys, values


@pytest.mark.parametrize(("causal", "window", "hidden"), [
    (False, 0, False), (False, 0, True), (True, 0, False), (True, 5, False), (True, 0, True)])
def test_text_attention_is_softmax_over_the_row_s_own_columns(causal, window, hidden):
    """Rows with no query, no text, and a text that ends on the border of a page; padding at the end."""
    rng = np.random.default_rng(0)
    keys, values = pool(rng, 6)
    counts, lengths = np.array([3, 0, 4, 2, 1]), np.array([40, 9, PAGE + 7, PAGE, 0])
    table = np.array([[3, 0], [0, 0], [5, 1], [2, 0], [0, 0]], np.int32)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    query = torch.from_numpy(rng.standard_normal((starts[-1], HEADS, DIM), np.float32))
    low = torch.from_numpy(rng.integers(0, 30, len(query))) if hidden else None
    out, lse = text_attention(
        query, keys, values, *map(torch.from_numpy, (starts, lengths.astype(np.int32), table)), low, 0.5,
        causal, window, int(counts.max()))
    for row, (start, end) in enumerate(zip(starts, starts[1:], strict=False)):
        columns = np.arange(lengths[row])
        lines = torch.from_numpy(table[row, columns // PAGE].astype(np.int64) * PAGE + columns % PAGE)
        for place, t in enumerate(range(start, end)):
            last = lengths[row] - (end - start) + place if causal else lengths[row]
            seen = (columns <= last) & (columns > last - window if window else True)
            seen &= columns >= (low[t].item() if hidden else 0)
            for head in range(HEADS):
                own, group = lines[torch.from_numpy(seen)], head * GROUPS // HEADS
                scores = 0.5 * keys[own, group] @ query[t, head]
                assert torch.allclose(lse[t, head], scores.logsumexp(0), atol=1e-5)
                assert torch.allclose(out[t, head], scores.softmax(0) @ values[own, group], atol=1e-5)


def test_the_shapes_of_text_attention_need_no_values():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        keys, values = torch.empty(2 * PAGE, GROUPS, DIM), torch.empty(2 * PAGE, GROUPS, WIDTH)
        query, starts = torch.empty(5, HEADS, DIM, dtype=torch.bfloat16), torch.empty(3, dtype=torch.int32)
        table = torch.empty(2, 1, dtype=torch.int32)
        out, lse = text_attention(query, keys, values, starts, starts[1:], table, None, 1.0, False, 0, 3)
    assert out.shape == (5, HEADS, WIDTH) and out.dtype == torch.bfloat16
    assert lse.shape == (5, HEADS) and lse.dtype == torch.float32


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("row_by_row", [True, False])
def test_plain_attention_copies_only_pages_in_the_window(causal, row_by_row, monkeypatch):
    """Other pages are NaN; rows are attended to alone or together."""
    rng, window = np.random.default_rng(0), 70
    keys, values = pool(rng, 30)
    counts, lengths = np.array([3, 0, 4, 2]), np.array([5 * PAGE + 40, 9, 6 * PAGE, 2 * PAGE + 1])
    table = rng.permutation(np.arange(1, 29)).reshape(4, 7).astype(np.int32)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    query = torch.from_numpy(rng.standard_normal((starts[-1], HEADS, DIM), np.float32))
    low = np.repeat(lengths, counts) - window + rng.integers(3, 20, len(query))
    tensors = query, *map(torch.from_numpy, (starts, lengths.astype(np.int32), table, low))

    def attend(window):
        return attention._plain(tensors[0], keys, values, *tensors[1:], 0.5, causal, window, 4)

    expected = attend(0)
    for row, length in enumerate(lengths):
        for page in table[row, : max(0, (length - window)) // PAGE]:
            keys[page * PAGE : (page + 1) * PAGE] = values[page * PAGE : (page + 1) * PAGE] = torch.nan
    if row_by_row:
        monkeypatch.setattr(attention, "_PLAIN_BYTES", 1)
    gathered = []
    attend_rows = attention._attend_rows
    monkeypatch.setattr(attention, "_attend_rows", lambda *args: (
        gathered.append(args[1].shape[:2]), attend_rows(*args))[1])
    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(attend(window), expected, strict=True))
    assert gathered == ([(1, 2 * PAGE)] * 4 if row_by_row else [(4, 2 * PAGE)])


class FlashKernel:
    """What flash attention 2 computes, by its documentation: ``varlen_attn``, or the operator below it."""

    def varlen_attn(self, query, keys, values, starts, ends, max_q, max_k, *, return_aux, scale, window_size,
                    enable_gqa, seqused_k, block_table, num_splits):
        assert num_splits == 1 and enable_gqa == (query.shape[1] != keys.shape[2])
        texts = [[x[pages.long()].flatten(0, 1)[:length] for x in (keys, values)]
                 for pages, length in zip(block_table, seqused_k, strict=True)]
        return self._attend(query, texts, starts, max_q, scale, *window_size)

    def operator(self, query, keys, values, starts, begins, max_q, max_k, dropout, causal, debug, *, scale,
                 window_size_left, window_size_right, seqused_k):
        assert begins.dtype == torch.int32 and len(begins) == len(starts) and not dropout and not debug
        texts = [[x[begin : begin + length] for x in (keys, values)]
                 for begin, length in zip(begins, seqused_k, strict=False)]
        left, right = (-1 if x is None else x for x in (window_size_left, window_size_right))
        out, lse = self._attend(query, texts, starts, max_q, scale, left, 0 if causal else right)
        return out, lse, None, None, None

    def _attend(self, query, texts, starts, max_q, scale, left, right):
        assert starts.dtype == torch.int32 and (starts[1:] - starts[:-1]).max() <= max_q
        out, lse = torch.zeros_like(query), torch.full(query.shape[:2][::-1], torch.inf)
        for (keys, values), start, end in zip(texts, starts[:-1], starts[1:], strict=True):
            times = query.shape[1] // keys.shape[1]
            scores = scale * torch.einsum("qhd,khd->hqk", query[start:end], keys.repeat_interleave(times, 1))
            last = torch.arange(end - start)[:, None] + len(keys) - (end - start)
            column = torch.arange(len(keys))
            hidden = (column > last + (right if right >= 0 else len(keys) + len(last)))
            hidden |= column < last - (left if left >= 0 else len(keys) + len(last))
            scores = scores.masked_fill(hidden, -torch.inf)
            if len(keys):
                lse[:, start:end] = scores.logsumexp(-1)
                out[start:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1),
                                              values.repeat_interleave(times, 1))
        return out, lse


@pytest.mark.parametrize("reads_pages", [True, False])
@pytest.mark.parametrize(("causal", "window"), [(False, 0), (True, 0), (True, 5)])
def test_flash_attention_is_given_what_plain_attention_computes(causal, window, reads_pages, monkeypatch):
    """Grouped heads, rows without queries or text, texts that end within and at the end of a page."""
    kernel, rng = FlashKernel(), np.random.default_rng(0)
    monkeypatch.setattr(attention, "READS_PAGES", reads_pages)
    monkeypatch.setattr(attention.varlen, "varlen_attn", kernel.varlen_attn)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", kernel.operator)
    keys, values = torch.from_numpy(rng.standard_normal((2, 8 * PAGE, GROUPS, DIM), np.float32))
    counts, lengths = np.array([3, 0, 4, 2, 1]), np.array([40, 9, PAGE + 7, PAGE, 0])
    table = np.array([[7, 0], [1, 0], [5, 6], [2, 0], [0, 0]], np.int32)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    query = torch.from_numpy(rng.standard_normal((starts[-1], HEADS, DIM), np.float32))
    tensors = query, keys, values, *map(torch.from_numpy, (starts, lengths.astype(np.int32), table))
    expected, expected_lse = attention._plain(*tensors, None, 0.5, causal, window, 4)
    out, lse = attention._flash(*tensors, 0.5, causal, window, 4)
    own = slice(starts[-2])  # the last row has no text
    assert torch.allclose(out[own], expected[own], atol=1e-5)
    assert torch.allclose(lse[own], expected_lse[own], atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_flash_attention_without_a_table_is_an_operator_of_torch(causal, monkeypatch):
    monkeypatch.setattr(attention, "READS_PAGES", False)
    query, keys = (torch.empty(tokens, heads, DIM, dtype=torch.bfloat16, device="meta")
                   for tokens, heads in ((12, HEADS), (3 * PAGE, GROUPS)))
    starts, lengths = (torch.empty(rows, dtype=torch.int32, device="meta") for rows in (5, 4))
    table = torch.empty(4, 2, dtype=torch.int32, device="meta")
    out, lse = attention._flash(query, keys, keys, starts, lengths, table, 1.0, causal, 0, 3)
    assert out.shape == query.shape and lse.shape == query.shape[:2] and lse.dtype == torch.float32


def test_padding_is_finite_where_attention_leaves_it_undefined(monkeypatch):
    """Not that its output is used: a quantized layer may scale all queries by the largest value."""
    target, rng = Target(tiny("llama"), paged=True), np.random.default_rng(0)

    def undefined(query, keys, values, starts, *rest):
        out, lse = text_attention(query, keys, values, starts, *rest)
        out[starts[-2] :] = lse[starts[-2] :] = torch.nan
        return out, lse

    cache, lengths = target.new_cache(8), np.full(3, 9)
    target.prefill(cache, np.arange(3), rng.integers(0, 50, (3, 9)), lengths)
    monkeypatch.setattr(attention, "text_attention", undefined)
    logits = target.paged.level(cache, level_of_trees(chains(3, 7), lengths))
    assert len(logits) == 24 and logits.isfinite().all()


def filled(slots: int, limit: int | None = None, contiguous: bool = False) -> PagedCache:
    return PagedCache(SHAPES, slots, torch.float32, "cpu", limit, contiguous)


@torch.inference_mode()
def put(cache: PagedCache, slot: int, start: int, values: torch.Tensor) -> None:
    """Write keys (1, 2, T, 4) of layer 0, and what follows from them as values and of layer 2."""
    cache.require([slot], [start + values.shape[2]])
    cache.begin(torch.from_numpy(cache.lines(slot, start, start + values.shape[2])))
    for layer in (0, 2):
        cache.update(values + layer, torch.nn.functional.pad(values, (0, 2)) - layer, layer)


def test_rows_keep_their_entries_when_they_move_and_the_pool_grows():
    rng, cache = np.random.default_rng(1), filled(3)
    texts = [torch.from_numpy(rng.standard_normal((1, 2, length, 4), np.float32))
             for length in (9, PAGE + 3, 30)]
    for slot, text in enumerate(texts):
        put(cache, slot, 0, text)
    before = [cache.entries(slot, text.shape[2]) for slot, text in enumerate(texts)]
    assert cache.pages >= 5 and torch.equal(before[1][0][0], texts[1][0])
    cache.release(0)
    cache.move_slot(1, 0, PAGE + 3)
    cache.hold(2, 9 * PAGE)
    for slot, place in ((0, 1), (2, 2)):
        assert all(map(torch.equal, cache.entries(slot, texts[place].shape[2]), before[place]))
    cache.copy_slots([0], [1], PAGE + 1)
    cache.clear(0, 5)
    assert all(torch.equal(ours, other[:, :, : PAGE + 1])
               for ours, other in zip(cache.entries(1, PAGE + 1), before[1], strict=True))
    assert all(not ours[:, :, 5:].any() and ours[:, :, :5].any() for ours in cache.entries(0, PAGE + 3))
    held = np.concatenate([cache.table[slot, : -(-end // PAGE)]
                           for slot, end in ((0, PAGE + 3), (1, PAGE + 1), (2, 9 * PAGE))])
    assert len(set(held.tolist())) == len(held) and 0 not in held


def test_pages_of_a_row_follow_each_other_where_attention_reads_no_table():
    """Rows come, grow and go at random; entries stay, no page has two rows, and freed gaps are used again."""
    rng, cache = np.random.default_rng(5), filled(4, limit=24, contiguous=True)
    texts: dict[int, torch.Tensor] = {}
    refused = 0
    for _ in range(120):
        slot, columns = int(rng.integers(4)), int(rng.integers(1, 8 * PAGE))
        if rng.random() < 0.4:
            cache.release(slot)
            texts.pop(slot, None)
        elif not cache.hold(slot, columns):
            refused += 1
        elif slot not in texts:
            texts[slot] = torch.from_numpy(rng.standard_normal((1, 2, columns, 4), np.float32))
            put(cache, slot, 0, texts[slot])
        held = [cache.table[row, : cache._held[row]] for row in range(4)]
        assert all((np.diff(pages) == 1).all() for pages in held)
        used = np.concatenate(held)
        assert len(set(used.tolist())) == len(used) and 0 not in used
        assert sorted((*used, *np.flatnonzero(cache._users == 0))) == list(range(1, cache.pages))
        assert all(torch.equal(cache.entries(row, text.shape[2])[0][0], text[0])
                   for row, text in texts.items())
    assert refused and cache.pages <= 24


def test_texts_do_not_depend_on_where_pages_are(monkeypatch):
    model = tiny("llama", max_position_embeddings=1024)
    texts = prompts((PAGE - 20, 9, PAGE + 3, 30, 2 * PAGE - 10))
    expected = [generate(model, text) for text in texts]
    monkeypatch.setattr(model_target, "READS_PAGES", False)
    monkeypatch.setattr(model_target, "affordable_pages", lambda *_: 6)
    target = Target(model, paged=True)
    assert_written(write(target, texts, oracle(expected), batch_size=3, nodes=9), expected)
    assert target.paged is not None and target.spare_cache.contiguous


def test_a_window_is_found_in_pages_far_behind_the_first():
    """Rows of one forward pass have trees of different sizes, and texts of one to four pages."""
    model = tiny("qwen2-window", max_position_embeddings=1024)
    texts = prompts((3 * PAGE + 9, 30, 2 * PAGE + 40, PAGE + 3, 7))
    expected = [generate(model, text, max_new_tokens=16) for text in texts]
    target = Target(model, paged=True)
    results = write(target, texts, oracle(expected), max_new_tokens=16, batch_size=3, nodes=9)
    assert_written(results, expected)


def test_only_entries_that_move_are_moved():
    cache, rng = filled(3), np.random.default_rng(2)
    text = torch.from_numpy(rng.standard_normal((1, 2, 20, 4), np.float32))
    for slot in range(3):
        put(cache, slot, 0, text)
    paths, counts = np.array([[0, 1, 4], [0, 3, 0], [0, 5, 6]]), np.array([2, 1, 0])
    cache.compact(np.array([5, 8, 3]), paths, counts)
    keys = [cache.entries(slot, 20)[0][0] for slot in range(3)]
    own = text[0]
    assert torch.equal(keys[0][:, [6, 7]], own[:, [6, 9]]) and torch.equal(keys[1][:, 9], own[:, 11])
    assert torch.equal(keys[2], own) and torch.equal(keys[0][:, 8:], own[:, 8:])


def test_a_limit_keeps_rows_waiting_and_is_named_where_none_can_wait():
    cache = filled(2, limit=4)
    assert cache.hold(0, 2 * PAGE) and not cache.hold(1, 2 * PAGE) and cache.hold(1, PAGE)
    assert cache.pages == 4
    with pytest.raises(torch.OutOfMemoryError, match="all 4 pages of the key-value cache are in use"):
        cache.require([1], [PAGE + 1])
    cache.release(0)
    assert cache.hold(1, 2 * PAGE)


def test_a_full_pool_is_not_allocated_again():
    cache = filled(2, limit=3)
    cache.expect(2 * PAGE)
    before = [stack.data_ptr() for stack in cache._stacks]
    cache.expect(4 * PAGE)
    assert [stack.data_ptr() for stack in cache._stacks] == before and cache.pages == 3


def test_an_error_of_the_device_within_a_recording_is_no_failure_of_the_device(monkeypatch):
    model, texts = tiny("llama"), prompts()
    expected = [generate(model, text) for text in texts]
    target = Target(model, paged=True)

    def refuse(*_, **__):
        raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr("dare_job.decode.model.paged.recording.graph_pool", lambda: None)
    monkeypatch.setattr(PagedForward, "_record_one", refuse)
    target.paged = PagedForward(model, target.traits, record=True, fuse=False)
    assert_written(write(target, texts, oracle(expected)), expected)
    assert not target.paged.records


def test_memory_that_runs_out_while_a_graph_is_recorded_is_no_property_of_the_model():
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert failures.is_out_of_memory(error) and not failures.is_device_failure(error)


@pytest.mark.parametrize("own", [1, HEADS])
def test_folded_heads_attend_like_repeated_ones(own):
    """A mask that all heads share is not repeated for groups."""
    query, keys, values = (torch.randn(3, heads, tokens, DIM)
                           for heads, tokens in ((HEADS, 5), (GROUPS, 7), (GROUPS, 7)))
    mask = torch.randn(3, own, 5, 7)
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, mask, enable_gqa=True)
    folded = tree_attention._attend_folded(query, keys, values, mask, None)
    assert torch.allclose(folded, expected.transpose(1, 2), atol=1e-5)
    assert tree_attention._folded_mask(mask, HEADS, GROUPS).numel() == mask.numel() * (
        HEADS // GROUPS if own == 1 else 1)
