"""`OrtValue`, a tensor, and `IOBinding`, what runs of a session read and fill; in memory of the host or of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.device import allocate_gpu, argument_from_pointer, device_argument, from_gpu, to_gpu
from ..api.shape import shape as PublicShape
from ..core.shape import Shape
from ..core.types import Type, from_numpy
from ..errors import OptionError, ParameterError, ShapeError, UnsupportedError
from ..frontends.onnx.tensors import ir_type, onnx_number, onnx_type_string
from .tensors import Described, copy_into, described

if TYPE_CHECKING:
    from .inference import InferenceSession

__all__ = ["IOBinding", "OrtValue", "ort_value"]

GPU = "cuda"
"""What ONNX Runtime calls the memory of NVIDIA's devices."""


class OrtValue:
    """A tensor in the memory of the host or of a device; got from the ``ortvalue_...`` functions or from a run."""

    def __init__(self, value: np.ndarray | device_argument) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A tensor that shares an array's memory; one whose elements do not lie in a row is copied, and so is one for a
        device.

        Raises:
            UnsupportedError: a device of another kind.
            DeviceError: there is no such device, or not enough memory.
            ShapeError: an element type that ONNX does not have.
        """
        array = np.asarray(array)
        _element_type(array.dtype)
        if _is_gpu(device_type):
            return OrtValue(_placed(to_gpu(array, device_id=device_id)))
        return OrtValue(array if array.flags.c_contiguous else array.copy())

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """New memory, whose content is not defined; ``element_type`` is NumPy's or ONNX's number.

        Raises:
            UnsupportedError, DeviceError, ShapeError: as `ortvalue_from_numpy`.
        """
        wanted = _shape(element_type, shape)
        if _is_gpu(device_type):
            return OrtValue(_placed(allocate_gpu(PublicShape.wrap(wanted), device_id=device_id)))
        return OrtValue(np.empty(tuple(shape), wanted.type.numpy))

    def numpy(self) -> np.ndarray:
        """The tensor as an array: of the host's memory, which it shares, or a copy of a device's."""
        value = self._value
        return value if isinstance(value, np.ndarray) else np.asarray(from_gpu(value)).reshape(self._described.lens)

    def update_inplace(self, array: np.ndarray) -> None:
        """Copy an array of the same element type and lengths into the tensor.

        Raises:
            ParameterError: it has others.
        """
        own = self._described
        if (array.dtype, array.shape) != own:
            raise ParameterError(
                f"update_inplace was given {array.dtype} {list(array.shape)}, expected {own.dtype} {list(own.lens)}"
            )
        copy_into(self._value, array)

    @property
    def _described(self) -> Described:
        return described(self._value)

    def shape(self) -> list[int]:
        """Lengths, outermost first."""
        return list(self._described.lens)

    def data_type(self) -> str:
        """``tensor(float)`` and the like."""
        return onnx_type_string(_element_type(self._described.dtype))

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return onnx_number(_element_type(self._described.dtype))

    def data_ptr(self) -> int:
        """Address of the first element."""
        value = self._value
        return int(value.ctypes.data) if isinstance(value, np.ndarray) else value.data_ptr()

    def tensor_size_in_bytes(self) -> int:
        """Bytes of all elements."""
        return prod(self._described.lens) * self._described.dtype.itemsize

    def device_name(self) -> str:
        """``cpu`` or ``cuda``."""
        return "cpu" if isinstance(self._value, np.ndarray) else GPU

    def has_value(self) -> bool:
        """True: an absent optional is never one."""
        return True

    def is_tensor(self) -> bool:
        """True: sequences, maps and sparse tensors are not among them."""
        return True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._value.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._value.__dlpack_device__()


class IOBinding:
    """Inputs and results of a session's `InferenceSession.run_with_iobinding`; see `InferenceSession.io_binding`.

    What is bound with memory of the caller is copied there when a run ends; a result bound without any is new memory in
    each run. Between a device's memory and the same device nothing comes to the host.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._inputs: dict[str, np.ndarray | device_argument] = {}
        self._bound: dict[str, tuple[bool, np.ndarray | device_argument | None]] = {}
        self._session = session
        self._results: list[OrtValue] = []
        self._input_names = [i.name for i in session.get_inputs()]
        self._output_names = [o.name for o in session.get_outputs()]

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        """Read an input from an array, as it is when a run begins.

        Raises:
            ParameterError: there is no such input.
        """
        self._inputs[_known(name, self._input_names, "input")] = array

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Read an input from an address, which must stay valid.

        Raises:
            ParameterError: there is no such input.
            UnsupportedError: a device of another kind than the session's.
        """
        self._goes_there(device_type)
        self._inputs[_known(name, self._input_names, "input")] = _memory(element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read an input from a tensor.

        Raises:
            ParameterError: there is no such input.
            UnsupportedError: it lies on a device, and the session does not run on one.
        """
        self._goes_there(ortvalue.device_name())
        self._inputs[_known(name, self._input_names, "input")] = ortvalue._value

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Give a result, at an address if there is one, which must stay valid.

        Raises:
            ParameterError: there is no such result.
            OptionError: an address without element type and lengths.
            UnsupportedError: a device of another kind than the session's.
        """
        there = self._goes_there(device_type)
        if buffer_ptr is not None and (element_type is None or shape is None):
            raise OptionError(f"bind_output({name!r}): buffer_ptr needs element_type and shape")
        memory = None if buffer_ptr is None or shape is None else _memory(element_type, shape, buffer_ptr)
        self._bound[_known(name, self._output_names, "result")] = there, memory

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Copy a result into a tensor.

        Raises:
            ParameterError: there is no such result.
            UnsupportedError: it lies on a device, and the session does not run on one.
        """
        there = self._goes_there(ortvalue.device_name())
        self._bound[_known(name, self._output_names, "result")] = there, ortvalue._value

    def _goes_there(self, device_type: str) -> bool:
        """Whether a device that a caller names is the session's GPU."""
        if _is_gpu(device_type) and not self._session._has_device:
            raise UnsupportedError(
                f"device {device_type!r}: the session runs on {self._session.get_providers()[0]}, expected 'cpu'"
            )
        return _is_gpu(device_type)

    def synchronize_inputs(self) -> None:
        """Nothing: inputs are read where they are."""

    def synchronize_outputs(self) -> None:
        """Nothing: results are complete when a run returns."""

    def get_outputs(self) -> list[OrtValue]:
        """The bound results of the last run, in the order in which they were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Copies of the bound results of the last run."""
        return [np.array(value.numpy()) for value in self._results]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the results, of the last run, too."""
        self._bound.clear()
        self._results.clear()

    def run(self, session: InferenceSession) -> None:
        """One run; `InferenceSession.run_with_iobinding` calls it.

        Raises:
            ParameterError: an input is missing or does not fit, or memory of a result does not fit.
            UnsupportedError: a result is no tensor.
        """
        found = session._run_where(self._bound, self._inputs) if self._bound else []
        self._results = []
        for (name, (_, memory)), value in zip(self._bound.items(), found, strict=True):
            if memory is None:
                self._results.append(ort_value(name, value))
                continue
            wanted, given = described(memory), ort_value(name, value)._described
            if wanted != given:
                raise ParameterError(
                    f"result {name!r} is {given.dtype} {list(given.lens)}, the memory bound for it {wanted.dtype}"
                    f" {list(wanted.lens)}"
                )
            copy_into(memory, value)
            self._results.append(OrtValue(memory))


def ort_value(name: str, result: Any) -> OrtValue:
    """A result as an `OrtValue`.

    Raises:
        UnsupportedError: it is no tensor.
    """
    if result is None or isinstance(result, (list, dict)):
        raise UnsupportedError(
            f"result {name!r} is no tensor: `run` gives it, bindings and OrtValue have tensors alone"
        )
    return OrtValue(result)


def _known(name: str, names: Sequence[str], what: str) -> str:
    if name not in names:
        raise ParameterError(f"no {what} {name!r}; the model's are: {', '.join(names) or 'none'}")
    return name


def _shape(element_type: Any, lens: Sequence[int]) -> Shape:
    kind = _element_type(element_type)
    return Shape(kind, tuple(lens)) if len(lens) else Shape(kind)


def _memory(element_type: Any, lens: Sequence[int], address: int) -> np.ndarray | device_argument:
    """A tensor at an address of the host or of a device."""
    found = argument_from_pointer(PublicShape.wrap(_shape(element_type, lens)), address)
    return found if isinstance(found, device_argument) else np.asarray(found).reshape(tuple(lens))


def _element_type(given: Any) -> Type:
    """The element type of NumPy's dtype or ONNX's number."""
    if isinstance(given, int):
        return ir_type(given)
    try:
        return from_numpy(np.dtype(given))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"element type {given!r} is none of a tensor here: {error}") from None


def _placed(value: Any) -> device_argument:
    assert isinstance(value, device_argument)
    return value


def _is_gpu(device_type: str) -> bool:
    """Whether a device is a GPU, else the host.

    Raises:
        UnsupportedError: it is neither.
    """
    if device_type.lower() not in ("cpu", GPU, "gpu"):
        raise UnsupportedError(f"device {device_type!r}, expected 'cpu' or '{GPU}'")
    return device_type.lower() != "cpu"
