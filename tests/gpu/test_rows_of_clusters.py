"""Rows shared by several blocks: values of ref, and faults that the interpreter detects."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.cluster import reduction_rows, thread_layout
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.targets.gpu import capabilities

from ..cpu.agreement import assert_agrees, reference
from ..interpreter.lanes import KernelFault
from ..passes.group_norms import network
from ..passes.support import random_inputs
from .programs import compiled, interpreter

F32, F16 = Type.float_type, Type.half_type


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one-warp blocks with two vectors per thread, so that rows of a few hundred elements count as long."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(thread_layout, "MOST_THREADS", 32)
    monkeypatch.setattr(thread_layout, "MOST_HELD", 2)
    monkeypatch.setattr(thread_layout, "FEWEST_THREADS", 32)
    monkeypatch.setattr(thread_layout, "CLUSTERS", ((32, 2), (64, 4)))


def softmax(type: Type, lens: tuple[int, ...], axis: int = -1) -> Program:
    program = Program()
    x = program.main.add_parameter("x", Shape(type, lens))
    program.main.add_return([program.main.add_instruction("softmax", [x], axis=axis)])
    return program


def standard(lens: tuple[int, ...]) -> Program:
    """Rows less their mean, over their deviation, and the mean itself."""
    program = Program()
    m = program.main
    x = m.add_parameter("x", Shape(F32, lens))
    mean = m.add_instruction("reduce_mean", [x], axes=(1,))
    centred = m.add_instruction("sub", [x, m.add_instruction("multibroadcast", [mean], out_lens=lens)])
    square = m.add_instruction("reduce_mean", [m.add_instruction("mul", [centred, centred])], axes=(1,))
    factor = m.add_instruction("rsqrt", [square])
    wide = m.add_instruction("multibroadcast", [factor], out_lens=lens)
    m.add_return([m.add_instruction("mul", [centred, wide]), mean])
    return program


def clusters(program: Program, on: Engine, values: np.ndarray) -> list[str]:
    """Run and compare; the sizes of clusters that the kernels' texts say."""
    made = compiled(program, on)
    assert_agrees(made.run({"x": values}), reference(program, {"x": values}))
    texts = [kernel.text for kernel in made.kernels()]
    return [line for text in texts for line in text.splitlines() if line.startswith("CLUSTER")]


@pytest.mark.parametrize(
    ("type", "lens", "blocks"),
    [(F32, (3, 512), 2), (F32, (2, 1000), 4), (F16, (3, 2, 1016), 2), (F32, (5, 127), 2), (F32, (1, 509), 4)],
)
def test_softmax(type: Type, lens: tuple[int, ...], blocks: int, on: Engine) -> None:
    values = np.random.default_rng(lens[-1]).standard_normal(lens).astype(type.numpy)
    assert clusters(softmax(type, lens), on, values) == [f"CLUSTER = {blocks}"]


def test_infinities_and_nan_stay_in_their_rows(on: Engine) -> None:
    values = np.random.default_rng(0).standard_normal((4, 400)).astype(np.float32)
    values[1, 3], values[2, 399], values[3] = np.nan, np.inf, -np.inf
    assert clusters(softmax(F32, (4, 400)), on, values)


def test_results_of_one_value_a_row(on: Engine) -> None:
    values = np.random.default_rng(0).standard_normal((3, 700)).astype(np.float32)
    assert "CLUSTER = 4" in clusters(standard((3, 700)), on, values)


def test_rows_beyond_a_cluster_are_read_again(on: Engine) -> None:
    values = np.random.default_rng(0).standard_normal((2, 8000)).astype(np.float32)
    assert not clusters(softmax(F32, (2, 8000)), on, values)


def test_elsewhere_there_are_no_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_80")
    values = np.random.default_rng(0).standard_normal((2, 512)).astype(np.float32)
    assert not clusters(softmax(F32, (2, 512)), interpreter(), values)


@pytest.mark.parametrize(
    ("spoilt", "by", "said"),
    [
        ("mbarrier_wait(s0_met, 0)", "barrier()", "still on the way|which nobody has written"),
        ("cluster_wait()", "barrier()", "before it is known to have begun"),
        ("if thread_index(0) < 2:", "if thread_index(0) < 1:", "threads never meet"),
        ("mbarrier_expect(s1_met, 8)", "mbarrier_expect(s1_met, 12)", "threads never meet"),
        ("cluster_send(s1_all, cluster_rank(),", "cluster_send(s1_all, cluster_rank() + 1,", "sends bytes 8 to 12"),
    ],
)
def test_what_the_interpreter_says_of_sums_that_do_not_come(
    spoilt: str, by: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = reduction_rows.gpu_kernel

    def wrong(name: str, lines: list[str], *rest: int, **options: int) -> KernelSource:
        assert any(spoilt in line for line in lines)
        return written(name, [line.replace(spoilt, by) for line in lines], *rest, **options)

    monkeypatch.setattr(reduction_rows, "gpu_kernel", wrong)
    with pytest.raises(KernelFault, match=said):
        compiled(softmax(F32, (2, 512)), interpreter()).run({"x": np.zeros((2, 512), np.float32)})


@pytest.mark.parametrize(
    ("type", "name"),
    [(F32, "reduce_sum"), (F16, "reduce_max"), (Type.double_type, "reduce_prod"), (Type.int8_type, "reduce_min"),
     (Type.int64_type, "reduce_max"), (Type.bool_type, "reduce_any"), (Type.int32_type, "reduce_mean")],
)  # fmt: skip
def test_sums_of_all_types_are_sent(type: Type, name: str, on: Engine) -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(type, (3, 480)))
    program.main.add_return([program.main.add_instruction(name, [x], axes=(1,))])
    values = (np.random.default_rng(0).random((3, 480)) * 2).astype(type.numpy)
    assert clusters(program, on, values)
    for kernel in compiled(program, on).kernels():
        assert "st.async" in assembly(kernel, ARCHITECTURES["sm_90a"])


def test_the_instructions_are_those_of_clusters() -> None:
    (kernel,) = compiled(softmax(F32, (2, 512)), interpreter()).kernels()
    text = assembly(kernel, ARCHITECTURES["sm_90a"])
    for wanted in (
        ".reqnctapercluster 2, 1, 1",
        "mapa.shared::cluster.u32",
        "barrier.cluster.arrive.relaxed",
        "%cluster_ctarank",
    ):
        assert wanted in text, wanted


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize(("lens", "groups"), [([2, 8, 9, 4], 2), ([1, 12, 7, 5], 4), ([2, 6, 3, 3], 3)])
def test_groups_of_channels_are_normalised_where_they_lie(
    lens: list[int], groups: int, merged: bool, on: Engine
) -> None:
    program = network(lens, groups, merged)
    net = compiled(program, on, fast_math=True)
    inputs = random_inputs(program)
    inputs["x"][0, 0, 0, 0] = np.inf
    assert_agrees(net.run(inputs), reference(program, inputs))
    assert net.executable is not None
    labels = [step.label for step in net.executable.plan.steps]
    assert sum("reduce_mean" in label for label in labels) == 1
    assert sum("transpose" in label or "copy" in label for label in labels) <= 2, labels  # of the input and the result


@pytest.mark.parametrize("fast_math", [True, False])
@pytest.mark.parametrize(("lens", "groups"), [([1, 16, 9, 7], 4), ([2, 24, 8, 5], 4), ([1, 16, 3, 11], 2)])
def test_short_runs_of_channels_are_combined_after_pixels(
    lens: list[int], groups: int, fast_math: bool, on: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four channels of a group fill 16 bytes: sums of groups read quarters of lines, and reached 40% of a copy."""
    monkeypatch.setattr(capabilities, "SHORT_RUN_ELEMENTS", 1)
    monkeypatch.setattr(capabilities, "REPEATED_SHARE", 1 << 30)
    monkeypatch.setattr(capabilities, "PART_ELEMENTS", 64)
    monkeypatch.setattr(capabilities, "PART_SHARE", 1)
    monkeypatch.setattr(capabilities, "LINE_BYTES", 64)
    program = network(lens, groups)
    net = compiled(program, on, fast_math=fast_math)
    inputs = random_inputs(program)
    (got,), wanted = net.run(inputs), reference(program, inputs)
    if fast_math:  # moments about a shift are rounded otherwise
        np.testing.assert_allclose(got, wanted.results[0], rtol=1e-4, atol=1e-4)
    else:
        assert_agrees([got], wanted)
    assert net.executable is not None
    steps = [step for step in net.executable.plan.steps if "reduce_sum" in step.label]
    assert any("axes={2, 3}" in step.instruction for step in steps), [step.instruction for step in steps]
    inputs["x"][0, 0, 0, 0] = np.inf
    assert_agrees(net.run(inputs), reference(program, inputs))
