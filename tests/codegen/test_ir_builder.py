"""IR of kernels without the instructions that LLVM removes first."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from mgx_numba.codegen.toolchain.ir_builder import KernelBuilder

I64, F32 = ir.IntType(64), ir.FloatType()


def test_addresses_of_element_0_and_casts_of_pointers_were_instructions() -> None:
    module = ir.Module("m")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64]), "f")
    builder = KernelBuilder(function.append_basic_block())
    words, index = function.args
    vectors = builder.bitcast(builder.gep(words, [I64(0)]), ir.VectorType(F32, 4).as_pointer())
    assert not builder.block.instructions
    value = builder.load(builder.gep(vectors, [index]), align=4)
    builder.store(value, builder.bitcast(builder.gep(vectors, [I64(0)]), value.type.as_pointer()), align=4)
    builder.store(builder.bitcast(F32(1), ir.IntType(32)), builder.bitcast(vectors, ir.IntType(32).as_pointer()))
    builder.ret_void()
    with llvm.parse_assembly(str(module)) as parsed:
        parsed.verify()
        (block,) = parsed.get_function("f").blocks
        names = [instruction.opcode for instruction in block.instructions]
    assert names == ["getelementptr", "load", "store", "bitcast", "store", "ret"]


def test_pointers_keep_their_address_space() -> None:
    module = ir.Module("m")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.PointerType(F32, 3)]), "f")
    builder = KernelBuilder(function.append_basic_block())
    cast = builder.bitcast(function.args[0], ir.PointerType(I64, 3))
    assert cast.type.addrspace == 3 and not builder.block.instructions
    builder.bitcast(function.args[0], I64.as_pointer())  # is no cast of LLVM's, which says so
    builder.ret_void()
    with pytest.raises(RuntimeError, match="bitcast"):
        llvm.parse_assembly(str(module))
