"""Tensors in device memory: `device_argument`, and MIGraphX's functions that copy to and from a device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.argument import Argument
from ..core.device_array import CUDA, DeviceArray, device_of, is_in_a_row
from ..core.shape import Shape
from ..errors import MgxError, ShapeError
from ..interrupts import whole_module
from .argument import argument
from .shape import shape, unwrap_shape

if TYPE_CHECKING:
    from ..runtime.gpu.engine import Engine
    from ..targets.base import OnDevice

_DEFAULT_STREAM = 1
"""CUDA's default stream, as DLPack counts streams (dlpack.h, ``__dlpack__``)."""
_NO_ORDER = -1
"""DLPack's stream number of a consumer that synchronises by itself."""


def _choice() -> ModuleType:
    """Return the module that chooses device engines, importing it on first use."""
    return whole_module("mgx_numba.runtime.gpu.engines")


def _transfers() -> ModuleType:
    return whole_module("mgx_numba.runtime.gpu.transfers")


class device_argument:
    """A tensor in device memory, as returned by `to_gpu`, `allocate_gpu` and programs with ``offload_copy=False``.

    ``device_argument(tensor)`` borrows a tensor of another library (PyTorch, CuPy, Numba, JAX) through DLPack or
    ``__cuda_array_interface__``, and keeps the tensor alive. Other libraries import a device argument without a copy:
    ``torch.from_dlpack(x)``, ``cupy.asarray(x)``. NumPy cannot: `from_gpu` copies to the host.

    Raises:
        ShapeError: the tensor does not lie on a CUDA device, or its element type has no counterpart.
    """

    __slots__ = ("__weakref__", "_value")

    def __init__(self, tensor: object) -> None:
        self._value: DeviceArray = borrowed(tensor)

    @classmethod
    def wrap(cls, value: DeviceArray) -> device_argument:
        """Return the public form of a device array."""
        self = cls.__new__(cls)
        self._value = value
        return self

    def get_shape(self) -> shape:
        """Return the element type, lengths and strides."""
        return shape.wrap(self._value.shape)

    def shaped(self, known: Shape) -> device_argument:
        """Set the shape to ``known``, for shapes that the lengths do not determine, and return this argument."""
        self._value.shape = known
        return self

    def device_id(self) -> int:
        """Return the number of the device whose memory holds the tensor."""
        return self._value.device

    def data_ptr(self) -> int:
        """Return the address of the first element in device memory."""
        _shown(self._value)
        return self._value.address

    def tolist(self) -> list[Any]:
        """Copy the elements to the host and return them in logical order as a flat list."""
        return from_gpu(self).tolist()

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Return version 3 of the interface; ``stream`` is set while an asynchronous run may still write the
        elements."""
        value, dtype = self._value, self._value.shape.type.numpy
        if dtype.kind == "V" or np.dtype(dtype.str) != dtype:
            raise AttributeError(f"{dtype} has no name in __cuda_array_interface__; DLPack exchanges it")
        _shown(value)
        lens = value.shape.array_lens
        row = is_in_a_row(value.shape) or not lens
        return {
            "shape": tuple(lens),
            "typestr": dtype.str,
            "data": (value.address if value.shape.elements else 0, False),
            "strides": None if row else tuple(s * dtype.itemsize for s in value.shape.strides),
            "stream": None if value.stream is None else value.stream or _DEFAULT_STREAM,
            "version": 3,
        }

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule whose elements are complete for work that is later submitted to ``stream``.

        ``stream``: None and 1 stand for the default stream, -1 for no synchronisation.

        Raises:
            BufferError: a copy or another device is requested, or DLPack lacks the element type.
        """
        if copy or (dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__()):
            raise BufferError("a tensor on a device is given away where it lies, without a copy; from_gpu copies it")
        value = self._value
        if value.stream is not None and stream != _NO_ORDER:
            on = _choice().engine(value.device)
            with on.use():
                event = on.event()
                event.record(on.queue(value.stream))
                on.queue(stream or 0).follow(event)
        _shown(value)
        from ..core.dlpack import export_device

        return export_device(value, value.owner)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._value.device

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        raise ShapeError(
            f"{self._value.shape} lies on device {self._value.device}; from_gpu(...) copies it to the host"
        )

    def __eq__(self, other: object) -> bool:
        """Return whether values agree within one unit in the last place, as `argument` compares."""
        if not isinstance(other, (device_argument, argument)):
            return NotImplemented
        return bool(from_gpu(self) == (from_gpu(other) if isinstance(other, device_argument) else other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"device_argument({self._value.shape}, device {self._value.device})"


def _shown(value: DeviceArray) -> None:
    if isinstance(value.owner, whole_module("mgx_numba.runtime.gpu.device_allocator").DeviceBlock):
        value.owner.shown()


def borrowed(tensor: object, stream: int | None = None) -> DeviceArray:
    """Return any library's device tensor, complete for work submitted to ``stream`` (None: the default stream).

    Raises:
        ShapeError: the tensor does not lie on a CUDA device, or no shape describes it.
    """
    if isinstance(tensor, device_argument):
        return tensor._value
    kind, number = device_of(tensor) or (0, -1)
    with _choice().engine(number).use() if kind == CUDA and number >= 0 else contextlib.nullcontext():
        from ..core.dlpack import import_device

        found = import_device(tensor, stream or _DEFAULT_STREAM)  # PyTorch requires the tensor's device to be current
    if found.device < 0:
        holder = _choice().engine_at(found.address)
        found.device = 0 if holder is None else holder.number
    return found


def allocate_gpu(s: shape, host: bool = False, device_id: int = 0) -> device_argument | argument:
    """Allocate device memory for a shape; the elements are undefined.

    Args:
        s: shape of the tensor, which is stored row-major.
        host: allocate pinned host memory instead, the fastest for copies to and from devices, as an `argument`.
        device_id: number of the device.

    Raises:
        ShapeError: the shape is dynamic, or its elements are Python objects.
        DeviceError: there is no such device, or not enough memory.
    """
    wanted = _plain(unwrap_shape(s))
    on = _choice().engine(device_id)
    if host:
        return _pinned(wanted, on)
    block = on.kept.take(wanted.bytes, f"memory for {wanted}")
    return device_argument.wrap(DeviceArray(wanted, block.address, on.number, block))


def _pinned(wanted: Shape, on: Engine) -> argument:
    return argument.wrap(Argument.from_flat(wanted, on.staging(wanted.bytes).view(wanted.type.numpy)))


def _plain(wanted: Shape) -> Shape:
    if wanted.is_dynamic or wanted.sub_shapes or wanted.element is not None or wanted.type.holds_objects:
        raise ShapeError(f"no memory of a device holds {wanted}, expected one tensor of known lengths")
    return Shape(wanted.type) if wanted.without_axes else wanted.to_standard()


def to_gpu(arg: object, host: bool = False, device_id: int = 0) -> device_argument | argument:
    """Copy a tensor to device memory, row-major.

    Args:
        arg: an `argument`, an array or another buffer; or a tensor that lies on a device.
        host: copy to pinned host memory instead, the fastest for copies to and from devices.
        device_id: number of the device.

    Raises:
        ShapeError: as in `argument`.
        DeviceError: there is no such device, or not enough memory.
    """
    if device_of(arg) is not None:
        arg = from_gpu(arg)
    given = argument(arg).unwrap() if not isinstance(arg, argument) else arg.unwrap()
    wanted, on = _plain(given.shape), _choice().engine(device_id)
    if host:
        made = _pinned(wanted, on)
        made.view(np.ndarray)[...] = given.numpy().reshape(made.shape)
        return made
    value = _transfers().to_device(on, given.numpy(), f"memory for {wanted}")
    value.shape = wanted
    return device_argument.wrap(value)


def from_gpu(arg: object) -> argument:
    """Wait for all submitted device work, then copy a tensor to new host memory; host tensors are copied, too.

    Args:
        arg: a `device_argument`, or another library's tensor.

    Raises:
        ShapeError: as in `device_argument`.
        DeviceError: the device has failed.
    """
    if device_of(arg) is None:
        return argument.wrap(argument(arg).unwrap().copy())
    value = borrowed(arg)
    return argument.wrap(Argument.from_flat(value.shape, _transfers().to_host(_choice().engine(value.device), value)))


def gpu_sync() -> None:
    """Wait for all device work that this process has submitted.

    Raises:
        DeviceError: there is no device, or its work failed.
    """
    for one in _choice().engines() or [_choice().engine()]:
        one.synchronize()


def argument_from_pointer(shape: shape, address: int) -> argument | device_argument:
    """Return a view of host or device memory at ``address``; nothing is copied, and the caller keeps the memory alive.

    Raises:
        ShapeError: the shape is dynamic or holds Python objects, or the address is not a positive integer.
    """
    wanted = unwrap_shape(shape)
    found = Argument.from_pointer(wanted, address)
    holder = _choice().engine_at(int(address))
    return argument.wrap(found) if holder is None else _at(wanted, int(address), holder)


def gpudata_to_argument(shape: shape, address: int) -> device_argument:
    """Return a view of device memory at ``address`` (such as ``tensor.data_ptr()``), as `argument_from_pointer` does.

    Raises:
        ShapeError: as in `argument_from_pointer`, or the address does not lie in device memory.
    """
    wanted = unwrap_shape(shape)
    Argument.from_pointer(wanted, address)  # checks the address
    holder = _choice().engine_at(int(address))
    if holder is None:
        raise ShapeError(f"address {int(address):#x} of {shape} is in no memory of a device")
    return _at(wanted, int(address), holder)


def _at(wanted: Shape, address: int, holder: Engine) -> device_argument:
    return device_argument.wrap(DeviceArray(wanted, address, holder.number))


def fast_run(
    compiled: OnDevice, parameters: Mapping[str, Shape]
) -> Callable[[Any, int | None], list[device_argument] | None] | None:
    """Return the fast path of ``run`` for a program whose results stay on the device; None if there is none.

    The returned function takes a dictionary of device tensors and a stream. It returns None, having done nothing, for
    arguments that need the general path.
    """
    execute, outputs, number = compiled.entry(), list(compiled.output_parameters().items()), compiled.device
    if execute is None or not all(map(is_in_a_row, parameters.values())):
        return None
    inputs, wrap = list(parameters.items()), device_argument.wrap

    def place(params: Any, name: str, wanted: Shape, stream: int | None) -> DeviceArray | None:
        given = params.get(name)
        if type(given) is device_argument:
            value = given._value
        elif device_of(given) in ((CUDA, number), (CUDA, -1)):
            try:
                value = borrowed(given, stream)
            except MgxError:
                return None
        else:
            return None
        if value.device != number:
            return None
        if value.shape is not wanted:
            if value.shape != wanted:
                return None
            value.shape = wanted  # equal shapes: the next call passes the identity test
        return value

    def run(params: Any, stream: int | None) -> list[device_argument] | None:
        if type(params) is not dict:
            return None
        arrays: list[DeviceArray] = []
        for name, wanted in inputs:
            array = place(params, name, wanted, stream)
            if array is None:
                return None
            arrays.append(array)
        results: list[DeviceArray | None] = []
        for name, wanted in outputs:
            array = place(params, name, wanted, stream)
            if array is None and name in params:
                return None
            results.append(array)
        return list(map(wrap, execute(arrays, results, stream)))

    return run
