"""A kernel's Python function as LLVM IR that any of the GPU's targets takes.

Importing this module imports Numba.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from llvmlite import ir
from numba.core import types

from ....dataclass import dataclass
from ...lang.float8_pairs import FEATURE as FLOAT8_PAIRS
from ...lang.target import with_features
from ...toolchain.frontend import Refused, write_function
from ..architecture import Architecture, lowering_for
from ..lang.threads import inline

__all__ = ["BLOCK_ALIGNMENT", "OVERLAP", "BlockShape", "Refused", "block_shape", "features", "lower", "waits"]

_WORDS = types.CPointer(types.int64)
FEATURES = frozenset(("fma", "f16c"))
"""What the names shared with the CPU may use on every GPU, as the CPU's features call it."""
PAIRS_FROM = (8, 9)
"""Compute capability from which on there are conversions of two float8: PTX ISA, "cvt"."""
BLOCK_ALIGNMENT = 64
"""Bytes that a kernel's argument block starts at a multiple of: what a TMA descriptor in it needs."""
OVERLAP = ("griddepcontrol.launch_dependents;", "griddepcontrol.wait;")
"""At a kernel's beginning: the launch after it may be made ready now, and it waits for the one before, unless its text
says where."""
_CONSTANT_SPACE, _PRIVATE_SPACE = 4, 5  # LLVM's AMDGPU usage, "Address Spaces"
_I64 = ir.IntType(64)


@dataclass(frozen=True)
class BlockShape:
    """What a kernel's text says of its blocks: int64 words of arguments, threads, blocks on a multiprocessor, and of a
    cluster."""

    slots: int
    threads: int
    blocks: int = 1
    cluster: int = 1


def block_shape(names: Mapping[str, Any]) -> BlockShape:
    """That of the constants that a kernel's text defines."""
    return BlockShape(names["SLOTS"], names["THREADS"], names.get("BLOCKS", 1), names.get("CLUSTER", 1))


def waits(function: ast.FunctionDef) -> bool:
    """Whether a kernel says itself where it waits for the one before."""
    return any(isinstance(node, ast.Name) and node.id == "grid_wait" for node in ast.walk(function))


class _Entry(ir.Function):
    """A kernel's entry; its head has attributes that llvmlite's builder has no words for."""

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
        """Write the head."""
        buf.append(f"define {self._head}\n")


def features(arch: Architecture) -> frozenset[str]:
    """What the names shared with the CPU may use."""
    return FEATURES | ({FLOAT8_PAIRS} if arch.nvidia and arch.capability >= PAIRS_FROM else set())


def lower(
    function: ast.FunctionDef,
    namespace: Mapping[str, Any],
    symbol: str,
    shape: BlockShape,
    arch: Architecture,
    layout: str,
) -> str:
    """LLVM IR of ``function(args)`` as a kernel called ``symbol``, whose one parameter is a block of int64 words, for a
    machine of LLVM's data layout ``layout``.

    Raises:
        Refused: the function does not type or does not lower.
    """
    module = ir.Module(symbol)
    module.triple, module.data_layout = arch.triple, layout
    entry = _Entry(module, symbol, shape, arch)
    builder = ir.IRBuilder(entry.append_basic_block())
    if arch.overlaps:
        for instruction in OVERLAP[: 1 if waits(function) else 2]:
            inline(builder, instruction, "~{memory}", ir.VoidType(), [], True)
    words = _I64.as_pointer()
    place = entry.block if arch.nvidia else builder.addrspacecast(entry.block, words)
    with with_features(features(arch)), lowering_for(arch):
        write_function(builder, function, namespace, [(_WORDS, builder.bitcast(place, words))])
    return str(module) if arch.nvidia else _with_private_stack(str(module))


def _with_private_stack(text: str) -> str:
    """The IR with variables in the address space of AMD's stacks, where LLVM wants them."""
    allocation = re.compile(r'^(\s*)(%"[^"]+)" = alloca (.+)$', re.M)
    return allocation.sub(
        rf'\1\2.private" = alloca \3, addrspace({_PRIVATE_SPACE})\n'
        rf'\1\2" = addrspacecast ptr addrspace({_PRIVATE_SPACE}) \2.private" to ptr',
        text,
    )
