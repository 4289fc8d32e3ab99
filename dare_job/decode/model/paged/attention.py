"""Split attention: a query sees its row's text in the cache without a mask, and its tree with a small one.

The two results are merged by their log-sum-exp, as flash decoding merges parts of a text (Dao et al. 2023).
So no mask is as wide as the longest text, and each row's keys and values are read once. ``text_attention`` is
an operator of torch: on CUDA it is flash attention over pages; elsewhere, and in float32, plain torch, which
defines it.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch.nn.attention import varlen

from dare_job.decode.model.paged.pool import PAGE
from dare_job.decode.model.tree import PaddedLayout

_FLASH_TYPES = (torch.float16, torch.bfloat16)
_MAX_FLASH_DIM = 256
# Whether this version of torch has flash attention that finds the pages of a row in a table. If not, a row's
# pages follow each other in the pool (``PagedCache.contiguous``).
READS_PAGES = {"block_table", "seqused_k", "num_splits", "enable_gqa", "window_size", "return_aux"} <= set(
    inspect.signature(varlen.varlen_attn).parameters)
_FLASH_TILE = 128  # queries of a row that flash attention computes at once
_PLAIN_BYTES = 2**28  # of the copies that plain attention makes at a time
_LOWEST = torch.finfo(torch.float32).min


@torch.library.custom_op("dare_job::text_attention", mutates_args=())
def text_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, starts: torch.Tensor,
                   lengths: torch.Tensor, table: torch.Tensor, low: torch.Tensor | None, scale: float,
                   causal: bool, window: int, widest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to the texts of rows, which are in pages.

    Parameters
    ----------
    query : float (T, H, D)
        Of N rows one after the other.
    keys, values : float (tokens, G, D) and (tokens, G, E)
        Pools of all rows.
    starts : int32 (N + 1,)
        First query of each row.
    lengths : int32 (N,)
        Columns of each row that are read.
    table : int32 (N, P)
        Pages of each row.
    low : int64 (T,), optional
        First column that each query sees. None: all.
    scale : float
        Of the scores.
    causal : bool
        Whether the queries are the row's last columns, and see none after their own.
    window : int
        Columns that a causal query sees; 0: all. With ``low``, columns from there on that any query may see.
    widest : int
        Maximum number of queries of a row.

    Returns
    -------
    float (T, H, E), float32 (T, H)
        Outputs, and log-sum-exp of the scores; undefined for rows without a text (``SplitAttention``).
    """
    flash = query.is_cuda and query.dtype in _FLASH_TYPES and low is None
    if flash and keys.shape[2] == values.shape[2] <= _MAX_FLASH_DIM and keys.shape[2] % 8 == 0:
        return _flash(query, keys, values, starts, lengths, table, scale, causal, window, widest)
    return _plain(query, keys, values, starts, lengths, table, low, scale, causal, window, widest)


@text_attention.register_fake
def _(query, keys, values, starts, lengths, table, low, scale, causal, window, widest):
    return (query.new_empty((*query.shape[:2], values.shape[2])),
            query.new_empty(query.shape[:2], dtype=torch.float32))


def _flash(query, keys, values, starts, lengths, table, scale, causal, window, widest):
    """Without a causal mask, the query heads of a group become queries of one head, which reads keys once.

    Flash attention 2 joins parts of a text that it reads in parallel wrongly if rows have different numbers
    of queries (pytorch issue 194167), so a text is read in one part, as it always is without a table.
    """
    total, heads, dim = query.shape
    groups, (rows, pages) = keys.shape[1], table.shape
    times = 1 if causal else heads // groups
    if times > 1:
        query = query.view(total, groups, times, dim).transpose(1, 2).reshape(-1, groups, dim)
    widest, longest = max(widest, _FLASH_TILE) * times, pages * PAGE
    if READS_PAGES:
        ends = torch.arange(rows + 1, device=query.device, dtype=torch.int32) * longest
        out, lse = varlen.varlen_attn(
            query, keys.view(-1, PAGE, groups, dim), values.view(-1, PAGE, groups, dim), starts * times, ends,
            widest, longest, return_aux=varlen.AuxRequest(lse=True), scale=scale,
            window_size=(window - 1 if window else -1, 0) if causal else (-1, -1),
            enable_gqa=times != heads // groups, seqused_k=lengths, block_table=table, num_splits=1)
    else:
        first = table[:, 0] * PAGE  # with ``seqused_k``, texts may begin anywhere, and have gaps between them
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            query, keys, values, starts * times, torch.cat((first, first[-1:])), widest, longest, 0.0,
            causal and not window, False, scale=scale, window_size_left=window - 1 if window else None,
            window_size_right=0 if window else None, seqused_k=lengths)
    if times == 1:
        return out, lse.transpose(0, 1).contiguous()
    out = out.view(total, times, groups, dim).transpose(1, 2).reshape(total, heads, dim)
    return out, lse.view(groups, total, times).transpose(0, 1).reshape(total, heads)


def _plain(query, keys, values, starts, lengths, table, low, scale, causal, window, widest):
    """Some rows at a time, so that copies of their keys, values and scores take little memory."""
    rows, (total, heads, _), at = len(lengths), query.shape, torch.arange(len(query), device=query.device)
    first = starts[:-1, None].long()
    index = (first + torch.arange(widest, device=query.device)).clamp_max(total - 1)  # (N, W)
    begin, pages = None, table.shape[1]
    if low is not None and window:
        own = torch.arange(widest, device=query.device) < starts[1:, None] - starts[:-1, None]
        # first page that a row's own queries see: index runs into the next row
        begin = low[index].masked_fill(~own, pages * PAGE).amin(1) // PAGE
        pages = min(pages, -(-(window + widest) // PAGE) + 1)
    copied = keys[0].numel() + values[0].numel()  # with copies of them in float32; of scores there are three
    row_bytes = 4 * PAGE * pages * (3 * heads * widest + 2 * copied)
    step, parts = max(1, _PLAIN_BYTES // row_bytes), []
    for row in range(0, rows, step):
        part = slice(row, row + step)
        own_pages, start = table[part].long(), 0
        if begin is not None:
            place = begin[part, None] + torch.arange(pages, device=query.device)
            own_pages = own_pages.gather(1, place.clamp_max(table.shape[1] - 1))
            start = begin[part, None] * PAGE
        column = start + torch.arange(pages * PAGE, device=query.device)  # (N, columns) or (columns,)
        last = None
        if causal:  # (N, W): column of each query
            counts = starts[1:][part].long() - starts[:-1][part]
            last = (lengths[part] - counts)[:, None] + torch.arange(widest, device=query.device)
        visible = _visible(column, lengths[part, None], last, None if low is None else low[index[part]],
                           window if causal else 0)
        lines = (own_pages[:, :, None] * PAGE + torch.arange(PAGE, device=query.device)).flatten(1)
        parts.append(_attend_rows(query[index[part]], keys[lines], values[lines], visible, scale))
    out, lse = (torch.cat(part) for part in zip(*parts, strict=True))  # (N, W, H, E) and (N, W, H)
    row = torch.bucketize(at, starts[1:].long(), right=True).clamp_max(rows - 1)
    place = (at - first[row, 0]).clamp_max(widest - 1)
    return out[row, place].to(query.dtype), lse[row, place]


def _visible(column, lengths, last, low, window):
    """Return which columns queries see, bool (N, W or 1, columns)."""
    visible, column = (column < lengths)[:, None], column.view(-1, 1, column.shape[-1])
    if last is not None:
        visible = visible & (column <= last[..., None])
        if window:
            visible = visible & (column > last[..., None] - window)
    return visible if low is None else visible & (column >= low[..., None])


def _attend_rows(query, keys, values, visible, scale):
    """Return outputs (N, W, H, E) and log-sum-exp (N, W, H).

    query (N, W, H, D), keys (N, L, G, D), values (N, L, G, E), visible (N, W or 1, L).
    """
    rows, width, heads, dim = query.shape
    groups = keys.shape[2]
    folded = query.view(rows, width, groups, -1, dim).permute(0, 2, 3, 1, 4).flatten(2, 3).float()
    scores = folded @ keys.permute(0, 2, 3, 1).float() * scale
    scores = scores.view(rows, groups, heads // groups, width, -1)
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp_min(_LOWEST)[..., None]).exp().flatten(2, 3)
    seen = visible.any(1)  # NaN * 0 is NaN
    out = weights @ values.masked_fill(~seen[..., None, None], 0).transpose(1, 2).float()
    out = out.view(rows, groups, -1, width, values.shape[3])
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3), lse.permute(0, 3, 1, 2).flatten(2, 3)


@dataclass(frozen=True)
class SplitAttention:
    """The rows of one forward pass over T packed queries of S slots, and of the padding after them.

    Attributes
    ----------
    starts, lengths, table
        Of ``text_attention``, for N = S + 1 rows: the last one has the padding, and no text.
    masks : mapping of str to float (S, 1, W, M), or (1, 1, 1, 1)
        Additive masks over the tree columns, by kind of layer, as the model is given them.
    low : mapping of str to int64 (T,)
        Of ``text_attention``, by kind; a missing kind sees whole texts.
    window : mapping of str to int
        The same.
    widest : int
    layout : PaddedLayout, optional
        Of trees. None: prompts, whose queries see each other causally in the cache.
    nodes : int64 (S * M,), optional
        Places of the tree columns in the pool.
    reads : bool (T, 1), optional
        Whether a query's row has a text.
    """

    starts: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    masks: Mapping[str, torch.Tensor]
    low: Mapping[str, torch.Tensor]
    window: Mapping[str, int]
    widest: int
    layout: PaddedLayout | None = None
    nodes: torch.Tensor | None = None
    reads: torch.Tensor | None = None

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor,
               scale: float | None, bias: torch.Tensor | None) -> torch.Tensor:
        """query (1, H, T, D), pools (1, G, tokens, D) and one of ``masks`` -> (1, T, H, D).

        Raises
        ------
        NotImplementedError
            The model adds a bias or a mask of its own.
        """
        kind = next((kind for kind, own in self.masks.items() if _is_same(own, mask)), None)
        if kind is None or bias is not None:
            raise NotImplementedError("attention with a mask of the model's own")
        scale = query.shape[3] ** -0.5 if scale is None else scale
        keys, values, packed = (x[0].transpose(0, 1) for x in (keys, values, query))
        text, text_lse = text_attention(
            packed, keys, values, self.starts, self.lengths, self.table, self.low.get(kind), scale,
            self.layout is None, self.window.get(kind, 0), self.widest)
        if self.layout is None:
            return text[None]
        tree, tree_lse = self._over_tree(query, keys, values, mask, scale)
        return torch.where(self.reads[..., None], _merged(text, text_lse, tree, tree_lse), tree)[None]

    def _over_tree(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor,
                   scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs (T, H, E) and log-sum-exp float32 (T, H); every query sees itself."""
        rows, _, width, columns = mask.shape
        heads, groups = query.shape[1], keys.shape[1]
        own_keys, own_values = (x.index_select(0, self.nodes).view(rows, columns, groups, -1).transpose(1, 2)
                                for x in (keys, values))  # (S, G, M, D)
        folded = self.layout.pad(query).reshape(rows, groups, heads // groups * width, -1)
        scores = folded.float() @ own_keys.transpose(2, 3).float() * scale
        scores = scores.view(rows, groups, -1, width, columns) + mask[:, :, None].float()
        lse = scores.logsumexp(-1)
        out = ((scores - lse[..., None]).exp().to(values.dtype).flatten(2, 3) @ own_values)
        out = out.view(rows, heads, width, -1).transpose(1, 2)
        return self.layout.unpad(out), self.layout.unpad(lse.view(rows, heads, width).transpose(1, 2))


def _is_same(own: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Return whether a model passed this mask on: Gemma 4 passes a slice that holds all of it."""
    return own is mask or mask is not None and own.dtype == mask.dtype and own.is_set_to(mask)


def _merged(out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor,
            other_lse: torch.Tensor) -> torch.Tensor:
    """Merge attention to two sets of keys: outputs (T, H, E) and log-sum-exp (T, H) of each."""
    share = torch.sigmoid(lse - other_lse)[..., None]
    return torch.lerp(other.float(), out.float(), share).to(out.dtype)


_CURRENT: ContextVar[SplitAttention | None] = ContextVar("split_attention", default=None)


def current() -> SplitAttention | None:
    """Return the attention of the forward pass that is running; None: not over pages."""
    return _CURRENT.get()


@contextmanager
def over_pages(split: SplitAttention) -> Iterator[None]:
    """Forward passes within attend over pages."""
    token = _CURRENT.set(split)
    try:
        yield
    finally:
        _CURRENT.reset(token)
