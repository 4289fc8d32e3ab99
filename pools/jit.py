"""Numba helpers: compilation with an on-disk cache, loads from an address, array views of an address.

Kernels read memory-mapped files through addresses, so that the rows of a batch can use different pools in one
call without a Python loop. Scratch memory is also viewed through addresses: such arrays own no memory, and
numba does no reference counting on them (its atomic counters took half of the run time).
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

_COMPILED = ("blend", "frequency", "frontier", "intervals", "jit", "kernel", "learn", "live", "lookup",
             "match", "suffix", "tree")


def helper(function, **options):
    """Compile a function that only compiled functions call.

    It has no cache of its own: numba cannot inline cached functions, which made drafting 50 % slower. It has
    no entry for Python either, where calling it crashes: the entries took a third of the time of compiling.
    """
    return njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True,
                **options)(function)


def inlined(function):
    """Compile a function that is always inlined: passing the scratch arrays would cost more than the work.

    LLVM inlines it. Numba's ``inline="always"`` copies the callee's code object by object: that compiles no
    faster, and the kernel ran 8 % slower.
    """
    return helper(function, forceinline=True)


def cached(function, sources: Iterable[Path] | None = None, **options):
    """``numba.njit`` with an on-disk cache that is invalidated when a source file changes.

    Numba itself checks only the function's own file and would run stale code after a change in another file.
    It caches next to the source, else in the user's cache folder; ``NUMBA_CACHE_DIR`` overrides both. If none
    is writable, every process compiles the function itself.

    Parameters
    ----------
    function
        Function to compile.
    sources
        Files that invalidate the cache; None: the function's own file and those of the compiled functions
        that it can call.
    options
        Options of ``numba.njit``.
    """
    try:
        dispatcher = njit(cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return njit(**options)(function)
    dispatcher.sources = tuple(_files(function) if sources is None else sources)
    dispatcher._cache._cache_file._source_stamp = _digest(dispatcher.sources)
    return dispatcher


def compiled(function):
    """``cached`` without the GIL, for functions that Python calls. Use ``helper`` for their callees."""
    here = Path(__file__).parent
    return cached(function, (here / f"{name}.py" for name in _COMPILED), nogil=True, error_model="numpy")


def _files(function) -> list[Path]:
    """Files of a function and, recursively, of the compiled functions in its module's namespace so far.

    Imports precede the functions that call them, so no callee is missed.
    """
    files, pending = set(), [function]
    while pending:
        current = pending.pop()
        file = Path(current.__code__.co_filename)
        if file not in files:
            files.add(file)
            pending += [value.py_func for value in current.__globals__.values()
                        if isinstance(value, Dispatcher)]
    return sorted(files)


@lru_cache(maxsize=32)
def _digest(sources: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _loader(kind, result=types.int64):
    @intrinsic
    def load(typing_context, address):
        def codegen(context, builder, signature, args):
            pointer = builder.inttoptr(args[0], context.get_value_type(kind).as_pointer())
            return context.cast(builder, builder.load(pointer, align=1), kind, result)

        return result(types.int64), codegen

    return load


@intrinsic
def prefetch(typing_context, address):
    """Prefetch the cache line at an address without waiting. The address need not be valid."""
    def codegen(context, builder, signature, args):
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        intrinsic_function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer, number, number, number]),
            "llvm.prefetch.p0i8")
        read, high_locality, data = number(0), number(3), number(1)
        builder.call(intrinsic_function, [builder.inttoptr(args[0], pointer), read, high_locality, data])
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


@helper
def array_at(address, shape, dtype):
    """View C-ordered memory as an array. The caller keeps the memory alive."""
    return carray(_pointer(address), shape, dtype)


@helper
def unowned(array):
    """View of ``array`` without a reference to it: the owner of the memory must outlive the view."""
    return carray(_pointer(array.ctypes.data), array.shape, array.dtype)
