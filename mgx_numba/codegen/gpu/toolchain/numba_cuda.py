"""Second toolchain: the same kernel text through Numba's official CUDA target and NVIDIA's libNVVM.

The language's functions are Numba intrinsics, which that target accepts. Needs the extra ``cuda``. Importing this
module imports Numba and numba-cuda.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import numba.cuda.np.arrayobj  # noqa: F401 (compiling imports it late; what does not work with it is to be told at once)
from cuda.bindings.nvvm import nvvmError
from numba.cuda.compiler import compile_cuda
from numba.cuda.cudadrv.nvvm import CompilationUnit

from ...kernel import KernelSource
from ...lang.target import with_features
from ...toolchain.kernel_text import failure, read_text
from ...toolchain.numba_core import NumbaError, types
from ..architecture import Architecture, lowering_for
from .frontend import BLOCK_ALIGNMENT, OVERLAP, BlockShape, block_shape, features, waits
from .nvvm_dialect import nvvm_text

_BODY = "body"
_DEFINED = re.compile(rf'^define i8\* @"{_BODY}"', re.M)
_EXTERNAL = re.compile(r"^\.extern \.func\s+(?:\([^)]*\)\s*)?([\w.$]+)", re.M)
"""Matches functions that a module calls but does not define."""
_NEWER_DIALECT = (10, 0)
"""Compute capability from which libNVVM reads the IR dialect of a newer LLVM."""
_OPTIONS = {"fma": 0}
"""libNVVM options: FMAs only where the text has them, as with LLVM's code generator."""
_FIRST_NOTE = 1000
"""Number of the entry's first metadata node; Numba's own are a few from 0."""


def ptx(source: KernelSource, vocabulary: dict[str, Any], arch: Architecture) -> str:
    """Return the PTX of a kernel, which exports `source.symbol`.

    Raises:
        CompileError: the text does not type, or libNVVM rejects it.
    """
    function, names = read_text(source, vocabulary)
    text = _DEFINED.sub(f'define internal i8* @"{_BODY}"', nvvm_text(_lowered(source, function, names, arch)))
    text += _entry(source.symbol, block_shape(names), arch, waits(function))
    unit = CompilationUnit({"arch": arch.name.replace("sm_", "compute_"), **_OPTIONS})  # type: ignore[call-arg]
    try:
        # Not verified: the verifier refuses intrinsics that the compiler knows, llvm.fabs for one.
        unit.add_module(text.encode())
        made: str = unit.compile().decode().rstrip("\0")
    except nvvmError as error:
        raise failure(source, f"libNVVM refuses it: {unit.get_log().strip() or error}") from error
    missing = sorted(set(_EXTERNAL.findall(made)))
    if missing:
        raise failure(source, f"libNVVM has no {', '.join(missing)}")
    return made


def _lowered(source: KernelSource, function: ast.FunctionDef, names: dict[str, Any], arch: Architecture) -> str:
    """Return the LLVM IR of the kernel's function, which takes a pointer to its argument block."""
    exec(compile(ast.Module([function], []), f"<{source.name}>", "exec"), names)
    try:
        with with_features(features(arch)), lowering_for(arch):
            made = compile_cuda(
                names["kernel"], types.void, (types.CPointer(types.int64),), cc=arch.capability, abi="c",
                abi_info={"abi_name": _BODY},
            )  # fmt: skip
    except NumbaError as error:
        raise failure(source, str(error)) from error
    return str(made.library.get_llvm_str())


def _entry(symbol: str, shape: BlockShape, arch: Architecture, waits: bool) -> str:
    """Return the kernel entry that calls the function: NVVM IR Specification, "Global Property Annotation"."""
    block = f"[{shape.slots} x i64]"
    passed = f"byval({block})" if arch.capability >= _NEWER_DIALECT else "byval"
    overlap = OVERLAP[: 1 if waits else 2] if arch.overlaps else ()
    begin = "".join(f'  call void asm sideeffect "{one}", "~{{memory}}"()\n' for one in overlap)
    numbers = {"kernel": 1, "maxntidx": shape.threads, "minctasm": shape.blocks}
    if shape.cluster > 1:
        numbers |= {"cluster_dim_x": shape.cluster, "cluster_dim_y": 1, "cluster_dim_z": 1}
    of = f'void ({block}*)* @"{symbol}"'
    notes = [f'!{{{of}, !"{name}", i32 {number}}}' for name, number in numbers.items()]
    notes.append(f'!{{{of}, !"grid_constant", !{{i32 1}}}}')
    listed = ", ".join(f"!{_FIRST_NOTE + k}" for k in range(len(notes)))
    return (
        f'define void @"{symbol}"({block}* {passed} align {BLOCK_ALIGNMENT} %args) {{\n{begin}'
        f"  %words = getelementptr {block}, {block}* %args, i64 0, i64 0\n"
        f'  %status = call i8* @"{_BODY}"(i64* %words)\n  ret void\n}}\n'
        f"!nvvm.annotations = !{{{listed}}}\n"
        + "".join(f"!{_FIRST_NOTE + k} = {note}\n" for k, note in enumerate(notes))
    )
