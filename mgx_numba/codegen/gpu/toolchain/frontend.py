"""Lower a kernel's Python function to LLVM IR for any GPU target.

Importing this module imports Numba.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from ....dataclass import dataclass
from ...lang.narrow_pairs import BFLOAT16_PAIRS, FLOAT8_PAIRS
from ...lang.target import with_features
from ...toolchain.frontend import Refused, write_function
from ...toolchain.ir_builder import KernelBuilder
from ...toolchain.numba_core import types
from ..architecture import Architecture, lowering_for
from ..lang.threads import effect

__all__ = ["BLOCK_ALIGNMENT", "OVERLAP", "BlockShape", "Refused", "block_shape", "features", "lower", "waits"]

_WORDS = types.CPointer(types.int64)
FEATURES = frozenset(("fma", "f16c"))
"""CPU feature names that shared functions may assume on every GPU."""
PAIRS_FROM = {FLOAT8_PAIRS: (8, 9), BFLOAT16_PAIRS: (8, 0)}
"""Least compute capability with conversions of pairs: PTX ISA, "cvt"."""
BLOCK_ALIGNMENT = 64
"""Alignment (bytes) of a kernel's argument block; TMA descriptors in it need it."""
OVERLAP = ("griddepcontrol.launch_dependents;", "griddepcontrol.wait;")
"""PTX prologue for programmatic dependent launch: allow the next launch to start, and wait for the previous one unless
the text contains the wait."""
_CONSTANT_SPACE, _PRIVATE_SPACE = 4, 5  # LLVM's AMDGPU usage, "Address Spaces"
_I64 = ir.IntType(64)


@dataclass(frozen=True)
class BlockShape:
    """Launch bounds in a kernel's text: int64 argument words, threads per block, resident blocks per multiprocessor,
    blocks per cluster."""

    slots: int
    threads: int
    blocks: int = 1
    cluster: int = 1


def block_shape(names: Mapping[str, Any]) -> BlockShape:
    """Return the launch bounds from the constants in a kernel's text."""
    return BlockShape(names["SLOTS"], names["THREADS"], names.get("BLOCKS", 1), names.get("CLUSTER", 1))


def waits(function: ast.FunctionDef) -> bool:
    """Return whether a kernel's text contains its own wait for the previous launch."""
    return any(isinstance(node, ast.Name) and node.id == "grid_wait" for node in ast.walk(function))


class _Entry(ir.Function):
    """A kernel's entry function, with attributes that llvmlite's builder lacks."""

    def __init__(self, module: ir.Module, symbol: str, shape: BlockShape, arch: Architecture) -> None:
        block, threads = ir.ArrayType(_I64, shape.slots), shape.threads
        space = 0 if arch.nvidia else _CONSTANT_SPACE
        super().__init__(module, ir.FunctionType(ir.VoidType(), [block.as_pointer(space)]), name=symbol)
        (self.block,) = self.args
        self.block.name = "args"
        kind, place = self.block.type, self.block.get_reference()
        if arch.nvidia:
            self._head = (
                f'ptx_kernel void @"{symbol}"({kind} byval({block}) align {BLOCK_ALIGNMENT} "nvvm.grid_constant" '
                f"{place})"
                f' "nvvm.maxntid"="{threads}"'
                f' "nvvm.minctasm"="{shape.blocks}"'
                + f' "nvvm.cluster_dim"="{shape.cluster},1,1"'
                * (shape.cluster > 1)
            )
        else:
            self._head = (
                f'amdgpu_kernel void @"{symbol}"({kind} byref({block}) align 8 {place})'
                f' "amdgpu-flat-work-group-size"="{threads},{threads}" "uniform-work-group-size"="true"'
            )

    def descr_prototype(self, buf: list[str]) -> None:
        """Write the function header."""
        buf.append(f"define {self._head}\n")


def features(arch: Architecture) -> frozenset[str]:
    """Return the features that shared functions may assume on an architecture."""
    own = {name for name, first in PAIRS_FROM.items() if arch.nvidia and arch.capability >= first}
    return FEATURES | own


def lower(
    function: ast.FunctionDef,
    namespace: Mapping[str, object],
    symbol: str,
    shape: BlockShape,
    arch: Architecture,
    layout: str,
) -> str:
    """Return the LLVM IR of ``function(args)`` as kernel ``symbol``, whose parameter is a block of int64 words.

    Args:
        layout: LLVM data layout of the target.

    Raises:
        Refused: the function does not type or does not lower.
    """
    module = ir.Module(symbol)
    module.triple, module.data_layout = arch.triple, layout
    entry = _Entry(module, symbol, shape, arch)
    builder = KernelBuilder(entry.append_basic_block())
    if arch.overlaps:
        for instruction in OVERLAP[: 1 if waits(function) else 2]:
            effect(builder, instruction)
    words = _I64.as_pointer()
    place = entry.block if arch.nvidia else builder.addrspacecast(entry.block, words)
    with with_features(features(arch)), lowering_for(arch):
        write_function(builder, function, namespace, [(_WORDS, builder.bitcast(place, words))])
    return str(module) if arch.nvidia else _with_private_stack(str(module))


def _with_private_stack(text: str) -> str:
    """Return the IR with stack variables in AMD's private address space, as LLVM requires."""
    allocation = re.compile(r'^(\s*)(%"[^"]+)" = alloca (.+)$', re.M)
    return allocation.sub(
        rf'\1\2.private" = alloca \3, addrspace({_PRIVATE_SPACE})\n'
        rf'\1\2" = addrspacecast ptr addrspace({_PRIVATE_SPACE}) \2.private" to ptr',
        text,
    )
