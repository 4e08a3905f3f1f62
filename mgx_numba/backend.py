"""ONNX's backend interface: ``prepare(model).run(inputs)``, as ``onnx.backend.base`` declares it.

The module itself is a backend: ``import mgx_numba.backend as backend; backend.prepare(model, "CPU").run([x])``. Arrays
have the element types and ranks that the model declares, including types smaller than a byte (``ml_dtypes.int4``, ...).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, shape_inference
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from .api.functions import parse_onnx
from .api.program import program
from .errors import OptionError, ParameterError

if TYPE_CHECKING:
    from onnx import ValueInfoProto


class MgxBackendRep(BackendRep):
    """A model that is ready to run.

    If the model declares all lengths, it is compiled at once. Otherwise it is compiled when `run` first meets a set of
    lengths. Sequences are lists, optionals are a value or ``None``, in inputs and in results.
    """

    def __init__(self, model: ModelProto, target: str, options: Mapping[str, Any]) -> None:
        self._model = model
        self._target = target
        self._options = dict(options)
        constant = {i.name for i in model.graph.initializer} | {s.values.name for s in model.graph.sparse_initializer}
        self._inputs = [i for i in model.graph.input if i.name not in constant]
        self._outputs = list(model.graph.output)
        self._fixed = all(map(_has_lengths, self._inputs))
        self._programs: dict[tuple[tuple[int, ...], ...], program] = {}
        if self._fixed:
            self._programs[()] = self._compiled({})

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model and return its results in the order of the model's outputs.

        Args:
            inputs: an array for every input, in the model's order or by name.
            kwargs: must be empty.

        Raises:
            OptionError: ``kwargs`` is not empty.
            ParameterError: the number of inputs is wrong, a name is unknown, or an array does not fit.
            MgxError: the model cannot be compiled for these lengths.
        """
        if kwargs:
            raise OptionError(f"run knows no option {', '.join(map(repr, kwargs))}")
        feeds = {i.name: value for i, value in self._given(inputs)}
        lens = {} if self._fixed else {name: x.shape for name, x in feeds.items() if isinstance(x, np.ndarray)}
        key = tuple(lens.values())
        if key not in self._programs:
            self._programs[key] = self._compiled(lens)
        return tuple(map(_plain, self._programs[key].run(feeds)))

    def _compiled(self, lens: Mapping[str, Sequence[int]]) -> program:
        return parse_onnx(self._model, map_input_dims=lens).compile(self._target, **self._options)

    def _given(self, inputs: Any) -> list[tuple[ValueInfoProto, object]]:
        names = [i.name for i in self._inputs]
        if isinstance(inputs, Mapping):
            if set(inputs) != set(names):
                raise ParameterError(f"inputs are {', '.join(inputs) or 'none'}; expected {', '.join(names) or 'none'}")
            return [(i, inputs[i.name]) for i in self._inputs]
        values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(values) != len(names):
            raise ParameterError(f"got {len(values)} inputs, expected {len(names)}: {', '.join(names) or 'none'}")
        return list(zip(self._inputs, values, strict=True))


class MgxBackend(Backend):
    """ONNX's backend interface to this package; all methods are class methods."""

    @classmethod
    def prepare(cls, model: ModelProto | str | os.PathLike[str], device: str = "CPU", **kwargs: Any) -> MgxBackendRep:
        """Compile a model.

        Args:
            model: a ``ModelProto``, or the path of a file.
            device: ``CPU``, or with a number, ``CPU:0``.
            kwargs: ``target`` (default ``cpu``), and the options of ``program.compile``. ``fast_math`` is off by
                default, so that nothing changes rounding.

        Raises:
            OptionError: the device, the target or an option is unknown.
            MgxError: the model cannot be read or compiled; the message names the node.
        """
        if not cls.supports_device(device):
            raise OptionError(f"device {device!r} is not supported, expected 'CPU'")
        if not isinstance(model, ModelProto):
            import onnx

            model = onnx.load(model)
        options = {"fast_math": False, **kwargs}
        return MgxBackendRep(model, options.pop("target", "cpu"), options)

    @classmethod
    def run_model(cls, model: ModelProto, inputs: object, device: str = "CPU", **kwargs: object) -> tuple[Any, ...]:
        """Compile a model and run it once; arguments as in `prepare` and `MgxBackendRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator.

        Args:
            node: the operator.
            inputs: an array for each input that has a name.
            device: as for `prepare`.
            outputs_info: element type and lengths of the outputs; ignored.
            kwargs: ``opset_version`` (default: ONNX's newest), otherwise as for `prepare`.

        Raises:
            OptionError, ParameterError, MgxError: as `prepare` and `MgxBackendRep.run`.
        """
        names = list(dict.fromkeys(name for name in node.input if name))
        arrays = [np.asarray(inputs[n]) for n in names] if isinstance(inputs, Mapping) else [*map(np.asarray, inputs)]
        if len(arrays) != len(names):
            raise ParameterError(f"got {len(arrays)} inputs, expected {len(names)}: {', '.join(names) or 'none'}")
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(names, arrays, strict=True)
        ]
        results = [helper.make_value_info(n, helper.TypeProto()) for n in node.output if n]
        graph = helper.make_graph([node], "node", infos, results)
        version = kwargs.pop("opset_version", None)
        imports = [] if version is None else [helper.make_opsetid(node.domain, version)]
        model = helper.make_model(graph, **({"opset_imports": imports} if imports else {}))
        if node.domain and not imports:
            model.opset_import.append(helper.make_opsetid(node.domain, 1))
        return cls.run_model(shape_inference.infer_shapes(model), arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether models can be compiled for a device; only ``CPU`` is supported."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False


prepare = MgxBackend.prepare
run_model = MgxBackend.run_model
run_node = MgxBackend.run_node
supports_device = MgxBackend.supports_device


def _has_lengths(info: ValueInfoProto) -> bool:
    """Return whether a model declares all lengths of a tensor; a length of 0 may mean unknown.

    Sequences and optionals need no declared lengths.
    """
    if info.type.WhichOneof("value") != "tensor_type":
        return True
    tensor = info.type.tensor_type
    return tensor.HasField("shape") and all(d.dim_value > 0 for d in tensor.shape.dim)


def _plain(result: Any) -> Any:
    """Return a result with its arrays as plain NumPy arrays."""
    if result is None or isinstance(result, dict):
        return result
    return [_plain(r) for r in result] if isinstance(result, list) else np.asarray(result)
