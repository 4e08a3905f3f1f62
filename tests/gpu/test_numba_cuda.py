"""Numba's official CUDA target as toolchain: it compiles the same kernel texts.

Without its packages, tests that need them are skipped. ``python -m tests.gpu.kernels_of_tests`` compiles every kernel
of the tests with it.
"""

from __future__ import annotations

import importlib.util
import re

import pytest

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.identity import environment_identity
from mgx_numba.codegen.gpu.kernel import gpu_kernel
from mgx_numba.codegen.gpu.toolchain.compiler import compile_object
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import CompileError, OptionError
from mgx_numba.graph.program import Program

from ..running import said
from .programs import compiled, interpreter, random_program
from .test_compiling import KERNEL


def missing() -> str:
    """Why there is no numba-cuda; nothing if there is."""
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed"
    try:
        importlib.import_module("mgx_numba.codegen.gpu.toolchain.numba_cuda")
    except (ImportError, AttributeError) as error:
        return f"numba-cuda does not work: {error}"
    return ""


MISSING = missing()
INSTALLED = not MISSING
installed = pytest.mark.skipif(not INSTALLED, reason=MISSING)


@pytest.fixture(autouse=True)
def official(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    monkeypatch.setenv("MGX_GPU_TOOLCHAIN", "numba-cuda")


def test_the_choice_is_part_of_a_kernels_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    official = environment_identity()["toolchain"]
    assert official.startswith("numba-cuda")
    monkeypatch.delenv("MGX_GPU_TOOLCHAIN")
    assert environment_identity()["toolchain"] == "llvmlite"


def test_unknown_toolchains_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_TOOLCHAIN", "nvcc")
    with pytest.raises(OptionError, match="MGX_GPU_TOOLCHAIN: expected llvmlite or numba-cuda, got 'nvcc'"):
        compile_object(gpu_kernel("k", KERNEL, 256, 2), ARCHITECTURES["sm_90a"])


def test_it_is_not_for_amd() -> None:
    with pytest.raises(CompileError, match="kernel k: the toolchain numba-cuda .*not for gfx942"):
        compile_object(gpu_kernel("k", KERNEL, 256, 2), ARCHITECTURES["gfx942"])


@pytest.mark.skipif("installed" not in MISSING, reason="numba-cuda is installed")
def test_what_is_not_installed_is_told() -> None:
    with pytest.raises(OptionError, match=r"needs packages that are not installed \(pip install 'mgx_numba\[cuda\]'\)"):
        compile_object(gpu_kernel("k", KERNEL, 256, 2), ARCHITECTURES["sm_90a"])


@installed
@pytest.mark.parametrize("name", ["sm_75", "sm_80", "sm_90a", "sm_120a"])
def test_a_kernel_has_the_same_entry_and_wide_loads(name: str) -> None:
    source = gpu_kernel("k", KERNEL, 256, 2, blocks=2)
    text = compile_object(source, ARCHITECTURES[name]).decode()
    for wanted in (
        rf"\.visible \.entry {source.symbol}\(\s*\.param \.align 64 \.b8 {source.symbol}_param_0\[16\]",
        r"\.maxntid\s+256",
        r"\.minnctapersm\s+2",
        r"ld\.global\.(v4|v2\.b64)",
        r"shfl\.sync\.bfly",
        r"bar(rier)?\.(cta\.)?sync",
        r"st\.global",
        rf"\.target {name}",
    ):
        assert re.search(wanted, text), wanted
    assert ".local" not in text and "NVVM" in text
    assert ("griddepcontrol.wait" in text) == ARCHITECTURES[name].overlaps


@installed
@pytest.mark.parametrize("name", ["sm_75", "sm_90a", "sm_120a"])
def test_kernels_of_a_program_compile(name: str) -> None:
    kernels = compiled(random_program(3).program, interpreter(), fast_math=True).kernels()
    assert kernels
    for kernel in kernels[:3]:
        assert f".entry {kernel.symbol}(".encode() in compile_object(kernel, ARCHITECTURES[name])


@installed
@pytest.mark.parametrize(
    ("dtype", "instruction"),
    [("half_type", r"wgmma\.mma_async"), ("bf16_type", r"wgmma\.mma_async"), ("float_type", r"fma\.rn\.f32")],
)
def test_products_compile(dtype: str, instruction: str) -> None:
    program = Program()
    kind = Type[dtype]
    given = [program.main.add_parameter(name, Shape(kind, (256, 256))) for name in "ab"]
    program.main.add_return([program.main.add_instruction("dot", given)])
    texts = [
        compile_object(kernel, ARCHITECTURES["sm_90a"]).decode()
        for kernel in compiled(program, interpreter()).kernels()
    ]
    assert any(re.search(instruction, text) for text in texts)


@installed
def test_what_does_not_type_names_the_kernel() -> None:
    with pytest.raises(CompileError, match=r"(?s)kernel k: .*nothing_such"):
        compile_object(gpu_kernel("k", ["nothing_such(args)"], 32, 1), ARCHITECTURES["sm_90a"])


RUNS = """
import numpy as np
import mgx_numba as mgx
from tests.gpu.device_data import close, numbers, softmax_of_sum, wanted
x, y = numbers(0)
close(softmax_of_sum().compile("gpu").run({"x": x, "y": y}), wanted(x, y))
weights = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float16)
program = mgx.program()
main = program.get_main_module()
a = main.add_parameter("a", mgx.shape(type="half", lens=[128, 256]))
product = main.add_instruction(mgx.op("dot"), [a, main.add_literal(weights)])
main.add_return([main.add_instruction(mgx.op("relu"), [product])])
program.compile("gpu")
given = np.random.default_rng(1).standard_normal((128, 256)).astype(np.float16)
found = np.asarray(program.run({"a": given})[0], np.float32)
assert np.abs(found - np.maximum(given.astype(np.float32) @ weights.astype(np.float32), 0)).max() < 0.1
print("right")
"""


@installed
@pytest.mark.gpu
def test_programs_run_on_a_device() -> None:
    assert said(RUNS, seconds=300) == "right"
