"""The code buffer and the handler that prints scalar operations as vector calls."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.printer import CodeBuffer, VectorPrinter
from mgx_numba.codegen.statements import literal
from mgx_numba.core.types import Type
from mgx_numba.ops.scalar import NumpyScalar
from mgx_numba.ops.scalar_functions import BINARY, BITWISE, COMPARE, FUNCTIONS, LOGICAL, UNARY
from tests.codegen.vector_kernels import call

from ..running import said

LANES = 16
REFERENCE = NumpyScalar()


def run_all(fast_math: bool, operation, types: list[Type], arrays: list[np.ndarray]) -> tuple[list[np.ndarray], str]:
    """Results of `operation(handler, *values)`, a list, printed as a kernel over 16 lanes, and its text."""
    buffer = CodeBuffer()
    printer = VectorPrinter(buffer, LANES, fast_math)
    with buffer.block("def kernel(args, begin, end):"):
        values = []
        for k, type_ in enumerate(types):
            buffer.line(f"p{k} = pointer_{type_.numpy.name}(args, {k})")
            values.append(printer.loaded(f"load(p{k}, 0, {LANES})", type_))
        outputs = []
        for result in operation(printer, *values):
            dtype = printer.dtype(result)
            outputs.append(np.zeros(LANES).astype(dtype.numpy))
            out = buffer.emit(f"pointer_{dtype.numpy.name}(args, {len(arrays) + len(outputs) - 1})")
            buffer.line(f"store({out}, 0, {printer.stored(result)})")
    call(buffer.text(), *arrays, *outputs)
    return outputs, buffer.text()


def run_printed(fast_math: bool, operation, types: list[Type], arrays: list[np.ndarray]) -> tuple[np.ndarray, str]:
    """Run an operation with one result; see `run_all`."""
    (out,), text = run_all(fast_math, lambda *x: [operation(*x)], types, arrays)
    return out, text


def test_equal_expressions_are_emitted_once() -> None:
    buffer = CodeBuffer()
    first = buffer.emit("add(a, b)")
    assert buffer.emit("add(a, b)") == first == "v0"
    assert buffer.emit("mul(v0, b)") == "v1"
    assert buffer.text() == "v0 = add(a, b)\nv1 = mul(v0, b)\n"


def test_names_end_with_their_block_and_numbers_are_not_reused() -> None:
    buffer = CodeBuffer()
    with buffer.block("while i < n:"):
        outer = buffer.emit("f(x)")
        with buffer.block("if c:"):
            assert buffer.emit("f(x)") == outer
    assert buffer.emit("f(x)") == "v1"
    assert buffer.text() == "while i < n:\n    v0 = f(x)\n    if c:\n        pass\nv1 = f(x)\n"


def test_assigning_a_variable_forgets_what_read_it() -> None:
    buffer = CodeBuffer()
    buffer.emit("load(p, i, 16)")
    kept = buffer.emit("load(p, ii, 16)")
    buffer.assign("i", "i + 16")
    assert buffer.emit("load(p, i, 16)") == "v2"
    assert buffer.emit("load(p, ii, 16)") == kept


def test_lines_may_be_drained() -> None:
    buffer = CodeBuffer()
    buffer.emit("f(x)")
    buffer.lines.clear()
    assert buffer.emit("f(x)") == "v0" and buffer.lines == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        (float("inf"), "INF"),
        (float("-inf"), "-INF"),
        (float("nan"), "NAN"),
        (-3, "-3"),
        (True, "True"),
    ],
)
def test_literals(value: float, text: str) -> None:
    assert literal(value) == text


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("type_", [Type.float_type, Type.double_type, Type.half_type, Type.bf16_type])
def test_every_float_operation_prints_and_agrees_with_numpy(type_: Type, fast_math: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0.05, 0.95, LANES).astype(type_.numpy)
    y = rng.uniform(0.05, 0.95, LANES).astype(type_.numpy)
    tolerance = {Type.half_type: 2e-3, Type.bf16_type: 1.6e-2}.get(type_, 2e-6)
    unary = UNARY | {"isnan", "isinf", "logical_not"}
    names = sorted(unary | BINARY | COMPARE | LOGICAL)

    def operation(s, a, b, above):
        operands = {name: (above if name == "acosh" else a, b)[: 1 if name in unary else 2] for name in names}
        return [getattr(s, name)(*operands[name]) for name in names]

    above = x + type_.numpy.type(1)
    results, text = run_all(fast_math, operation, [type_] * 3, [x, y, above])
    expected = operation(REFERENCE, x, y, above)
    for name, got, want in zip(names, results, expected, strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance / 10, err_msg=name
        )
        fast = fast_math and FUNCTIONS[name].fast and type_ is not Type.double_type
        assert (f" {name}_fast(" in text) == fast, name


@pytest.mark.parametrize("type_", [Type.int8_type, Type.uint8_type, Type.int32_type, Type.int64_type, Type.uint64_type])
def test_every_integer_operation_prints_and_agrees_with_numpy(type_: Type) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 7, LANES).astype(type_.numpy) for _ in range(2))
    names = {
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "fmod",
        "mod",
        "abs",
        "neg",
        "sign",
        "floor",
        "bitwise_not",
    }

    def everything(s, a, b):
        result = s.where(s.lt(a, b), a, s.const(3, s.dtype(a)))
        for name in sorted(names | COMPARE | LOGICAL | BITWISE):
            value = getattr(s, name)(*((a,) if name in UNARY or name == "bitwise_not" else (a, b)))
            result = s.add(s.bitwise_xor(result, s.cast(value, s.dtype(a))), s.const(1, s.dtype(a)))
        return result

    got, _ = run_printed(True, everything, [type_, type_], [x, y])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, everything(REFERENCE, x, y))


def test_narrow_floats_are_computed_in_float32_and_moved_as_they_are() -> None:
    x = np.arange(16).astype(Type.half_type.numpy)
    out, text = run_printed(False, lambda s, a: a, [Type.half_type], [x])
    assert "cast" not in text and (out == x).all()
    _, text = run_printed(False, lambda s, a: s.mul(s.add(a, a), s.const(0.5, s.dtype(a))), [Type.half_type], [x])
    assert text.count("cast_float32") == 1 and text.count("cast_float16") == 1


def test_an_explicit_cast_to_a_narrow_float_rounds() -> None:
    x = np.linspace(1, 2, 16).astype(np.float32)

    def operation(s, a):
        return s.cast(s.cast(a, Type.half_type), Type.float_type)

    out, _ = run_printed(False, operation, [Type.float_type], [x])
    np.testing.assert_array_equal(out, x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("exponent", [1, 2, 3, -1, 0.5])
def test_small_constant_powers(exponent: float) -> None:
    x = np.linspace(0.1, 3, 16).astype(np.float32)
    out, text = run_printed(False, lambda s, a: s.pow(a, s.const(exponent, s.dtype(a))), [Type.float_type], [x])
    np.testing.assert_allclose(out, x**exponent, rtol=3e-7)
    assert ("pow(" in text) == (exponent not in (1, 2, 3))


def test_relu_keeps_nan_and_prints_its_constant_first() -> None:
    x = np.array([-1, 2, np.nan, 0] * 4, np.float32)
    out, text = run_printed(True, lambda s, a: s.max(a, s.const(0, s.dtype(a))), [Type.float_type], [x])
    np.testing.assert_array_equal(out, np.maximum(x, 0))
    assert "const_float32(0.0, 16)" in text and "max(v1, v0)" in text


def test_unknown_operations_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="cbrt"):
        VectorPrinter(CodeBuffer(), LANES).cbrt  # noqa: B018


def test_the_language_has_every_name_that_is_printed() -> None:
    from mgx_numba.codegen.cpu import vocabulary

    names = (
        UNARY | BINARY | COMPARE | LOGICAL | BITWISE | {"bitwise_not", "logical_not", "isnan", "isinf", "where", "fma"}
    )
    with_fast = {function.name for function in FUNCTIONS.values() if function.fast}
    nearest = set(VectorPrinter.NEAREST.values())
    names |= {f"{name}_fast" for name in with_fast | nearest} | nearest | {"splat", "INF", "NAN"}
    assert names <= set(vocabulary.__all__)
    assert len(vocabulary.__all__) == len(set(vocabulary.__all__))
    fast = {name[:-5] for name in vocabulary.__all__ if name.endswith("_fast")}
    assert fast == with_fast | nearest


def test_printing_does_not_import_numba() -> None:
    said("import sys, mgx_numba.codegen.printer; assert 'numba' not in sys.modules")


def test_what_is_written_inline_is_the_same_whichever_vocabulary_was_loaded_first() -> None:
    def defined(*back_ends: str) -> set[str]:
        modules = ", ".join(f"mgx_numba.codegen.{name}.vocabulary" for name in back_ends)
        code = f"import {modules}\nfrom mgx_numba.codegen.lang.vector import DEFINITIONS\n"
        code += "print(*(f'{name}:{define.__module__}' for name, define in DEFINITIONS.items()))"
        return set(said(code).split())

    alone = defined("cpu")
    assert any(name.startswith("round_bfloat16:") for name in alone)
    assert not alone - defined("gpu", "cpu")
    assert not alone - defined("cpu", "gpu")
