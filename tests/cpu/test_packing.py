"""Packed weights of programs with dynamic inputs: one copy for all lengths that use the same form."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.plan import Step
from mgx_numba.targets.lowering import shared_weights
from mgx_numba.targets.lowering.shared_weights import SharedWeights

RNG = np.random.default_rng(5)
DENSE = RNG.standard_normal((96, 160), dtype=np.float32)
FILTER = RNG.standard_normal((32, 16, 3, 3), dtype=np.float32)
SCALE = 1 + RNG.random((1, 32, 1, 1), dtype=np.float32)


def dynamic(kind: str, name: str = "cpu") -> migraphx.program:
    """A product, or a convolution into whose filter a scale is folded, over any number of rows or images."""
    net = migraphx.program()
    mm = net.get_main_module()
    rows = migraphx.dynamic_dimension(1, 64)
    if kind == "dot":
        x = mm.add_parameter("x", migraphx.shape(dyn_dims=[rows, 96]))
        result = mm.add_instruction(migraphx.op("dot"), [x, mm.add_literal(DENSE)])
    else:
        x = mm.add_parameter("x", migraphx.shape(dyn_dims=[rows, 16, 9, 9]))
        conv = mm.add_instruction(migraphx.op("convolution", padding=[1, 1]), [x, mm.add_literal(FILTER)])
        scale = mm.add_literal(SCALE)
        spread = mm.add_instruction(migraphx.op("multibroadcast"), [scale, conv])
        result = mm.add_instruction(migraphx.op("mul"), [conv, spread])
    mm.add_return([result])
    return net.compile(migraphx.get_target(name))


def given(kind: str, rows: int) -> np.ndarray:
    return RNG.standard_normal((rows, 96) if kind == "dot" else (rows, 16, 9, 9), dtype=np.float32)


def big_constants(net: migraphx.program) -> list[list[np.ndarray]]:
    """The constants of at least 16 KiB of each plan."""
    assert net.compiled is not None
    plans = net.compiled.own_plans()
    return [[array for array in plan.constants if array.nbytes >= 1 << 14] for plan in plans]


@pytest.mark.parametrize("kind", ["dot", "convolution"])
def test_each_set_of_lengths_packed_its_own_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packings = []
    original = SharedWeights.packed

    def counted(self, weights, how, pack):
        return original(self, weights, how, lambda: packings.append(how) or pack())

    monkeypatch.setattr(SharedWeights, "packed", counted)
    net = dynamic(kind)
    packings.clear()
    for rows in (40, 41, 50, 40):
        x = given(kind, rows)
        want = np.asarray(dynamic(kind, "ref").run({"x": x})[0])
        np.testing.assert_allclose(np.asarray(net.run({"x": x})[0]), want, rtol=2e-3, atol=2e-3)
    assert len(big_constants(net)) == 1 and not packings


def test_weights_that_look_alike_are_told_apart() -> None:
    """The program's weights are keyed by address, weights computed by passes by content, and views by their layout."""
    program = Program()
    literals = [program.main.add_literal(np.float32(values)) for values in (DENSE[:96, :96], DENSE[:96, 64:])]
    mine = [ins.literal.numpy() for ins in literals if ins.literal is not None]
    computed = [scale * mine[0] for scale in np.float32([2, 3])]
    views = [mine[0].T, mine[0][1:], mine[0][:-1], np.broadcast_to(computed[0][0], (96, 96))]
    shared = SharedWeights(program)
    packed = [shared.packed(weights, "how", weights.copy) for weights in (*mine, *computed, *views)]
    assert len({id(array) for array in packed}) == 8
    for weights, array in zip([*mine, *(c.copy() for c in computed), *views], packed, strict=True):
        assert shared.packed(weights, "how", weights.copy) is array
        np.testing.assert_array_equal(array, weights)
    assert shared.packed(mine[0], "otherwise", mine[0].copy) is not packed[0]


def test_transposed_convolutions_with_other_phases_of_as_many_taps_shared_weights() -> None:
    """A one-row output has no second phase along rows, a one-column output none along columns."""
    net = migraphx.program()
    ref = migraphx.program()
    for network, name in ((net, "cpu"), (ref, "ref")):
        mm = network.get_main_module()
        dims = [migraphx.dynamic_dimension(1, 8)] * 2
        x = mm.add_parameter("x", migraphx.shape(dyn_dims=[migraphx.dynamic_dimension(1, 1), FILTER.shape[0], *dims]))
        op = migraphx.op("convolution_backwards", padding=[1, 1], stride=[2, 2])
        mm.add_return([mm.add_instruction(op, [x, mm.add_literal(FILTER)])])
        network.compile(migraphx.get_target(name))
    for lens in ((1, 3), (3, 1), (4, 4)):
        x = RNG.standard_normal((1, FILTER.shape[0], *lens), dtype=np.float32)
        want = np.asarray(ref.run({"x": x})[0])
        np.testing.assert_allclose(np.asarray(net.run({"x": x})[0]), want, rtol=2e-3, atol=2e-3)


def test_products_of_dynamic_batches_spread_and_packed_their_weights_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX's ``MatMul`` and ``Add`` with weights; the host packed the weights in every run before they were
    specialised."""
    monkeypatch.setenv("MGX_CPU_FEATURES", "avx512")  # with AMX many rows take another form of the weights than few
    packings = []
    original = SharedWeights.packed

    def counted(self, weights, how, pack):
        return original(self, weights, how, lambda: packings.append(how) or pack())

    monkeypatch.setattr(SharedWeights, "packed", counted)
    net = migraphx.program()
    mm = net.get_main_module()
    dims = [migraphx.dynamic_dimension(1, 64), migraphx.dynamic_dimension(1, 64), migraphx.dynamic_dimension(96, 96)]
    x, w = mm.add_parameter("x", migraphx.shape(dyn_dims=dims)), mm.add_literal(DENSE)
    pair = [mm.add_instruction(migraphx.op("broadcast_for_dot"), both) for both in ([x, w], [w, x])]
    dot = mm.add_instruction(migraphx.op("dot"), pair)
    bias = mm.add_instruction(migraphx.op("multibroadcast"), [mm.add_literal(DENSE[0]), dot])
    mm.add_return([mm.add_instruction(migraphx.op("add"), [dot, bias])])
    net.compile(migraphx.get_target("cpu"))
    packings.clear()
    for lens in ((8, 5), (9, 5), (1, 7), (8, 6), (8, 5)):
        x = RNG.standard_normal((*lens, 96), dtype=np.float32)
        np.testing.assert_allclose(np.asarray(net.run({"x": x})[0]), x @ DENSE + DENSE[0], rtol=2e-3, atol=2e-3)
    assert not packings
    assert net.compiled is not None
    (plan,) = net.compiled.own_plans()
    assert all(isinstance(step, Step) for step in plan.steps)


def test_what_was_made_of_a_constant_is_found_while_both_are_held() -> None:
    program = Program()
    shared = SharedWeights(program)
    base, other = DENSE.copy(), DENSE.copy()
    shape = Shape(Type.float_type, (96, 160))
    assert shared.made(base, "how") is None
    shared.note_made(base, "how", (other, shape, 3))
    found = shared.made(base, "how")
    assert found is not None and found[0] is other and found[1:] == (shape, 3)
    assert shared.made(base, "otherwise") is None and shared.made(other, "how") is None
    del other, found
    assert shared.made(base, "how") is None
    shared.note_made(base, "how", (base, shape, 0))
    del base
    assert not shared._made


@pytest.mark.parametrize("opened", [False, True])
def test_weights_that_no_step_reads_were_copied_to_aligned_memory(
    opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unaligned(*lens: int) -> np.ndarray:
        """Random numbers that begin 4 bytes behind a cache line, as in a file."""
        memory = np.empty(4 * int(np.prod(lens)) + 128, np.uint8)
        found = memory[(60 - memory.ctypes.data) % 64 + 8 :][: 4 * int(np.prod(lens))].view(np.float32).reshape(lens)
        found[...] = RNG.standard_normal(lens, dtype=np.float32)
        assert found.ctypes.data % 64 == 4
        return found

    copied: list[int] = []
    original = shared_weights.aligned_copy
    monkeypatch.setattr(shared_weights, "aligned_copy", lambda array: copied.append(array.nbytes) or original(array))
    net = migraphx.program()
    mm = net.get_main_module()
    weights, bias = unaligned(64, 48), unaligned(1, 48)
    rows = migraphx.dynamic_dimension(1, 64)
    shape = migraphx.shape(dyn_dims=[rows, 64]) if opened else migraphx.shape(type="float_type", lens=[7, 64])
    x = mm.add_parameter("x", shape)
    product = mm.add_instruction(migraphx.op("dot"), [x, mm.add_literal(weights)])
    spread = mm.add_instruction(migraphx.op("multibroadcast"), [mm.add_literal(bias), product])
    mm.add_return([mm.add_instruction(migraphx.op("add"), [product, spread])])
    net.compile(migraphx.get_target("cpu"))
    assert weights.nbytes not in copied
    assert net.compiled is not None
    for plan in net.compiled.own_plans():
        assert all(array.ctypes.data % 64 == 0 for array in plan.constants if array.nbytes)
    given = RNG.standard_normal((7, 64), dtype=np.float32)
    np.testing.assert_allclose(np.asarray(net.run({"x": given})[0]), given @ weights + bias, 1e-4, 1e-4)
