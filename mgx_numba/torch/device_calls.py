"""Calls of compiled graphs whose inputs and results are tensors on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from ..api.shape import unwrap_shape
from ..core.device_array import DeviceArray, is_in_a_row
from ..core.shape import Shape
from ..core.types import Type
from ..frontends.torch.types import TYPES, ir_type
from ..runtime.gpu.call_form import VECTOR_ALIGNMENT
from ..targets.base import OnDevice
from .content import from_device, ordered

if TYPE_CHECKING:
    from .region import Lowered, Run

_DTYPES = {type: getattr(torch, text.removeprefix("torch.")) for text, type in TYPES.items()}
"""PyTorch's element types by the IR's."""

_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
"""Returns the handle of PyTorch's current stream of a device; inductor's generated code calls it, too. It is missing
where PyTorch is built without CUDA."""


def device_runner(lowered: Lowered, device: torch.device, args: Sequence[object]) -> Run:
    """Return the function that submits a program, for lists of inputs like ``args``, to PyTorch's current stream of a
    device."""
    general = _by_exchange(lowered, device)
    return _by_addresses(lowered, device, args, general) or general


def _by_exchange(lowered: Lowered, device: torch.device) -> Run:
    """Return the function that takes inputs of any kind and results of any lengths, exchanged by DLPack."""
    submit, results, inputs = lowered.program.run_async, lowered.results, lowered.inputs

    def entry(value: object, order: Sequence[int] | None) -> torch.Tensor:
        return ordered(torch.as_tensor(value, device=device).detach(), order).contiguous()

    def call(args: Sequence[object]) -> list[torch.Tensor]:
        given = {name: entry(args[place], order) for name, place, order in inputs}
        stream = torch.cuda.current_stream(device).cuda_stream
        return [ordered(from_device(x), order) for x, order in zip(submit(given, stream, "cudaStream_t"), results)]

    return call


def _by_addresses(lowered: Lowered, device: torch.device, args: Sequence[object], general: Run) -> Run | None:
    """Return the function that passes addresses of tensors, with results in new tensors of PyTorch's.

    An exchange of one tensor takes some 20 us, three times as long as PyTorch's own calls for it. Memory of inputs that
    PyTorch frees meanwhile is used again in the order of the stream.

    Returns:
        None if lengths are not known, or an input is no tensor on the device or in host memory, which is copied. Other
        tensors than ``args`` had are left to ``general``.
    """
    compiled = lowered.program.compiled
    execute = compiled.entry() if isinstance(compiled, OnDevice) else None
    if execute is None or not isinstance(compiled, OnDevice):
        return None
    known = {name: (place, order) for name, place, order in lowered.inputs}
    shapes = lowered.program.get_parameter_shapes()
    inputs: list[tuple[int, Sequence[int] | None, torch.dtype, tuple[int, ...], Shape]] = []
    for name in lowered.program.get_parameter_names():
        if name not in known:
            continue  # memory for a result
        place, order = known[name]
        example, wanted = args[place], unwrap_shape(shapes[name])
        if not isinstance(example, torch.Tensor) or not is_in_a_row(wanted):
            return None
        if example.device not in (device, torch.device("cpu")):
            return None
        if example.is_complex():  # conjugates are lazy
            return None
        inputs.append((place, order, example.dtype, tuple(ordered(example, order).shape), wanted))
        if ir_type(example.dtype) is not wanted.type or inputs[-1][3] != wanted.array_lens:
            return None
    outputs = [unwrap_shape(s) for s in lowered.program.get_output_shapes()]
    made = [(_result_dtype(s.type), s.array_lens, s, order) for s, order in zip(outputs, lowered.results)]
    if len(inputs) != len(known) or any(dtype is None for dtype, *_ in made):
        return None
    number, index = compiled.device, device.index or 0
    inside = _updated_inputs(lowered, compiled, [place for place, *_ in inputs])

    def call(args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = []
        for place, order, dtype, lens, shape in inputs:
            tensor = args[place] if order is None else args[place].permute(order)
            if tensor.dtype is not dtype or tensor.shape != lens or tensor.is_neg():
                return general(args)
            if tensor.device != device:
                tensor = tensor.to(device)
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
            given.append(DeviceArray(shape, tensor.data_ptr(), number, tensor))
        results, places = [], []
        for (dtype, lens, shape, order), own in zip(made, inside):
            if own is not None and _may_hold_result(given[own], args[inputs[own][0]]):
                tensor = given[own].owner
            else:
                tensor = torch.empty(lens, dtype=dtype, device=device)
            places.append(DeviceArray(shape, tensor.data_ptr(), number, tensor))
            results.append(ordered(tensor, order))
        execute(given, places, _raw_stream(index))
        return results

    return call


def _updated_inputs(lowered: Lowered, compiled: OnDevice, places: Sequence[int]) -> list[int | None]:
    """Return for each result the input, by its number among ``places``, in whose memory the program may compute it."""
    known = {name: (place, order) for name, place, order in lowered.inputs}
    found: list[int | None] = [None] * len(lowered.results)
    for result, name in compiled.updated_inputs().items():
        place, order = known[name]
        if lowered.updated.get(result) == place and order is None and lowered.results[result] is None:
            found[result] = places.index(place)
    return found


def _may_hold_result(given: DeviceArray, tensor: torch.Tensor) -> bool:
    """Return whether an input is passed where its tensor lies, and is aligned as results are."""
    return given.owner is tensor and given.address % VECTOR_ALIGNMENT == 0


def _result_dtype(type: Type) -> torch.dtype | None:
    """Return PyTorch's element type; None for complex numbers, as for inputs, and for types that it lacks."""
    found: torch.dtype | None = _DTYPES.get(type)
    return None if found is None or found.is_complex else found
