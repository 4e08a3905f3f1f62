"""Groups of convolutions that become one, with weights of 0 between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import Options
from mgx_numba.graph.passes.join_groups import JoinGroups
from mgx_numba.graph.program import Program
from mgx_numba.targets.gpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions

from .support import Graph, check, find


def joining(factor: int, group: int = 6, fast_math: bool = True) -> Options:
    """Return options with which convolutions of ``group`` groups are computed with ``factor`` groups in one."""

    def factor_of(ins: Instruction) -> int:
        return factor if ins.op.attributes()["group"] == group else 1

    given = pass_options(TargetOptions(fast_math=fast_math))
    assert given.capabilities is not None
    return replace(given, capabilities=replace(given.capabilities, joined_groups=factor_of))


def grouped(inside: int, out: int, group: int, constant: bool = True, **attributes: Any) -> Program:
    g = Graph()
    x = g.param("x", [2, group * inside, 6, 5])
    lens = (group * out, inside, 3, 2)
    w = g.random(*lens) if constant else g.param("w", lens)
    return g.ret(g.op("convolution", x, w, group=group, **attributes))


def left(program: Program, options: Options) -> Instruction:
    return find(check(program, JoinGroups(), rtol=1e-5, atol=1e-5, options=options), "convolution")


@pytest.mark.parametrize("attributes", [{}, {"padding": (1, 0), "stride": (2, 1), "dilation": (1, 2)}])
@pytest.mark.parametrize(("inside", "out", "group", "factor"), [(2, 3, 6, 2), (2, 3, 6, 3), (4, 1, 6, 6), (1, 2, 4, 2)])
def test_groups_are_joined(inside: int, out: int, group: int, factor: int, attributes: dict[str, Any]) -> None:
    found = left(grouped(inside, out, group, **attributes), joining(factor, group))
    assert found.op.attributes()["group"] == group // factor
    assert found.inputs[1].shape.lens == (group * out, inside * factor, 3, 2)


def test_groups_stay() -> None:
    for program, options in (
        (grouped(2, 3, 6), joining(1)),
        (grouped(2, 3, 6), joining(2, fast_math=False)),
        (grouped(2, 3, 6, constant=False), joining(2)),
    ):
        assert left(program, options).op.attributes()["group"] == 6


def test_the_gpu_joins_groups_of_few_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    can = pass_options(TargetOptions()).capabilities
    assert can is not None and can.joined_groups is not None
    g = Graph()
    few = g.op("convolution", g.param("x", [8, 128, 56, 56], "half"), g.param("w", [128, 4, 3, 3], "half"), group=32)
    many = g.op("convolution", g.param("y", [8, 512, 14, 14], "half"), g.param("v", [512, 256, 3, 3], "half"), group=2)
    single = g.op("convolution", g.param("z", [8, 64, 14, 14], "half"), g.param("u", [64, 1, 3, 3], "half"), group=64)
    assert can.joined_groups(few) * 4 >= 32
    assert can.joined_groups(many) == can.joined_groups(single) == 1
    assert 32 % can.joined_groups(few) == 0
