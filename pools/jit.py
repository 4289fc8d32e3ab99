"""Numba helpers: cached compilation, loads from an address, arrays at an address.

Kernels read memory-mapped files through addresses, so that rows of one batch may use different pools in
one call without a Python loop. Scratch space is viewed through addresses as well: such arrays own nothing,
so that numba counts no references where they are passed on (its atomic counters were half of the run time).
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic

_COMPILED = ("blend", "entry", "frontier", "intervals", "jit", "kernel", "learn", "live", "lookup",
             "published", "suffix", "tree")


def part(function):
    """A function that compiled ones call.

    Never cached by itself: what was loaded from a cache cannot be inlined into what is compiled later, which
    made drafting half as slow again.
    """
    return njit(nogil=True, error_model="numpy")(function)


def inlined(function):
    """A part of a compiled function, where passing the scratch arrays would cost more than the work."""
    return njit(nogil=True, error_model="numpy", inline="always")(function)


def cached(function, sources: Iterable[Path] | None = None, **options):
    """``numba.njit`` cached on disk where any cache folder is writable, for as long as the ``sources`` stay
    as they are; None: the function's own file and those of the compiled functions that it can call.

    Numba looks at the function's own file only, and would run stale code after a change in another one. It
    caches beside the source, else in the user's cache folder; ``NUMBA_CACHE_DIR`` overrides both. With none
    of them writable every process compiles once itself.
    """
    try:
        dispatcher = njit(cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return njit(**options)(function)
    dispatcher.sources = tuple(_files(function) if sources is None else sources)
    dispatcher._cache._cache_file._source_stamp = _digest(dispatcher.sources)
    return dispatcher


def compiled(function):
    """``cached`` without the interpreter lock: for what Python calls; what compiled functions call is a
    ``part``.
    """
    here = Path(__file__).parent
    return cached(function, (here / f"{name}.py" for name in _COMPILED), nogil=True, error_model="numpy")


def _files(function) -> list[Path]:
    """Of a function and of all compiled ones that its module has so far, and theirs in turn: imports come
    before the functions that call them.
    """
    found, waiting = set(), [function]
    while waiting:
        one = waiting.pop()
        file = Path(one.__code__.co_filename)
        if file not in found:
            found.add(file)
            waiting += [value.py_func for value in one.__globals__.values() if isinstance(value, Dispatcher)]
    return sorted(found)


@lru_cache(maxsize=32)
def _digest(sources: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _loader(kind, wide=types.int64):
    @intrinsic
    def load(typing_context, address):
        def codegen(context, builder, signature, args):
            pointer = builder.inttoptr(args[0], context.get_value_type(kind).as_pointer())
            return context.cast(builder, builder.load(pointer, align=1), kind, wide)

        return wide(types.int64), codegen

    return load


@intrinsic
def prefetch(typing_context, address):
    """Ask for the cache line at an address, and go on; the address may be any number."""
    def codegen(context, builder, signature, args):
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        asked = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer, number, number, number]),
            "llvm.prefetch.p0i8")
        read, keep, data = number(0), number(3), number(1)
        builder.call(asked, [builder.inttoptr(args[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


load_u8 = _loader(types.uint8)  # (address: int64) -> int64
load_u16 = _loader(types.uint16)
load_i32 = _loader(types.int32)
load_i64 = _loader(types.int64)
load_f64 = _loader(types.float64, types.float64)


@intrinsic
def _pointer(typing_context, address):
    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


@part
def array_at(address, shape, dtype):
    """View of C-ordered memory that the caller keeps alive."""
    return carray(_pointer(address), shape, dtype)


@part
def unowned(array):
    """View of ``array`` that does not keep it alive: its owner must outlive the view."""
    return carray(_pointer(array.ctypes.data), array.shape, array.dtype)
