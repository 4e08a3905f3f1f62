"""Export of any program, also a compiled one, as an ONNX model for the viewer Netron.

Nodes have the IR's operators in the domain ``mgx_numba``, so no engine can run the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .._version import __version__
from ..core.shape import Shape
from ..core.types import Type
from ..graph.instruction import Instruction, Parameter, Return
from ..graph.module import Module
from ..graph.printer import instruction_names
from ..graph.program import Program
from ..graph.serialize import attribute_to_value

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

DOMAIN = "mgx_numba"
LARGE_LITERAL = 1024
"""Number of elements from which a literal is exported without values, since the model is only for viewing."""


def to_netron(program: Program) -> bytes:
    """Return the model's protobuf, which `onnx.load` reads; submodules are graph attributes."""
    from onnx import helper

    names = instruction_names(program.reachable_modules())
    model = helper.make_model(
        _graph(program.main, names),
        producer_name=DOMAIN,
        producer_version=__version__,
        opset_imports=[helper.make_opsetid(DOMAIN, 1)],
    )
    return bytes(model.SerializeToString())


def _graph(module: Module, names: dict[Instruction, str]) -> GraphProto:
    from onnx import helper

    nodes, literals, values = [], [], []
    for ins in module:
        if isinstance(ins.op, (Parameter, Return)):
            continue
        if ins.literal is not None and ins.literal.array is not None:
            literals.append(_literal(names[ins], ins.literal.array, ins.shape))
            continue
        nodes.append(_node(ins, names))
        values.append(_value(names[ins], ins.shape))
    inputs = [_value(names[p], p.shape) for p in module.parameters()]
    results = [_value(names[r], r.shape) for r in module.results()]
    return helper.make_graph(nodes, module.name, inputs, results, literals, value_info=values)


def _node(ins: Instruction, names: dict[Instruction, str]) -> NodeProto:
    from onnx import helper

    node = helper.make_node(
        ins.name, [names[i] for i in ins.inputs], [names[ins]], ", ".join(ins.debug_symbols), domain=DOMAIN
    )
    for key, value in ins.op.attributes().items():
        plain = attribute_to_value(value)
        if plain is not None and plain != []:
            node.attribute.append(helper.make_attribute(key, plain if _is_simple(plain) else str(plain)))
    for module in ins.module_args:
        node.attribute.append(helper.make_attribute(module.name, _graph(module, names)))
    return node


def _is_simple(value: object) -> bool:
    if isinstance(value, list):
        return all(type(v) is type(value[0]) and isinstance(v, (int, float, str)) for v in value)
    return isinstance(value, (int, float, str))


def _literal(name: str, array: np.ndarray, shape: Shape) -> TensorProto:
    from onnx import TensorProto, numpy_helper

    if array.size < LARGE_LITERAL and shape.type is not Type.fp4x2_type:
        return numpy_helper.from_array(np.ascontiguousarray(array), name)
    return TensorProto(name=name, data_type=_element(shape), dims=shape.lens)


def _value(name: str, shape: Shape) -> ValueInfoProto:
    from onnx import ValueInfoProto, helper

    if shape.sub_shapes:
        return ValueInfoProto(name=name, doc_string=str(shape))
    if shape.is_dynamic:
        lens: list[int | str] = [d.min if d.is_fixed else str(d) for d in shape.dims]
    else:
        lens = list(shape.lens)
    return helper.make_tensor_value_info(name, _element(shape), lens, str(shape))


def _element(shape: Shape) -> int:
    from onnx import TensorProto, helper

    packed = shape.type is Type.fp4x2_type  # two elements to a byte, exported as bytes
    return int(TensorProto.UINT8 if packed else helper.np_dtype_to_tensor_dtype(np.dtype(shape.type.numpy)))
