"""Recurrent layers on the cpu target against ref: one kernel for all steps."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.recurrent import RecurrenceProblem, plan
from mgx_numba.codegen.cpu.recurrent.plan import TICKET_WORDS
from mgx_numba.codegen.cpu.toolchain.loader import load
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes import run_passes
from mgx_numba.ops.base import make_op
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

from ..codegen.launching import run_launch
from ..features import ARM, features
from ..values import normal
from .programs import FUSION, check, program_of

weights = functools.partial(normal, scale=0.5)

PASSES = ("rewrite_rnn", *FUSION)
GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def operands(
    cell: str, d: int, s: int, b: int, h: int, i: int, given: str, lengths: Any, dtype: Any
) -> list[np.ndarray | None]:
    """Inputs of a layer in its operator's order; ``None`` where missing."""
    rows = GATES[cell] * h
    every = [
        weights(s, b, i, dtype=dtype),
        weights(d, rows, i, seed=1, dtype=dtype),
        weights(d, rows, h, seed=2, dtype=dtype) / np.sqrt(h).astype(dtype),
        weights(d, 2 * rows, seed=3, dtype=dtype) if "bias" in given else None,
        None if lengths is None else np.asarray(lengths),
        weights(d, b, h, seed=4, dtype=dtype) if "hidden" in given else None,
        weights(d, b, h, seed=5, dtype=dtype) if "state" in given and cell == "lstm" else None,
        weights(d, 3 * h, seed=6, dtype=dtype) if "peephole" in given and cell == "lstm" else None,
    ]
    return every if cell == "lstm" else every[:6]


def layer(cell: str, arrays: list[np.ndarray | None], constants: bool, **attributes: Any) -> tuple[list, Any]:
    """Arrays that become parameters, and the graph with all results of the layer."""
    fixed = (1, 2, 3, 7) if constants else ()
    chosen = [a for k, a in enumerate(arrays) if a is not None and k not in fixed]

    def build(m: Module, p: list[Instruction]) -> list[Instruction]:
        left, inputs = list(p), []
        for k, a in enumerate(arrays):
            if a is None:
                inputs.append(m.add_instruction("undefined", []))
            else:
                inputs.append(m.add_literal(a) if k in fixed else left.pop(0))
        whole = m.add_instruction("recurrent", inputs, cell=cell, **attributes)
        return [m.add_instruction("get_tuple_elem", [whole], index=k) for k in range(len(whole.shape.sub_shapes))]

    return chosen, build


def compare(
    cell: str, *, direction: str = "forward", s: int = 4, b: int = 1, h: int = 5, given: str = "bias hidden state",
    lengths: Any = None, dtype: Any = np.float32, constants: bool = True, x: np.ndarray | None = None,
    fast_math: bool = False, **attributes: Any,
) -> None:  # fmt: skip
    functions = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}[cell]
    attributes.setdefault("actv_func", tuple(make_op(f) for f in functions))
    arrays = operands(cell, 2 if direction == "bidirectional" else 1, s, b, h, 3, given, lengths, dtype)
    arrays[0] = arrays[0] if x is None else x
    chosen, build = layer(cell, arrays, constants, hidden_size=h, direction=direction, **attributes)
    rtol = 3e-4 if fast_math else 2e-5 if dtype is np.float32 else 1e-12
    check(chosen, build, rtol=rtol, passes=PASSES, fast_math=fast_math)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_cells_and_directions(cell: str, direction: str) -> None:
    compare(cell, direction=direction, given="", h=16)
    compare(cell, direction=direction, b=3, h=37)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize(("h", "b", "s"), [(1, 1, 1), (15, 7, 2), (70, 13, 2)])
def test_sizes_that_do_not_fill_vectors_or_tiles(cell: str, h: int, b: int, s: int) -> None:
    compare(cell, h=h, b=b, s=s)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_units_shared_by_threads(cell: str) -> None:
    compare(cell, h=230, s=9, given="bias", direction="reverse")


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lengths_of_sequences(cell: str, direction: str) -> None:
    compare(cell, direction=direction, b=4, h=9, lengths=np.array([4, 0, 2, 3], np.int32), given="bias hidden")


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [(3, 0, 2, 1), (2, 1, 2, 2), (0, 0, 0, 0)])
def test_no_sequence_is_as_long_as_the_steps(cell: str, direction: str, lengths: tuple[int, ...]) -> None:
    compare(cell, direction=direction, s=7, b=4, h=9, lengths=np.array(lengths, np.int32))


def test_shorter_sequences_of_units_shared_by_threads() -> None:
    compare("lstm", direction="bidirectional", s=9, b=2, h=230, lengths=np.array([4, 2], np.int32))


@pytest.mark.parametrize("back", [False, True])
def test_steps_past_the_longest_sequence_are_not_computed(back: bool) -> None:
    """They took the time of whole sequences."""
    steps, batch, hidden, longest = 50, 2, 230, 3
    strides = (batch * hidden, hidden, hidden), (batch * hidden, batch * hidden, hidden)
    problem = RecurrenceProblem("rnn", steps, batch, hidden, (back,), (make_op("tanh"),), *strides, lengths="int32")
    solution = plan(problem, threads=2)
    x, y = normal(steps, batch, hidden), np.full((steps, batch, hidden), np.nan, np.float32)
    last, w = np.full((batch, hidden), np.nan, np.float32), np.zeros((256, 256), np.float32)
    arrays = {"x": x, "w": w, "y": y, "last": last, "lengths": np.array([2, longest], np.int32)}
    scratch = np.zeros(solution.scratch, np.uint8)
    load(solution.kernels)
    for launch in solution.launches:
        run_launch(launch, {**arrays, "scratch": scratch}, pieces=1)
    expected = np.where((np.arange(steps)[:, None] < arrays["lengths"])[..., None], np.tanh(x), 0)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, expected[[0, 0] if back else [1, 2], [0, 1]], rtol=1e-5, atol=1e-6)
    tickets = scratch.view(np.int64)[: 2 * TICKET_WORDS : TICKET_WORDS]
    assert tickets.tolist() == [2 * longest] * 2


def test_lengths_of_another_type() -> None:
    compare("gru", b=2, h=9, lengths=np.array([1, 4], np.int64))


@pytest.mark.parametrize("given", ["", "bias", "bias hidden"])
def test_gru_that_resets_after_the_product(given: str) -> None:
    compare("gru", direction="bidirectional", b=2, h=19, given=given, linear_before_reset=1)
    compare("gru", h=200, given=given, linear_before_reset=1)


def test_lstm_with_peepholes_clip_and_input_forget() -> None:
    compare("lstm", given="bias hidden state peephole", direction="bidirectional", b=2, clip=0.2)
    compare("lstm", given="bias peephole", input_forget=1, h=18)


def test_other_functions() -> None:
    functions = tuple(make_op(n) for n in ("relu", "softsign", "elu", "sigmoid", "tanh", "relu"))
    compare("lstm", direction="bidirectional", b=2, actv_func=functions)
    compare("rnn", actv_func=(make_op("leaky_relu", alpha=0.1),))


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_float64(cell: str) -> None:
    compare(cell, direction="bidirectional", b=2, h=11, dtype=np.float64)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_weights_known_at_run_time(cell: str) -> None:
    compare(cell, direction="bidirectional", b=2, h=11, constants=False)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_nan_and_infinity_stay_in_their_sequence(cell: str) -> None:
    x = weights(4, 3, 3)
    x[1, 0, 0], x[2, 2, 1] = np.nan, np.inf
    compare(cell, b=3, h=17, x=x)


def test_results_lie_as_their_users_read_them() -> None:
    arrays = operands("lstm", 2, 3, 2, 6, 3, "bias", None, np.float32)
    chosen, build = layer("lstm", arrays, True, hidden_size=6, direction="bidirectional")

    def merged(m: Module, p: list[Instruction]) -> Instruction:
        turned = m.add_instruction("transpose", [build(m, p)[0]], permutation=(0, 2, 1, 3))
        return m.add_instruction("relu", [m.add_instruction("reshape", [turned], dims=(3, 2, 12))])

    check(chosen, merged, rtol=2e-5, passes=PASSES)
    optimized = program_of(chosen, merged)
    run_passes(optimized, list(PASSES))
    labels = [step.label for step in lower(optimized, TargetOptions()).steps]
    assert sum(label.startswith("cpu::lstm") for label in labels) == 2 and len(labels) == 4


def kernel_names(
    cell: str, h: int, b: int, weight: float = 0.0, functions: tuple[str, ...] = (), **options: Any
) -> list[str]:
    """Return the kernels of all steps; their names contain the layout of the weights."""
    arrays = operands(cell, 1, 2, b, h, 3, "bias", None, np.float32)
    arrays[2][0, 0, 0] = weight
    given = {"actv_func": tuple(make_op(f) for f in functions)} if functions else {}
    chosen, build = layer(cell, arrays, True, hidden_size=h, **given)
    program = program_of(chosen, build)
    run_passes(program, list(PASSES))
    names = [k.name for k in lower(program, TargetOptions(**options)).kernels()]
    return [name for name in names if name.startswith(cell) and "begin" not in name]


OF_16_BITS = "lstm_kernel" if ARM else "lstm_int16_kernel"
"""Kernel of an LSTM with rounded weights; ARM has no instruction that adds pairs of 16-bit products."""
form = features(("", "-avx512vnni,-avxvnni", "avx2", "avx2,-avxvnni", "sse"))


def test_weights_in_16_bits_in_each_form(form: str) -> None:
    compare("gru", h=101, direction="bidirectional", fast_math=True)
    compare("lstm", h=130, fast_math=True)
    assert kernel_names("lstm", 130, 1) == [OF_16_BITS]


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize(("h", "b"), [(128, 1), (101, 2), (741, 3)])
def test_weights_in_16_bits(cell: str, h: int, b: int) -> None:
    compare(cell, h=h, b=b, s=2, direction="bidirectional", fast_math=True)
    compare(cell, h=h, b=b, given="", s=1, fast_math=True)
    if host.vector_bits() == 512:
        assert kernel_names(cell, h, b) == [f"{cell}_int16_kernel"]


def test_weights_in_16_bits_of_every_variant() -> None:
    check = functools.partial(compare, h=120, fast_math=True)
    check("gru", given="bias", linear_before_reset=1)
    check("gru", b=2, lengths=np.array([1, 4], np.int32), direction="bidirectional")
    check("lstm", given="bias hidden state peephole", direction="bidirectional", b=2, clip=0.2)
    check("lstm", given="bias peephole", input_forget=1)
    check("rnn", actv_func=(make_op("softsign"),), direction="reverse")


@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-30, 1e30])
def test_weights_in_16_bits_of_any_size(scale: float) -> None:
    """Whole columns are zero, denormal or huge; other columns have usual magnitudes."""
    arrays = operands("lstm", 1, 3, 1, 128, 3, "hidden", None, np.float32)
    arrays[2][0, ::3] *= np.float32(scale)
    with np.errstate(over="ignore"):
        chosen, build = layer("lstm", arrays, True, hidden_size=128)
        check(chosen, build, rtol=3e-4, passes=PASSES, fast_math=True)


@pytest.mark.parametrize("cell", ["rnn", "gru"])
@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e20, 1e36])
def test_states_of_any_size_meet_weights_in_16_bits(scale: float, cell: str) -> None:
    """For states beyond 1e33, products with the weights fit float32, but products with the weights' codes do not."""
    arrays = operands(cell, 1, 3, 2, 128, 3, "hidden", None, np.float32)
    arrays[5] *= np.float32(scale)
    chosen, build = layer(cell, arrays, True, hidden_size=128)
    check(chosen, build, rtol=3e-4, passes=PASSES, fast_math=True)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_infinities_and_nan_meet_weights_in_16_bits(cell: str) -> None:
    """Results equal those of float32: one infinity saturates gates; two infinities or a NaN give NaN."""
    for value, places in ((np.inf, [7]), (-np.inf, [8, 101]), (np.nan, [100])):
        arrays = operands(cell, 1, 3, 2, 129, 3, "hidden", None, np.float32)
        arrays[5][0, 1, places] = value
        chosen, build = layer(cell, arrays, True, hidden_size=129)
        check(chosen, build, rtol=3e-4, passes=PASSES, fast_math=True)
        arrays[0][1, 0, 0] = value
        check(chosen, build, rtol=3e-4, passes=PASSES, fast_math=True)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_errors_do_not_grow_over_many_steps(cell: str) -> None:
    compare(cell, h=96, s=512, fast_math=True)


def test_weights_that_stay_in_32_bits() -> None:
    assert kernel_names("lstm", 128, 1, fast_math=False) == ["lstm_kernel"]
    assert kernel_names("lstm", 128, 1, float32_matmul_precision="highest") == ["lstm_kernel"]
    assert kernel_names("lstm", 128, 1, float32_matmul_precision="high", fast_math=False) == [OF_16_BITS]
    assert kernel_names("lstm", 128, 1, weight=np.inf) == ["lstm_kernel"]
    assert kernel_names("lstm", 128, 1, weight=1e6) == ["lstm_kernel"]
    assert kernel_names("lstm", 128, 4) == ["lstm_kernel"]
    assert kernel_names("lstm", 16, 1) == ["lstm_kernel"]
    assert kernel_names("rnn", 256, 1, functions=("relu",)) == ["rnn_kernel"]


def test_many_threads_and_one_agree() -> None:
    chosen, build = layer("gru", operands("gru", 1, 11, 1, 260, 3, "bias", None, np.float32), True, hidden_size=260)
    program = program_of(chosen, build)
    wanted = evaluate(program, {f"p{k}": a for k, a in enumerate(chosen)})
    run_passes(program, list(PASSES))
    for threads in (1, 2, 3, 5):
        executable = Executable(lower(program, TargetOptions(num_threads=threads)), num_threads=threads)
        for _ in range(3):
            for a, b in zip(executable.run(chosen), wanted):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_kernel_depends_on_structure_only() -> None:
    def kernels(hidden: int, steps: int, batch: int) -> list[str]:
        functions = (make_op("sigmoid"), make_op("tanh"), make_op("tanh"))
        problem = RecurrenceProblem(
            "lstm", steps, batch, hidden, (False,), functions, (batch * 4 * hidden, 4 * hidden, 4 * hidden),
            (batch * hidden, batch * hidden, hidden),
        )  # fmt: skip
        return [launch.kernel.text for launch in plan(problem).launches]

    assert kernels(64, 3, 1) == kernels(256, 9, 1)
    assert kernels(64, 3, 7) == kernels(64, 3, 12)
