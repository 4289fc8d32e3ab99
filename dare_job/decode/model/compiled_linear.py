"""Linear layers on one thread of a CPU, compiled for few rows: weights are read once, in the order of memory.

Two vectors of output features are computed at once. Their weights lie together, as the loop over input
features reads them, and are prefetched; the sums of up to twelve rows stay in registers. bfloat16 weights are
widened to float32 as they are read, so that a processor without matrix instructions multiplies at its speed
for float32. A sum is over input features in their order, so a row's result does not depend on the number of
rows.

Root mean square norms before a layer, and the addition or the gate after it, are part of it. They round where
transformers does.
"""

import math

import numba
import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from dare_job.decode.model.cache import host_array
from dare_job.decode.model.vectors import SUMS, load, normalize

_FEATURES = binding.get_host_cpu_features()
_LANES, _TILE = (16, 12) if _FEATURES.get("avx512f") else (8, 6)  # of a vector; rows whose sums fit registers
_BLOCK = 2 * _LANES
_AHEAD = 128  # vectors of weights that are prefetched
_PART = 1 << 17  # values that all blocks read in turn: they stay in the processor's cache
_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(ir.IntType(32), _LANES)
_SHORTS, _INDEX = ir.VectorType(ir.IntType(16), _LANES), ir.IntType(64)


def is_fast(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies faster so than through oneDNN, with torch's number of threads."""
    vectors = _FEATURES.get("avx512f") or _FEATURES.get("avx2") and _FEATURES.get("fma")
    matrices = dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    return bool(vectors) and not matrices and torch.get_num_threads() == 1


class CompiledLinear:
    """A linear layer, or a gate and what it gates, with weights in the order in which they are read.

    Parameters
    ----------
    weight : float32 or bfloat16 (N, K)
        With ``gated``, the gate's features and then those that it gates.
    bias : (N,), optional
    gated : bool
        Return SiLU of the first half of the features, times the second half.
    norm : tuple of float32 (K,) and float32, optional
        Weight and epsilon of a root mean square norm before the layer.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, gated: bool = False,
                 norm: tuple[np.ndarray, np.float32] | None = None):
        self._gated, self._dtype = gated, weight.dtype
        self.width = len(weight) // 2 if gated else len(weight)
        self._norm = (np.empty(0, np.float32), np.float32(0)) if norm is None else norm
        blocks = self._in_blocks(weight.detach())
        # A word has a bfloat16 weight of each of the two vectors.
        self._order = (0, 3, 2, 1) if self._dtype == torch.bfloat16 else (0, 3, 1, 2)
        self._packed = blocks.permute(self._order).contiguous()
        words = self._packed.view(torch.int32) if self._dtype == torch.bfloat16 else self._packed
        self._array = words.view(len(blocks), blocks.shape[-1], -1).numpy()
        zeros = weight.new_zeros(len(weight)) if bias is None else bias.detach()
        self._bias = self._in_blocks(zeros[:, None]).float().reshape(len(blocks), _BLOCK).numpy()

    def _in_blocks(self, weight: torch.Tensor) -> torch.Tensor:
        """(N, K) -> (blocks, 2, lanes, K), with zeros at the end."""
        halves = weight.view(2, -1, weight.shape[1]) if self._gated else weight[None]
        size = _LANES if self._gated else _BLOCK
        padding = weight.new_zeros(len(halves), -self.width % size, weight.shape[1])
        padded = torch.cat((halves, padding), 1)
        if self._gated:
            return padded.view(2, -1, _LANES, weight.shape[1]).transpose(0, 1)
        return padded.view(-1, 2, _LANES, weight.shape[1])

    def numel(self) -> int:
        """Number of weights."""
        return self._packed.numel()

    def to_dense(self) -> torch.Tensor:
        """Return the weight (N, K)."""
        blocks = self._packed.permute([self._order.index(axis) for axis in range(4)])
        inner = blocks.shape[-1]
        if self._gated:
            return blocks.transpose(0, 1).reshape(2, -1, inner)[:, : self.width].reshape(-1, inner)
        return blocks.reshape(-1, inner)[: self.width].contiguous()

    def __call__(self, values: torch.Tensor, add: torch.Tensor | None = None) -> torch.Tensor:
        """(T, K) -> (T, N), or (T, N / 2) if gated; plus ``add`` of that shape."""
        size = _LANES if self._gated else _BLOCK
        out = values.new_empty(len(values), len(self._array) * size)
        if add is not None and add.shape != out.shape:
            return self(values) + add
        extra = True if self._gated else None if add is None else host_array(add)
        _multiply(self._array, self._bias, *self._norm, host_array(values.contiguous()), extra,
                  host_array(out))
        return out if out.shape[1] == self.width else out[:, : self.width].contiguous()


@numba.njit(cache=True, fastmath=SUMS)
def _multiply(packed, bias, weight, epsilon, values, extra, out):
    """Multiply ``values`` (T, K), normalized if there is a weight, with packed weights.

    ``extra`` is None, an array to add, or True for a gated layer. ``out`` has whole blocks of features.
    """
    blocks, inner = packed.shape[:2]
    rows, size = len(out), out.shape[1] // blocks
    part = max(_TILE, min(rows, _PART // inner // _TILE * _TILE))
    read, row = np.empty(part * inner, np.float32), np.empty(inner, np.float32)
    rounded = np.empty_like(values[0])
    for begin in range(0, rows, part):
        count = min(part, rows - begin)
        tiles = (count + _TILE - 1) // _TILE
        for tile in range(tiles):
            first, last = count * tile // tiles, count * (tile + 1) // tiles
            for m in range(last - first):
                load(values[begin + first + m], row)
                if len(weight):
                    normalize(row, weight, epsilon, rounded)
                column = read[first * inner + m : last * inner : last - first]
                for k in range(inner):
                    column[k] = row[k]
        for block in range(blocks):
            for tile in range(tiles):
                first, last = count * tile // tiles, count * (tile + 1) // tiles
                _multiply_tile(packed[block], bias[block], read[first * inner :], last - first, extra, out,
                               begin + first, block * size)


@intrinsic
def _multiply_tile(typing_context, packed, bias, values, rows, extra, out, row, column):
    """Write products of a block (K, ...) and values (K * rows,) to ``out``, from this row and column on."""
    def generate(context, builder, signature, arguments):
        def place(number, kind, *index):
            array = make_array(signature.args[number])(context, builder, arguments[number])
            address = builder.bitcast(array.data, ir.IntType(8).as_pointer())
            for at, stride in zip(index, cgutils.unpack_tuple(builder, array.strides), strict=False):
                address = builder.gep(address, [builder.mul(at, stride)])
            return builder.bitcast(address, kind.as_pointer())

        inner = cgutils.unpack_tuple(
            builder, make_array(packed)(context, builder, arguments[0]).shape)[0]
        weights, values = place(0, _WORDS), place(2, ir.FloatType())
        first = [builder.load(builder.gep(place(1, _FLOATS), [_INDEX(half)]), align=4) for half in range(2)]
        done = builder.append_basic_block()
        switch = builder.switch(arguments[3], done)
        for count in range(1, _TILE + 1):
            case = builder.append_basic_block()
            switch.add_case(_INDEX(count), case)
            builder.position_at_end(case)
            sums = _sum_products(builder, read, weights, values, first, inner, count)
            for number in range(count):
                at = builder.add(arguments[6], _INDEX(number)), arguments[7]
                added = place(4, vector, *at) if isinstance(extra, types.Array) else None
                _finish(builder, sums[2 * number : 2 * number + 2], number_type, gated, added,
                        place(5, vector, *at))
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    gated = isinstance(extra, types.Boolean)
    read, number_type = (_read_words, _Bfloat16) if packed.dtype == types.int32 else (_read_floats, _Float32)
    vector = number_type.vector
    return types.void(packed, bias, values, rows, extra, out, row, column), generate


def _sum_products(builder, read, weights, values, first, inner, rows: int) -> list:
    """Emit the loop over input features; return two vectors of sums for each row."""
    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_INDEX)
    totals = [builder.phi(_FLOATS) for _ in range(2 * rows)]
    vectors = read(builder, weights, k)
    place = builder.mul(k, _INDEX(rows))
    results = []
    for row in range(rows):
        value = _repeat(builder, builder.load(builder.gep(values, [builder.add(place, _INDEX(row))])))
        results += [_call(builder, "fma", value, vector, totals[2 * row + half])
                    for half, vector in enumerate(vectors)]
    following = builder.add(k, _INDEX(1))
    builder.cbranch(builder.icmp_signed("<", following, inner), loop, after)
    for phi, start, later in ((k, _INDEX(0), following), *zip(totals, first * rows, results, strict=True)):
        phi.add_incoming(start, before)
        phi.add_incoming(later, loop)
    builder.position_at_end(after)
    return results


def _repeat(builder, value):
    """Return a vector of one value."""
    first = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, ir.Constant(_FLOATS, ir.Undefined), _words(0))


def _read_words(builder, weights, k):
    """Two vectors of bfloat16, the lower and the upper halves of words."""
    words = _load_and_prefetch(builder, weights, k)
    return (builder.bitcast(builder.shl(words, _words(16)), _FLOATS),
            builder.bitcast(builder.and_(words, _words(-1 << 16)), _FLOATS))


def _read_floats(builder, weights, k):
    """Two vectors of float32."""
    place = builder.mul(k, _INDEX(2))
    return [builder.bitcast(_load_and_prefetch(builder, weights, builder.add(place, _INDEX(half))), _FLOATS)
            for half in range(2)]


def _load_and_prefetch(builder, weights, place):
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    prefetch = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0")
    later = builder.bitcast(builder.gep(weights, [builder.add(place, _INDEX(_AHEAD))]), byte)
    builder.call(prefetch, (later, word(0), word(2), word(1)))  # to read, into the second level, data
    return builder.load(builder.gep(weights, [place]), align=4)


class _Bfloat16:
    """Vectors of bfloat16, as sums in float32 are rounded to."""

    vector = _SHORTS

    @staticmethod
    def load(builder, place):
        words = builder.zext(builder.load(place, align=2), _WORDS)
        return builder.bitcast(builder.shl(words, _words(16)), _FLOATS)

    @staticmethod
    def round(builder, total):
        """Round to the nearest, and to an even last bit between two."""
        word = builder.bitcast(total, _WORDS)
        last = builder.and_(builder.lshr(word, _words(16)), _words(1))
        rounded = builder.add(word, builder.add(last, _words(0x7FFF)))
        return builder.bitcast(builder.and_(rounded, _words(-1 << 16)), _FLOATS)

    @staticmethod
    def store(builder, rounded, place):
        word = builder.lshr(builder.bitcast(rounded, _WORDS), _words(16))
        builder.store(builder.trunc(word, _SHORTS), place, align=2)


class _Float32:
    """Vectors of float32."""

    vector = _FLOATS

    @staticmethod
    def load(builder, place):
        return builder.load(place, align=4)

    @staticmethod
    def round(builder, total):
        return total

    @staticmethod
    def store(builder, total, place):
        builder.store(total, place, align=4)


def _finish(builder, sums, number, gated: bool, added, place) -> None:
    """Write a row's two vectors: with ``added``, or gated as one."""
    outputs = [number.round(builder, total) for total in sums]
    if gated:
        gate = number.round(builder, _silu(builder, outputs[0]))
        outputs = [number.round(builder, builder.fmul(gate, outputs[1]))]
    for half, output in enumerate(outputs):
        if added is not None:
            other = number.load(builder, builder.gep(added, [_INDEX(half)]))
            output = number.round(builder, builder.fadd(output, other))
        number.store(builder, output, builder.gep(place, [_INDEX(half)]))


def _silu(builder, x):
    """x / (1 + exp(-x)), where exp(-x) is 2**n times a Taylor series of exp(r), |r| <= log(2) / 2."""
    x = builder.select(builder.fcmp_ordered("<", x, _floats(-87)), _floats(-87), x)  # 0; NaN stays
    bounded = _call(builder, "minnum", x, _floats(87))
    n = _call(builder, "nearbyint", builder.fmul(bounded, _floats(-1 / math.log(2))))
    r = _call(builder, "fma", n, _floats(-0.693359375), builder.fneg(bounded))  # log(2), in two parts
    r = _call(builder, "fma", n, _floats(0.693359375 - math.log(2)), r)
    series = _floats(0)
    for order in range(7, -1, -1):
        series = _call(builder, "fma", series, r, _floats(1 / math.factorial(order)))
    power = builder.shl(builder.add(builder.fptosi(n, _WORDS), _words(127)), _words(23))
    exponential = builder.fmul(series, builder.bitcast(power, _FLOATS))
    return builder.fdiv(x, builder.fadd(exponential, _floats(1)))


def _call(builder, name: str, *arguments):
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(arguments))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{_LANES}f32"),
                        arguments)


def _floats(value: float):
    return _FLOATS([np.float32(value)] * _LANES)


def _words(value: int):
    return _WORDS([value] * _LANES)
