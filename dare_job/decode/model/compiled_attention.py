"""Attention on one thread of a CPU, compiled; in float32 of few queries. A row reads its own columns once.

torch's kernel pads rows to the longest text and the widest tree, and its products are made for many queries.
Here the query heads of a group of heads are the rows of a product. Scores: a vector of keys at a time, whose
numbers are transposed in registers. Values: the sums of up to twelve queries stay in registers.

A query's result is the same to the last bit whatever other queries there are, and whatever keys that it does
not see lie between those that it sees: products are added up in the order of features, values in the order of
keys, where hidden (finite) ones have the weight 0, and weights in exact sums. With ``compiled_linear`` strict
greedy texts depend neither on draft trees nor on the batch.
"""

import functools
from pathlib import Path

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from dare_job.decode.model import vectors
from dare_job.decode.model.cache import host_array
from dare_job.decode.model.vectors import INDEX, LANES, TILE, WORDS, floats, load
from pools.jit import cached

_MAX_QUERIES = {torch.float32: 8, torch.bfloat16: 1 << 20}  # of a row; torch is faster for more
_COUNTS = tuple(count for count in (1, 2, 3, 4, 6, 9, 12) if count <= TILE)  # of queries: less to compile
_AHEAD = 32  # keys, or values, that are prefetched
_ROUNDING = 1.5 * 2**16  # added and taken away, it leaves multiples of 2**-36: their float64 sums are exact


def supports(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
             width: int) -> bool:
    """Whether this computes queries (R, H, Q, D), at most ``width`` of a row, and faster than torch."""
    own_masks = mask is not None and (mask.shape[1] > 1 or mask.dtype != query.dtype or mask.shape[2] < width
                                      or mask.shape[0] != len(key) or mask.shape[3] != key.shape[2])
    trained = query.requires_grad or key.requires_grad or value.requires_grad
    dim = query.shape[3]
    return (query.device.type == "cpu" and vectors.is_fast(query.dtype) and width <= _MAX_QUERIES[query.dtype]
            and not own_masks and dim == value.shape[3] and dim % (2 * LANES) == 0
            and key.stride(3) == value.stride(3) == 1 and not trained)


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None,
           scaling: float | None, starts: np.ndarray) -> torch.Tensor:
    """Return the attention (T, H, D) of queries.

    Parameters
    ----------
    query : (T, H, D)
    keys, values : (R, G, L, D)
    mask : (R, 1, W, L), optional
        Additive, of the queries of each row. None: they are the last tokens, and see those before them.
    starts : int64 (R + 1,)
        Row r has the queries from ``starts[r]`` to ``starts[r + 1]``.
    """
    out = torch.empty(query.shape, dtype=query.dtype)
    added = host_array(query[:0] if mask is None else mask[:, 0])
    scale = np.float32(query.shape[2] ** -0.5 if scaling is None else scaling)
    compiled = _compile(types.float32 if query.dtype == torch.float32 else types.int16)
    compiled(host_array(query), host_array(keys), host_array(values), added, scale, starts, host_array(out))
    return out


@functools.cache
def _compile(dtype):
    """Compile ``_attend`` once for arrays of this type, whatever their strides."""
    arrays = {axes: types.Array(dtype, axes, "A") for axes in (3, 4)}
    compiled = cached(_attend, (Path(__file__), Path(vectors.__file__)))
    compiled.compile((arrays[3], arrays[4], arrays[4], arrays[3], types.float32, types.int64[:], arrays[3]))
    compiled.disable_compile()
    return compiled


def _attend(query, keys, values, mask, scale, starts, out):
    _, heads, dim = query.shape
    rows, groups, longest, _ = keys.shape
    times = heads // groups
    width = (longest + LANES - 1) // LANES * LANES
    scores, read = np.empty((TILE, width), np.float32), np.empty(dim, np.float32)
    columns, result = np.empty(TILE * dim, np.float32), np.empty((TILE, dim), out.dtype)
    added, inverse = np.zeros((TILE, width), np.float32), np.empty(TILE, np.float32)
    last_keys = np.zeros((LANES, dim), keys.dtype)
    for r in range(rows):
        first, queries = starts[r], starts[r + 1] - starts[r]
        for begin in range(0, queries * times, TILE):
            count = min(TILE, queries * times - begin)
            size = count  # of the tile: what it has beyond ``count`` is not read
            while size not in _COUNTS:
                size += 1
            top, bottom = begin // times, (begin + count - 1) // times
            start, end = _visible(mask, r, top, bottom, queries, longest)
            blocks = (end - start + LANES - 1) // LANES
            for own in range(top, bottom + 1):
                _hide(mask, r, own, queries, longest, start, end, added[own - top])
            for group in range(groups):
                for m in range(count):
                    load(query[first + (begin + m) // times, group * times + (begin + m) % times], read)
                    for d in range(dim):
                        columns[d * size + m] = read[d]
                _score(keys[r, group], start, end, last_keys, columns, size, scores)
                for m in range(count):
                    own = added[(begin + m) // times - top]
                    inverse[m] = np.float32(1) / _weigh(scores[m], own, scale, blocks)
                for d in range(0, dim, 2 * LANES):
                    _mix_tile(values[r, group, start:], d, scores, inverse, size, end - start, result)
                for m in range(count):
                    target = out[first + (begin + m) // times, group * times + (begin + m) % times]
                    for d in range(dim):
                        target[d] = result[m, d]


@numba.njit
def _visible(mask, r, first, last, queries, longest):
    """Return the first column that any of the queries ``first`` to ``last`` of row r sees, and their end."""
    if not len(mask):
        return 0, longest - queries + last + 1
    end = longest
    while end > 1 and _is_hidden(mask, r, first, last, end - 1):
        end -= 1
    start = 0
    while start < end - 1 and _is_hidden(mask, r, first, last, start):
        start += 1
    return start, end


@numba.njit
def _hide(mask, r, query, queries, longest, start, end, added):
    """Write what a query's scores have added from column ``start`` on, and -inf after what it sees."""
    if len(mask):
        seen = end - start
        load(mask[r, query, start:end], added[:seen])
    else:
        seen = longest - queries + query + 1
        added[:seen] = 0
    added[seen:] = -np.inf


@numba.njit
def _is_hidden(mask, r, first, last, column):
    hidden = True
    for i in range(first, last + 1):
        hidden &= _hides(mask[r, i, column])
    return hidden


def _hides(number):
    """Whether a number of a mask hides a key. A bias of positions does not, nor does a negative zero."""


@overload(_hides)
def _compiled_hides(number):
    if number == types.int16:  # bfloat16: from -1e30 to minus infinity
        return lambda number: -3766 <= number <= -128
    return lambda number: number <= -1e30


@numba.njit
def _score(keys, start, end, last_keys, columns, count, scores):
    """Write products of keys (L, D) from ``start`` to ``end`` and queries to ``scores``."""
    for key in range(start, end, LANES):
        if key + LANES <= len(keys):
            _score_tile(keys[key:], columns, count, scores, key - start)
        else:  # memory ends here
            last_keys[: len(keys) - key] = keys[key:]
            _score_tile(last_keys, columns, count, scores, key - start)


@intrinsic
def _score_tile(typing_context, keys, queries, rows, scores, column):
    """Write the products of ``LANES`` keys and queries (D * rows,) to ``scores``, from a column on."""
    number = vectors.number_type(keys.dtype)

    def generate(context, builder, signature, arguments):
        place, (stride, _) = vectors.address(context, builder, keys, arguments[0])
        read = builder.bitcast(vectors.address(context, builder, queries, arguments[1])[0],
                               ir.FloatType().as_pointer())
        dim = vectors.length(context, builder, keys, arguments[0], 1)
        chunks = builder.sdiv(dim, INDEX(LANES * number.numbers))

        def multiply(rows: int) -> None:
            def add(chunk, totals):
                totals, offset = list(totals), builder.mul(chunk, INDEX(4 * LANES))
                lines = []
                for lane in range(LANES):
                    line = builder.gep(place, [builder.add(builder.mul(stride, INDEX(lane)), offset)])
                    vectors.prefetch(builder, builder.gep(line, [builder.mul(stride, INDEX(_AHEAD))]))
                    lines.append(builder.load(builder.bitcast(line, WORDS.as_pointer()), align=2))
                at = builder.mul(chunk, INDEX(LANES * number.numbers * rows))
                parts = [part for word in _transpose(builder, lines) for part in number.split(builder, word)]
                for turn, part in enumerate(parts):
                    for row in range(rows):
                        value = builder.load(builder.gep(read, [builder.add(at, INDEX(turn * rows + row))]))
                        totals[row] = vectors.call(builder, "fma", vectors.repeat(builder, value), part,
                                                   totals[row])
                return totals

            sums = vectors.accumulate(builder, chunks, [floats(0)] * rows, add)
            for row, total in enumerate(sums):
                target, _ = vectors.address(context, builder, scores, arguments[3], INDEX(row), arguments[4])
                vectors.Float32.store(builder, total, target)

        vectors.for_each_count(builder, arguments[2], multiply, _COUNTS)
        return context.get_dummy_value()

    return types.void(keys, queries, rows, scores, column), generate


def _transpose(builder, lines: list) -> list:
    """Transpose as many vectors of words as they have lanes."""
    step = 1
    while step < LANES:
        for at in range(LANES):
            if not at & step:
                first, second = lines[at], lines[at + step]
                low = [lane if not lane & step else lane - step + LANES for lane in range(LANES)]
                high = [lane + step if not lane & step else lane + LANES for lane in range(LANES)]
                lines[at] = builder.shuffle_vector(first, second, WORDS(low))
                lines[at + step] = builder.shuffle_vector(first, second, WORDS(high))
        step *= 2
    return lines


@intrinsic
def _weigh(typing_context, scores, added, scale, count):
    """Replace scores by exp(score * scale + added - the highest), and return their sum.

    ``count`` vectors of them; where ``added`` is -inf a score may be anything.
    """
    def generate(context, builder, signature, arguments):
        lowest = floats(-np.inf)
        places = [vectors.address(context, builder, kind, array)[0]
                  for kind, array in zip(signature.args[:2], arguments, strict=False)]
        scale = vectors.repeat(builder, arguments[2])

        def at(place, k):
            return builder.gep(place, [builder.mul(k, INDEX(4 * LANES))])

        def add_mask(k, highest):
            score, more = (vectors.Float32.load(builder, at(place, k)) for place in places)
            score = vectors.call(builder, "fma", score, scale, more)
            score = builder.select(builder.fcmp_ordered("==", more, lowest), lowest, score)
            vectors.Float32.store(builder, score, at(places[0], k))
            return [builder.select(builder.fcmp_ordered(">", score, highest[0]), score, highest[0])]

        def exponentials(k, totals):
            less = builder.fsub(vectors.Float32.load(builder, at(places[0], k)), highest)
            result = vectors.exponential(builder, less)
            vectors.Float32.store(builder, result, at(places[0], k))
            halves = [builder.fsub(builder.fadd(half, rounding), rounding)
                      for half in vectors.doubles(builder, result)]
            return [builder.fadd(total, half) for total, half in zip(totals, halves, strict=True)]

        highest = vectors.accumulate(builder, arguments[3], [lowest], add_mask)[0]
        highest = vectors.reduce(builder, highest, lambda one, other: builder.select(
            builder.fcmp_ordered(">", one, other), one, other))
        zero, rounding = (vectors.DOUBLES([number] * (LANES // 2)) for number in (0.0, _ROUNDING))
        totals = builder.fadd(*vectors.accumulate(builder, arguments[3], [zero, zero], exponentials))
        total = ir.DoubleType()(0)
        for lane in range(LANES // 2):
            total = builder.fadd(total, builder.extract_element(totals, ir.IntType(32)(lane)))
        return builder.fptrunc(total, ir.FloatType())

    return types.float32(scores, added, scale, count), generate


@intrinsic
def _mix_tile(typing_context, values, feature, scores, inverse, rows, count, out):
    """Write the sums of values (count, D), weighted with scores (rows, >= count), to ``out`` (rows, D).

    ``2 * LANES`` features are computed, from ``feature`` on, and multiplied with ``inverse`` (rows,).
    """
    number = vectors.number_type(values.dtype)

    def generate(context, builder, signature, arguments):
        place, (stride, _) = vectors.address(context, builder, values, arguments[0], INDEX(0), arguments[1])

        def mix(rows: int) -> None:
            reads = [builder.bitcast(vectors.address(context, builder, scores, arguments[2], INDEX(row))[0],
                                     ir.FloatType().as_pointer()) for row in range(rows)]

            def add(k, totals):
                here, parts = builder.gep(place, [builder.mul(k, stride)]), []
                vectors.prefetch(builder, builder.gep(here, [builder.mul(stride, INDEX(_AHEAD))]))
                for part in range(2 // number.numbers):
                    word = builder.bitcast(builder.gep(here, [INDEX(4 * LANES * part)]), WORDS.as_pointer())
                    parts += number.split(builder, builder.load(word, align=2))
                weights = [vectors.repeat(builder, builder.load(builder.gep(read, [k]))) for read in reads]
                return [vectors.call(builder, "fma", weights[at // 2], parts[at % 2], total)
                        for at, total in enumerate(totals)]

            sums = vectors.accumulate(builder, arguments[5], [floats(0)] * (2 * rows), add)
            for row in range(rows):
                scale, _ = vectors.address(context, builder, inverse, arguments[3], INDEX(row))
                scale = builder.load(builder.bitcast(scale, ir.FloatType().as_pointer()))
                scale = vectors.repeat(builder, scale)
                parts = [number.round(builder, builder.fmul(total, scale))
                         for total in sums[2 * row : 2 * row + 2]]
                target, _ = vectors.address(context, builder, out, arguments[6], INDEX(row), arguments[1])
                for at, word in enumerate(number.join(builder, parts)):
                    there = builder.bitcast(builder.gep(target, [INDEX(4 * LANES * at)]), WORDS.as_pointer())
                    builder.store(word, there, align=2)

        vectors.for_each_count(builder, arguments[4], mix, _COUNTS)
        return context.get_dummy_value()

    return types.void(values, feature, scores, inverse, rows, count, out), generate
