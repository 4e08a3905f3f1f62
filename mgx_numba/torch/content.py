"""Content of a graph as text, and of tensors as digests: the key of its program in the plan cache; tensors as arrays
of programs, without a copy."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.fx import GraphModule, Node

from ..api.digests import content_digest
from ..graph.content import FileContent


def graph_text(graph_module: GraphModule) -> str:
    """Return a text that determines what a graph computes, except for the elements of its inputs.

    It has a line for each node, with shapes of inputs, ranges of symbolic lengths, and the types of all values.
    """
    numbers = {node: f"%{k}" for k, node in enumerate(graph_module.graph.nodes)}
    lines = [torch.__version__, *_ranges(graph_module)]
    for node, number in numbers.items():
        own = node.name if node.op == "placeholder" else ""
        arguments = argument_text((node.args, node.kwargs), numbers)
        lines.append(f"{number} {node.op} {own} {_target(node)} {arguments} {_value(node.meta.get('val'))}")
    for node in graph_module.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(str(node.target))(graph_module)
        content = graph_text(value) if isinstance(value, GraphModule) else digest_of({"": value})
        lines.append(f"{node.target} {content}")
    return "\n".join(lines)


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and elements of tensors."""
    whole = hashlib.sha256()
    for name, tensor in tensors.items():
        data = host_array(tensor)
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {data.nbytes}\n".encode())
        if data.nbytes:
            flat: Any = data.reshape(-1).view("uint8").data
            whole.update(content_digest(FileContent.of_bytes(flat)).encode())
    return whole.hexdigest()


def _target(node: Node) -> str:
    if isinstance(node.target, str):
        return node.target if node.op == "get_attr" else ""
    return f"{getattr(node.target, '__module__', '')} {node.target}"


def argument_text(value: object, numbers: Mapping[Node, str], constant: Callable[[object], str] = repr) -> str:
    """Return the text of a node's argument, with other nodes by their ``numbers``; ``constant`` gives that of a
    constant."""

    def text(member: object) -> str:
        return argument_text(member, numbers, constant)

    if isinstance(value, Node):
        return numbers[value]
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(text, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {text(v)}' for k, v in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{text((value.start, value.stop, value.step))}"
    return constant(value)


def _value(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}{list(value.stride())}{value.device}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return str(value)


def _ranges(graph_module: GraphModule) -> Iterable[str]:
    """Yield a line for each symbolic length of the graph's inputs: its range."""
    for node in graph_module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        lengths = value.shape if isinstance(value, torch.Tensor) else (value,)
        for length in lengths:
            if isinstance(length, torch.SymInt):
                environment = length.node.shape_env
                for symbol in sorted(length.node.expr.free_symbols, key=str):
                    yield f"{symbol} {environment.var_to_range.get(symbol) if environment is not None else ''}"


_BY_BITS: dict[torch.dtype, tuple[torch.dtype, np.dtype]] = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e4m3fnuz: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fnuz)),
    torch.float8_e5m2: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2)),
    torch.float8_e5m2fnuz: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2fnuz)),
}
"""Types without a NumPy type of PyTorch's own: a type of equal size, and NumPy's type."""
_OF_ARRAY = {mine: (theirs, bits) for theirs, (bits, mine) in _BY_BITS.items()}


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's elements as a row-major array in host memory; copy it unless its memory is one already."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    bits, dtype = _BY_BITS.get(plain.dtype, (None, None))
    return plain.numpy() if bits is None else plain.view(bits).numpy().view(dtype)


def quick_array(tensor: torch.Tensor) -> Callable[[torch.Tensor], np.ndarray]:
    """Return a function that gives the elements of tensors like ``tensor`` as an array, without a copy where it can."""
    bits, dtype = _BY_BITS.get(tensor.dtype, (None, None))
    if bits is None:
        return _detached if tensor.requires_grad else torch.Tensor.numpy
    return lambda value: value.detach().view(bits).numpy().view(dtype)


def _detached(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def from_array(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over an array's memory."""
    theirs, bits = _OF_ARRAY.get(array.dtype, (None, None))
    if not array.size:  # NumPy's strides of empty arrays are not PyTorch's
        return torch.empty(array.shape, dtype=theirs or torch.from_numpy(array).dtype)
    if theirs is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16 if bits is torch.int16 else np.uint8)).view(theirs)


def from_device(value: object) -> torch.Tensor:
    """Return a `device_argument` as a tensor over its memory, complete for PyTorch's current stream."""
    found: torch.Tensor = torch.from_dlpack(value)
    return found


def ordered(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """Return a tensor with its axes in another order; None for as they are."""
    return tensor if order is None else tensor.permute(order)
