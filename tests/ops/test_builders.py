"""Macros expand into instructions with the values of the operation that they represent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf
from typing import Any

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.core.argument import Argument
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type, from_numpy
from mgx_numba.errors import MgxError, OperatorError, ShapeError
from mgx_numba.graph.builders import add_macro, base, macro_options
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate
from mgx_numba.targets.ref.interpreter import evaluate

RNG = np.random.default_rng(7)


def expand(name: str, inputs: Sequence[np.ndarray], **options: Any) -> list[np.ndarray]:
    """Values of a macro on inputs."""
    program = Program()
    names = [f"i{k}" for k in range(len(inputs))]
    parameters = [program.main.add_parameter(n, Shape(from_numpy(x.dtype), x.shape)) for n, x in zip(names, inputs)]
    program.main.add_return(add_macro(program.main, None, name, parameters, (), options))
    validate(program)
    return evaluate(program, dict(zip(names, inputs)))


LARGEST = np.float32([1, 0.6, -1]) * np.finfo(np.float32).max


def floats(*lens: int) -> np.ndarray:
    return RNG.standard_normal(lens).astype(np.float32)


def softplus_gate(x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + gate)


def gelu(x: np.ndarray) -> np.ndarray:
    return softplus_gate(x, np.vectorize(erf)(x / np.sqrt(2)))


def normalized(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)


X = floats(2, 3, 4, 5)
C = [np.abs(floats(3)) + 0.5 for _ in range(4)]
A, B = floats(4, 5), floats(5, 3)
MATRICES = floats(2, 1, 4, 5), floats(3, 5, 6)

CASES: list[tuple[str, list[np.ndarray], dict[str, Any], Callable[[], Any]]] = [
    (
        "batchnorm",
        [X, *C],
        {"epsilon": 0.1},
        lambda: (
            (X - C[2][:, None, None]) / np.sqrt(C[3][:, None, None] + 0.1) * C[0][:, None, None] + C[1][:, None, None]
        ),
    ),
    ("mean_variance_normalization", [X], {"axes": [0, 2, 3]}, lambda: normalized(X, (0, 2, 3))),
    ("celu", [X], {"alpha": 2.0}, lambda: np.maximum(0, X) + np.minimum(0, 2 * np.expm1(X / 2))),
    ("clip", [X], {}, lambda: X),
    ("clip", [X, np.float32([-0.5]), np.float32([0.5])], {}, lambda: X.clip(-0.5, 0.5)),
    ("clip", [X, np.float32([-0.5])], {}, lambda: X.clip(-0.5)),
    ("gelu_quick", [X], {}, lambda: X / (1 + np.exp(-1.702 * X))),
    ("gelu_erf", [X], {}, lambda: gelu(X)),
    ("gelu_tanh", [X], {}, lambda: softplus_gate(X, np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)))),
    (
        "gelu_tanh",
        [X],
        {"fast": 1},
        lambda: softplus_gate(X, np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))),
    ),
    ("gelu_erf", [LARGEST], {}, lambda: LARGEST.clip(0)),
    ("gelu_tanh", [LARGEST], {}, lambda: LARGEST.clip(0)),
    ("gelu_split", [floats(2, 1, 6)], {}, None),
    ("dot", list(MATRICES), {}, lambda: np.matmul(*MATRICES)),
    ("dot", [A[0], B], {}, lambda: A[0] @ B),
    ("dot", [A, B[:, 0]], {}, lambda: A @ B[:, 0]),
    ("gemm", [A, B], {}, lambda: A @ B),
    (
        "gemm",
        [A.T, B.T, C[0]],
        {"alpha": 2, "beta": 0.5, "transA": 1, "transB": 1},
        lambda: 2 * A @ B + 0.5 * C[0],
    ),
    ("tile", [A], {"repeats": [2, 3]}, lambda: np.tile(A, (2, 3))),
    ("add", [A, np.int32([[1], [2], [3], [4]])], {}, lambda: A + np.arange(1, 5, dtype=np.float32)[:, None]),
    ("sub", [X, C[0]], {"broadcasted_axis": 1}, lambda: X - C[0][:, None, None]),
    ("where", [A > 0, A, np.float32([[0]])], {}, lambda: np.where(A > 0, A, 0)),
    ("relu", [A], {}, lambda: A.clip(0)),
    ("reduce_sum", [A], {"axes": [1]}, lambda: A.sum(1, keepdims=True)),
]


@pytest.mark.parametrize("name, inputs, options, expected", CASES, ids=[f"{c[0]}{c[2] or ''}" for c in CASES])
def test_values(name: str, inputs: list[np.ndarray], options: dict[str, Any], expected: Any) -> None:
    (found,) = expand(name, [np.ascontiguousarray(i) for i in inputs], **options)
    wanted = inputs[0][..., :3] * gelu(inputs[0][..., 3:]) if expected is None else expected()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "equation, lens",
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk", [(2, 3, 4), (2, 4, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ij->", [(3, 4)]),
        ("ii->i", [(4, 4)]),
        ("ii", [(4, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("i,i->", [(3,), (3,)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 6)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,j->", [(2, 3), (3,)]),
        ("b i j , b j -> b i", [(2, 3, 4), (2, 4)]),
        ("ijk,ik->jk", [(2, 3, 4), (2, 4)]),
        ("iij,jk->ik", [(3, 3, 4), (4, 2)]),
        ("i,j,i->ij", [(1,), (2,), (3,)]),
        ("i,j->", [(2,), (3,)]),
        ("ij,k->k", [(2, 3), (4,)]),
        ("ab,cd,bc->ad", [(2, 3), (4, 5), (3, 4)]),
        ("...a,...b,ab,...->...", [(2, 3), (2, 4), (3, 4), (1,)]),
        ("a,b,c,d,a->db", [(2,), (3,), (1,), (4,), (2,)]),
    ],
)
def test_einsum(equation: str, lens: list[tuple[int, ...]]) -> None:
    inputs = [floats(*n) for n in lens]
    (found,) = expand("einsum", inputs, equation=equation)
    wanted = np.einsum(equation, *inputs)
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


def test_the_order_of_a_sum_of_products_keeps_values_small() -> None:
    """Taken from the left, the first two operands have 64**4 products."""
    main = Program().main
    given = [main.add_parameter(f"x{k}", Shape(Type.float_type, (64, 64))) for k in range(3)]
    main.add_return(add_macro(main, None, "einsum", given, (), {"equation": "ab,cd,bc->ad"}))
    assert max(ins.shape.elements for ins in main if not ins.op.view) == 64 * 64


@pytest.mark.parametrize(
    "equation, lens",
    [
        ("ij,jk->ik", [(3, 4)]),
        ("ij->ik", [(3, 4)]),
        ("ij->ii", [(3, 4)]),
        ("i1->i", [(3, 4)]),
        ("ijk->i", [(3, 4)]),
        ("i->i", [(3, 4)]),
        ("ij,jk->ik", [(3, 4), (5, 6)]),
        ("ii->i", [(3, 4)]),
    ],
)
def test_einsum_refuses(equation: str, lens: list[tuple[int, ...]]) -> None:
    with pytest.raises(MgxError, match="einsum"):
        expand("einsum", [floats(*n) for n in lens], equation=equation)


@pytest.mark.parametrize("auto_pad, side", [("SAME_UPPER", 1), ("SAME_LOWER", 0), ("VALID", None)])
def test_convolution_pads_as_onnx_says(auto_pad: str, side: int | None) -> None:
    x, w, bias = floats(1, 2, 5), floats(3, 2, 4), floats(3)
    (found,) = expand("convolution", [x, w, bias], auto_pad=auto_pad)
    padded = x if side is None else np.pad(x, ((0, 0), (0, 0), (1 + (side == 0), 1 + (side == 1))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 4, 2)
    np.testing.assert_allclose(found, np.einsum("nclk,ock->nol", windows, w) + bias[:, None], rtol=1e-4, atol=1e-5)


def test_convolution_of_dynamic_lengths_keeps_the_padding_mode() -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape.dynamic(Type.float_type, [1, 2, DynamicDimension(4, 8)]))
    w = program.main.add_literal(floats(3, 2, 3))
    (result,) = add_macro(program.main, None, "convolution", [x, w], (), {"auto_pad": "SAME_UPPER"})
    assert "padding_mode=2" in str(result.op)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_rotary_embedding(interleaved: bool, whole: bool) -> None:
    x, angle = floats(2, 3, 5, 8), floats(5, 4)
    z = x[..., ::2] + 1j * x[..., 1::2] if interleaved else x[..., :4] + 1j * x[..., 4:]
    z = z * np.exp(1j * angle)
    wanted = np.stack([z.real, z.imag], -1).reshape(x.shape) if interleaved else np.concatenate([z.real, z.imag], -1)
    if whole:
        angle = np.repeat(angle, 2, -1) if interleaved else np.concatenate([angle, angle], -1)
    (found,) = expand("rotary_embedding", [x, np.cos(angle), np.sin(angle)], interleaved=interleaved)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block, lens", [(0, (1,)), (0, (4,)), (2, (6, 2)), (3, (6, 2))])
def test_quantization_there_and_back(block: int, lens: tuple[int, ...]) -> None:
    x = floats(6, 4)
    scale = np.abs(floats(*lens)) / 20 + 0.05
    zero = RNG.integers(-5, 5, lens).astype(np.int8)
    axis = 1
    (q,) = expand("quantizelinear", [x, scale, zero], axis=axis, block_size=block)
    assert q.dtype == np.int8
    (back,) = expand("dequantizelinear", [q, scale, zero], axis=axis, block_size=block)
    spread = np.repeat(scale, block, 1)[:, :4] if block else np.broadcast_to(scale, x.shape)
    assert (np.abs(back - x) <= spread / 2 + 1e-6).all()


def test_quantization_to_a_named_type() -> None:
    x = floats(3, 4)
    (q,) = expand("quantizelinear", [x, np.float32([0.1])], output_type="int8_type")
    np.testing.assert_array_equal(q, np.rint(x / np.float32(0.1)).astype(np.int8))


def test_bias_uint8() -> None:
    x = np.arange(256, dtype=np.uint8)
    found = expand("bias_uint8", [x, np.uint8([128])])
    np.testing.assert_array_equal(found[0], x.astype(int) - 128)
    assert [f.dtype for f in found] == [np.int8, np.int8]
    assert found[1].tolist() == [0]


def test_every_macro_has_a_case() -> None:
    named = {c[0] for c in CASES} | {"einsum", "convolution", "rotary_embedding", "bias_uint8"}
    named |= {"quantizelinear", "dequantizelinear", "quant_dot", "quant_convolution"}
    from mgx_numba.graph.builders.macros import NAMES

    assert set(base.MACROS) <= named | set(NAMES)


def test_instructions_go_before_the_given_one() -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (2, 2)))
    last = program.main.add_instruction("relu", [x])
    (result,) = add_macro(program.main, last, "gelu_erf", [x], (), {})
    assert program.main.last is last
    program.main.set_input(last, 0, result)
    validate(program)


def test_public_modules_take_macros() -> None:
    program = migraphx.program()
    main = program.get_main_module()
    x = main.add_parameter("x", migraphx.shape(lens=[2, 3]))
    (y,) = main.add_macro(migraphx.macro("tile", repeats=[1, 2]), [x])
    end = main.add_return([y])
    (z,) = main.insert_macro(end, migraphx.macro("relu"), [y])
    main.replace_return([z])
    (found,) = program.run({"x": -floats(2, 3)})
    assert found.shape == (2, 6)
    assert (np.asarray(found) >= 0).all()
    with pytest.raises(OperatorError, match="no option 'repeat'"):
        migraphx.macro("tile", repeat=[1])


def test_options_are_checked() -> None:
    assert macro_options("gemm", {"alpha": 2}) == {
        "alpha": 2.0,
        "beta": 1.0,
        "transA": False,
        "transB": False,
    }
    assert macro_options("softmax", {}) == {"axis": 1}
    with pytest.raises(OperatorError, match="no option 'gamma'; it has: alpha, beta, transA, transB"):
        macro_options("gemm", {"gamma": 1})
    with pytest.raises(OperatorError, match="option axes must be tuple, got 'x'"):
        macro_options("mean_variance_normalization", {"axes": "x"})
    with pytest.raises(OperatorError, match="unknown operator 'batch_norm'"):
        macro_options("batch_norm", {})
    program = Program()
    x = program.main.add_literal(Argument.from_array(floats(2, 3)))
    with pytest.raises(OperatorError, match="macro gemm got 1 inputs, expected 2 to 3"):
        add_macro(program.main, None, "gemm", [x])
    with pytest.raises(ShapeError, match="macro tile: repeats"):
        add_macro(program.main, None, "tile", [x], (), {"repeats": [2]})
