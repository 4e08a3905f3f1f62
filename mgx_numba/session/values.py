"""`OrtValue`, a tensor, and `IOBinding`, the tensors that runs of a session read and fill; both in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.argument import Argument
from ..core.shape import Shape
from ..core.types import Type, from_numpy
from ..errors import OptionError, ParameterError, ShapeError, UnsupportedError
from ..frontends.onnx.tensors import ir_type, onnx_number, onnx_type_string

if TYPE_CHECKING:
    from .inference import InferenceSession

__all__ = ["IOBinding", "OrtValue"]


class OrtValue:
    """A tensor in host memory; got from the ``ortvalue_...`` functions or from a run."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A tensor that shares an array's memory; one whose elements do not lie in a row is copied.

        Raises:
            UnsupportedError: a device other than the CPU.
            ShapeError: an element type that ONNX does not have.
        """
        _check_device(device_type)
        array = np.asarray(array)
        _element_type(array.dtype)
        return OrtValue(array if array.flags.c_contiguous else array.copy())

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """New memory, whose content is not defined; ``element_type`` is NumPy's or ONNX's number.

        Raises:
            UnsupportedError, ShapeError: as `ortvalue_from_numpy`.
        """
        _check_device(device_type)
        return OrtValue(np.empty(tuple(shape), _element_type(element_type).numpy))

    def numpy(self) -> np.ndarray:
        """The tensor as an array, which shares its memory."""
        return self._array

    def update_inplace(self, array: np.ndarray) -> None:
        """Copy an array of the same element type and lengths into the tensor.

        Raises:
            ParameterError: it has others.
        """
        if array.shape != self._array.shape or array.dtype != self._array.dtype:
            raise ParameterError(
                f"update_inplace was given {array.dtype} {list(array.shape)}, expected {self._array.dtype}"
                f" {list(self._array.shape)}"
            )
        self._array[...] = array

    def shape(self) -> list[int]:
        """Lengths, outermost first."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """``tensor(float)`` and the like."""
        return onnx_type_string(_element_type(self._array.dtype))

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return onnx_number(_element_type(self._array.dtype))

    def data_ptr(self) -> int:
        """Address of the first element."""
        return int(self._array.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Bytes of all elements."""
        return self._array.nbytes

    def device_name(self) -> str:
        """``cpu``."""
        return "cpu"

    def has_value(self) -> bool:
        """True: an absent optional is never one."""
        return True

    def is_tensor(self) -> bool:
        """True: there are no sequences and no sparse tensors."""
        return True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class IOBinding:
    """Inputs and results of a session's `InferenceSession.run_with_iobinding`; see `InferenceSession.io_binding`.

    What is bound with memory of the caller is copied there when a run ends; a result bound without any is new memory in
    each run.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._inputs: dict[str, np.ndarray] = {}
        self._bound: dict[str, np.ndarray | None] = {}
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
            UnsupportedError: a device other than the CPU.
        """
        _check_device(device_type)
        self.bind_cpu_input(name, _memory(element_type, shape, buffer_ptr))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read an input from a tensor."""
        self.bind_cpu_input(name, ortvalue.numpy())

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
            UnsupportedError: a device other than the CPU.
        """
        _check_device(device_type)
        if buffer_ptr is not None and (element_type is None or shape is None):
            raise OptionError(f"bind_output({name!r}): buffer_ptr needs element_type and shape")
        memory = None if buffer_ptr is None or shape is None else _memory(element_type, shape, buffer_ptr)
        self._bound[_known(name, self._output_names, "result")] = memory

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Copy a result into a tensor.

        Raises:
            ParameterError: there is no such result.
        """
        self._bound[_known(name, self._output_names, "result")] = ortvalue.numpy()

    def synchronize_inputs(self) -> None:
        """Nothing: inputs are read where they are."""

    def synchronize_outputs(self) -> None:
        """Nothing: results are complete when a run returns."""

    def get_outputs(self) -> list[OrtValue]:
        """The bound results of the last run, in the order in which they were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Copies of the bound results of the last run."""
        return [value.numpy().copy() for value in self._results]

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
        """
        found = session.run(list(self._bound), self._inputs) if self._bound else []
        self._results = []
        for (name, memory), value in zip(self._bound.items(), found, strict=True):
            if memory is None:
                self._results.append(OrtValue(value))
                continue
            if memory.shape != value.shape or memory.dtype != value.dtype:
                raise ParameterError(
                    f"result {name!r} is {value.dtype} {list(value.shape)}, the memory bound for it"
                    f" {memory.dtype} {list(memory.shape)}"
                )
            memory[...] = value
            self._results.append(OrtValue(memory))


def _known(name: str, names: Sequence[str], what: str) -> str:
    if name not in names:
        raise ParameterError(f"no {what} {name!r}; the model's are: {', '.join(names) or 'none'}")
    return name


def _memory(element_type: Any, shape: Sequence[int], address: int) -> np.ndarray:
    wanted = Shape(_element_type(element_type), tuple(shape)) if len(shape) else Shape(_element_type(element_type))
    return Argument.from_pointer(wanted, address).numpy().reshape(tuple(shape))


def _element_type(given: Any) -> Type:
    """The element type of NumPy's dtype or ONNX's number."""
    if isinstance(given, int):
        return ir_type(given)
    try:
        return from_numpy(np.dtype(given))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"element type {given!r} is none of a tensor here: {error}") from None


def _check_device(device_type: str) -> None:
    if device_type.lower() != "cpu":
        raise UnsupportedError(f"device {device_type!r}: the values of a session lie in host memory, expected 'cpu'")
