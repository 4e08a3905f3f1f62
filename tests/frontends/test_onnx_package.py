"""Parts of the package ``onnx`` without the package."""

from __future__ import annotations

from ..running import said


def test_a_later_import_of_onnx_lacked_the_modules_that_were_imported_before() -> None:
    program = """
import sys
from mgx_numba.frontends.onnx import onnx_package
message, native = onnx_package.messages().ModelProto, onnx_package.definitions()
assert "onnx" not in sys.modules and onnx_package.newest_opset("ai.onnx.ml") >= 3
import onnx.checker
assert onnx.ModelProto is message and onnx.onnx_ml_pb2.ModelProto is message and onnx.onnx_cpp2py_export.defs is native
assert onnx.defs.onnx_opset_version() == onnx_package.newest_opset()
assert onnx.__loader__ is onnx.__spec__.loader and type(onnx.__loader__).__module__ != onnx_package.__name__
print(onnx.defs.get_schema("LeakyRelu").attributes["alpha"].default_value.f > 0)
"""
    assert said(program).split() == ["True"]


def test_the_parts_of_an_imported_package_are_its_own() -> None:
    program = """
import onnx
from mgx_numba.frontends.onnx import onnx_package
print(onnx_package.messages() is onnx.onnx_ml_pb2, onnx_package._parts)
"""
    assert said(program).split() == ["True", "{}"]
