"""Register tiles on ARM: the choice for each CPU, their instructions, and that accumulators stay in registers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator

import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.bfloat16 import GemmBfloat16
from mgx_numba.codegen.cpu.contraction.gemm import GemmPacked
from mgx_numba.codegen.cpu.contraction.gemm_int8 import GemmInt8
from mgx_numba.codegen.cpu.contraction.solver import Solver
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.machine_record import SHIPPED
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.cpu.toolchain.compiler import inspect
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.gemm import GemmProblem

BASE = ("neon", "fp-armv8", "fullfp16", "lse")
CPUS = {
    "cortex-a72": BASE[:2],
    "neoverse-n1": (*BASE, "dotprod"),  # Graviton 2, Ampere Altra
    "neoverse-v1": (*BASE, "dotprod", "i8mm", "bf16", "sve"),  # Graviton 3
    "neoverse-v2": (*BASE, "dotprod", "i8mm", "bf16", "sve", "sve2"),  # Graviton 4, Grace
    "ampere1": (*BASE, "dotprod", "i8mm", "bf16"),  # AmpereOne
    "apple-m1": (*BASE, "dotprod", "fp16fml"),
    "apple-m2": (*BASE, "dotprod", "fp16fml", "i8mm", "bf16"),
    "apple-m3": (*BASE, "dotprod", "fp16fml", "i8mm", "bf16"),
    "apple-m4": (*BASE, "dotprod", "fp16fml", "i8mm", "bf16", "sme"),
}
"""Features of CPUs, by LLVM's names."""
UNSIGNED, SIGNED = "uint8 int8 int32 int32", "int8 int8 int32 int32"
HALF, BFLOAT16 = "float32 float16 float32 float32", "float32 bfloat16 float32 float32"
MATRICES = {UNSIGNED: "neonmmla_8x3", SIGNED: "neonmmla_8x3", BFLOAT16: "neonbf16_8x3"}
DOTS = {UNSIGNED: "neondot_8x3", SIGNED: "neondot_8x3", BFLOAT16: "neon_8x3_stored"}
WIDENED = {UNSIGNED: "portable_4x2", SIGNED: "portable_4x2", BFLOAT16: "neon_8x3_stored"}
CHOSEN = {name: MATRICES if "i8mm" in on else DOTS if "dotprod" in on else WIDENED for name, on in CPUS.items()}


@contextlib.contextmanager
def pretended(cpu: str) -> Iterator[None]:
    """Kernels are for an ARM CPU, whose code LLVM writes on any machine."""
    features = dict.fromkeys(CPUS[cpu], True)
    fake = dataclasses.replace(host.platform(), cpu=cpu, triple="aarch64-unknown-linux-gnu", features=features)
    with pytest.MonkeyPatch.context() as patch, host.pretending(fake):
        patch.setenv(host.ENVIRONMENT, "")
        yield


@pytest.mark.parametrize("cpu", CPUS)
def test_each_cpu_has_its_tiles(cpu: str) -> None:
    with pretended(cpu):
        found = {types: tile_for(element_types(types)).name for types in (UNSIGNED, SIGNED, BFLOAT16, HALF, "float32")}
        assert found == {**CHOSEN[cpu], HALF: "neon_8x3_stored", "float32": "neon_8x3"}


def test_each_cpu_of_the_records_is_among_them() -> None:
    assert set(json.loads((SHIPPED / "stated" / "arm.json").read_bytes())) <= set(CPUS)


CASES = [
    ("neoverse-n1", "float32", GemmPacked(), "fmla"),
    ("neoverse-n1", HALF, GemmPacked(), "fmla"),
    ("neoverse-n1", UNSIGNED, GemmInt8(), "sdot"),
    ("neoverse-n1", SIGNED, GemmInt8(), "sdot"),
    ("neoverse-v1", UNSIGNED, GemmInt8(), "usmmla"),
    ("neoverse-v1", SIGNED, GemmInt8(), "smmla"),
    ("neoverse-v1", BFLOAT16, GemmBfloat16(), "bfmmla"),
]


@pytest.mark.parametrize("cpu, types, solver, instruction", CASES)
def test_instructions(cpu: str, types: str, solver: Solver[GemmProblem], instruction: str) -> None:
    """Each word costs one instruction for a vector of accumulators, and all accumulators stay in registers."""
    problem = GemmProblem(64, 96, 64, types=element_types(types))
    with pretended(cpu):
        tile = tile_for(problem.types)
        kernels = [k for k in solver.plan(problem).kernels if "_tile_" in k.name]
        texts = [inspect(k).assembly for k in kernels]
    products = [len(re.findall(rf"\t{instruction}\t", text)) for text in texts]
    assert max(products) >= tile.rows * tile.vectors
    for text, count in zip(texts, products, strict=True):
        assert count and not re.findall(r"\tst[rp]\tq\d+.*\[sp", text)


def test_without_bfloat16_there_is_no_rounding_product() -> None:
    with pretended("neoverse-n1"):
        refusal = GemmBfloat16().refusal(GemmProblem(4, 5, 6, types=element_types(BFLOAT16)))
    assert "no tile is declared" in (refusal or "")


@pytest.mark.parametrize("cpu, word, instruction", [("neoverse-n1", "add_signed_dot4", "sdot"),
                                                    ("neoverse-v1", "add_dot4", "usdot")])  # fmt: skip
def test_products_of_bytes_in_registers_are_one_instruction(cpu: str, word: str, instruction: str) -> None:
    text = f"""def kernel(args, begin, end):
    x = pointer_int32(args, 0)
    store(x, 0, {word}(load(x, 0, 4), load(x, 4, 4), load(x, 8, 4)))
"""
    with pretended(cpu):
        assembly = inspect(cpu_kernel("dots_kernel", text)).assembly
    assert len(re.findall(rf"\t{instruction}\t", assembly)) == 1 and "mul" not in assembly


def test_a_signalling_nan_was_255_as_an_unsigned_byte() -> None:
    """LLVM made ``fmaxnm`` of a comparison with 0, which passes signalling NaN on, though other NaN become 0."""
    text = """def kernel(args, begin, end):
    store(pointer_uint8(args, 1), 0, cast_uint8(load(pointer_bfloat16(args, 0), 0, 16)))
"""
    with pretended("neoverse-n1"):
        assembly = inspect(cpu_kernel("cast_kernel", text)).assembly
    assert "fcvtzu" in assembly and "fmaxnm" not in assembly
