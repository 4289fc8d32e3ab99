"""Vectors in compiled functions, rounded where transformers rounds; bfloat16 is int16 (``host_array``).

The second half has pieces of LLVM's code for intrinsic functions of numba: vectors of ``LANES`` numbers.
"""

import math
from collections.abc import Callable, Iterable

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen
from numba.extending import overload
from numba.np.arrayobj import make_array

# As numba compiles: its settings (NUMBA_CPU_NAME) may leave out instructions that the processor has.
_TARGET = codegen.get_host_cpu_features() if numba.config.CPU_FEATURES is None else numba.config.CPU_FEATURES
_FEATURES = {feature[1:]: feature[0] == "+" for feature in filter(None, _TARGET.split(","))}
LANES, TILE = (16, 12) if _FEATURES.get("avx512f") else (8, 6)  # of a vector; rows whose sums fit registers
FLOATS, WORDS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.IntType(32), LANES)
DOUBLES = ir.VectorType(ir.DoubleType(), LANES // 2)
SHORTS, INDEX = ir.VectorType(ir.IntType(16), LANES), ir.IntType(64)
BYTE = ir.IntType(8)


def is_fast(dtype: torch.dtype) -> bool:
    """Whether functions of such vectors are faster than torch's, with the threads that torch has now."""
    vectors = _FEATURES.get("avx512f") or _FEATURES.get("avx2") and _FEATURES.get("fma")
    matrices = dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    known = dtype in (torch.float32, torch.bfloat16)
    return bool(vectors) and known and not matrices and torch.get_num_threads() == 1


def load(source, out):
    """Copy values to float32."""


@overload(load)
def _compiled_load(source, out):
    if source.dtype == types.int16:
        def load(source, out):
            words = out.view(np.uint32)
            for d in range(len(source)):
                words[d] = np.uint32(np.uint16(source[d])) << np.uint32(16)
    else:
        def load(source, out):
            for d in range(len(source)):
                out[d] = source[d]
    return load


def store(values, out):
    """Copy float32 values to the type of ``out``, rounded to the nearest, and round ``values`` too."""


@overload(store)
def _compiled_store(values, out):
    if out.dtype == types.int16:
        def store(values, out):
            words = values.view(np.uint32)
            for d in range(len(out)):
                word = words[d]
                high = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
                words[d] = high << np.uint32(16)
                out[d] = np.int16(high)
    else:
        def store(values, out):
            for d in range(len(out)):
                out[d] = values[d]
    return store


SUMS = {"reassoc", "contract"}  # sums in any order, so that they are compiled to vector instructions


@numba.njit(fastmath=SUMS)
def normalize(values, weight, epsilon, out):
    """Apply a root mean square norm to ``values`` float32 (D,) in place, and write them to ``out``."""
    total = np.float32(0)
    for d in range(len(values)):
        total += values[d] * values[d]
    scale = np.float32(1) / np.sqrt(total / np.float32(len(values)) + epsilon)
    for d in range(len(values)):
        values[d] *= scale
    store(values, out)
    for d in range(len(values)):
        values[d] *= weight[d]
    store(values, out)


def call(builder, name: str, *arguments):
    """Call one of LLVM's functions of float vectors."""
    kind = ir.FunctionType(FLOATS, [FLOATS] * len(arguments))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32"),
                        arguments)


def floats(value: float):
    """A vector of one number."""
    return FLOATS([np.float32(value)] * LANES)


def words(value: int):
    """A vector of one integer of 32 bits."""
    return WORDS([value] * LANES)


def repeat(builder, value):
    """Return a vector of one value that is known later."""
    first = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, ir.Constant(FLOATS, ir.Undefined), words(0))


def exponential(builder, x):
    """exp(x), x at most 87, as 2**n times a Taylor series of exp(r), |r| <= log(2) / 2; 0 below -87."""
    n = call(builder, "nearbyint", builder.fmul(x, floats(1 / math.log(2))))
    r = call(builder, "fma", n, floats(-0.693359375), x)  # log(2), in two parts
    r = call(builder, "fma", n, floats(0.693359375 - math.log(2)), r)
    series = floats(0)
    for order in range(7, -1, -1):
        series = call(builder, "fma", series, r, floats(1 / math.factorial(order)))
    power = builder.shl(builder.add(builder.fptosi(n, WORDS), words(127)), words(23))
    result = builder.fmul(series, builder.bitcast(power, FLOATS))
    return builder.select(builder.fcmp_ordered("<", x, floats(-87)), floats(0), result)


def doubles(builder, vector) -> list:
    """Return the lower and the upper half of a vector as float64."""
    halves = [[lane + upper for lane in range(LANES // 2)] for upper in (0, LANES // 2)]
    kind = ir.VectorType(ir.IntType(32), LANES // 2)
    return [builder.fpext(builder.shuffle_vector(vector, vector, kind(half)), DOUBLES) for half in halves]


def address(context, builder, kind, array, *index):
    """Return the address (of bytes) of an element of an array of this type, and its strides."""
    data = make_array(kind)(context, builder, array)
    strides = cgutils.unpack_tuple(builder, data.strides)
    place = builder.bitcast(data.data, BYTE.as_pointer())
    for at, stride in zip(index, strides, strict=False):
        place = builder.gep(place, [builder.mul(at, stride)])
    return place, strides


def length(context, builder, kind, array, axis: int):
    """Return the length of an axis of an array of this type."""
    return cgutils.unpack_tuple(builder, make_array(kind)(context, builder, array).shape)[axis]


def reduce(builder, vector, join: Callable):
    """Return a vector of one number: that of ``join`` of all numbers of a vector."""
    step = LANES // 2
    while step:
        other = builder.shuffle_vector(vector, ir.Constant(FLOATS, ir.Undefined),
                                       WORDS([lane ^ step for lane in range(LANES)]))
        vector, step = join(vector, other), step // 2
    return vector


def prefetch(builder, place) -> None:
    """Read the line of memory at an address into the cache's second level, for later."""
    word = ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), word, word, word]),
        "llvm.prefetch.p0")
    builder.call(function, (place, word(0), word(2), word(1)))


def for_each_count(builder, count, generate: Callable[[int], None],
                   counts: Iterable[int] = range(1, TILE + 1)) -> None:
    """Emit code for each of ``counts``, the possible numbers of rows; ``count`` is known later."""
    done = builder.append_basic_block()
    switch = builder.switch(count, done)
    for number in counts:
        case = builder.append_basic_block()
        switch.add_case(INDEX(number), case)
        builder.position_at_end(case)
        generate(number)
        builder.branch(done)
    builder.position_at_end(done)


def accumulate(builder, count, first: list, add: Callable) -> list:
    """Emit a loop; return the vectors ``first`` after ``add(k, vectors)`` for each k below ``count``."""
    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    k, totals = builder.phi(INDEX), [builder.phi(start.type) for start in first]
    results = add(k, totals)
    following = builder.add(k, INDEX(1))
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    for phi, start, later in ((k, INDEX(0), following), *zip(totals, first, results, strict=True)):
        phi.add_incoming(start, before)
        phi.add_incoming(later, loop)
    builder.position_at_end(after)
    return results


class Bfloat16:
    """Vectors of bfloat16, and of words of two of them."""

    numbers = 2  # in a word

    @staticmethod
    def split(builder, word):
        """Return vectors of the numbers in the lower and in the upper halves of words."""
        return [builder.bitcast(builder.shl(word, words(16)), FLOATS),
                builder.bitcast(builder.and_(word, words(-1 << 16)), FLOATS)]

    @staticmethod
    def join(builder, parts) -> list:
        """Return the words of two vectors of rounded numbers."""
        low, high = (builder.bitcast(part, WORDS) for part in parts)
        return [builder.or_(builder.lshr(low, words(16)), high)]

    @staticmethod
    def round(builder, total):
        """Round to the nearest, and to an even last bit between two."""
        word = builder.bitcast(total, WORDS)
        last = builder.and_(builder.lshr(word, words(16)), words(1))
        rounded = builder.add(word, builder.add(last, words(0x7FFF)))
        return builder.bitcast(builder.and_(rounded, words(-1 << 16)), FLOATS)

    @staticmethod
    def load(builder, place):
        word = builder.zext(builder.load(builder.bitcast(place, SHORTS.as_pointer()), align=2), WORDS)
        return builder.bitcast(builder.shl(word, words(16)), FLOATS)

    @staticmethod
    def store(builder, rounded, place):
        word = builder.lshr(builder.bitcast(rounded, WORDS), words(16))
        builder.store(builder.trunc(word, SHORTS), builder.bitcast(place, SHORTS.as_pointer()), align=2)


class Float32:
    """Vectors of float32."""

    numbers = 1

    @staticmethod
    def split(builder, word):
        return [builder.bitcast(word, FLOATS)]

    @staticmethod
    def join(builder, parts) -> list:
        return [builder.bitcast(part, WORDS) for part in parts]

    @staticmethod
    def round(builder, total):
        return total

    @staticmethod
    def load(builder, place):
        return builder.load(builder.bitcast(place, FLOATS.as_pointer()), align=4)

    @staticmethod
    def store(builder, total, place):
        builder.store(total, builder.bitcast(place, FLOATS.as_pointer()), align=4)


def number_type(dtype) -> type:
    """The class for arrays of this type of numba."""
    return Float32 if dtype == types.float32 else Bfloat16
