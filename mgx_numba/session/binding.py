"""`IOBinding`: binds a session's inputs and results to host or GPU memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..api.device import argument_from_pointer, device_argument
from ..api.shape import shape as PublicShape
from ..errors import OptionError, ParameterError, UnsupportedError
from .exceptions import InvalidArgument, error_of
from .values import OrtValue, OrtValueVector, copy_into, described, is_gpu, ort_value, shape_of

if TYPE_CHECKING:
    from .inference import InferenceSession

__all__ = ["IOBinding"]


class IOBinding:
    """Bindings of inputs and results for `InferenceSession.run_with_iobinding`; made by `InferenceSession.io_binding`.

    A result bound to the caller's memory is written there. If the memory is also bound to an input that the model
    updates, such as a key or value cache, it is updated in place. Other bound results are in new memory after each
    run. Inputs and results on the session's device are not copied through the host.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._inputs: dict[str, np.ndarray | device_argument] = {}
        self._bound: dict[str, tuple[bool, np.ndarray | device_argument | None]] = {}
        self._session = session
        self._results: list[OrtValue] = []
        self._input_names = [i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())]
        self._output_names = [o.name for o in session.get_outputs()]

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        """Bind an input to an array, which each run reads when it starts.

        Raises:
            ParameterError: the input does not exist.
        """
        self._inputs[_known(name, self._input_names, "input")] = array

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: object, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input to memory at an address, which must stay valid.

        Raises:
            ParameterError: the input does not exist.
            UnsupportedError: the device is of another kind than the session's.
        """
        self._is_gpu(device_type)
        self._inputs[_known(name, self._input_names, "input")] = _memory(element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a tensor.

        Raises:
            ParameterError: the input does not exist.
            UnsupportedError: the tensor lies on a device, and the session does not run on a device.
        """
        self._is_gpu(ortvalue.device_name())
        self._inputs[_known(name, self._input_names, "input")] = ortvalue._value

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: object = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind a result, optionally to memory at an address, which must stay valid.

        Raises:
            ParameterError: the result does not exist.
            OptionError: an address is given without element type and lengths.
            UnsupportedError: the device is of another kind than the session's.
        """
        there = self._is_gpu(device_type)
        if buffer_ptr is not None and (element_type is None or shape is None):
            raise OptionError(f"bind_output({name!r}): buffer_ptr needs element_type and shape")
        memory = None if buffer_ptr is None or shape is None else _memory(element_type, shape, buffer_ptr)
        self._bound[_known(name, self._output_names, "result")] = there, memory

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a result to a tensor, into which each run copies the result.

        Raises:
            ParameterError: the result does not exist.
            UnsupportedError: the tensor lies on a device, and the session does not run on a device.
        """
        there = self._is_gpu(ortvalue.device_name())
        self._bound[_known(name, self._output_names, "result")] = there, ortvalue._value

    def _is_gpu(self, device_type: str) -> bool:
        """Return whether ``device_type`` is a GPU; raise if the session does not run on one."""
        if is_gpu(device_type) and not self._session._has_device:
            raise UnsupportedError(
                f"device {device_type!r}: the session runs on {self._session.get_providers()[0]}, expected 'cpu'"
            )
        return is_gpu(device_type)

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs are read in place."""

    def synchronize_outputs(self) -> None:
        """Do nothing: results are complete when a run returns."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the bound results of the last run, in the order of binding."""
        return list(self._results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Return the bound results of the last run as an `OrtValueVector`."""
        return OrtValueVector(self._results)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return copies of the bound results of the last run in host memory."""
        return [np.array(value.numpy()) for value in self._results]

    def clear_binding_inputs(self) -> None:
        """Remove the bindings of all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Remove the bindings of all results, and the results of the last run."""
        self._bound.clear()
        self._results.clear()

    def run(self, session: InferenceSession) -> None:
        """Run the session once with these bindings; `InferenceSession.run_with_iobinding` calls this method.

        Raises:
            ParameterError: an input is missing or does not fit, or the memory bound to a result does not fit.
            UnsupportedError: a result is not a tensor.
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
            if not _same(memory, value):
                copy_into(memory, value)
            self._results.append(OrtValue(memory))


def _same(memory: np.ndarray | device_argument, value: object) -> bool:
    """Return whether a result is in the memory bound for it."""
    if isinstance(memory, np.ndarray):
        return isinstance(value, np.ndarray) and value.ctypes.data == memory.ctypes.data
    return isinstance(value, device_argument) and value._value.address == memory._value.address


def _known(name: str, names: Sequence[str], what: str) -> str:
    if name not in names:
        known = ", ".join(names) or "none"
        raise error_of(InvalidArgument, ParameterError, f"no {what} {name!r}; the model's are: {known}")
    return name


def _memory(element_type: object, lens: Sequence[int], address: int) -> np.ndarray | device_argument:
    """Return the tensor at a host or device address, without a copy."""
    found = argument_from_pointer(PublicShape.wrap(shape_of(element_type, lens)), address)
    return found if isinstance(found, device_argument) else np.asarray(found).reshape(tuple(lens))
