"""Work and memory of compiling are proportional to the program, and bounded for constants computed ahead."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.errors import MgxError
from mgx_numba.graph.allowance import HELD, Allowance
from mgx_numba.graph.instruction import Instruction, Results
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes.base import make_pass, run_passes
from mgx_numba.graph.passes.regions import grow, order_of
from mgx_numba.graph.program import Program
from mgx_numba.runtime import memory
from mgx_numba.targets.lowering.buffers import MOST_SORTED, Buffer, color
from mgx_numba.targets.passes import PASSES
from mgx_numba.targets.ref.interpreter import evaluate

from .support import Graph, check, find, names


def test_a_value_that_is_concatenated_with_itself_is_not_dissolved() -> None:
    g = Graph()
    x = g.param("x", [2])
    for _ in range(14):
        x = g.op("concat", x, x, axis=0)
    after = check(g.ret(x), make_pass("simplify_reshapes"))
    assert all(len(i.inputs) == 2 for i in after.main if i.name == "concat")


def test_a_long_chain_of_concats_is_dissolved_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph()
    x, y = g.param("x", [2]), g.param("y", [1])
    value = x
    for _ in range(300):
        value = g.op("concat", value, y, axis=0)
    program = g.ret(value)
    taken = []
    link = Module._link

    def counted(self: Module, ins: object, before: object) -> object:
        taken.append(len(ins.inputs))  # type: ignore[attr-defined]
        return link(self, ins, before)  # type: ignore[arg-type]

    monkeypatch.setattr(Module, "_link", counted)
    run_passes(program, ["simplify_reshapes"])
    assert names(program) == ["concat"] and len(find(program, "concat").inputs) == 301
    assert sum(taken) < 1000


def test_doubling_a_constant_stops_at_the_allowance() -> None:
    g = Graph()
    value = g.lit([1.0, 2.0])
    for _ in range(45):
        value = g.op("concat", value, value, axis=0)
    program = g.ret(g.op("slice", value, axes=(0,), starts=(0,), ends=(2,)))
    held = []
    hold = Allowance.hold
    try:
        Allowance.hold = lambda self, array: (hold(self, array), held.append(self.held_bytes))[0]  # type: ignore[method-assign]
        run_passes(program, ["propagate_constant"])
    finally:
        Allowance.hold = hold  # type: ignore[method-assign]
    assert held and max(held) <= 2 * HELD
    assert "concat" in names(program)


def test_what_a_folded_constant_held_is_given_back() -> None:
    allowance = Allowance(list)
    array = np.zeros(1000)
    allowance.hold(array[10:])
    allowance.hold(array)
    assert allowance.held_bytes == array.nbytes
    del array
    assert allowance.held_bytes == 0


def test_work_is_limited_in_all() -> None:
    allowance = Allowance(list)
    assert allowance.take(1 << 29, 8) and allowance.take(1 << 29, 8) and not allowance.take(1, 8)


OVER_A_SPREAD = [
    ("reduce_sum", 2.0**41), ("reduce_mean", 2.0), ("reduce_max", 2.0), ("reduce_min", 2.0), ("reduce_prod", np.inf)
]  # fmt: skip


@pytest.mark.parametrize(("name", "wanted"), OVER_A_SPREAD)
def test_a_reduction_over_what_is_broadcast_does_not_walk_over_it(name: str, wanted: float) -> None:
    g = Graph()
    wide = g.spread(g.lit(2.0), 1 << 40)
    program = g.ret(g.op(name, wide, axes=(0,)))
    assert evaluate(program, {})[0].tolist() == [wanted]
    run_passes(program, ["propagate_constant"])
    assert names(program) == [] or names(program) == ["multibroadcast"]


@pytest.mark.parametrize(("name", "wanted"), OVER_A_SPREAD)
@pytest.mark.parametrize("squared", [False, True])
def test_a_reduction_of_a_run_time_value_that_is_broadcast_does_not_walk_over_it(
    name: str, wanted: float, squared: bool
) -> None:
    g = Graph()
    wide = g.spread(g.param("x", [1]), 1 << 40)
    program = g.ret(g.op(name, g.op("mul", wide, wide) if squared else wide, axes=(0,)))
    run_passes(program, PASSES, validate=True)
    assert max(i.shape.elements for m in program.reachable_modules() for i in m) == 1
    value = np.float32([np.sqrt(2.0) if squared else 2.0])
    np.testing.assert_allclose(evaluate(program, {"x": value})[0], [wanted], rtol=1e-6)


def test_products_of_repeated_values_know_odd_numbers_and_wrap() -> None:
    g = Graph()
    x, k = g.param("x", [2]), g.param("k", [2], "int32_t")
    wide = [g.op("reduce_prod", g.spread(v, (1 << 24) + 1, 2), axes=(0,)) for v in (x, k)]
    program = g.ret(*wide)
    values = {"x": np.float32([-1, 1]), "k": np.int32([-1, 3])}
    wanted = [[[-1.0, 1.0]], [[-1, pow(3, (1 << 24) + 1, 1 << 32) - (1 << 32)]]]
    assert [r.tolist() for r in evaluate(program, values)] == wanted
    run_passes(program, ["simplify_algebra"])
    assert "reduce_prod" not in names(program)
    assert [r.tolist() for r in evaluate(program, values)] == wanted


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_any", "reduce_all", "reduce_prod"])
@pytest.mark.parametrize("type", ["float", "int32", "bool", "half", "uint8"])
def test_reductions_of_partly_broadcast_values_are_those_of_copies(name: str, type: str) -> None:
    g = Graph()
    type = "bool" if name in ("reduce_any", "reduce_all") else type
    x = g.param("x", [3, 1, 2], {"int32": "int32_t", "uint8": "uint8_t"}.get(type, type))
    wide = g.op("multibroadcast", x, out_lens=(3, 5, 2))
    outputs = [g.op(name, v, axes=axes) for axes in ((0, 1), (1,), (0, 2)) for v in (wide, g.op("contiguous", wide))]
    values = np.random.default_rng(0).integers(0, 2 if type == "bool" else 9, (3, 1, 2)).astype(x.shape.type.numpy)
    found = evaluate(g.ret(*outputs), {"x": values})
    for a, b in zip(found[::2], found[1::2], strict=True):
        np.testing.assert_array_equal(a, b)


def test_many_results_are_not_gone_through_for_each_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph()
    x = g.param("x", [3])
    program = g.ret(*(g.op("add", x, g.lit(np.full(3, k))) for k in range(400)))
    made = []
    shape = Results.shape
    monkeypatch.setattr(Results, "shape", property(lambda i: made.append(i) or shape.fget(i), shape.fset))
    set_inputs = Module._set_inputs
    moved = []

    def counted(self: Module, ins: object, inputs: list) -> None:
        moved.append(len(inputs))
        set_inputs(self, ins, inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(Module, "_set_inputs", counted)
    run_passes(program, PASSES)
    assert len(made) < 20 and sum(moved) < 5 * 400


def test_a_program_of_many_submodules_numbers_them_once() -> None:
    program = Program()
    assert [program.unique_module("m").name for _ in range(3)] == ["m0", "m1", "m2"]
    program.remove_unused_modules()
    assert program.unique_module("m").name == "m0"


def test_shared_submodules_are_listed_once_each() -> None:
    """Sixty levels of two instructions that run the next module: there are 2**60 ways through them."""
    g = Graph()
    x, condition = g.param("x", [1]), g.param("c", [1], "bool")
    below = g.program.create_module("level")
    below.add_return([below.add_instruction("relu", [x])])
    for _ in range(60):
        pair = [g.program.unique_module("level") for _ in range(2)]
        for module in pair:
            run = module.add_instruction("if", [condition], [below, below])
            module.add_return([module.add_instruction("get_tuple_elem", [run], index=0)])
        below = g.program.unique_module("level")
        chosen = below.add_instruction("if", [condition], pair)
        below.add_return([below.add_instruction("get_tuple_elem", [chosen], index=0)])
    run = g.module.add_instruction("if", [condition], [below, below])
    program = g.ret(g.op("get_tuple_elem", run, index=0))
    assert len(program.reachable_modules()) == 182
    run_passes(program, ["dead_code_elimination"], validate=True)
    program.main.recompute_shapes()


def test_thousands_of_buffers_are_placed_without_overlap() -> None:
    rng = np.random.default_rng(0)
    buffers = []
    for _ in range(2 * MOST_SORTED):
        buffer = Buffer(None, 0, int(rng.integers(0, 5000)))  # type: ignore[arg-type]
        start = int(rng.integers(0, 4000))
        buffer.touch(start)
        buffer.touch(start + int(rng.integers(0, 5)))
        buffers.append(buffer)
    total = color(buffers, True, 2)
    for k, a in enumerate(buffers):
        assert a.offset + a.bytes <= total
        for b in buffers[k + 1 :]:
            if (a.first <= b.last and b.first <= a.last) and a.bytes and b.bytes:
                assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
    assert total < sum(b.bytes for b in buffers) / 10


def test_a_result_for_which_there_is_no_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)
    monkeypatch.setattr(memory, "BIG", 1 << 20)
    g = Graph()
    x = g.param("x", [1 << 19])
    program = g.ret(g.op("concat", x, x, axis=0))
    with pytest.raises(MgxError, match=r"concat\[axis=0\].*not enough memory.*4194304 bytes"):
        evaluate(program, {"x": np.zeros(1 << 19, np.float32)})


def test_a_length_that_only_values_tell_claims_no_memory() -> None:
    """The shape of such a result has a bound in place of a length, for which there never is memory."""
    g = Graph()
    program = g.ret(g.op("dynamic_range", *(g.param(name, [1]) for name in ("start", "limit", "delta"))))
    feeds = {name: np.array([value], np.float32) for name, value in (("start", 1), ("limit", 3), ("delta", 0.5))}
    np.testing.assert_array_equal(evaluate(program, feeds)[0], [1, 1.5, 2, 2.5])


def test_a_region_that_grows_over_many_uses_looks_at_each_once() -> None:
    """A chain of 40 additions of the seed's value: its users are not gone through again for each that joins."""
    g = Graph()
    seed = value = g.op("exp", g.param("x", [3]))
    for _ in range(40):
        value = g.op("add", value, seed)
    program = g.ret(value)
    looked = []

    def refuses(ins: object) -> None:
        looked.append(ins)

    region = grow([seed], order_of(program.main), refuses)
    assert region == [i for i in program.main if i.name in ("exp", "add")]
    assert len(looked) == len(set(looked)) == 40


def test_a_region_ends_at_the_last_member_that_leaves_one_value_open() -> None:
    g = Graph()
    seed = g.op("exp", g.param("x", [3]))
    both = g.op("add", g.op("neg", seed), g.op("abs", seed))
    left, right = g.op("sin", both), g.op("cos", both)
    program = g.ret(left, right)
    order = order_of(program.main)
    noted: dict[Instruction, str] = {}
    assert grow([seed], order, lambda ins: None, note=noted.__setitem__)[-1] is both
    assert set(noted) == {left, right} and "used outside" in noted[left]
    noted.clear()
    no_sum = grow([seed], order, lambda ins: "no neg" if ins.name == "neg" else None, note=noted.__setitem__)
    assert no_sum == [seed] and noted[both.inputs[0]] == "no neg"
    assert grow([seed], order, lambda ins: None, max_outputs=2)[-2:] == [left, right]
