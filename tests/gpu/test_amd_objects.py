"""Code objects for AMD's GPUs: linked as ROCm's loader reads them, with the expected instructions and registers.

Nothing in this file has run on an AMD GPU.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from mgx_numba.codegen.elf import read_object
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.kernel import gpu_kernel
from mgx_numba.codegen.gpu.toolchain.amd_linker import link
from mgx_numba.codegen.gpu.toolchain.compiler import assembly, compile_object
from mgx_numba.errors import CompileError

from .code_objects import read_code_object, resources, sysv_hash
from .programs import compiled, interpreter, random_program
from .test_compiling import KERNEL

AMD = [name for name, found in ARCHITECTURES.items() if not found.nvidia]
REGISTERS = 256
"""Vector registers that an instruction can name: LLVM's AMDGPU usage, "Registers"."""


@pytest.fixture(autouse=True)
def some_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "gfx942")


def _emitted(text: str, name: str = "gfx942", triple: str = "amdgcn-amd-amdhsa") -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=name)
    return machine.emit_object(llvm.parse_assembly(text))


@pytest.mark.parametrize("name", AMD)
def test_a_loader_finds_kernels_by_name_and_their_code(name: str) -> None:
    source = gpu_kernel("k", KERNEL, 256, 2)
    found = read_code_object(compile_object(source, ARCHITECTURES[name]))
    assert len(found.code(source.symbol)) > 100 and len(found.code(source.symbol)) % 4 == 0
    with pytest.raises(KeyError):
        found.symbol("another")
    (kernel,) = found.kernels
    assert kernel[".symbol"] == f"{source.symbol}.kd" and kernel[".kernarg_segment_size"] == 16
    assert kernel[".wavefront_size"] == ARCHITECTURES[name].wave
    assert kernel[".group_segment_fixed_size"] == 4 * 256 and kernel[".max_flat_workgroup_size"] == 256
    assert resources(assembly(source, ARCHITECTURES[name])) == {k: v for k, v in kernel.items() if type(v) is int}


@pytest.mark.parametrize("name", AMD)
def test_kernels_of_programs_link_without_stack_and_spills(name: str) -> None:
    for seed in (3, 7):
        for source in compiled(random_program(seed).program, interpreter(), fast_math=True).kernels()[:4]:
            found = read_code_object(compile_object(source, ARCHITECTURES[name]))
            assert found.code(source.symbol)
            (kernel,) = found.kernels
            assert kernel[".vgpr_spill_count"] == kernel[".sgpr_spill_count"] == 0
            assert kernel[".vgpr_count"] <= REGISTERS and kernel[".private_segment_fixed_size"] == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_signs_of_single_lanes_compile(dtype: str) -> None:
    """LLVM's code generator ended the process at vectors of one float64, which float32's functions go through."""
    lines = [f"p = pointer_{dtype}(args, 0)", "x = load(p, thread_index(0), 1)"]
    lines += [f"x = {name}(x)" for name in ("sign", "tanh", "erf", "atan", "asin", "acos", "asinh")]
    lines += ["x = mod_exact(x, x)"]
    text = assembly(gpu_kernel("k", [*lines, "store(p, thread_index(0), x)"], 64, 1), ARCHITECTURES["gfx942"])
    assert "v_bfi_b32" in text and ".private_segment_fixed_size: 0\n" in text


@pytest.mark.parametrize("name", AMD)
def test_lanes_exchange_words_within_half_a_wave_or_all_of_it(name: str) -> None:
    lines = ["p = pointer_float32(args, 0)", "t = thread_index(0)", "x = load_scalar(p, t)"]
    lines += [f"x = add(x, shuffle_xor(x, {mask}))" for mask in (16, 8, 4, 2, 1)]
    text = assembly(gpu_kernel("k", [*lines, "store_scalar(p, t, x)"], 64, 1), ARCHITECTURES[name])
    assert f".wavefront_size: {ARCHITECTURES[name].wave}" in text
    exchanged = re.findall(r"ds_swizzle_b32|v_\w+_dpp|row_(?:xmask|ror|share)|quad_perm|v_permlane\w+", text)
    assert len(exchanged) >= 5, text


def test_several_kernels_and_chains_of_hashes() -> None:
    names = [f"k{n}" for n in range(9)]
    bodies = "\n".join(
        f"define amdgpu_kernel void @{name}(ptr addrspace(1) %p) {{\n"
        f"  store i32 {n}, ptr addrspace(1) %p\n  ret void\n}}"
        for n, name in enumerate(names)
    )
    data = _emitted(f'target triple = "amdgcn-amd-amdhsa"\n{bodies}\n'
                    '!llvm.module.flags = !{!0}\n!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}\n')  # fmt: skip
    found, source = read_code_object(link(data)), read_object(data)
    (text,) = [k for k, section in enumerate(source.sections) if section.name == ".text"]
    for name in names:
        (symbol,) = [s for s in source.symbols if s.name == name and s.section == text]
        assert found.code(name) == source.sections[text].data[symbol.value : symbol.value + symbol.size]
    assert len({sysv_hash(n) % (2 * len(names)) for name in names for n in (name, f"{name}.kd")}) < 2 * len(names)
    assert [kernel[".name"] for kernel in found.kernels] == names
    assert found.flags == source.flags


@pytest.mark.skipif(shutil.which("ld.lld") is None, reason="lld is not installed")
@pytest.mark.parametrize("name", AMD)
def test_it_is_what_lld_makes(name: str, tmp_path: Path) -> None:
    source = gpu_kernel("k", KERNEL, 256, 2)
    module = "mgx_numba.codegen.gpu.toolchain.compiler.link"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, lambda data: data)
        (tmp_path / "k.o").write_bytes(compile_object(source, ARCHITECTURES[name]))
    subprocess.run(["ld.lld", "-shared", "k.o", "-o", "k.hsaco"], cwd=tmp_path, check=True)
    theirs = read_code_object((tmp_path / "k.hsaco").read_bytes())
    ours = read_code_object(link((tmp_path / "k.o").read_bytes()))
    assert ours.code(source.symbol) == theirs.code(source.symbol) and ours.kernels == theirs.kernels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("declare void @g()\ndefine amdgpu_kernel void @f() {\n  call void @g()\n  ret void\n}", "calls g, which no"),
        (
            "@x = addrspace(1) global i32 7\n@y = addrspace(1) global ptr addrspace(1) @x\n"
            "define amdgpu_kernel void @f() {\n  ret void\n}",
            r"has a section \.data; no kernel has data",
        ),
        ("@x = global i32 7", "has no .rodata, .text|has no .note|has no"),
    ],
)
def test_what_no_kernel_may_have_is_named(text: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        link(_emitted(f'target triple = "amdgcn-amd-amdhsa"\n{text}\n'))


def test_objects_of_others_are_refused() -> None:
    with pytest.raises(CompileError, match="machine 62; 224, AMD's GPUs"):
        link(_emitted("define void @f() {\n  ret void\n}", "x86-64", "x86_64-unknown-linux-gnu"))
    with pytest.raises(CompileError, match="not a relocatable ELF64 object"):
        link(b"no object" + struct.pack("<Q", 0) * 20)
