"""Data in a device's memory: MIGraphX's functions for it, and `device_argument`, which is what lies there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.argument import Argument
from ..core.device_array import DeviceArray, is_in_a_row
from ..core.dlpack import CUDA, device_of, export_device, import_device
from ..core.shape import Shape
from ..errors import MgxError, ShapeError
from ..interrupts import whole_module
from .argument import argument
from .shape import shape, unwrap_shape

if TYPE_CHECKING:
    from ..runtime.gpu.engine import Engine
    from ..targets.base import OnDevice

__all__ = [
    "allocate_gpu",
    "argument_from_pointer",
    "borrowed",
    "device_argument",
    "from_gpu",
    "gpu_sync",
    "gpudata_to_argument",
    "quick_run",
    "to_gpu",
]

_DEFAULT_STREAM = 1
"""CUDA's default stream, as DLPack counts streams (dlpack.h, ``__dlpack__``)."""
_NO_ORDER = -1
"""A consumer of DLPack that orders its work by itself."""


def _choice() -> Any:
    """The module of devices' engines, which a process without tensors on a device does not import."""
    return whole_module("mgx_numba.runtime.gpu.choice")


def _transfers() -> Any:
    return whole_module("mgx_numba.runtime.gpu.transfers")


class device_argument:
    """A tensor in a device's memory: what `to_gpu`, `allocate_gpu` and programs with ``offload_copy=False`` give.

    ``device_argument(tensor)`` borrows that of another library (PyTorch, CuPy, Numba, JAX) by DLPack or
    ``__cuda_array_interface__``, and keeps it alive. Other libraries take one the same way, without a copy:
    ``torch.from_dlpack(x)``, ``cupy.asarray(x)``. NumPy does not: `from_gpu` copies.

    Raises:
        ShapeError: the tensor does not lie on a CUDA device, or is of an element type without a counterpart.
    """

    __slots__ = ("__weakref__", "_value")

    def __init__(self, tensor: Any) -> None:
        self._value: DeviceArray = borrowed(tensor)

    @classmethod
    def wrap(cls, value: DeviceArray) -> device_argument:
        """The public form of a device's tensor."""
        self = cls.__new__(cls)
        self._value = value
        return self

    def get_shape(self) -> shape:
        """Type, lengths and strides."""
        return shape.wrap(self._value.shape)

    def shaped(self, known: Shape) -> device_argument:
        """This, told the shape where lengths alone do not tell it."""
        self._value.shape = known
        return self

    def device_id(self) -> int:
        """The number of the device whose memory it lies in."""
        return self._value.device

    def data_ptr(self) -> int:
        """Address of the first element, on the device."""
        _shown(self._value)
        return self._value.address

    def tolist(self) -> list[Any]:
        """Elements in logical order, flat; copies them to the host."""
        return from_gpu(self).tolist()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. ``stream`` is there if an asynchronous run still has to write the elements."""
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
        """A capsule; work on ``stream`` (None and 1 are the default one, -1 wants no order) sees the elements.

        Raises:
            BufferError: a copy or another device is wanted, or the element type is none of DLPack's.
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
        return export_device(value, value.owner)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._value.device

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise ShapeError(
            f"{self._value.shape} lies on device {self._value.device}; from_gpu(...) copies it to the host"
        )

    def __eq__(self, other: object) -> bool:
        """Whether values agree within one unit in the last place, as those of `argument`."""
        if not isinstance(other, (device_argument, argument)):
            return NotImplemented
        return bool(from_gpu(self) == (from_gpu(other) if isinstance(other, device_argument) else other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"device_argument({self._value.shape}, device {self._value.device})"


def _shown(value: DeviceArray) -> None:
    if isinstance(value.owner, whole_module("mgx_numba.runtime.gpu.blocks").DeviceBlock):
        value.owner.shown()


def borrowed(tensor: Any, stream: int | None = None) -> DeviceArray:
    """Any library's tensor on a device, for work that comes in the order of a stream (None: of the default one).

    Raises:
        ShapeError: it lies elsewhere, or no shape describes it.
    """
    if isinstance(tensor, device_argument):
        return tensor._value
    kind, number = device_of(tensor) or (0, -1)
    with _choice().engine(number).use() if kind == CUDA and number >= 0 else contextlib.nullcontext():
        found = import_device(tensor, stream or _DEFAULT_STREAM)  # PyTorch wants the tensor's device to be current
    if found.device < 0:
        holder = _choice().engine_at(found.address)
        found.device = 0 if holder is None else holder.number
    return found


def allocate_gpu(s: shape, host: bool = False, device_id: int = 0) -> device_argument | argument:
    """New memory of a device for a shape; its elements are not defined.

    Args:
        s: what it is for; elements lie in a row.
        host: memory of the host that copies from and to devices are fastest with, as an `argument`.
        device_id: the device.

    Raises:
        ShapeError: a dynamic shape, or elements that are Python objects.
        DeviceError: there is no device, or not so much memory.
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


def to_gpu(arg: Any, host: bool = False, device_id: int = 0) -> device_argument | argument:
    """A copy in a device's memory, row-major.

    Args:
        arg: an `argument`, an array or another buffer; or a tensor that lies on a device.
        host: copy into memory of the host that copies from and to devices are fastest with.
        device_id: the device.

    Raises:
        ShapeError: as `argument`.
        DeviceError: there is no device, or not enough memory.
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


def from_gpu(arg: Any) -> argument:
    """A copy in host memory, once all that devices have been asked for is done; of host memory a copy, too.

    Args:
        arg: a `device_argument`, or another library's tensor.

    Raises:
        ShapeError: as `device_argument`.
        DeviceError: the device has failed.
    """
    if device_of(arg) is None:
        return argument.wrap(argument(arg).unwrap().copy())
    value = borrowed(arg)
    return argument.wrap(Argument.from_flat(value.shape, _transfers().to_host(_choice().engine(value.device), value)))


def gpu_sync() -> None:
    """Wait for all that this process has asked devices for.

    Raises:
        DeviceError: there is no device, or something failed.
    """
    for one in _choice().engines() or [_choice().engine()]:
        one.synchronize()


def argument_from_pointer(shape: shape, address: int) -> argument | device_argument:
    """A view of memory at ``address``, of the host or of a device; nothing is copied, and nothing keeps it alive.

    Raises:
        ShapeError: the shape is dynamic or holds Python objects, or the address is no positive integer.
    """
    wanted = unwrap_shape(shape)
    found = Argument.from_pointer(wanted, address)
    holder = _choice().engine_at(int(address))
    return argument.wrap(found) if holder is None else _at(wanted, int(address), holder)


def gpudata_to_argument(shape: shape, address: int) -> device_argument:
    """As `argument_from_pointer`, of an address in a device's memory, such as ``tensor.data_ptr()``.

    Raises:
        ShapeError: as there, or the address is elsewhere.
    """
    wanted = unwrap_shape(shape)
    Argument.from_pointer(wanted, address)  # refuses what is no address
    holder = _choice().engine_at(int(address))
    if holder is None:
        raise ShapeError(f"address {int(address):#x} of {shape} is in no memory of a device")
    return _at(wanted, int(address), holder)


def _at(wanted: Shape, address: int, holder: Engine) -> device_argument:
    return device_argument.wrap(DeviceArray(wanted, address, holder.number))


def quick_run(
    compiled: OnDevice, parameters: Mapping[str, Shape]
) -> Callable[[Any, int | None], list[device_argument] | None] | None:
    """A function that runs a program whose results stay on the device, on a dictionary of tensors there, in the order
    of a stream; it gives None, having done nothing, where that is for the general way. None if there is none."""
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
            value.shape = wanted  # so that the next call sees it at once
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
