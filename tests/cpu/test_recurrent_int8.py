"""Recurrent layers with weights and states in 8 bits: kernels against the operator's meaning, and `quantize_int8`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mgx_numba
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.microkernels.int8_table import has_dot4
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes import run_passes
from mgx_numba.graph.passes.quantization_plan import FEWEST_UNITS
from mgx_numba.ops.base import make_op
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

from ..features import features
from ..values import normal
from .programs import FUSION, check, compile_and_run, program_of

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
FUNCTIONS = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}
FORMS = ("", "avx2", "-avx512vnni,-avxvnni", "avx2,-avxvnni", "sse")
"""Enabled CPU features: all, VNNI on 256 bits, and no VNNI on 512, 256 and 128 bits."""
FLIP = 3e-3
"""Error relative to the largest result: float32 sums in another order round some states to another code."""


form = features(FORMS, arm=("", "-i8mm", "-i8mm,-dotprod"))


def steps(
    cell: str, s: int = 3, b: int = 1, h: int = 5, d: int = 1, given: str = "", lengths: Any = None,
    codes: np.ndarray | None = None, points: bool = False, **attributes: Any,
) -> tuple[list[np.ndarray], Any]:  # fmt: skip
    """Arrays that become parameters, and the graph of the steps of ``d`` directions, with all their results."""
    rows = GATES[cell] * h
    if codes is None:
        codes = np.random.default_rng(1).integers(-127, 128, (d, rows, h))
    sides = {
        "bias": normal(d, h, seed=2),
        "lengths": None if lengths is None else np.asarray(lengths),
        "hidden": normal(d, b, h, seed=3, scale=0.5),
        "state": normal(d, b, h, seed=4),
        "peephole": normal(d, 3 * h, seed=5),
    }
    names = [name for name in sides if name in given or (name == "lengths" and lengths is not None)]
    arrays = [normal(s, b, d, rows), *(sides[name] for name in names)]
    scales = np.random.default_rng(6).uniform(0.5, 2, (d, rows)).astype(np.float32) / np.float32(100 * np.sqrt(h))
    last = ["scales", "points"] if points else ["scales"]
    zero = np.random.default_rng(8).integers(-128, 128, (d, rows)).astype(np.int32)
    attributes |= {"cell": cell, "hidden_size": h, "given": " ".join([*names, *last]), "backward": d - 1}
    attributes["actv_func"] = tuple(make_op(f) for f in FUNCTIONS[cell])

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        sides = [m.add_literal(v) for v in ((scales, zero) if points else (scales,))]
        inputs = [p[0], m.add_literal(codes.astype(np.int8)), *p[1:], *sides]
        whole = m.add_instruction("recurrent_steps", inputs, **attributes)
        return [m.add_instruction("get_tuple_elem", [whole], index=k) for k in range(len(whole.shape.sub_shapes))]

    return arrays, build


def multiplies_bytes(arrays: list[np.ndarray], build: Any) -> bool:
    program = program_of(arrays, build)
    run_passes(program, list(FUSION))
    # without an instruction for four products at once, kernels multiply the halves of words by two
    pairs = not has_dot4(host.host(), host.host().vector_bits)
    texts = [k.text for k in lower(program, TargetOptions()).kernels()]
    return any("_dot4(" in text or (pairs and "dot2(" in text) for text in texts)


def test_one_step_is_exact_in_each_form(form: str) -> None:
    one_step_is_exact("rnn")


@pytest.mark.parametrize("cell", GATES)
def test_one_step_is_exact(cell: str) -> None:
    one_step_is_exact(cell)


def one_step_is_exact(cell: str) -> None:
    """Check one step: sums of integers are exact, so only the cell's functions contribute errors."""
    for h, b in ((1, 1), (17, 3), (66, 2)):
        found = steps(cell, s=1, b=b, h=h, given="hidden state" if cell == "lstm" else "hidden")
        check(*found, rtol=2e-6)
        assert multiplies_bytes(*found)


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize(("h", "b", "d", "s"), [(3, 1, 2, 1), (37, 5, 2, 4), (101, 1, 1, 6), (16, 13, 1, 2)])
def test_several_steps(cell: str, h: int, b: int, d: int, s: int) -> None:
    check(*steps(cell, s=s, b=b, h=h, d=d), rtol=FLIP)


def test_several_steps_in_each_form(form: str) -> None:
    check(*steps("gru", s=3, b=2, h=70), rtol=FLIP)
    check(*steps("lstm", s=3, b=3, h=34, d=2), rtol=FLIP)


def test_states_by_the_range_of_all_sequences(form: str) -> None:
    """The quantisation of DynamicQuantizeLSTM."""
    for points in (False, True):
        check(*steps("rnn", s=1, b=3, h=21, given="hidden", dynamic=True, points=points), rtol=2e-6)
        check(*steps("lstm", s=3, b=2, h=37, d=2, dynamic=True, points=points), rtol=FLIP)


@pytest.mark.parametrize("cell", GATES)
def test_a_range_without_a_state_before(cell: str) -> None:
    found = steps(cell, s=1, b=2, h=18, dynamic=True, points=True)
    check(*found, rtol=2e-6)
    assert multiplies_bytes(*found)


@pytest.mark.parametrize("cell", GATES)
def test_lengths_of_sequences(cell: str) -> None:
    check(*steps(cell, s=4, b=4, h=9, d=2, lengths=[4, 0, 2, 3], given="hidden"), rtol=FLIP)


def test_what_else_a_cell_may_have() -> None:
    check(*steps("gru", b=2, h=19, d=2, given="bias hidden", linear_before_reset=True), rtol=FLIP)
    check(*steps("lstm", b=2, h=19, given="hidden state peephole", clip=0.3), rtol=FLIP)
    check(*steps("lstm", h=19, given="peephole", input_forget=True), rtol=FLIP)


@pytest.mark.parametrize("code", [-128, 127])
def test_the_largest_codes_do_not_overflow(form: str, code: int) -> None:
    arrays, build = steps("rnn", s=1, b=2, h=130, given="hidden", codes=np.full((1, 130, 130), code))
    arrays[1][...] = [[[1.0], [-1.0]]]
    check([0 * arrays[0], arrays[1]], build, rtol=2e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_and_infinity_stay_in_their_sequence(form: str) -> None:
    arrays, build = steps("gru", s=2, b=4, h=21, given="hidden")
    arrays[1][0, 0, 3], arrays[1][0, 1, 20], arrays[1][0, 2, 0] = np.nan, np.inf, -np.inf
    states = compile_and_run(program_of(arrays, build), arrays, FUSION)[0][0]
    assert np.isnan(states[:, :, :3]).all() and np.isfinite(states[:, :, 3]).all()
    check(arrays, build, rtol=FLIP)


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-30, 1e30])
def test_states_of_any_size(scale: float) -> None:
    arrays, build = steps("rnn", s=1, b=2, h=20, given="hidden")
    arrays[1][0, 0] *= scale
    check(arrays, build, rtol=2e-6)


@pytest.mark.parametrize("cell", GATES)
def test_many_threads_and_one_agree(cell: str) -> None:
    arrays, build = steps(cell, s=9, b=2, h=180, given="hidden")
    program = program_of(arrays, build)
    wanted = evaluate(program, {f"p{k}": a for k, a in enumerate(arrays)})
    run_passes(program, list(FUSION))
    for threads in (1, 2, 5):
        executable = Executable(lower(program, TargetOptions(num_threads=threads)), num_threads=threads)
        for _ in range(2):
            for a, b in zip(executable.run(arrays), wanted):
                np.testing.assert_allclose(a, b, rtol=0, atol=FLIP * np.abs(b).max())


def test_weights_that_are_computed_have_no_kernel() -> None:
    arrays, build = steps("rnn", h=4)

    def computed(m: Module, p: list[Instruction]) -> list[Instruction]:
        results = build(m, p[:-1])
        m.set_inputs(results[0].inputs[0], {1: p[-1]})
        return results

    codes = np.random.default_rng(7).integers(-127, 128, (1, 4, 4)).astype(np.int8)
    check([*arrays, codes], computed, rtol=FLIP)


def network(
    cell: str, h: int, seed: int = 0, dims: Any = None
) -> tuple[mgx_numba.program, list[dict[str, np.ndarray]]]:
    """A layer of both directions with random weights, and inputs of it."""
    rng = np.random.default_rng(0)
    p = mgx_numba.program()
    m = p.get_main_module()
    rows, features = GATES[cell] * h, 24
    x = m.add_parameter("x", mgx_numba.shape(type="float", lens=[12, 2, features]) if dims is None else dims)
    w = rng.standard_normal((2, rows, features)).astype(np.float32) / np.float32(np.sqrt(features))
    r = rng.standard_normal((2, rows, h)).astype(np.float32) / np.float32(np.sqrt(h))
    inputs = [x, m.add_literal(w), m.add_literal(r)]
    layer = m.add_instruction(mgx_numba.op(cell, hidden_size=h, direction="bidirectional"), inputs)
    m.add_return([layer, m.add_instruction(mgx_numba.op("rnn_last_hs_output"), [layer])])
    return p, [{"x": rng.standard_normal((12, 2, features)).astype(np.float32)} for _ in range(3)]


def apart(p: mgx_numba.program, exact: mgx_numba.program, target: str, inputs: dict[str, np.ndarray]) -> float:
    """Root mean square of the differences over that of the exact results."""
    a, b = (np.asarray(q.clone().compile(target).run(inputs)[0]) for q in (p, exact))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("cell", GATES)
def test_quantised_layers_are_near_float32(cell: str) -> None:
    exact, batches = network(cell, 72)
    p = mgx_numba.quantize_int8(exact.clone(), mgx_numba.get_target("cpu"), batches)
    product, steps_ = p.quantization_choices()
    assert product.choice == steps_.choice == "int8" and 0 < steps_.error <= 1e-2
    assert steps_.plan is None and "weights' error" in str(steps_)
    for target in ("ref", "cpu"):
        assert apart(p, exact, target, batches[0]) <= 2.5e-2
    steps_only = mgx_numba.quantize_int8(exact.clone(), mgx_numba.get_target("cpu"), batches, [cell])
    for target in ("ref", "cpu"):
        assert 0 < apart(steps_only, exact, target, batches[0]) <= 1e-2


def test_recurrent_weights_are_held_once_in_8_bits() -> None:
    p, batches = network("lstm", 160)
    mgx_numba.quantize_int8(p, mgx_numba.get_target("cpu"), batches)
    p.compile("cpu")
    compiled: Any = p.compiled
    weights = 2 * 4 * 160 * (160 + 24)
    beside = 4 * 6 * 2 * 4 * 160  # scales, sums of columns, biases and corrections of means, of each row
    assert sum(a.nbytes for a in compiled.executable.plan.constants) <= 1.1 * weights + beside


def test_layers_that_stay_as_they_are() -> None:
    few, batches = network("gru", FEWEST_UNITS - 1)
    target = mgx_numba.get_target("cpu")
    assert "few units" in mgx_numba.quantize_int8(few, target, batches).quantization_choices()[1].choice
    whole, batches = network("gru", FEWEST_UNITS)
    left_out = mgx_numba.quantize_int8(whole.clone(), target, batches, ["~gru"])
    assert [c.choice for c in left_out.quantization_choices()] == ["int8"]
    float8 = mgx_numba.quantize_fp8(whole.clone(), target, batches)
    assert "int8 alone" in float8.quantization_choices()[1].choice
    open_steps = mgx_numba.shape(type="float", dyn_dims=[mgx_numba.dynamic_dimension(1, 12), *_fixed(2, 24)])
    later, batches = network("gru", FEWEST_UNITS, dims=open_steps)
    (choice,) = mgx_numba.quantize_int8(later, target, batches).quantization_choices()
    assert "lengths are not known" in choice.choice


def _fixed(*lens: int) -> list[mgx_numba.dynamic_dimension]:
    return [mgx_numba.dynamic_dimension(n, n) for n in lens]


@pytest.mark.parametrize("kind", [mgx_numba.quantize_fp16, mgx_numba.quantize_bf16])
def test_sixteen_bits_after_eight(kind: Any) -> None:
    exact, batches = network("lstm", 64)
    p = mgx_numba.quantize_int8(exact.clone(), mgx_numba.get_target("cpu"), batches)
    kind(p)
    for target in ("ref", "cpu"):
        assert apart(p, exact, target, batches[0]) <= 4e-2


def test_a_dot_is_no_layer_where_all_of_it_would_change() -> None:
    whole, _ = network("lstm", 64)
    left, taken = (mgx_numba.quantize_fp16(whole.clone(), [name]) for name in ("dot", "lstm"))
    for p, type_ in ((left, "float_type"), (taken, "half_type")):
        (layer,) = [line for line in str(p).splitlines() if "= lstm[" in line]
        assert f"-> {type_}" in layer
