"""Kernels compile for every architecture, with the expected instructions; errors name the kernel."""

from __future__ import annotations

import re

import pytest

from mgx_numba.codegen.backend import backend
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES, architecture, for_capability
from mgx_numba.codegen.gpu.kernel import gpu_kernel
from mgx_numba.codegen.gpu.toolchain.compiler import assembly, compile_object
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.workers.batch import compile_objects
from mgx_numba.errors import CompileError, OptionError

from .programs import compiled, interpreter, random_program


@pytest.fixture(autouse=True)
def some_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")  # what a symbol's identity asks for


KERNEL = [
    "p = pointer_float32(args, 0)",
    "q = pointer_float16(args, 1)",
    "s = shared_float32(256)",
    "t = thread_index(0)",
    "v = load_aligned(p, (block_index(0) * 256 + t) * 4, 4)",
    "x = reduce_add(gelu_erf_fast(v))",
    "x = add(x, shuffle_xor(x, 16))",
    "store_scalar(s, t, x)",
    "barrier()",
    "y = load_scalar(s, 255 - t)",
    "store_aligned(q, (block_index(0) * 256 + t) * 4, cast_float16(mul(v, y)))",
]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_kernel_has_wide_loads_and_no_stack_on_every_architecture(name: str) -> None:
    text = assembly(gpu_kernel("k", KERNEL, 256, 2), ARCHITECTURES[name])
    if ARCHITECTURES[name].nvidia:
        for wanted in (
            r"\.maxntid\s+256",
            r"ld\.global\.(v4|v2\.b64)",
            r"shfl\.sync\.bfly",
            r"bar\.sync",
            r"ld\.shared",
            r"st\.global",
        ):
            assert re.search(wanted, text), wanted
        assert ".local" not in text and f".target {name}" in text
        waits = "griddepcontrol.wait" in text
        assert waits == ARCHITECTURES[name].overlaps == (ARCHITECTURES[name].capability >= (9, 0))
        assert not waits or text.index("griddepcontrol.wait") < min(map(text.index, ("ld.global", "st.global")))
    else:
        assert re.search(r"global_load_(dwordx4|b128)", text) and "s_barrier" in text
        assert re.search(r"\.private_segment_fixed_size: 0\b", text)


@pytest.mark.parametrize("name", ["sm_75", "sm_90a", "gfx942", "gfx1201"])
def test_kernels_of_a_program_compile(name: str) -> None:
    program = compiled(random_program(3).program, interpreter(), fast_math=True)
    kernels = program.kernels()
    assert kernels
    for kernel in kernels[:2]:
        code = compile_object(kernel, ARCHITECTURES[name])
        assert kernel.symbol.encode() in code


def test_errors_name_the_kernel_and_the_line() -> None:
    arch = architecture("sm_90a")
    with pytest.raises(CompileError, match=r"kernel k: .*nothing_such"):
        compile_object(gpu_kernel("k", ["nothing_such(args)"], 32, 1), arch)
    with pytest.raises(CompileError, match=r"kernel k: calls .*fmodf, which no kernel may call"):
        lines = ["p = pointer_float32(args, 0)", "store_scalar(p, 0, fmod(load_scalar(p, 1), load_scalar(p, 2)))"]
        compile_object(gpu_kernel("k", lines, 32, 1), arch)
    with pytest.raises(CompileError, match="no function named kernel"):
        compile_object(KernelSource("gpu", "k", "x = 1\n"), arch)


def test_architectures_are_found_by_name_and_capability() -> None:
    with pytest.raises(OptionError, match="unknown GPU architecture 'sm_1'; known: sm_75, "):
        architecture("sm_1")
    found = {c: for_capability(c) for c in ((7, 0), (7, 5), (8, 7), (9, 0), (10, 3), (12, 0))}
    names = {c: a.name if a else None for c, a in found.items()}
    assert names == {
        (7, 0): None, (7, 5): "sm_75", (8, 7): "sm_86", (9, 0): "sm_90a", (10, 3): "sm_89", (12, 0): "sm_120a",
    }  # fmt: skip


def test_worker_processes_compile_for_the_same_architecture() -> None:
    sources = [gpu_kernel(f"k{n}", [*KERNEL, f"store_scalar(p, {n}, x)"], 256, 2) for n in range(4)]
    objects = compile_objects(sources, workers=2)
    for source, data in zip(sources, objects, strict=True):
        assert backend(source.backend).loadable(source, data)
        assert b".target sm_90a" in data or data.startswith(b"\x7fELF")  # with a driver, its code for the device
    with pytest.raises(CompileError, match="kernel bad: .*nothing_such"):
        compile_objects([*sources, gpu_kernel("bad", ["nothing_such(args)"], 32, 1)], workers=2)
    with pytest.raises(CompileError, match="compiles for another environment"):
        backend("gpu").finished(sources[0], objects[1])
