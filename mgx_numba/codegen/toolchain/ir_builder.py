"""An IR builder that leaves out the instructions that LLVM removes first: addresses of element 0, casts of pointers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from llvmlite import ir

__all__ = ["KernelBuilder", "LoopAddresses"]

_PURE = frozenset(("add", "sub", "mul", "shl"))
"""Operations whose results are loop-invariant if their operands are."""


class LoopAddresses:
    """Parts of addresses that a loop does not change, computed before the loop.

    Otherwise LLVM's code generator may compute them in each iteration, since its loop strength reduction, which takes a
    third of its time, does not run over most kernels.

    Attributes:
        unchanged: loads in the loop of variables that the loop does not assign.
    """

    def __init__(self, before: ir.Block, own: Collection[ir.Block]) -> None:
        """Begin a loop: ``before`` is the block that enters it, ``own`` its present blocks."""
        self.unchanged: set[ir.Value] = set()
        self._end = before.terminator
        self._outside = set(before.function.blocks).difference(own)
        self._found: dict[tuple[Any, ...], ir.Value] = {}

    def is_invariant(self, value: ir.Value) -> bool:
        """Return whether a value is the same in all iterations."""
        if isinstance(value, _Pointer):
            return self.is_invariant(value.value)
        return (
            self._is_outside(value)
            or value in self.unchanged
            or (value.opname in _PURE and all(map(self.is_invariant, value.operands)))
        )

    def address(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        """Return an invariant pointer to an element at an invariant index."""
        return self._made("gep", self._before(pointer), self._before(index))

    def _before(self, value: ir.Value) -> ir.Value:
        """Return the value, computed before the loop, that an invariant value has in the loop."""
        if isinstance(value, _Pointer):
            return _Pointer(self._before(value.value), value.type)
        if self._is_outside(value):
            return value
        return self._made(value.opname, *map(self._before, value.operands))

    def _made(self, operation: str, *operands: ir.Value) -> ir.Value:
        key = operation, *operands
        if key not in self._found:
            build = ir.IRBuilder()
            build.position_before(self._end)
            given = [operands[0], [operands[1]]] if operation == "gep" else operands
            self._found[key] = getattr(build, operation)(*given)
        return self._found[key]

    def _is_outside(self, value: ir.Value) -> bool:
        return not isinstance(value, ir.Instruction) or value.parent in self._outside


class KernelBuilder(ir.IRBuilder):
    """See `llvmlite.ir.IRBuilder`. A kernel's IR gets a fifth shorter.

    Attributes:
        loop: the innermost loop around the builder's position, if addresses are to be computed before it.
    """

    loop: LoopAddresses | None = None

    def gep(
        self,
        ptr: ir.Value,
        indices: Sequence[ir.Value],
        inbounds: bool = False,
        name: str = "",
        source_etype: ir.Type | None = None,
    ) -> ir.Value:
        """Return the address of an element; of element 0 the pointer itself."""
        if len(indices) == 1:
            if isinstance(indices[0], ir.Constant) and indices[0].constant == 0:
                return ptr
            if self.loop is not None:
                ptr, indices = self._split(self.loop, ptr, indices[0])
        return super().gep(ptr, indices, inbounds, name, source_etype)

    def _split(self, loop: LoopAddresses, ptr: ir.Value, index: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        """Return a pointer and an index for an address: of element ``i + k`` with a loop-invariant ``i`` and another
        ``k``, the address of element ``i`` and ``k``."""
        if isinstance(index, ir.Instruction) and index.opname == "add" and loop.is_invariant(ptr):
            first, second = sorted(index.operands, key=loop.is_invariant)
            if loop.is_invariant(first) or not loop.is_invariant(second):
                return ptr, [index]
            if not isinstance(second, ir.Constant):
                return loop.address(ptr, second), [first]
            pointer, rest = self._split(loop, ptr, first)
            if pointer is not ptr:
                return super().gep(pointer, rest), [second]
        return ptr, [index]

    def bitcast(self, value: ir.Value, typ: ir.Type, name: str = "") -> ir.Value:
        """Return a value as another type of its size; LLVM has one type of pointer for each address space."""
        pointers = isinstance(value.type, ir.PointerType) and isinstance(typ, ir.PointerType)
        if pointers and value.type.addrspace == typ.addrspace and value.type != typ:
            return _Pointer(value, typ)
        return super().bitcast(value, typ, name)


class _Pointer(ir.Value):
    """A pointer under another of llvmlite's pointer types."""

    def __init__(self, value: ir.Value, typ: ir.PointerType) -> None:
        self.type, self.value = typ, value

    def get_reference(self) -> str:
        """Return the name of the pointer in IR text."""
        reference: str = self.value.get_reference()
        return reference
