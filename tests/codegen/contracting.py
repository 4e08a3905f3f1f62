"""Execution of contraction plans on NumPy arrays, and reference results."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.cpu.contraction.panels import aligned_zeros
from mgx_numba.codegen.cpu.toolchain.loader import load
from mgx_numba.codegen.launch import Solution
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue, EpilogueOperand
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.core.types import parse_type
from tests.values import element_strides

from .launching import run_launch


def epilogue_of(
    function: Callable[..., Any], *access: str, dtype: str = "float32", fast_math: bool = False, name: str = ""
) -> Epilogue:
    """The epilogue ``function(handler, sum, *operands)`` in the scalar protocol, all of it given in one dtype."""
    operands = tuple(EpilogueOperand(dtype, own) for own in access)
    body = scalar_body(function, [parse_type(dtype)] * (1 + len(access)))
    return Epilogue(operands, body, fast_math, name)


def run_plan(
    plan: Solution, arrays: Mapping[str, np.ndarray], pages: GuardedPages | None = None, fill: int = 0xFF
) -> None:
    """Run the launches in order, the claims of each last first; arrays are changed in place. Each byte of scratch,
    which is in ``pages`` if there are any, is ``fill`` before: NaN in every float unless told."""
    load(plan.kernels)
    scratch = aligned_zeros((plan.scratch,), "uint8")
    if pages is not None:
        scratch = pages.place(scratch)
    scratch[...] = fill
    for launch in plan.launches:
        run_launch(launch, {**arrays, "scratch": scratch}, pieces=None)


def full_epilogue_arrays(
    rng: np.random.Generator, rows: Sequence[int], columns: int, dtype: str
) -> dict[str, np.ndarray]:
    """Operands of `full_epilogue` for a result of lens ``(*rows, columns)``."""
    return {
        "e0": rng.standard_normal(columns).astype(dtype),
        "e1": rng.standard_normal((*rows, columns)).astype(dtype),
        "e2": rng.standard_normal((*rows, 1)).astype(dtype),
        "e3": np.array([-0.5], dtype),
    }


def full_epilogue(dtype: str) -> Epilogue:
    """``max((acc + bias + residual) * row_scale, floor)``"""
    return epilogue_of(
        lambda s, acc, bias, residual, scale, floor: s.max(s.mul(s.add(s.add(acc, bias), residual), scale), floor),
        "per_n", "full", "per_m", "scalar", dtype=dtype, name="add_add_mul_max",
    )  # fmt: skip


def apply_full_epilogue(sums: np.ndarray, e: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the reference of `full_epilogue` for accumulators."""
    return np.maximum((sums + e["e0"] + e["e1"]) * e["e2"], e["e3"])


def gemm_problem(a: np.ndarray, b: np.ndarray, constant: bool, out: np.ndarray | None = None) -> GemmProblem:
    """The product of two arrays of equal batch dimensions, as they lie in memory."""
    return GemmProblem(
        m=a.shape[-2], n=b.shape[-1], k=a.shape[-1], batch=a.shape[:-2], a_strides=element_strides(a),
        b_strides=element_strides(b), out_strides=() if out is None else element_strides(out)[:-1],
        types=element_types(a.dtype.name), b_constant=constant,
    )  # fmt: skip


def convolve(problem: ConvProblem, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The convolution of channels-last activations in float64, tap by tap (ONNX ``Conv``, ``ConvTranspose``)."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    if problem.shuffled:
        apart = x.reshape(*x.shape[:-1], problem.shuffled, -1)
        x = apart.swapaxes(-1, -2).reshape(x.shape)
    return _transposed(problem, x, w) if problem.transposed else _ordinary(problem, x, w)


def _grouped(problem: ConvProblem, x: np.ndarray, w: np.ndarray, tap: tuple[int, ...]) -> np.ndarray:
    """Products of the channels of ``x`` with one tap's weights."""
    parts = []
    for g in range(problem.groups):
        channels = x[..., g * problem.group_in : (g + 1) * problem.group_in]
        if problem.transposed:
            matrix = w[(slice(g * problem.group_in, (g + 1) * problem.group_in), slice(None), *tap)]
        else:
            matrix = w[(slice(g * problem.group_out, (g + 1) * problem.group_out), slice(None), *tap)].T
        parts.append(channels @ matrix)
    return np.concatenate(parts, axis=-1)


def _window(
    tap: Sequence[int], dilation: Sequence[int], lens: Sequence[int], stride: Sequence[int]
) -> tuple[slice, ...]:
    return tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilation, lens, stride))


def _pad_or_crop(x: np.ndarray, begin: Sequence[int], end: Sequence[int]) -> np.ndarray:
    padded = np.pad(x, [(0, 0), *((max(b, 0), max(e, 0)) for b, e in zip(begin, end)), (0, 0)])
    inner = (slice(max(-b, 0), n - max(-e, 0)) for b, e, n in zip(begin, end, padded.shape[1:]))
    return padded[(slice(None), *inner)]


def _ordinary(problem: ConvProblem, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = _pad_or_crop(x, problem.pads_begin, problem.pads_end)
    out = np.zeros((problem.batch, *problem.out_lens, problem.out_channels))
    for tap in np.ndindex(*problem.kernel):
        window = _window(tap, problem.dilation, problem.out_lens, problem.stride)
        out += _grouped(problem, padded[(slice(None), *window)], w, tap)
    return out


def _transposed(problem: ConvProblem, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    rank = len(problem.kernel)
    lens = [
        (problem.in_lens[d] - 1) * problem.stride[d]
        + problem.dilation[d] * (problem.kernel[d] - 1) + 1 + problem.output_padding[d]
        for d in range(rank)
    ]  # fmt: skip
    out = np.zeros((problem.batch, *lens, problem.out_channels))
    for tap in np.ndindex(*problem.kernel):
        window = _window(tap, problem.dilation, problem.in_lens, problem.stride)
        out[(slice(None), *window)] += _grouped(problem, x, w, tap)
    return _pad_or_crop(out, [-p for p in problem.pads_begin], [-p for p in problem.pads_end])


def run_conv(solver: Any, problem: ConvProblem, seed: int, threads: int = 1, gap: int = 0) -> float:
    """Largest error of a solver with `full_epilogue`, relative to the largest result.

    With a ``gap`` the result goes into a slice of that many more channels, the rest of which must stay as it was.
    """
    rng = np.random.default_rng(seed)
    assert solver.refusal(problem) is None
    x = rng.standard_normal((problem.batch, *problem.in_lens, problem.in_channels)).astype(problem.dtype)
    w = rng.standard_normal(problem.weight_lens).astype(problem.dtype)
    rows = (problem.batch, *problem.out_lens)
    room = np.full((*rows, problem.out_channels + gap), 7.25, problem.dtype)
    out = room[..., gap // 2 : gap // 2 + problem.out_channels]
    if gap:
        pixel = problem.out_channels + gap
        strides = (problem.out_pixels * pixel, pixel)
        problem = replace(problem, out_strides=strides)
    e = full_epilogue_arrays(rng, rows, problem.out_channels, problem.dtype)
    packed = solver.pack_weights(problem, w)
    assert packed.shape == solver.packed_lens(problem)
    plan = solver.plan(problem, full_epilogue(problem.dtype), (), threads)
    run_plan(plan, {"x": x, "w": packed, "out": out, **e})
    expected = apply_full_epilogue(convolve(problem, x, w), e)
    if gap:
        beside = np.concatenate([room[..., : gap // 2], room[..., gap // 2 + problem.out_channels :]], axis=-1)
        assert np.all(beside == np.float32(7.25))
    return float(np.abs(out - expected).max() / np.abs(expected).max())


needs_page_protection = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mprotect"), reason="needs POSIX page protection"
)


class GuardedPages:
    """Arrays that end where memory that must not be touched begins."""

    def __init__(self) -> None:
        self.maps: list[mmap.mmap] = []

    def place(self, array: np.ndarray) -> np.ndarray:
        page = mmap.PAGESIZE
        pages = -(-array.nbytes // page)
        memory = mmap.mmap(-1, (pages + 1) * page)
        self.maps.append(memory)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        assert protect(ctypes.c_void_p(start + pages * page), ctypes.c_size_t(page), 0) == 0
        placed = np.frombuffer(memory, np.uint8, array.nbytes, pages * page - array.nbytes).view(array.dtype)
        placed = placed.reshape(array.shape)
        placed[...] = array
        return placed
