"""Random inputs that a model accepts, and the models that ship inside the onnx package."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

InputSpecs = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


def input_specs(model: onnx.ModelProto) -> InputSpecs:
    """Element type and dimensions of each graph input that is not an initializer, in the model's order.

    Raises ValueError for a dimension that has no fixed size.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    specs: InputSpecs = {}
    for info in model.graph.input:
        if info.name in weights:
            continue
        tensor = info.type.tensor_type
        dims = tuple(dim.dim_value for dim in tensor.shape.dim)
        if 0 in dims:
            raise ValueError(f"input {info.name} of {model.graph.name} has a dimension without a size: {dims}")
        specs[info.name] = (helper.tensor_dtype_to_np_dtype(tensor.elem_type), dims)
    return specs


def inputs(name: str, model: onnx.ModelProto, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Realistic random inputs for `model`, reproducible from `name` and `seed`.

    Floating-point inputs are standard normal. Integers that a Gather reads as indices lie inside its table.
    An input called `attention_mask` holds zeros and ones: padding on the left for a decoder (one with
    `position_ids`), else on the right, and at least half of each row is kept. `position_ids` count the kept
    positions.
    """
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    specs = input_specs(model)
    limits = _index_limits(model)
    values: dict[str, NDArray[Any]] = {}
    for key, (dtype, dims) in specs.items():
        if key == "attention_mask":
            values[key] = _mask(rng, dims, left="position_ids" in specs).astype(dtype)
        elif np.issubdtype(dtype, np.integer):
            values[key] = rng.integers(0, limits.get(key, 2), dims, dtype=dtype)
        else:
            values[key] = rng.standard_normal(dims).astype(dtype)
    if "position_ids" in specs and "attention_mask" in specs:
        dtype, dims = specs["position_ids"]
        counted = np.maximum(np.cumsum(values["attention_mask"], axis=-1) - 1, 0)
        values["position_ids"] = counted[:, -dims[-1] :].astype(dtype)
    return values


def _mask(rng: np.random.Generator, dims: tuple[int, ...], left: bool) -> NDArray[np.bool_]:
    rows, columns = dims
    kept = rng.integers((columns + 1) // 2, columns + 1, (rows, 1))
    positions = np.arange(columns)[None, :]
    return positions >= columns - kept if left else positions < kept


def _index_limits(model: onnx.ModelProto) -> dict[str, int]:
    """Table length for each value that indexes an initializer through Gather along axis 0."""
    tables = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    return {
        node.input[1]: tables[node.input[0]][0]
        for node in model.graph.node
        if node.op_type == "Gather" and node.input[0] in tables
    }


def light_models() -> dict[str, Path]:
    """The light_* models of the installed onnx package, by name; their input is given by
    `input_specs(onnx.load(path))`.
    """
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return {path.stem: path for path in sorted(folder.glob("light_*.onnx"))}
