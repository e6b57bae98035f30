"""Linear layers as CPU kernels: x W^T + b with W in half or single precision, inputs and sums in fp32.

Weights lie in panels of 16 or 32 output features, in a panel input by input: [panels, in, PANEL].
So a decode reads memory once, in order, and one step of the inner loop is a panel's weights for one input
(turned into fp32 as they are loaded) times that input of each row, added to sums that stay in registers.
Upstream: csrc/cpu/cpu_wna16.cpp and csrc/cpu/micro_gemm/. Paper: Anatomy of High-Performance Matrix
Multiplication (Goto, van de Geijn, 2008).
"""

from __future__ import annotations

import platform
from functools import cache

import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from learnvllm.model_layers.ops import huge_pages
from learnvllm.model_layers.ops.jit import Kernel, build_prefetch, compiles_for, kernel, my_share, threads_for

# A panel's features, and rows of x computed together: as many sums as the registers hold. AVX2 has 16 of 8
# floats: 6 rows x 16 features are 12 of sums, with 2 of weights and 1 of input. AVX-512 has 32 of 16 floats:
# 12 rows x 32 features are 24, and a panel's halves are one cache line.
PANEL, ROWS = (32, 12) if compiles_for("avx512f") else (16, 6)
# Rows of x that stay in the second-level cache while all panels go by.
BLOCK = 96
# Weights are asked for this many bytes before they are multiplied. The CPU's own prefetching stops at the end
# of every 4 KiB. At 8 rows, where memory and arithmetic take equally long, this hides one behind the other.
PREFETCH = 8192
# Products that take as long as waking a second thread.
PRODUCTS_PER_THREAD = 65536

_FLOAT, _HALF, _INT64 = ir.FloatType(), ir.HalfType(), ir.IntType(64)
_FLOATS = ir.VectorType(_FLOAT, PANEL)
_UNDEFINED = ir.Constant(_FLOATS, ir.Undefined)
_ALL_ZERO = ir.Constant(ir.VectorType(ir.IntType(32), PANEL), [0] * PANEL)


def pack(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """weight: [out, in] -> [panels, in, PANEL] in dtype, zeros standing in for features beyond the last."""
    out, width = weight.shape
    panels = -(-out // PANEL)
    packed = huge_pages.empty((panels, width, PANEL), dtype)
    whole = out // PANEL
    packed[:whole] = weight[: whole * PANEL].view(whole, PANEL, width).transpose(1, 2)
    if whole < panels:
        packed[whole].zero_()
        packed[whole, :, : out - whole * PANEL] = weight[whole * PANEL :].T
    return packed


@intrinsic(prefer_literal=True)
def tile(typingctx, bits, rows, x, x_stride, weight, bias, out, out_stride, width):  # type: ignore[no-untyped-def]
    """The inner loop, compiled for weights of a fixed number of bits:

        for k in range(width): sums[r] += x[r, k] * weight[k, :]      (r < rows)

    starting from the bias, once for each number of rows up to ROWS, and a jump to the one wanted. It is
    written in LLVM's instructions because sums must be vectors in registers, which no compiler is sure to
    make of Python's loops. The other arguments are int64: addresses; width and strides in elements.
    """
    element = _HALF if bits.literal_value == 16 else _FLOAT

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        done = builder.append_basic_block()
        choose = builder.switch(args[1], done)
        for num_rows in range(1, ROWS + 1):
            block = builder.append_basic_block()
            choose.add_case(_INT64(num_rows), block)
            builder.position_at_end(block)
            _build_loop(builder, num_rows, element, *args[2:])
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    arguments = (bits, *(types.int64,) * 8)
    return types.void(*arguments), build


def _build_loop(builder, num_rows, element, x, x_stride, weight, bias, out, out_stride, width):  # type: ignore[no-untyped-def]
    """The loop for `num_rows` rows and weights of type `element`."""

    def at(address, item_type, index):  # type: ignore[no-untyped-def]
        """A pointer to element `index` at an address."""
        return builder.gep(builder.inttoptr(address, item_type.as_pointer()), [index])

    def panel_at(place, item_type):  # type: ignore[no-untyped-def]
        """The same pointer, to a panel's worth of elements."""
        return builder.bitcast(place, ir.VectorType(item_type, PANEL).as_pointer())

    def repeated(number):  # type: ignore[no-untyped-def]
        one = builder.insert_element(_UNDEFINED, number, _INT64(0))
        return builder.shuffle_vector(one, _UNDEFINED, _ALL_ZERO)

    fma_type = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    fma = cgutils.get_or_insert_function(builder.module, fma_type, f"llvm.fma.v{PANEL}f32")
    inputs = [at(x, _FLOAT, builder.mul(x_stride, _INT64(r))) for r in range(num_rows)]
    start = builder.load(panel_at(at(bias, _FLOAT, _INT64(0)), _FLOAT), align=4)

    before, loop, done = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    k, sums = builder.phi(_INT64), [builder.phi(_FLOATS) for _ in range(num_rows)]
    place = at(weight, element, builder.mul(k, _INT64(PANEL)))
    for line in range(0, PANEL * (2 if element is _HALF else 4), 64):
        build_prefetch(builder, place, PREFETCH + line)
    w = builder.load(panel_at(place, element), align=2)
    if element is _HALF:
        w = builder.fpext(w, _FLOATS)
    xs = [repeated(builder.load(builder.gep(row, [k]))) for row in inputs]
    new_sums = [builder.call(fma, [number, w, total]) for number, total in zip(xs, sums)]
    next_k = builder.add(k, _INT64(1))
    builder.cbranch(builder.icmp_signed("<", next_k, width), loop, done)
    k.add_incoming(_INT64(0), before)
    k.add_incoming(next_k, loop)
    for total, new in zip(sums, new_sums):
        total.add_incoming(start, before)
        total.add_incoming(new, loop)

    builder.position_at_end(done)
    for r, total in enumerate(new_sums):
        place = at(out, _FLOAT, builder.mul(out_stride, _INT64(r)))
        builder.store(total, panel_at(place, _FLOAT), align=4)


@cache
def linear_kernel(bits: int) -> Kernel:
    """The kernel for weights of 16 or 32 bits. Compiled (a second or two) or loaded on first use."""
    panel_bytes = PANEL * bits // 8  # of one input

    @kernel("q" * 7)
    def _linear(args):  # type: ignore[no-untyped-def]
        x, weight, bias, out = args[0], args[1], args[2], args[3]
        rows, width, panels = args[4], args[5], args[6]
        xs, os = width, panels * PANEL  # elements from a row of x, and of out, to the next
        begin, end = my_share(panels)
        for first in range(0, rows, BLOCK):
            count = min(BLOCK, rows - first)
            groups = (count + ROWS - 1) // ROWS  # of even size: with 12 at once, 16 rows are 8 and 8
            for p in range(begin, end):
                w, b = weight + p * width * panel_bytes, bias + 4 * PANEL * p
                for g in range(groups):
                    row, stop = first + count * g // groups, first + count * (g + 1) // groups
                    y, o = x + 4 * row * xs, out + 4 * (row * os + PANEL * p)
                    tile(bits, stop - row, y, xs, w, b, o, os, width)

    return _linear


def converts_halves() -> bool:
    """Does this CPU turn half precision into single by itself? (x86 since 2012; other architectures: all.)"""
    return compiles_for("f16c") or not platform.machine().startswith(("x86", "AMD64", "i386"))


class CpuLinear:
    """A weight in panels and the product with them: a `LinearKernel`.

    Args:
        weight: [out, in], on the CPU and not empty; it is copied.
        bias: [out], or None.
        dtype: float16 or float32, what weights are held in. The bias stays fp32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = weight.shape
        if weight.numel() == 0 or not weight.is_cpu:  # the inner loop runs at least once
            given = f"{tuple(weight.shape)} on {weight.device}"
            raise ValueError(f"weight must be on the CPU and not empty, not {given}")
        self.panels = pack(weight, dtype)
        self._num_panels = len(self.panels)
        self._columns = self._num_panels * PANEL
        self._bias = torch.zeros(self._columns)  # sums start from it, so there is always one
        if bias is not None:
            self._bias[: self.out_features] = bias
        self.weight_bytes = self.panels.nbytes + self._bias.nbytes
        self._kernel = linear_kernel(8 * dtype.itemsize)
        self._addresses = self.panels.data_ptr(), self._bias.data_ptr()

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, in] fp32 -> [T, out] fp32, a new contiguous tensor."""
        is_readable = x.is_cpu and x.dtype is torch.float32 and x.dim() == 2
        if not is_readable or x.shape[1] != self.in_features:  # the kernel reads raw memory
            given = f"{x.dtype} {tuple(x.shape)} on {x.device}"
            raise ValueError(f"x must be float32 [T, {self.in_features}] on the CPU, not {given}")
        rows, width = x.shape
        if not x.is_contiguous():
            x = x.contiguous()
        out = torch.empty(rows, self._columns)
        threads = threads_for(rows * width * self._columns, PRODUCTS_PER_THREAD)
        self._kernel(threads, x.data_ptr(), *self._addresses, out.data_ptr(), rows, width, self._num_panels)
        return out if self._columns == self.out_features else out[:, : self.out_features].contiguous()

    __call__ = forward

    def explain(self) -> str:
        if self.panels.dtype is torch.float16:
            return (
                "our kernel on weights in half precision, inputs and sums fp32: half the bytes for a decode, "
                "and faster than FBGEMM from 1 to 512 rows (benchmarks/results/linear.txt)"
            )
        return (
            "our kernel on fp32 weights: exact, and faster than oneDNN from 1 to 512 rows "
            "(benchmarks/results/linear.txt)"
        )
