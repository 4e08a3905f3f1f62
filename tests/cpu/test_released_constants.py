"""Constants computed by passes: released once packed, and recomputed for display."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba as migraphx

RNG = np.random.default_rng(3)
WEIGHTS = [RNG.standard_normal((256, 256), dtype=np.float32) for _ in range(3)]
X = RNG.standard_normal((16, 256), dtype=np.float32)


def projections(read_in_place: bool = False) -> migraphx.program:
    """Three products of one input, which become one with merged weights; one weight may be a result, too."""
    net = migraphx.program()
    mm = net.get_main_module()
    x = mm.add_parameter("x", migraphx.shape(type="float_type", lens=[16, 256]))
    weights = [mm.add_literal(w) for w in WEIGHTS]
    products = [
        mm.add_instruction(migraphx.op("tanh"), [mm.add_instruction(migraphx.op("dot"), [x, w])]) for w in weights
    ]
    if read_in_place:
        doubled = mm.add_instruction(migraphx.op("add"), [weights[0], weights[0]])
        products += [doubled, mm.add_instruction(migraphx.op("dot"), [x, doubled])]
    mm.add_return(products)
    return net


def wanted(read_in_place: bool) -> list[np.ndarray]:
    results = [np.tanh(X @ w) for w in WEIGHTS]
    return [*results, 2 * WEIGHTS[0], X @ (2 * WEIGHTS[0])] if read_in_place else results


@pytest.mark.parametrize("read_in_place", [False, True])
def test_merged_weights_are_freed_and_come_back_to_be_shown(read_in_place: bool):
    net = projections(read_in_place)
    portable = str(net)
    net.compile("cpu", num_threads=2)
    assert net.compiled is not None
    for result, value in zip(net.run({"x": X}), wanted(read_in_place), strict=True):
        np.testing.assert_allclose(np.asarray(result), value, rtol=2e-4, atol=2e-3)
    shown = str(net)
    assert str(net) == shown
    assert sum(i.literal.shape.bytes for i in net.compiled.program.main if i.literal) >= 3 * 4 * 256 * 256
    zeros = [i for i in net.compiled.program.main if i.literal is not None and not i.literal.numpy().any()]
    assert zeros == []
    assert str(net.portable) == portable


def test_the_plan_holds_no_constant_that_no_step_reads():
    net = projections().compile("cpu", num_threads=2)
    assert net.compiled is not None
    held = sum(array.nbytes for array in net.compiled.executable.plan.constants)
    assert held <= 1.1 * sum(w.nbytes for w in WEIGHTS)


def test_equal_addresses_of_freed_constants_are_not_mistaken_for_each_other():
    """Layer after layer merges weights of one shape, whose memory may come back at the address of the one before."""
    rng = np.random.default_rng(4)
    net = migraphx.program()
    mm = net.get_main_module()
    value = mm.add_parameter("x", migraphx.shape(type="float_type", lens=[16, 256]))
    expected = X
    for _ in range(6):
        pair = [rng.standard_normal((256, 256), dtype=np.float32) / 16 for _ in range(2)]
        parts = [mm.add_instruction(migraphx.op("dot"), [value, mm.add_literal(w)]) for w in pair]
        value = mm.add_instruction(migraphx.op("mul"), [mm.add_instruction(migraphx.op("tanh"), [parts[0]]), parts[1]])
        expected = np.tanh(expected @ pair[0]) * (expected @ pair[1])
    mm.add_return([value])
    net.compile("cpu", num_threads=2)
    np.testing.assert_allclose(np.asarray(net.run({"x": X})[0]), expected, rtol=2e-3, atol=2e-3)
