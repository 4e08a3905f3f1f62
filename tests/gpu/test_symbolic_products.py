"""Products and convolutions of symbolic lengths on the interpreter: one plan is correct for any lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program

from .symbolic import SymbolicPlan, open_shape

F32, F16 = Type.float_type, Type.half_type


def planned(build: Callable[[Module], None], kernels: Sequence[str]) -> SymbolicPlan:
    """The plan of a program, whose kernels have these words in their names."""
    program = Program()
    build(program.main)
    made = SymbolicPlan(program)
    assert not made.guards
    assert len(made.labels) <= len(kernels) + 3, made.labels
    assert all(any(word in label for label in made.labels) for word in kernels), made.labels
    return made


def constant(m: Module, type: Type, *lens: int) -> Any:
    return m.add_literal(np.random.default_rng(1).standard_normal(lens).astype(type.numpy))


@pytest.mark.parametrize(
    "arch, type, depth, kernels",
    [
        ("sm_90a", F16, 64, ["rows", "warpgroup"]),
        ("sm_90a", F32, 64, ["rows", "fma"]),
        ("sm_80", F16, 64, ["rows", "tensor"]),
        ("sm_90a", F32, 7, ["rows", "gemm_float32_relu"]),
        ("gfx942", F16, 64, ["rows", "tensor"]),
    ],
)
def test_products_of_open_rows(
    arch: str, type: Type, depth: int, kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", arch)

    def build(m: Module) -> None:
        x = m.add_parameter("x", open_shape(type, "s", depth))
        m.add_return([m.add_instruction("relu", [m.add_instruction("dot", [x, constant(m, type, depth, 40)])])])

    planned(build, kernels).check(*((0, s) for s in (1, 3, 5, 67)))


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_open_columns_and_sums(turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")

    def build(m: Module) -> None:
        left = m.add_parameter("x", open_shape(F16, "b", 2, "s", "t" if turned else 16))
        right = m.add_parameter("y", open_shape(F16, "b", 2, *(("t", 16) if turned else (16, "t"))))
        m.add_return([m.add_instruction("dot", [left, right])])

    made = planned(build, ["warpgroup", "gemm_float16"])
    made.check((1, 1, 1), (2, 40, 24), (1, 17, 5))


@pytest.mark.parametrize(
    "channels, lens, kernels",
    [(64, (8, 8), ["transpose", "warpgroup"]), (16, ("s", "s"), ["transpose", "tensor"])],
)
def test_convolutions(
    channels: int, lens: tuple[Any, ...], kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")

    def build(m: Module) -> None:
        x = m.add_parameter("x", open_shape(F16, "b", channels, *lens))
        how = {"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1)}
        m.add_return([m.add_instruction("convolution", [x, constant(m, F16, 24, channels, 3, 3)], **how)])

    planned(build, kernels).check((1, 3), (2, 16))


@pytest.mark.parametrize("type, depth", [(F16, 256), (F32, 64)])
def test_weights_in_blocks_by_their_codes_for_one_row(type: Type, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    rng, columns = np.random.default_rng(2), 12

    def build(m: Module) -> None:
        x = m.add_parameter("x", open_shape(type, "b", "s", depth))
        codes = m.add_literal(rng.integers(0, 256, (columns, depth // 32, 16)).astype(np.uint8))
        scales = m.add_literal(rng.uniform(0.001, 0.1, (columns, depth // 32)).astype(np.float32))
        y = m.add_instruction("matmul_nbits", [x, codes, scales], bits=4, block_size=32)
        m.add_return([m.add_instruction("relu", [y])])

    made = planned(build, ["4bits", "unpack", "gemm"])
    made.check((1, 1), (2, 1), (1, 5))
