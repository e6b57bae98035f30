"""How a Python function becomes a CPU kernel: numba compiles it, torch's own OpenMP threads run it.

A model alternates torch's linears with our kernels every 100 µs. Two thread pools on the same cores would
fight (idle OpenMP workers spin for work), so we hand our kernels to the pool torch already has, through
`GOMP_parallel`.

A kernel takes one pointer to its arguments, eight bytes each, and runs once on every thread. Compiled code is
kept under LEARNVLLM_HOME, keyed by the sources, so that only the very first run compiles (upstream: vllm's
csrc/cpu/, in C++).
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba
import torch
from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from learnvllm.architecture import envs

logger = logging.getLogger(__name__)

# Sums may be reordered (that is what lets the compiler use vectors), but NaN and infinity keep their meaning.
OPTIONS = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "arcp", "nsz"}}


def compiles_for(feature: str) -> bool:
    """Does numba compile for a CPU with this x86 feature? (This CPU, unless NUMBA_CPU_FEATURES is set.)"""
    features: str = cpu_target.target_context.codegen().magic_tuple()[2]
    return f"+{feature}" in features.split(",")


# ---------------------------------------------------------------------------------------------------- threads


def _openmp() -> tuple[Any, int, int]:
    """(GOMP_parallel, address of omp_get_thread_num, of omp_get_num_threads) of the OpenMP runtime torch
    uses.

    Looked up in the process's global symbols, where torch's own calls are resolved too (a preloaded libiomp5
    offers the same names). Where there is none (macOS, Windows) GOMP_parallel is None and kernels run on the
    calling thread.
    """
    try:
        process = ctypes.CDLL(None)
        parallel = process.GOMP_parallel
        names = (process.omp_get_thread_num, process.omp_get_num_threads)
    except (AttributeError, TypeError, OSError):
        return None, _constant(0).address, _constant(1).address
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    thread_num, num_threads = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in names)
    return parallel, thread_num, num_threads


@cache
def _constant(value: int) -> Any:
    """A compiled function that returns `value`; cached so that its code stays where it is."""
    return numba.cfunc(types.int32())(lambda: value)


_gomp_parallel, _thread_num, _num_threads = _openmp()
# Compiled code names these two symbols; the linker finds them here, also when the code comes from the disk.
llvm.add_symbol("learnvllm_thread_num", _thread_num)
llvm.add_symbol("learnvllm_num_threads", _num_threads)
thread_num = types.ExternalFunction("learnvllm_thread_num", types.int32())
num_threads = types.ExternalFunction("learnvllm_num_threads", types.int32())


# ------------------------------------------------------------------------------------ pointers inside kernels


@intrinsic
def f32(typingctx, address):  # type: ignore[no-untyped-def]
    """An int64 address as a pointer to float32: `x = f32(args[0]); x[i]`."""
    return types.CPointer(types.float32)(types.int64), _int_to_pointer


@intrinsic
def i32(typingctx, address):  # type: ignore[no-untyped-def]
    """An int64 address as a pointer to int32."""
    return types.CPointer(types.int32)(types.int64), _int_to_pointer


@intrinsic
def i64(typingctx, address):  # type: ignore[no-untyped-def]
    """An int64 address as a pointer to int64."""
    return types.CPointer(types.int64)(types.int64), _int_to_pointer


def _int_to_pointer(context, builder, signature, args):  # type: ignore[no-untyped-def]
    return builder.inttoptr(args[0], context.get_value_type(signature.return_type))


@intrinsic
def as_double(typingctx, bits):  # type: ignore[no-untyped-def]
    """The float64 whose bits an int64 holds: how a kernel reads a Python float among its arguments."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), build


@intrinsic
def as_float(typingctx, bits):  # type: ignore[no-untyped-def]
    """The float32 whose bits an int32 holds."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), build


@intrinsic
def prefetch(typingctx, pointer, index):  # type: ignore[no-untyped-def]
    """Ask for the cache line of pointer[index] now, to be read soon."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        build_prefetch(builder, builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(pointer, types.int64), build


def build_prefetch(builder: ir.IRBuilder, pointer: ir.Value, bytes_ahead: int = 0) -> None:
    """The same as an instruction, for kernels written in LLVM's."""
    int32, char_pointer = ir.IntType(32), ir.IntType(8).as_pointer()
    function_type = ir.FunctionType(ir.VoidType(), [char_pointer, int32, int32, int32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [char_pointer], function_type)
    address = builder.gep(builder.bitcast(pointer, char_pointer), [ir.IntType(64)(bytes_ahead)])
    builder.call(function, [address, int32(0), int32(3), int32(1)])  # to read; keep it close; data


# -------------------------------------------------------------------------------------------- compile, launch


class Kernel:
    """A compiled kernel. `kernel(threads, *args)` runs it on that many threads, to the end."""

    def __init__(self, function: Callable[..., None], layout: str, cache: bool = True) -> None:
        self.name = function.__name__
        signature = types.void(types.CPointer(types.int64))
        self._compiled = _compile(function, signature, cache)
        self._address = self._compiled.address
        self._serial = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self._address)
        self._pack = struct.Struct("@" + layout).pack

    def __call__(self, threads: int, *args: int | float) -> None:
        packed = self._pack(*args)
        if threads > 1 and _gomp_parallel is not None:
            _gomp_parallel(self._address, packed, threads, 0)
        else:
            self._serial(packed)


def _compile(function: Callable[..., None], signature: Any, cache: bool) -> Any:
    if cache and not _broken_caches:
        try:
            return numba.cfunc(signature, cache=True, **OPTIONS)(function)
        except Exception as error:  # of the cache; one of the function comes again below
            _warn_of_cache(error)
            _broken_caches.append(error)  # the others would compile twice
    return numba.cfunc(signature, **OPTIONS)(function)


_broken_caches: list[Exception] = []


def kernel(layout: str) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator: compile a function of one argument `args` into a `Kernel`, or load it from the disk.

    layout: one letter an argument, q for an integer or an address, d for a float (read with `as_double`).
    """

    def decorate(function: Callable[..., None]) -> Kernel:
        previous = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(cache_directory())
        try:
            return Kernel(function, layout, cache=_prepare_cache())
        finally:
            numba.config.CACHE_DIR = previous

    return decorate


COMPILE_SECONDS = 20
"""All of them, on a machine of two slow cores."""

# A function that kernels call. Always inlined into them, so it needs no cache of its own.
device = numba.njit(forceinline=True, **OPTIONS)


@cache
def _prepare_cache() -> bool:
    """Whether compiled code can be kept. Asked before the first kernel: says what will take long, and why."""
    directory = cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        _warn_of_cache(error)
        return False
    if not any(directory.rglob("*.nbi")):  # the index file of a function that has been compiled
        logger.info("Compiling CPU kernels, once (about %d s) ...", COMPILE_SECONDS)
    return True


def _warn_of_cache(error: Exception) -> None:
    logger.warning(
        "Compiled CPU kernels cannot be kept in %s (%s): every start compiles them, which takes about "
        "%d s. Set LEARNVLLM_HOME to a directory you may write to, or remove this one if it is damaged.",
        cache_directory(), getattr(error, "strerror", None) or repr(error), COMPILE_SECONDS,
    )  # fmt: skip


def cache_directory() -> Path:
    """Where compiled kernels are kept: one directory per version of the sources (numba itself adds the CPU).

    numba replaces its cache files atomically: processes may compile at the same time, and the last one wins.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return envs.home() / "kernels" / digest.hexdigest()[:16]


def threads_for(work: int, per_thread: int) -> int:
    """How many threads `work` units are worth: waking the pool takes 3 µs, as do `per_thread` units."""
    return min(torch.get_num_threads(), 1 + work // per_thread)


@device
def my_share(count):  # type: ignore[no-untyped-def]
    """(begin, end): this thread's part of range(count)."""
    i, n = thread_num(), num_threads()
    return count * i // n, count * (i + 1) // n
