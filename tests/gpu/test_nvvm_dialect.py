"""Constructs that libNVVM's dialect lacks are rewritten equivalently; both forms are run on the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from mgx_numba.codegen.gpu.toolchain.nvvm_dialect import nvvm_text

HEAD = 'define void @"f"(ptr %"x", ptr %"y", ptr %"to")\n{\nentry:\n'
NUMBERS = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 3e38, -1e-40], np.float32)


def _run(text: str, *arrays: np.ndarray) -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()  # the engine's own from here on
    with llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine) as engine:
        engine.finalize_object()
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(engine.get_function_address("f"))
        call(*(array.ctypes.data for array in arrays))


def _same(text: str, absent: tuple[str, ...], x: np.ndarray, y: np.ndarray, like: np.ndarray) -> None:
    found = []
    for form in (text, nvvm_text(text)):
        to = np.empty_like(like)
        _run(form, x, y, to)
        found.append(to)
    assert found[0].tobytes() == found[1].tobytes() or np.array_equal(*found, equal_nan=found[0].dtype.kind == "f")
    rewritten = nvvm_text(text)
    assert all(word in text and word not in rewritten for word in absent), rewritten


def _binary(name: str, kind: str, lanes: int) -> str:
    vector, full = f"<{lanes} x {kind}>", f"llvm.{name}.v{lanes}{ {'float': 'f32', 'double': 'f64'}.get(kind, kind) }"
    return (
        f'{HEAD}  %".1" = load {vector}, ptr %"x", align 1\n  %".2" = load {vector}, ptr %"y", align 1\n'
        f'  %".3" = call {vector} @"{full}"({vector} %".1", {vector} %".2")\n'
        f'  store {vector} %".3", ptr %"to", align 1\n  ret void\n}}\n\n'
        f'declare {vector} @"{full}"({vector}, {vector})\n'
    )


@pytest.mark.parametrize("name", ["minimum", "maximum"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extremes_go_towards_nan(name: str, dtype: Any) -> None:
    x, y = (a.astype(dtype).ravel() for a in np.meshgrid(NUMBERS, NUMBERS))
    x, y = x[:80], y[:80]
    kind = "float" if dtype is np.float32 else "double"
    text = _binary(name, kind, 8)
    unlike = (x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y))  # which zero minnum gives is the machine's choice
    x, y = np.where(unlike, 1, x), np.where(unlike, 1, y)
    for k in range(0, 80, 8):
        _same(text, (f"llvm.{name}.", "v8"), x[k : k + 8].copy(), y[k : k + 8].copy(), x[:8])


@pytest.mark.parametrize("name", ["smin", "smax", "umin", "umax"])
@pytest.mark.parametrize("bits", [8, 32, 64])
def test_extremes_of_integers(name: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    x, y = (rng.integers(-(1 << bits - 1), (1 << bits - 1) - 1, 4, endpoint=True).astype(f"int{bits}") for _ in "xy")
    _same(_binary(name, f"i{bits}", 4), (f"llvm.{name}.",), x, y, x)


def test_negation_and_equal_constants_and_frozen_values() -> None:
    text = (
        f'{HEAD}  %".1" = load <4 x float>, ptr %"x", align 1\n  %".2" = fneg nsz <4 x float> %".1"\n'
        '  %".3" = fmul <4 x float> %".2", splat (float 0x4004000000000000)\n'
        '  %".4" = freeze <4 x float> %".3"\n'
        '  %".5" = insertelement <4 x float> poison, float 0x0, i32 0\n'
        '  %".6" = fcmp olt <4 x float> splat (float              0x0), %".4"\n'
        '  %".7" = select nsz <4 x i1> %".6", <4 x float> %".4", <4 x float> %".1"\n'
        '  store <4 x float> %".7", ptr %"to", align 1\n  ret void\n}\n'
    )
    for k in range(0, 8, 4):
        _same(
            text, ("fneg", "splat", "poison", "freeze", "select nsz"), NUMBERS[k : k + 4].copy(), NUMBERS, NUMBERS[:4]
        )


def test_any_lane() -> None:
    text = (
        f'{HEAD}  %".1" = load <4 x i8>, ptr %"x", align 1\n'
        '  %".2" = call i8 @"llvm.vector.reduce.or.v4i8"(<4 x i8> %".1")\n'
        '  store i8 %".2", ptr %"to", align 1\n  ret void\n}\n\ndeclare i8 @"llvm.vector.reduce.or.v4i8"(<4 x i8>)\n'
    )
    x = np.array([1, 4, 64, 0], np.int8)
    _same(text, ("llvm.vector",), x, x, x[:1])


def test_conversions_name_those_of_nvidia_and_keep_the_range() -> None:
    text = (
        f'{HEAD}  %".1" = load double, ptr %"x", align 1\n  %".2" = call i8 @"llvm.fptosi.sat.i8.f64"(double %".1")\n'
        '  store i8 %".2", ptr %"to", align 1\n  ret void\n}\n\ndeclare i8 @"llvm.fptosi.sat.i8.f64"(double)\n'
    )
    rewritten = nvvm_text(text)
    assert "fptosi.sat" not in rewritten and 'declare i32 @"llvm.nvvm.d2i.rz"(double)' in rewritten
    stand_in = rewritten.replace('@"llvm.nvvm.d2i.rz"', '@"llvm.fptosi.sat.i32.f64"')
    for value in (0.0, 3.7, -3.7, 127.5, 128.0, -128.0, -129.0, 1e300, -np.inf, np.nan):
        x, found = np.array([value]), np.empty((2, 1), np.int8)
        _run(text, x, x, found[0])
        _run(stand_in, x, x, found[1])
        assert found[0] == found[1], value


@pytest.mark.parametrize(
    ("words", "kind", "given", "wanted"),
    [
        ("m16n8k16.row.col.f32.f32", "float", "<2 x half>", "m16n8k16.row.col.f32.f16.f16.f32"),
        ("m16n8k8.row.col.tf32", "float", "i32", "m16n8k8.row.col.f32.tf32.tf32.f32"),
        ("m16n8k32.row.col.s8.u8", "i32", "i32", "m16n8k32.row.col.s32.s8.u8.s32"),
        ("m16n8k32.row.col.s8", "i32", "i32", "m16n8k32.row.col.s32.s8.s8.s32"),
        ("m16n8k32.row.col.f32.e4m3.e4m3.f32", "float", "i32", "m16n8k32.row.col.f32.e4m3.e4m3.f32"),
    ],
)
def test_products_of_tensor_cores_become_ptx(words: str, kind: str, given: str, wanted: str) -> None:
    held = "{" + ", ".join([kind] * 4) + "}"
    told = ", ".join([f'{given} %"a{k}"' for k in range(6)] + [f'{kind} %"s{k}"' for k in range(4)])
    line = f'  %".9" = call {held} @"llvm.nvvm.mma.{words}"({told})'
    text = nvvm_text(line)
    assert f"mma.sync.aligned.{wanted} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, " in text
    held = "f" if kind == "float" else "r"
    assert f'"{",".join([f"={held}"] * 4 + ["r"] * 6 + [held] * 4)}"' in text and text.rstrip().endswith("convergent")
