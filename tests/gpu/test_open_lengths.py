"""Programs with dynamic inputs on a device: what new lengths need is there, and has the values of ref."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from mgx_numba.targets.gpu.ranges import LengthRanges

import mgx_numba.ops  # noqa: F401  (registers the operators)
from mgx_numba.codegen.gpu.cluster import rows
from mgx_numba.codegen.gpu.cluster.layout import row_layout
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.call_form import CallForm
from mgx_numba.runtime.gpu.constants import DeviceConstants
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.plan import Plan
from mgx_numba.targets.gpu import program as program_of_lengths
from mgx_numba.targets.gpu.program import GpuProgram
from mgx_numba.targets.lowering.likeness import Recipe
from mgx_numba.targets.lowering.lowering import Lowering
from mgx_numba.targets.options import TargetOptions

from ..cpu.agreement import assert_agrees, reference
from ..dynamic.models import MODELS, Case, encoder
from .operators import check_operator, hosted
from .programs import compiled, interpreter, labels

NEW = 12
"""Sets of lengths that are tried."""


def dynamic(case: Case, on: Engine) -> GpuProgram:
    return compiled(parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(0, 4096)), on)


@pytest.mark.parametrize("name", ["encoder", "fully_convolutional", "shuffle_net", "detector_head"])
def test_new_lengths_need_no_kernel_and_no_step_of_the_host_for_want_of_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    case, on = MODELS[name](), interpreter()
    net = dynamic(case, on)
    known = set(net.kernels())
    assert known
    rng = np.random.default_rng(7)
    for _ in range(NEW):
        plan = net._for(case.draw(rng))
        assert set(net.kernels()) == known
        assert not any("is not compiled" in reason for reason in plan.host_reasons().values())


@pytest.mark.parametrize("name", ["encoder", "shuffle_net", "decoder"])
def test_steps_of_instructions_that_are_alike_are_those_that_their_rules_append(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    case = encoder(3) if name == "encoder" else MODELS[name]()
    net, rng, followed = dynamic(case, interpreter()), np.random.default_rng(11), 0

    def counted(recipe: Recipe, low: Lowering, ins: Instruction) -> None:
        nonlocal followed
        followed += 1
        follow(recipe, low, ins)

    follow = Recipe.follow
    for _ in range(4):
        ranges, lens = net._ranges, {key: array.shape for key, array in case.draw(rng).items()}
        assert ranges is not None
        with monkeypatch.context() as patched:
            patched.setattr(Recipe, "follow", counted)
            plan = ranges.planned(lens)[0]
            patched.setattr(Lowering, "_lower_again", lambda low, ins, rule: rule.lower(low, ins))
            wanted = ranges.planned(lens)[0]
        assert plan.steps == wanted.steps
        assert (plan.arena_bytes, plan.uses, plan.outputs) == (wanted.arena_bytes, wanted.uses, wanted.outputs)
        for a, b in zip(plan.constants, wanted.constants, strict=True):
            np.testing.assert_array_equal(a, b)
    assert (followed > 0) == (name == "encoder")


def test_attention_whose_heads_are_merged_is_not_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result lies as the merge wants it: else it was copied, by a kernel that no lengths had asked for before."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    program = Program()
    m = program.main
    dims = [DynamicDimension(n, n) for n in (1, 4, 32)]
    shape = Shape.dynamic(Type.half_type, [*dims[:2], DynamicDimension(1, 512), dims[2]])
    q, k, v = (m.add_parameter(name, shape) for name in "qkv")
    eye = m.add_instruction("multibroadcast", [m.add_literal(np.eye(128, dtype=np.float16))], out_lens=(1, 128, 128))
    for _ in range(2):
        q = m.add_instruction("attention", [m.add_instruction("relu", [q]), k, v], scale=0.2)
    heads = m.add_instruction("transpose", [q], permutation=(0, 2, 1, 3))
    m.add_return([m.add_instruction("dot", [m.add_instruction("reshape", [heads], dims=(1, -1, 128)), eye])])
    ranges, lowered = compiled(program, interpreter())._ranges, 0
    assert ranges is not None
    run = Lowering.run

    def counted(low: Lowering) -> Plan:
        nonlocal lowered
        lowered += 1
        return run(low)

    monkeypatch.setattr(Lowering, "run", counted)
    for number, n in enumerate((40, 56, 72, 88), 1):
        plan = ranges.planned(dict.fromkeys("qkv", (1, 4, n, 32)))[0]
        assert len(plan.steps) == 5
        assert lowered == number


@pytest.mark.parametrize("name", ["decoder", pytest.param("fully_convolutional", marks=pytest.mark.gpu)])
def test_values_are_those_of_ref(name: str, on: Engine) -> None:
    case = MODELS[name]()
    net, rng = dynamic(case, on), np.random.default_rng(3)
    drawn = sorted((case.draw(rng) for _ in range(8)), key=lambda feeds: sum(a.size for a in feeds.values()))
    for feeds in drawn[:1] if on.name == "" else drawn:
        lens = {key: list(array.shape) for key, array in feeds.items()}
        assert_agrees(net.run(feeds), reference(parse_onnx(case.model, map_input_dims=lens), feeds))


def test_a_plan_that_goes_takes_its_memory_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, not when Python looks for garbage; whoever asks for its program then has it made again."""
    monkeypatch.setattr(program_of_lengths, "MOST_PLANS", 1)
    program, w = product()
    net = compiled(program, interpreter())
    feeds = values(2, w)[0]
    net.run(feeds)
    made = net._for(feeds)
    assert labels(made) and len(made.program.main) and made.rewrite_log()
    plan = weakref.ref(made.executable)
    gc.collect()
    gc.disable()
    try:
        del made
        assert plan() is not None
        net.run(values(3, w)[0])
        assert plan() is None
    finally:
        gc.enable()


def test_the_list_of_kernels_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    case = MODELS["shuffle_net"]()
    first = dynamic(case, interpreter()).kernels()

    def never(self: LengthRanges) -> None:
        raise AssertionError("lengths are tried again")

    monkeypatch.setattr(LengthRanges, "_sample", never)
    assert dynamic(case, interpreter()).kernels() == first


def product(columns: int = 8) -> tuple[Program, np.ndarray]:
    """Rows of any number times a constant, and their softmax."""
    program, w = Program(), np.random.default_rng(0).standard_normal((8, columns)).astype(np.float16)
    m = program.main
    x = m.add_parameter("x", Shape.dynamic(Type.half_type, [DynamicDimension(1, 4096), 8]))
    y = m.add_instruction("dot", [x, m.add_literal(w)])
    m.add_return([m.add_instruction("softmax", [y], axis=1)])
    return program, w


def values(rows_: int, w: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = np.random.default_rng(rows_).standard_normal((rows_, 8)).astype(np.float16)
    y = x.astype(np.float64) @ w.astype(np.float64)
    e = np.exp(y - y.max(1, keepdims=True))
    return {"x": x}, e / e.sum(1, keepdims=True)


def kept_kernels(net: GpuProgram, wanted: Any) -> None:
    """Let a program know only some of its kernels."""
    assert net._ranges is not None
    net._ranges._texts = {kernel.text for kernel in net.kernels() if wanted(kernel)}


def test_another_solver_whose_kernel_is_there_computes_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_80")
    program, w = product()
    net = compiled(program, interpreter())

    def small_tile(kernel: KernelSource) -> bool:
        return "gemm_rows" not in kernel.name

    kept_kernels(net, small_tile)
    feeds, wanted = values(2, w)
    made = net._for(feeds)
    assert any("gemm_tensor" in label for label in labels(made)) and not hosted(made)
    np.testing.assert_allclose(np.asarray(net.run(feeds)[0], np.float64), wanted, atol=4e-3)


def test_a_kernel_that_nothing_else_can_stand_in_for_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_80")
    program, w = product()
    net = compiled(program, interpreter())
    kept_kernels(net, lambda kernel: "gemm_rows" in kernel.name)
    feeds, wanted = values(2, w)
    made = net._for(feeds)
    assert not hosted(made) and any("reduce_max" in label for label in labels(made))
    assert all(kernel.text in net._ranges._texts for kernel in made.kernels())  # type: ignore[union-attr]
    np.testing.assert_allclose(np.asarray(net.run(feeds)[0], np.float64), wanted, atol=4e-3)


@pytest.mark.parametrize(("lens", "axis"), [((3, 2), 1), ((2, 13), 1), ((3, 20), 1), ((1, 1100), 1)])
def test_general_kernels_of_reductions(
    lens: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch, on: Engine
) -> None:
    laid: list[bool] = []

    def general(*given: Any) -> Any:
        layout = row_layout(*given[:6], general=True)
        laid.append(layout.exact)
        return layout

    monkeypatch.setattr(rows, "row_layout", general)
    x = np.random.default_rng(1).standard_normal(lens).astype(np.float32)
    x.reshape(-1)[:3] = np.nan, np.inf, -np.inf
    check_operator(on, "softmax", [x], axis=axis)
    for name in ("reduce_sum", "reduce_max"):
        check_operator(on, name, [x], axes=[axis])
    assert laid and not any(laid)


def test_constants_are_on_a_device_once_as_long_as_they_live(on: Engine) -> None:
    constants = DeviceConstants(on)
    a, b = np.arange(100, dtype=np.float32), np.arange(7)
    first = constants.placed([a, b, np.empty(0)])
    again = constants.placed([b, a, a[:50], a.reshape(10, 10)])
    assert [p.address for p in again[:2]] == [first[1].address, first[0].address]
    assert again[3].address == first[0].address
    assert len({p.address for p in (*first[:2], again[2])}) == 3
    del a, first, again
    gc.collect()
    c = np.arange(100, dtype=np.float32) + 1  # may lie where the first one did
    (placed,) = constants.placed([c])
    got = np.empty(100, np.float32)
    with on.use():
        queue = on.queue(0)
        queue.download(got, placed.address)
        queue.wait()
    assert np.array_equal(got, c)


def test_two_arrays_of_one_memory_each_have_a_place(on: Engine) -> None:
    memory = np.arange(8, dtype=np.float32).tobytes()
    arrays = [np.frombuffer(memory, np.float32), np.frombuffer(memory, np.float32), np.ones(4, np.float32)]
    for array, placed in zip(arrays, DeviceConstants(on).placed(arrays), strict=True):
        got = np.empty_like(array)
        with on.use():
            queue = on.queue(0)
            queue.download(got, placed.address)
            queue.wait()
        assert np.array_equal(got, array)


def test_no_garbage_is_looked_for_while_a_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, record = [], CallForm._record

    def noted(form: CallForm) -> None:
        looks.append(gc.isenabled())
        record(form)

    monkeypatch.setattr(CallForm, "_record", noted)
    program, w = product()
    compiled(program, interpreter()).run(values(2, w)[0])
    assert looks == [False] and gc.isenabled()


def test_weights_are_on_a_device_once_whatever_the_batch() -> None:
    case, rng = encoder(2, 32, 16), np.random.default_rng(1)
    net, known, sizes = dynamic(case, interpreter()), set(), []
    batches: set[int] = set()
    while len(batches) < 3:
        feeds = case.draw(rng)
        if (batch := next(iter(feeds.values())).shape[0]) in batches:
            continue
        batches.add(batch)
        made = net._for(feeds).executable
        assert made is not None
        placed = {p.address: a.nbytes for p, a in zip(made.constants, made.host_constants)}
        sizes.append(sum(size for address, size in placed.items() if address not in known))
        known.update(placed)
    assert all(8 * new < sizes[0] for new in sizes[1:]), sizes  # positions alone depend on lengths


def test_plans_share_constants(on: Engine) -> None:
    program, w = product()
    net = GpuProgram(program, TargetOptions(fast_math=False), on=on)
    plans = [net._for(values(n, w)[0]) for n in (2, 40)]
    blocks = []
    for made in plans:
        assert made.executable is not None
        sizes = [a.nbytes for a in made.executable.host_constants]
        blocks.append({p.address for p, size in zip(made.executable.constants, sizes) if size})
    assert blocks[0] & blocks[1]
