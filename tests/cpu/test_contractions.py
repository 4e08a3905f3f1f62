"""Products and convolutions with epilogues on the cpu target against ref."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from mgx_numba.codegen.cpu.backend import BACKEND
from mgx_numba.codegen.cpu.contraction.panels import aligned_zeros
from mgx_numba.codegen.tuning.session import Tuning
from mgx_numba.codegen.tuning.source import Sources
from mgx_numba.core.types import Type
from mgx_numba.ops.window import PaddingMode
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.memory import scratch
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu import capabilities
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

from ..features import choosing_for
from ..values import normal
from .programs import FUSION, broadcast, check, program_of


def add_bias(m, y, bias, axis):
    return m.add_instruction("add", [y, m.add_instruction("broadcast", [bias], axis=axis, out_lens=y.shape.lens)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m,n,k", [(1, 1, 1), (1, 100, 33), (7, 5, 3), (37, 65, 129), (13, 16, 1)])
def test_dot_with_constant_weights_and_epilogue(m, n, k, dtype):
    def build(mod, p):
        w, b = mod.add_literal(normal(k, n, seed=1, dtype=dtype)), mod.add_literal(normal(n, seed=2, dtype=dtype))
        y = add_bias(mod, mod.add_instruction("dot", [p[0], w]), b, 1)
        return mod.add_instruction("add", [mod.add_instruction("relu", [y]), p[1]])

    program = check([normal(m, k, dtype=dtype), normal(m, n, seed=3, dtype=dtype)], build)
    assert [i.name for i in program.main if not (i.is_param or i.is_literal)][-2:] == ["fused_contraction", "@return"]


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(
    "m, n, k, copied", [(16, 64, 2, True), (67, 33, 257, True), (15, 64, 40, False), (64, 63, 255, False)]
)
def test_a_left_hand_side_with_strided_terms_is_copied_where_many_columns_read_it(batch, m, n, k, copied):
    weights = normal(k, n, seed=1)

    def build(mod, p):
        rank = len(batch) + 2
        turned = mod.add_instruction("transpose", [p[0]], permutation=[*range(rank - 2), rank - 1, rank - 2])
        return mod.add_instruction("dot", [turned, broadcast(mod, mod.add_literal(weights), (*batch, k, n))])

    given = normal(*batch, k, m)
    given[..., 0, 0] = np.nan
    program = check([given], build)
    assert (len(lower(program, TargetOptions(fast_math=False)).steps) > 1) == copied


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
@pytest.mark.parametrize("fast_math", [False, True])
def test_dot_of_one_row_with_many_weights(fast_math, value):
    weights = normal(400, 300, seed=1)
    weights[7, 5] = value
    given = normal(1, 400)
    program = program_of([given], lambda m, p: m.add_instruction("dot", [p[0], m.add_literal(weights)]))
    plan = lower(program, TargetOptions(fast_math=fast_math))
    (got,) = Executable(plan).run([given])
    np.testing.assert_allclose(got, given.astype(float) @ weights, rtol=1e-5, atol=1e-2 if fast_math else 1e-4)
    short = fast_math and bool(np.isfinite(value))
    assert [kernel.name for kernel in plan.kernels()] == ["gemv_int16_kernel" if short else "gemv_kernel"]


@pytest.mark.parametrize("end", ["tanh", "sigmoid", "relu", "silu"])
def test_weights_are_not_rounded_where_results_saturate(end):
    weights, given = normal(400, 300, seed=1), np.float32(0.05) * normal(1, 400)

    def build(m, p):
        y = m.add_instruction("dot", [p[0], m.add_literal(weights)])
        x = m.add_instruction("sigmoid" if end == "silu" else end, [y])
        return m.add_instruction("mul", [x, y]) if end == "silu" else x

    program = program_of([given], build)
    plan = lower(optimize(program, TargetOptions(fast_math=True)), TargetOptions(fast_math=True))
    (name,) = (kernel.name for kernel in plan.kernels())
    assert name.startswith("gemv_int16_" if end in ("relu", "silu") else f"gemv_{end}")
    (got,) = Executable(plan).run([given])
    x = given.astype(float) @ weights
    with np.errstate(over="ignore"):
        wanted = {"tanh": np.tanh(x), "sigmoid": 1 / (1 + np.exp(-x)), "relu": np.maximum(x, 0)}
    wanted["silu"] = x * wanted["sigmoid"]
    bound = 5e-5 if end in ("relu", "silu") else 5e-6
    assert np.abs(got - wanted[end]).max() <= bound * np.abs(wanted[end]).max()


def test_constants_lie_on_cache_lines():
    memory = np.zeros(500, np.float32)
    start = (-memory.ctypes.data // 4) % 16 + 3
    scale = memory[start : start + 100]
    scale[:] = normal(100, seed=1)
    given = normal(7, 100)

    def build(m, p):
        spread = m.add_instruction("multibroadcast", [m.add_literal(scale)], out_lens=(7, 100))
        return m.add_instruction("mul", [p[0], spread])

    plan = lower(program_of([given], build), TargetOptions())
    assert plan.constants and all(constant.ctypes.data % 64 == 0 for constant in plan.constants)
    np.testing.assert_array_equal(Executable(plan).run([given])[0], given * scale)


@pytest.mark.parametrize("make", [scratch, lambda size: aligned_zeros((size,), "uint8")], ids=["arena", "weights"])
@pytest.mark.parametrize("size", [5, (2 << 20) - 1, 2 << 20, (5 << 20) + 3])
def test_arenas_and_packed_weights_start_on_a_cache_line_or_a_huge_page(make, size):
    made = make(size)
    huge = size >= 2 << 20 and hasattr(mmap, "MADV_HUGEPAGE")
    assert made.shape == (size,) and made.ctypes.data % (2 << 20 if huge else 64) == 0 and not made.any()
    made[...] = 1


@pytest.mark.parametrize("huge", [True, False])
@pytest.mark.parametrize("size", [1 << 50, (1 << 63) - 1, 1 << 70])
def test_memory_that_the_system_has_not_is_a_memory_error(size, huge, monkeypatch):
    """Also more than a system can count, and where there are no huge pages to ask for."""
    if not huge:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    with pytest.raises(MemoryError, match=str(size)):
        scratch(size)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 4)])
def test_dot_of_two_activations(batch, transposed):
    def build(m, p):
        right = p[1]
        if transposed:
            axes = [*range(len(batch)), len(batch) + 1, len(batch)]
            right = m.add_instruction("transpose", [right], permutation=axes)
        return m.add_instruction("tanh", [m.add_instruction("dot", [p[0], right])])

    check([normal(*batch, 9, 17), normal(*(*batch, 21, 17) if transposed else (*batch, 17, 21), seed=1)], build)


def test_dot_with_masks_broadcast_over_the_batch():
    def build(m, p):
        mask = m.add_instruction("multibroadcast", [p[2]], out_lens=(2, 3, 5, 7))
        return m.add_instruction("add", [m.add_instruction("dot", [p[0], p[1]]), mask])

    check([normal(2, 3, 5, 4), normal(2, 3, 4, 7, seed=1), normal(2, 1, 1, 7, seed=2)], build)


CONVOLUTIONS = [
    # in_channels, out_channels, lens, kernel, stride, padding, dilation, group
    (3, 8, (9, 11), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    (16, 24, (7, 7), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (16, 24, (8, 6), (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    (8, 8, (10, 9), (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1),
    (12, 12, (9, 9), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 12),
    (12, 24, (9, 9), (5, 5), (2, 2), (2, 2, 2, 2), (1, 1), 4),
    (1, 5, (6, 6), (2, 2), (1, 1), (0, 1, 1, 0), (1, 1), 1),
    (6, 4, (20,), (3,), (1,), (1, 1), (1,), 1),
    (4, 6, (5, 6, 7), (3, 3, 3), (1, 2, 1), (1, 1, 1, 1, 1, 1), (1, 1, 1), 1),
    (32, 32, (14, 14), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
]


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_with_bias_and_activation(case, fast_math):
    cin, cout, lens, kernel, stride, padding, dilation, group = case

    def build(m, p):
        w, b = m.add_literal(normal(cout, cin // group, *kernel, seed=1)), m.add_literal(normal(cout, seed=2))
        attributes = {"stride": stride, "padding": padding, "dilation": dilation, "group": group}
        y = m.add_instruction("convolution", [p[0], w], **attributes)
        return m.add_instruction("relu", [add_bias(m, y, b, 1)])

    program = check([normal(2, cin, *lens)], build, rtol=1e-4, fast_math=fast_math)
    assert any(i.name == "fused_contraction" for i in program.main)


@pytest.mark.parametrize(
    "stride,padding,kernel", [((2, 2), (0,) * 4, (2, 2)), ((2, 2), (1,) * 4, (3, 3)), ((1, 1), (1,) * 4, (3, 3))]
)
def test_transposed_convolution(stride, padding, kernel):
    def build(m, p):
        w = m.add_literal(normal(6, 10, *kernel, seed=1))
        y = m.add_instruction("convolution_backwards", [p[0], w], stride=stride, padding=padding)
        return add_bias(m, y, m.add_literal(normal(10, seed=2)), 1)

    check([normal(2, 6, 5, 7)], build)


COLUMNS = ("rewrite_narrow_convolution", "rewrite_col2im", *FUSION)
TAPS_ADDED = {
    "stride": (2, 16, (9, 8), (3, 3, 3), {"stride": (2, 2), "padding": (1, 1)}),
    "dilation": (1, 20, (9, 17), (1, 3, 2), {"stride": (1, 2), "dilation": (2, 3), "padding": (0, 1, 2, 0)}),
    "groups": (2, 64, (7, 11), (2, 5, 4), {"stride": (2, 3), "padding": (2, 1), "group": 2}),
    "empty phases": (1, 24, (6, 12), (40, 1, 1), {"stride": (2, 3), "padding": (0, 0)}),
    "1 axis": (3, 32, (33,), (2, 9), {"stride": (4,), "dilation": (1,), "padding": (3,)}),
    "3 axes": (1, 16, (3, 4, 8), (1, 2, 3, 2), {"stride": (2, 1, 2), "dilation": (1, 1, 1), "padding": (0, 1, 0)}),
    "same_upper": (1, 32, (8, 9), (1, 4, 3), {"stride": (2, 2), "padding_mode": PaddingMode.same_upper}),
}


@pytest.mark.parametrize("type_", [np.float32, np.float64])
@pytest.mark.parametrize("case", TAPS_ADDED)
def test_transposed_convolution_of_few_channels(case, type_, monkeypatch):
    """The product of all taps, whose columns are added up, followed by other operators."""
    batch, channels, lens, weights, attributes = TAPS_ADDED[case]
    monkeypatch.setattr(capabilities, "_adds_columns", lambda options: lambda ins: True)
    attributes = {"dilation": (1,) * len(lens), **attributes}

    def build(m, p):
        w = m.add_literal(normal(channels, *weights, seed=1).astype(type_))
        y = m.add_instruction("convolution_backwards", [p[0], w], **attributes)
        bias = m.add_literal(normal(y.shape.lens[1], seed=2).astype(type_))
        return m.add_instruction("relu", [add_bias(m, y, bias, 1)])

    optimized = check([normal(batch, channels, *lens).astype(type_)], build, passes=COLUMNS)
    assert list(optimized.main.named(frozenset({"col2im"})))


ONE_PIXEL = {
    "first layer of a generator": (2, 100, (1, 1), (24, 4, 4), {"stride": (1, 1), "padding": (0, 0)}),
    "stride": (1, 40, (1, 1), (9, 2, 5), {"stride": (3, 4), "padding": (0, 0)}),
    "padding": (3, 20, (1, 1), (8, 4, 4), {"stride": (2, 2), "padding": (1, 1)}),
    "dilation": (1, 33, (1,), (7, 3), {"stride": (1,), "padding": (0,), "dilation": (2,)}),
}


@pytest.mark.parametrize("type_", [np.float32, np.float64])
@pytest.mark.parametrize("case", ONE_PIXEL)
def test_transposed_convolution_of_one_pixel(case, type_):
    """It is a product by the weights; it took up to eight times as long as ONNX Runtime."""
    batch, channels, lens, weights, attributes = ONE_PIXEL[case]
    attributes = {"dilation": (1,) * len(lens), **attributes}

    def build(m, p):
        w = m.add_literal(normal(channels, *weights, seed=1).astype(type_))
        y = m.add_instruction("convolution_backwards", [p[0], w], **attributes)
        return m.add_instruction("relu", [y])

    optimized = check([normal(batch, channels, *lens).astype(type_)], build, passes=COLUMNS)
    assert bool(list(optimized.main.named(frozenset({"col2im"})))) == (case in ("padding", "dilation"))
    program = program_of([normal(batch, channels, *lens).astype(type_)], build)
    assert "convolution" not in str(optimize(program, TargetOptions()))


NARROW = {
    "few channels": (1, 64, (48, 50), (3, 3, 3), {"padding": (1, 1)}),
    "one side": (2, 40, (33, 61), (2, 5, 4), {"padding": (3, 0, 1, 2)}),
    "dilation": (1, 48, (50, 47), (1, 3, 5), {"padding": (0, 0), "dilation": (3, 2)}),
    "1 axis": (3, 64, (3000,), (2, 9), {"padding": (4,), "stride": (1,), "dilation": (1,)}),
    "3 axes": (1, 32, (12, 13, 14), (3, 3, 3, 3), {"padding": (1, 0, 2), "stride": (1, 1, 1), "dilation": (1, 1, 1)}),
    "much padding": (1, 96, (30, 31), (2, 3, 3), {"padding": (4, 5)}),
    "same_lower": (1, 64, (40, 41), (3, 4, 4), {"padding_mode": PaddingMode.same_lower}),
}


@pytest.mark.parametrize("type_", [np.float32, np.float64])
@pytest.mark.parametrize("case", NARROW)
def test_convolution_of_few_channels(case, type_, monkeypatch):
    """As a transposed convolution with reversed taps: the product of all taps, whose columns are added up."""
    monkeypatch.setattr(capabilities, "_adds_columns", lambda options: lambda ins: True)
    batch, channels, lens, (out, *kernel), attributes = NARROW[case]

    def build(m, p):
        w = m.add_literal(normal(out, channels, *kernel, seed=1).astype(type_))
        y = m.add_instruction("convolution", [p[0], w], **attributes)
        bias = m.add_literal(normal(out, seed=2).astype(type_))
        return m.add_instruction("relu", [add_bias(m, y, bias, 1)])

    optimized = check([normal(batch, channels, *lens).astype(type_)], build, passes=COLUMNS)
    assert list(optimized.main.named(frozenset({"col2im"})))


@pytest.mark.parametrize(
    ("name", "lens", "weights", "taken"),
    [
        ("convolution", (1, 64, 64, 64), (3, 64, 9, 9), True),
        ("convolution", (1, 64, 64, 64), (64, 64, 3, 3), False),
        ("convolution", (1, 8, 6, 6), (3, 8, 3, 3), False),
        ("convolution", (1, 64, 64, 64), (3, 64, 1, 1), False),
        ("convolution_backwards", (1, 64, 32, 32), (64, 3, 3, 3), True),
        ("convolution_backwards", (1, 64, 32, 32), (64, 128, 3, 3), False),
    ],
)
def test_convolutions_of_few_channels_are_products_where_that_is_faster(name, lens, weights, taken):
    program = program_of([normal(*lens)], lambda m, p: m.add_instruction(name, [p[0], m.add_literal(normal(*weights))]))
    with choosing_for("x86-64-v4"):
        optimized = optimize(program, TargetOptions(num_threads=1))
    assert any(i.name == "col2im" for i in optimized.main) == taken


def test_convolution_with_weights_of_a_parameter():
    check([normal(1, 4, 6, 6), normal(5, 4, 3, 3, seed=1)], lambda m, p: m.add_instruction("convolution", p))


@pytest.mark.parametrize("given", [1, 2])
def test_an_epilogue_that_kernels_lack_packs_and_tunes_nothing(given):
    """All of the contraction is one fallback step then."""

    def build(m, p):
        w = p[1] if given == 2 else m.add_literal(normal(5, 4, 3, 3, seed=1))
        y = m.add_instruction("convert", [m.add_instruction("convolution", [p[0], w])], target_type=Type.int32_type)
        return m.add_instruction("sqrt", [m.add_instruction("mul", [y, y])])

    arrays = [normal(1, 4, 6, 6), normal(5, 4, 3, 3, seed=1)][:given]
    optimized = check(arrays, build)
    tuning = Tuning(BACKEND, Sources([]), lambda records: None, exhaustive=True)
    plan = lower(optimized, TargetOptions(tuning=tuning))
    assert [step.label for step in plan.steps if isinstance(step, FallbackStep)] == ["ref::fused_contraction"]
    assert tuning.pending() == []


def test_residual_and_scale_over_pixels():
    def build(m, p):
        w = m.add_literal(normal(8, 8, 1, 1, seed=1))
        y = m.add_instruction("convolution", [p[0], w])
        scale = m.add_instruction("multibroadcast", [p[1]], out_lens=y.shape.lens)
        return m.add_instruction("add", [m.add_instruction("mul", [y, scale]), p[0]])

    check([normal(2, 8, 5, 5), normal(2, 8, 1, 1, seed=2)], build)


def test_convolutions_write_into_a_concat():
    def build(m, p):
        x = m.add_instruction("layout", [p[0]], permutation=[0, 2, 3, 1])
        parts = [
            m.add_instruction(
                "relu", [m.add_instruction("convolution", [x, m.add_literal(normal(n, 8, 1, 1, seed=n))])]
            )
            for n in (3, 5, 16)
        ]
        return m.add_instruction("concat", parts, axis=1)

    check([normal(2, 8, 5, 5)], build)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("groups", "size"), [(2, 5), (4, 13), (3, 1)])
def test_each_thread_computes_its_rows_of_all_groups(threads, groups, size):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5 * groups, size, size + 1)).astype(np.float32)
    w = rng.standard_normal((7 * groups, 5, 3, 3)).astype(np.float32)

    def build(m, p):
        weights = m.add_literal(w)
        return m.add_instruction(
            "convolution", [p[0], weights], padding=[1, 1, 1, 1], stride=[1, 1], dilation=[1, 1], group=groups
        )

    check([x], build, num_threads=threads)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(
    "lens", [((7, 33), (33, 50)), ((1, 4), (4, 3)), ((2, 3, 5, 6), (2, 3, 6, 19)), ((40, 64), (64, 96))]
)
def test_quant_dot_with_constant_weights_is_no_host_step(lens, dtype, monkeypatch):
    monkeypatch.setenv("MGX_CPU_FEATURES", "avx512")
    rng = np.random.default_rng(5)
    limits = np.iinfo(dtype)
    a = rng.integers(limits.min, limits.max + 1, lens[0]).astype(dtype)
    weights = rng.integers(-128, 128, lens[1]).astype(np.int8)
    program = program_of([a], lambda m, p: m.add_instruction("quant_dot", [p[0], m.add_literal(weights)]))
    for threads in (1, 2):
        plan = lower(program, TargetOptions(num_threads=threads))
        names = [step.kernel.name for step in plan.steps]
        assert names[-1].startswith("gemm_int8_") and all(n.startswith(f"left_{a.dtype}_as_") for n in names[:-1])
        (got,) = Executable(plan).run([a])
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, a.astype(np.int32) @ weights.astype(np.int32))


def test_quant_dot_of_transposed_and_repeated_operands():
    rng = np.random.default_rng(6)
    a, weights = (rng.integers(-128, 128, lens).astype(np.int8) for lens in ((3, 17, 9), (21, 17)))

    def build(m, p):
        left = m.add_instruction("transpose", [p[0]], permutation=[0, 2, 1])
        right = m.add_instruction("transpose", [m.add_literal(weights)], permutation=[1, 0])
        right = m.add_instruction("multibroadcast", [right], out_lens=(3, 17, 21))
        return m.add_instruction("quant_dot", [left, right])

    check([a], build)


@pytest.mark.parametrize("types", [(np.int8, np.uint8), (np.uint8, np.uint8)])
def test_quant_dot_of_other_types_and_of_two_activations_stays_right(types):
    rng = np.random.default_rng(7)
    a, b = (rng.integers(0, 128, lens).astype(dtype) for lens, dtype in zip(((5, 8), (8, 6)), types))
    check([a], lambda m, p: m.add_instruction("quant_dot", [p[0], m.add_literal(b)]))
    check([a, b.astype(np.int8)], lambda m, p: m.add_instruction("quant_dot", [p[0], p[1]]))


@pytest.mark.parametrize("role", ["left", "left of constant", "right", "both"])
@pytest.mark.parametrize("stored", [Type.uint8_type, Type.half_type], ids=lambda t: t.name)
def test_an_operand_that_an_epilogue_widens_too_failed_to_compile(stored, role):
    """``y = abs(x @ w) * x`` where ``x`` is stored in 8 or 16 bits: the epilogue widens it for itself."""

    def build(m, p):
        x, w = p
        x = m.add_instruction("convert", [x], target_type=Type.float_type, elidable=True)
        if stored is Type.uint8_type:
            x = m.add_instruction("mul", [x, m.add_literal(np.full(x.shape.lens, 0.5, np.float32))])
        w = m.add_literal(given[1]) if role == "left of constant" else w
        y = m.add_instruction("dot", {"right": [w, x], "both": [x, x]}.get(role, [x, w]))
        return m.add_instruction("mul", [m.add_instruction("abs", [y]), x])

    given = [np.random.default_rng(1).integers(0, 5, (5, 5)).astype(stored.numpy), normal(5, 5, seed=3)]
    program = program_of(given, build)
    (wanted,) = evaluate(program, {"p0": given[0], "p1": given[1]})
    options = TargetOptions(fast_math=False)
    (got,) = Executable(lower(optimize(program, options), options), num_threads=2).run(given)
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
