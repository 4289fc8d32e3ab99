"""Numba helpers: cached compilation and loads from an address.

Kernels read memory-mapped files through addresses, so that rows of one batch may use different pools in
one call without a Python loop.
"""

from numba import njit, types
from numba.extending import intrinsic


def compiled(function=None, **options):
    """``numba.njit`` without the interpreter lock, cached on disk where any cache folder is writable.

    Numba caches beside the source, else in the user's cache folder; ``NUMBA_CACHE_DIR`` overrides both.
    With none of them writable every process compiles once itself.
    """
    if function is None:
        return lambda f: compiled(f, **options)
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        return njit(**options)(function)


def _loader(result_type, bits, signed):
    def load(typing_context, address):
        def codegen(context, builder, signature, args):
            kind = context.get_value_type(result_type)
            value = builder.load(builder.inttoptr(args[0], kind.as_pointer()))
            widen = builder.sext if signed else builder.zext
            return widen(value, context.get_value_type(types.int64)) if bits < 64 else value

        return types.int64(types.int64), codegen

    return intrinsic(load)


load_u8 = _loader(types.uint8, 8, False)  # (address: int64) -> int64
load_u16 = _loader(types.uint16, 16, False)
load_i32 = _loader(types.int32, 32, True)
