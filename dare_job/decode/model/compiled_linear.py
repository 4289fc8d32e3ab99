"""Linear layers on one thread of a CPU, compiled for few rows: weights are read once, in the order of memory.

Two vectors of output features are computed at once. Their weights lie together, as the loop over input
features reads them, and are prefetched; the sums of up to twelve rows stay in registers. bfloat16 weights are
widened to float32 as they are read, so that a processor without matrix instructions multiplies at its speed
for float32. A sum is over input features in their order, so a row's result does not depend on the number of
rows.

Root mean square norms before a layer, and the addition or the gate after it, are part of it. They round where
transformers does.
"""

from functools import partial

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dare_job.decode.model import vectors
from dare_job.decode.model.cache import host_array
from dare_job.decode.model.vectors import INDEX, LANES, SUMS, TILE, WORDS, floats, load, normalize
from pools.jit import cached

_BLOCK = 2 * LANES
_AHEAD = 128  # vectors of weights that are prefetched
_PART = 1 << 15  # values that all blocks read in turn: they stay in the processor's cache


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
    out : torch.dtype, optional
        Type of the results to which nothing is added: float32, or that of the weights (default), to which
        they are rounded in any case.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, gated: bool = False,
                 norm: tuple[np.ndarray, np.float32] | None = None, out: torch.dtype | None = None):
        self._gated, self._dtype, self._out = gated, weight.dtype, out or weight.dtype
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
        size = LANES if self._gated else _BLOCK
        padding = weight.new_zeros(len(halves), -self.width % size, weight.shape[1])
        padded = torch.cat((halves, padding), 1)
        if self._gated:
            return padded.view(2, -1, LANES, weight.shape[1]).transpose(0, 1)
        return padded.view(-1, 2, LANES, weight.shape[1])

    def to_dense(self) -> torch.Tensor:
        """Return the weight (N, K)."""
        blocks = self._packed.permute([self._order.index(axis) for axis in range(4)])
        inner = blocks.shape[-1]
        if self._gated:
            return blocks.transpose(0, 1).reshape(2, -1, inner)[:, : self.width].reshape(-1, inner)
        return blocks.reshape(-1, inner)[: self.width].contiguous()

    def features(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the weights (T, K) of output features int64 (T,), of a layer that is not gated."""
        block, place = numbers // _BLOCK, numbers % _BLOCK
        half, lane = place // LANES, place % LANES
        if self._dtype == torch.bfloat16:
            return self._packed[block, :, lane, half]
        return self._packed[block, :, half, lane]

    def __call__(self, values: torch.Tensor, add: torch.Tensor | None = None) -> torch.Tensor:
        """(T, K) -> (T, N), or (T, N / 2) if gated; plus ``add`` of that shape.

        Raises
        ------
        RuntimeError
            The values have another type than the weights, or another K.
        """
        inner = self._array.shape[1]
        if values.dtype != self._dtype or values.shape[1] != inner:
            raise RuntimeError(f"values {tuple(values.shape)} in {values.dtype} for weights (N, {inner}) in "
                               f"{self._dtype}")
        size = LANES if self._gated else _BLOCK
        out = values.new_empty(len(values), len(self._array) * size, dtype=self._out)
        if add is not None and (self._gated or add.shape != out.shape or add.dtype != self._dtype):
            return self(values) + add
        extra = True if self._gated else None if add is None else host_array(add.detach().contiguous())
        read = host_array(values.detach().contiguous())
        _multiply(self._array, self._bias, *self._norm, read, extra, host_array(out))
        return out if out.shape[1] == self.width else out[:, : self.width].contiguous()


@partial(cached, fastmath=SUMS)
def _multiply(packed, bias, weight, epsilon, values, extra, out):
    """Multiply ``values`` (T, K), normalized if there is a weight, with packed weights.

    ``extra`` is None, an array to add, or True for a gated layer. ``out`` has whole blocks of features.
    """
    blocks, inner = packed.shape[:2]
    rows, size = len(out), out.shape[1] // blocks
    part = max(4 * TILE, _PART // inner // TILE * TILE)
    read, row = np.empty(min(part, rows) * inner, np.float32), np.empty(inner, np.float32)
    rounded = np.empty(inner, values.dtype)
    for begin in range(0, rows, part):
        count = min(part, rows - begin)
        tiles = (count + TILE - 1) // TILE
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
    gated, added = isinstance(extra, types.Boolean), isinstance(extra, types.Array)
    number, written = vectors.number_type(packed.dtype), vectors.number_type(out.dtype)

    def generate(context, builder, signature, arguments):
        def place(argument, *index):
            return vectors.address(context, builder, signature.args[argument], arguments[argument], *index)[0]

        weights, read = place(0), builder.bitcast(place(2), ir.FloatType().as_pointer())
        inner = vectors.length(context, builder, packed, arguments[0], 0)
        first = [vectors.Float32.load(builder, builder.gep(place(1), [INDEX(4 * LANES * half)]))
                 for half in range(2)]

        def multiply(rows: int) -> None:
            def add(k, totals):
                halves = _weights(builder, number, weights, k)
                at = builder.mul(k, INDEX(rows))
                repeated = [vectors.repeat(builder, builder.load(
                    builder.gep(read, [builder.add(at, INDEX(row))]))) for row in range(rows)]
                return [vectors.call(builder, "fma", repeated[at // 2], halves[at % 2], total)
                        for at, total in enumerate(totals)]

            sums = vectors.accumulate(builder, inner, first * rows, add)
            for at in range(rows):
                index = builder.add(arguments[6], INDEX(at)), arguments[7]
                other = place(4, *index) if added else None
                outputs = _outputs(builder, sums[2 * at : 2 * at + 2], number, gated, other)
                for half, output in enumerate(outputs):
                    offset = [INDEX(half * LANES * (4 // written.numbers))]
                    written.store(builder, output, builder.gep(place(5, *index), offset))

        vectors.for_each_count(builder, arguments[3], multiply)
        return context.get_dummy_value()

    return types.void(packed, bias, values, rows, extra, out, row, column), generate


def _weights(builder, number, weights, k) -> list:
    """Load the two vectors of weights of an input feature, and prefetch those of a later one."""
    loaded = []
    for part in range(2 // number.numbers):
        place = builder.add(builder.mul(k, INDEX(2 // number.numbers)), INDEX(part))
        ahead = builder.gep(weights, [builder.mul(builder.add(place, INDEX(_AHEAD)), INDEX(4 * LANES))])
        vectors.prefetch(builder, ahead)
        here = builder.gep(weights, [builder.mul(place, INDEX(4 * LANES))])
        loaded += number.split(builder, builder.load(builder.bitcast(here, WORDS.as_pointer()), align=4))
    return loaded


def _outputs(builder, sums, number, gated: bool, added) -> list:
    """Return a row's two vectors, rounded: with ``added``, or gated as one."""
    outputs = [number.round(builder, total) for total in sums]
    if gated:
        gate = number.round(builder, _silu(builder, outputs[0]))
        outputs = [number.round(builder, builder.fmul(gate, outputs[1]))]
    if added is not None:
        for half, output in enumerate(outputs):
            offset = [INDEX(half * LANES * (4 // number.numbers))]
            other = number.load(builder, builder.gep(added, offset))
            outputs[half] = number.round(builder, builder.fadd(output, other))
    return outputs


def _silu(builder, x):
    """x / (1 + exp(-x))."""
    x = builder.select(builder.fcmp_ordered("<", x, floats(-87)), floats(-87), x)  # 0; NaN stays
    exponential = vectors.exponential(builder, builder.fneg(x))
    return builder.fdiv(x, builder.fadd(exponential, floats(1)))
