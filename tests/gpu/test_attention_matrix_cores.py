"""Attention on AMD's matrix cores and on tensor cores of sm_75 has the values of ref, its instructions, and no spills.

Nothing here has run on such devices.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.attention.flash import attention_refusal, attention_solution
from mgx_numba.codegen.gpu.attention.matrix_cores import attention_tile
from mgx_numba.codegen.gpu.kernel import gpu_grid, gpu_kernel
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.problems.attention import AttentionProblem
from mgx_numba.codegen.problems.gemm import packed_strides
from mgx_numba.core.types import Type
from mgx_numba.errors import CompileError
from mgx_numba.runtime.memory import address_of, aligned_empty

from ..interpreter.memory import Memory
from ..interpreter.run import interpret
from .code_objects import resources
from .programs import interpreter
from .test_attention import BF16, BOOL, F16, F32, Mask, attention
from .test_matrix_cores import AMD

CASES: tuple[tuple[tuple[int, ...], Mask, bool], ...] = (
    ((1, 2, 1, 20, 70, 16, 24), None, False),
    ((2, 1, 1, 37, 33, 40, 40), None, True),
    ((1, 4, 2, 1, 70, 72, 80), (BOOL, (1, 1, 1, 70)), False),
    ((1, 1, 1, 3, 5, 8, 8), (F32, (3, 5)), True),
)
"""Lengths as `attention` has them, masks, and whether they are causal."""


TYPES = {"gfx90a": (F16, F32), "gfx942": (F32, F16), "gfx1100": (F16, BF16), "gfx1201": (BF16, F16), "sm_75": (F16,)}


@pytest.mark.parametrize(
    ("name", "type", "case"),
    [(name, types[case % len(types)], case) for name, types in TYPES.items() for case in range(len(CASES))],
)
def test_values(name: str, type: Type, case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case on each architecture, and for each type: "groups", "causal", "one query", "mask"."""
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    lens, mask, causal = CASES[case]
    made = attention(type, lens, interpreter(), mask, causal=causal)
    assert made.executable is not None
    kind = "attention" if name == "sm_75" else "attention_matrix"
    assert f"gpu::{kind}_{type.dtype_name}" in made.executable.plan.steps[0].label


@pytest.mark.parametrize("name", ["gfx942", "gfx1100", "sm_75"])
@pytest.mark.parametrize("mask", [(BOOL, (1, 1, 5, 20)), (F16, (5, 20))])
def test_rows_that_see_no_key(name: str, mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    for nan_rows in (False, True):
        attention(F16, (1, 1, 1, 5, 20, 16, 16), interpreter(), mask, spoil=True, nan_rows=nan_rows)


@pytest.mark.parametrize("name", ["gfx942", "gfx1100", "sm_75"])
def test_a_fill_replaces_scores_where_the_mask_does_not_keep(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    attention(F16, (1, 1, 1, 5, 70, 16, 16), interpreter(), (BOOL, (1, 1, 5, 70)), spoil=True, fill=-1e9)


@pytest.mark.parametrize("name", ["gfx942", "gfx1201"])
def test_a_negative_scale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    attention(F16, (1, 1, 1, 20, 70, 16, 16), interpreter(), scale=-0.3)


def test_float32_keeps_its_bits_unless_fewer_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "gfx942")
    for precision, wanted in (("highest", "mfma_32x32x2_float32"), ("medium", "mfma_32x32x4_float32")):
        made = attention(F32, (1, 2, 2, 33, 70, 16, 24), interpreter(), precision=precision)
        assert wanted in made.kernels()[0].text


def problem(features: int, dtype: str, queries: int = 512) -> AttentionProblem:
    strides = packed_strides((1, 2, 512, features))
    return AttentionProblem(1, 2, 2, queries, 512, features, features, *[strides] * 4, dtype)


@pytest.mark.parametrize("name", AMD)
def test_kernels_have_their_instructions_and_no_spills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    arch = ARCHITECTURES[name]
    for dtype in ("float16", "float32"):
        for features in (40 if arch.wave == 64 else 128, 256):
            given = problem(features, dtype)
            found = attention_tile(given, "high", arch)
            assert bool(attention_refusal(given, "high")) == (found is None)
            assert (found is None) == (arch.wave == 32 and (dtype == "float32" or features > 128))
            if found is None:
                continue
            (launch,) = attention_solution(given, "high").launches
            assert isinstance(launch.kernel, KernelSource)
            text = assembly(launch.kernel, arch)
            kernel = resources(text)
            spilt = (".vgpr_spill_count", ".sgpr_spill_count", ".private_segment_fixed_size")
            assert not any(kernel[key] for key in spilt), (dtype, features)
            assert kernel[".group_segment_fixed_size"] <= arch.shared_bytes
            assert f"v_{found[0].family}_" in text and not re.search(r"^\s+flat_", text, re.M)


def test_the_instructions_are_those_of_sm_75(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_75")
    for features, queries in ((64, 512), (256, 1)):
        for launch in attention_solution(problem(features, "float16", queries), "high").launches[:1]:
            assert isinstance(launch.kernel, KernelSource)
            text = assembly(launch.kernel, ARCHITECTURES["sm_75"])
            assert "mma.sync.aligned.m16n8k8" in text and "ldmatrix" in text and ".local" not in text
            shared = launch.geometry.shared_bytes  # type: ignore[union-attr]
            assert shared <= ARCHITECTURES["sm_75"].shared_bytes
    assert "no products of bfloat16" in attention_refusal(problem(64, "bfloat16"), "high")


def test_halves_of_a_wave_give_each_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "gfx942")
    lines = [
        "p = pointer_float32(args, 0)",
        "thread = thread_index(0)",
        "given = load_scalar(p, thread)",
        "store_scalar(p, thread + 128, shuffle_halves(given))",
    ]
    kernel, numbers = gpu_kernel("halves_kernel", lines, 128, 1), aligned_empty((256,), "float32")
    numbers[:] = np.arange(256)
    memory = Memory()
    memory.add(address_of(numbers), numbers.view(np.uint8), "numbers")
    interpret(kernel, [address_of(numbers)], gpu_grid(1, 128), memory)
    assert np.array_equal(numbers[128:], np.arange(128) ^ 32)
    assert "ds_bpermute_b32" in assembly(kernel, ARCHITECTURES["gfx90a"])
    for name in ("gfx1100", "sm_80"):
        with pytest.raises(CompileError, match="no waves of 64"):
            assembly(kernel, ARCHITECTURES[name])
