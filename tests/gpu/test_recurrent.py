"""Recurrent layers of all cells, directions, lengths and float types: a launch for each step, or one launch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES, device_in_use
from mgx_numba.codegen.gpu.recurrent import plan, steps, tiles
from mgx_numba.codegen.gpu.recurrent.tiles import PersistentTile
from mgx_numba.codegen.gpu.toolchain.compiler import compile_object
from mgx_numba.codegen.launch import Grid
from mgx_numba.codegen.problems.recurrence import RecurrenceProblem
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, from_numpy
from mgx_numba.graph.program import Program
from mgx_numba.ops.base import make_op
from mgx_numba.runtime.gpu.cuda import cuda_engine
from mgx_numba.runtime.gpu.engine import Engine
from mgx_numba.runtime.gpu.engines import engine
from mgx_numba.runtime.gpu.transfers import to_device, to_host
from mgx_numba.runtime.plan import Step
from mgx_numba.targets.ref.interpreter import evaluate

from ..cpu.agreement import assert_agrees, reference
from ..cpu.test_recurrent import layer, operands
from ..cpu.test_recurrent_int8 import steps as quantised_steps
from ..interpreter.engine import interpreted
from .operators import hosted
from .programs import compiled, interpreter
from .symbolic import SymbolicPlan, open_shape, random_inputs

FUNCTIONS = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}
EVERYTHING = "bias hidden state peephole"


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two warps a block: the interpreter takes time for each thread, also for those without a unit."""
    monkeypatch.setattr(steps, "WARPS", 2)
    monkeypatch.setattr(plan, "ranked_tiles", lambda *_: [None])


def tile_of(
    problem: RecurrenceProblem, kind: str, units: int = 2, slices: int = 1, directions: int = 2
) -> PersistentTile:
    """Return a tile with blocks of two warps."""
    rows = -(-problem.batch // min(slices, problem.batch))
    return PersistentTile(
        2, units, -(-problem.hidden // (2 * units)), -(-problem.batch // rows), kind, min(directions, problem.lanes)
    )


class Form:
    """One launch computes all steps; its blocks exchange states in one of several ways."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self._monkeypatch = kind, monkeypatch
        self.use()

    def use(self, **options: int) -> None:
        """From now on with so many units of a warp, and slices."""
        self._least = 1 + 2 * options.get("units", 2) if self.kind == "cluster" else 1
        only = lambda problem, *_: [tile_of(problem, self.kind, **options)]  # noqa: E731
        self._monkeypatch.setattr(plan, "ranked_tiles", only)

    def units(self, hidden: int) -> int:
        """So many hidden units, or more: words with tags are read in fours, and clusters have two blocks."""
        return hidden + -hidden % 4 if self.kind == "tagged" else max(hidden, self._least)


@pytest.fixture(params=["grid", "cluster", "tagged"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, launches: None) -> Form:
    return Form(request.param, monkeypatch)


def program_of(
    cell: str, *, direction: str = "forward", s: int = 2, b: int = 2, h: int = 3, given: str = "bias hidden state",
    lengths: Any = None, dtype: Any = np.float32, constants: bool = True, **attributes: Any,
) -> tuple[Program, dict[str, np.ndarray]]:  # fmt: skip
    attributes.setdefault("actv_func", tuple(make_op(f) for f in FUNCTIONS[cell]))
    arrays = operands(cell, 2 if direction == "bidirectional" else 1, s, b, h, 3, given, lengths, dtype)
    chosen, build = layer(cell, arrays, constants, hidden_size=h, direction=direction, **attributes)
    program = Program()
    main = program.main
    shapes = [Shape(from_numpy(a.dtype), a.shape) for a in chosen]
    main.add_return(build(main, [main.add_parameter(f"p{k}", shape) for k, shape in enumerate(shapes)]))
    return program, {f"p{k}": a for k, a in enumerate(chosen)}


def compare(on: Engine, cell: str, **options: Any) -> None:
    program, feed = program_of(cell, **options)
    made = compiled(program, on)
    assert not hosted(made), made.fallback_reasons()
    assert_agrees(made.run(feed), reference(program, feed))


@pytest.mark.parametrize("cell", FUNCTIONS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_cells_and_directions(cell: str, direction: str, on: Engine) -> None:
    compare(on, cell, direction=direction, given="", h=4)
    compare(on, cell, direction=direction, b=3, lengths=[2, 0, 1], given=EVERYTHING)


@pytest.mark.parametrize("cell", FUNCTIONS)
@pytest.mark.parametrize(("h", "b", "s"), [(1, 1, 1), (7, 3, 2), (4, 37, 1)])
def test_sizes_that_do_not_fill_vectors_or_tiles(cell: str, h: int, b: int, s: int, on: Engine) -> None:
    compare(on, cell, h=h, b=b, s=s)


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_one_launch_computes_all_steps(cell: str, form: Form, on: Engine) -> None:
    compare(on, cell, direction="bidirectional", given="", h=form.units(4), b=1, s=3)
    compare(on, cell, direction="bidirectional", b=3, s=3, h=form.units(5), lengths=[2, 0, 1], given=EVERYTHING)


def test_a_launch_for_each_direction(form: Form, on: Engine) -> None:
    form.use(directions=1)
    compare(on, "lstm", direction="bidirectional", s=3, h=form.units(4), given=EVERYTHING)


def test_one_launch_of_sizes_that_do_not_fill_blocks_lanes_or_turns(form: Form, on: Engine) -> None:
    form.use(units=4)
    compare(on, "lstm", h=form.units(1), b=1, s=1)
    compare(on, "lstm", h=form.units(7), b=3, direction="reverse")
    form.use(slices=3)
    compare(on, "gru", h=form.units(4), b=4, s=3)
    form.use(units=8)
    compare(on, "gru", h=form.units(5), b=5, s=3)  # a warp's lanes have the cells of four sequences
    if form.kind != "tagged":  # 128 units then are a chunk
        compare(on, "rnn", h=33, s=3)  # two chunks of a row, the second not full


def test_one_launch_of_variants(form: Form, on: Engine) -> None:
    compare(on, "lstm", given=EVERYTHING, input_forget=True, clip=0.3, h=form.units(4))
    compare(on, "gru", linear_before_reset=True, lengths=[1, 2], h=form.units(3))
    compare(on, "gru", linear_before_reset=False, clip=0.5, s=3, h=form.units(3))
    compare(on, "gru", dtype=np.float16, h=form.units(4))
    if form.kind != "tagged":  # of float32
        compare(on, "lstm", dtype=np.float64, h=form.units(3), constants=False)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_launch_keeps_what_is_not_finite_within_its_sequence(bad: float, form: Form, on: Engine) -> None:
    program, feed = program_of("rnn", s=3, b=2, h=form.units(5), actv_func=(make_op("relu"),))
    feed["p0"][1, 0, 0] = bad
    found = compiled(program, on).run(feed)
    meant = reference(program, feed)
    assert_agrees(found, meant)
    assert np.isfinite(np.asarray(found[0])[:, :, 1]).all()


def test_states_that_lie_on_the_device_are_read_where_they_are(form: Form, on: Engine) -> None:
    program, feed = program_of("lstm", h=form.units(4), direction="bidirectional")
    made = compiled(program, on)
    assert made.executable is not None
    rng = np.random.default_rng(0)
    kept = []  # so that each call has addresses of its own
    for _ in range(3):
        feed = {name: rng.standard_normal(a.shape).astype(a.dtype) for name, a in feed.items()}
        kept.append([to_device(on, feed[p.name], p.name) for p in made.executable.plan.parameters])
        kept.append(made.executable.run(kept[-1], [None] * 3))
        assert_agrees([to_host(on, r).reshape(r.shape.lens) for r in kept[-1]], reference(program, feed))


@pytest.mark.gpu
def test_programs_whose_blocks_wait_for_each_other_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "ranked_tiles", tiles.ranked_tiles)
    made = []
    for hidden in (600, 1000):  # of which two, and one, have room on 132 multiprocessors
        program, feed = program_of("lstm", h=hidden, s=20)
        one = compiled(program, cuda_engine())
        assert any(kernel.name in ("lstm_grid_kernel", "lstm_tagged_kernel") for kernel in one.kernels())
        made.append((one, feed, one.run(feed)))

    def run(number: int) -> None:
        one, feed, first = made[number % 2]
        for _ in range(10):
            for found, meant in zip(one.run(feed), first):
                assert np.array_equal(np.asarray(found), np.asarray(meant))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


def test_blocks_that_wait_for_each_other_fit_the_device_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(plan, "ranked_tiles", tiles.ranked_tiles)
    monkeypatch.setattr(plan, "multiprocessors", lambda: (132, 20)[device_in_use()])
    for device_id, most in ((0, 132), (1, 20)):
        with interpreted(2):
            made = compiled(program_of("lstm", h=512)[0], engine(device_id), device_id=device_id)
        assert made.executable is not None
        grids = [step.geometry for step in made.executable.plan.steps if isinstance(step, Step)]
        waiting = [grid.blocks[0] for grid in grids if isinstance(grid, Grid) and grid.cooperative]
        assert bool(waiting) is (device_id == 0) and all(blocks <= most for blocks in waiting), waiting


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_weights_in_8_bits_are_multiplied_as_floats(cell: str, on: Engine) -> None:
    arrays, build = quantised_steps(cell, s=2, b=2, h=5, d=2, given="hidden")
    program = Program()
    shapes = [Shape(from_numpy(a.dtype), a.shape) for a in arrays]
    program.main.add_return(build(program.main, [program.main.add_parameter(f"p{k}", s) for k, s in enumerate(shapes)]))
    feed = {f"p{k}": a for k, a in enumerate(arrays)}
    made = compiled(program, on)
    assert not hosted(made), made.fallback_reasons()
    for found, meant in zip(made.run(feed), evaluate(program, feed)):  # which rounds states to 8 bits
        np.testing.assert_allclose(np.asarray(found), meant, rtol=0, atol=1e-2)


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_half_precision_and_weights_that_are_given_at_run_time(cell: str, on: Engine) -> None:
    compare(on, cell, dtype=np.float16, h=4)
    compare(on, cell, constants=False, h=3)


def test_variants_of_cells(on: Engine) -> None:
    compare(on, "lstm", given=EVERYTHING, input_forget=True, clip=0.3)
    compare(on, "gru", linear_before_reset=True, lengths=[1, 2])
    compare(on, "gru", linear_before_reset=False, direction="bidirectional", clip=0.5)


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_kernels_compile_and_do_not_grow_with_the_steps(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    made = compiled(program_of(cell, s=5, b=6, h=16)[0], interpreter())
    found = [kernel for kernel in made.kernels() if "step" in kernel.name]
    assert len(found) == (2 if cell == "gru" else 1)
    for kernel in found:
        for name in ("sm_75", "sm_90a", "gfx942"):
            assert kernel.symbol.encode() in compile_object(kernel, ARCHITECTURES[name])


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_kernels_of_all_steps_compile(cell: str, form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    made = compiled(program_of(cell, s=5, b=6, h=16)[0], interpreter())
    (kernel,) = [kernel for kernel in made.kernels() if kernel.name == f"{cell}_{form.kind}_kernel"]
    nvidia, amd = ["sm_90a", "sm_120a"], ["gfx942", "gfx1100"]
    known = {"cluster": nvidia, "tagged": ["sm_75", "sm_80", *nvidia], "grid": ["sm_75", "sm_80", *nvidia, *amd]}
    for name in known[form.kind]:
        assert kernel.symbol.encode() in compile_object(kernel, ARCHITECTURES[name])


def problem_of(cell: str, hidden: int, batch: int = 1, lanes: int = 1) -> RecurrenceProblem:
    rows = (batch * lanes * hidden, lanes * hidden, hidden)
    functions = tuple(make_op(f) for f in FUNCTIONS[cell])
    return RecurrenceProblem(cell, 64, batch, hidden, (False, True)[:lanes], functions, rows, rows)


def test_tiles_fit_the_device_and_what_fits_none_has_launches() -> None:
    hopper, multiprocessors = ARCHITECTURES["sm_90a"], 132
    for cell in FUNCTIONS:
        for hidden in (1, 17, 64, 256, 300, 512, 1024):
            for batch in (1, 16, 100):
                problem = problem_of(cell, hidden, batch, 1 + (hidden < 600))
                found = tiles.fitting_tiles(problem, hopper, multiprocessors)
                assert found, problem
                for tile in found:
                    blocks = tile.directions * tile.slices * tile.blocks
                    assert blocks <= multiprocessors or tile.cluster
                    assert tile.blocks * tile.warps * tile.units >= hidden
                    assert not tile.cluster or 2 <= tile.blocks <= 8
    for hidden, arch, wanted in ((256, hopper, True), (1024, hopper, False), (256, ARCHITECTURES["sm_80"], False)):
        best, *_ = tiles.ranked_tiles(problem_of("lstm", hidden), arch, 108)
        assert best is None if hidden == 1024 else best is not None and best.cluster is wanted
    best, *_ = tiles.ranked_tiles(problem_of("lstm", 1024), hopper, multiprocessors)
    assert best is not None and not best.cluster
    best, *_ = tiles.ranked_tiles(problem_of("lstm", 1024, lanes=2), hopper, multiprocessors)
    assert best is not None and best.directions == 1
    assert tiles.ranked_tiles(problem_of("lstm", 4096), hopper, multiprocessors) == [None]
    assert tiles.ranked_tiles(problem_of("lstm", 256), ARCHITECTURES["gfx942"], 304) == [None]


@pytest.mark.parametrize(
    ("cell", "kind", "given"),
    [("gru", "grid", "lengths"), ("rnn", "tagged", ""), ("lstm", "cluster", "lengths hidden")],
)
def test_one_plan_has_any_number_of_steps_and_sequences(
    cell: str, kind: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, gates = 8, {"rnn": 1, "gru": 3, "lstm": 4}[cell]
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setattr(tiles, "WARPS", 2)
    monkeypatch.setattr(plan, "multiprocessors", lambda: 10)  # few slices, so these have several sequences
    every = plan.fitting_tiles
    monkeypatch.setattr(
        plan, "fitting_tiles", lambda *own: [t for t in every(*own) if t.kind in ("grid", kind) and t.blocks < 5]
    )
    weights = np.random.default_rng(1).standard_normal((2, gates * hidden, hidden)).astype(np.float32) / 3
    program = Program()
    m = program.main
    inputs = [m.add_parameter("x", open_shape(Type.float_type, "s", "b", 2, gates * hidden)), m.add_literal(weights)]
    if "lengths" in given:
        inputs.append(m.add_parameter("lengths", open_shape(Type.int32_type, "b")))
    if "hidden" in given:
        inputs.append(m.add_parameter("hidden", open_shape(Type.float_type, 2, "b", hidden)))
    functions = [make_op(name) for name in FUNCTIONS[cell]]
    made = m.add_instruction(
        "recurrent_steps", inputs, cell=cell, hidden_size=hidden, backward=2, actv_func=functions, given=given
    )
    m.add_return([m.add_instruction("get_tuple_elem", [made], index=k) for k in range(3 if cell == "lstm" else 2)])
    symbolic = SymbolicPlan(program)
    assert not symbolic.guards and symbolic.plan.condition == 1
    assert {f"gpu::{cell}_{kind}_kernel", f"gpu::{cell}_grid_kernel"} <= set(symbolic.labels)  # one serves any batch
    for batch, length in ((1, 2), (9, 3)):
        feeds = random_inputs(program, (batch, length))
        if "lengths" in feeds:
            feeds["lengths"] %= length + 1
        wanted = evaluate(program, feeds)
        for got, exact in zip(symbolic.run(feeds), wanted, strict=True):
            np.testing.assert_allclose(got, exact, 1e-5, 1e-6)
