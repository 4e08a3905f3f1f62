"""Run with results in memory of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.device_array import DeviceArray
from ..core.output_buffers import output_buffer
from ..errors import ParameterError
from .argument import argument
from .checking import buffer_of, check
from .results import result_of

if TYPE_CHECKING:
    from ..targets.base import Inputs, RecordableCall, Results
    from .compiled_form import CompiledForm
    from .program import program


def run_into(p: program, params: Mapping[str, object], outputs: Mapping[str, object], there: bool = False) -> Results:
    """Run a program with some results in given memory; see `program.run`.

    Args:
        p: the program.
        params: inputs.
        outputs: memory by result name: writeable arrays, or tensors on the program's device.
        there: leave the results of a program for a device on the device, whatever ``offload_copy`` is.

    Raises:
        ParameterError: an input or result is unknown or does not fit.
    """
    fast_path = None if there else _quickly(p, params, outputs)
    if fast_path is not None:
        return fast_path
    names = p.get_output_names()
    unknown = [name for name in outputs if name not in names]
    if unknown:
        raise ParameterError(f"run: no result {unknown[0]!r}; the program's are: {', '.join(names)}")
    inputs = p._checked(params)
    form = p._form
    shapes = [s._value for s in p.get_output_shapes()]
    places = {names.index(name): value for name, value in outputs.items()}
    given = {k: buffer_of(names[k], value, shapes[k], form, p._open_dims) for k, value in places.items()}
    offered = {output_buffer(k): value for k, value in given.items()}
    if form is None:
        results = p._run_checked(params)
        for k, memory in given.items():
            results[k] = _in_memory(names[k], results[k].view(np.ndarray), memory).view(argument)
        return results
    if form.on is not None:
        stays = there or not form.on.offload_copy
        results = (form.on.run_there if stays else form.compiled.run)({**inputs, **(offered if stays else {})})
    else:
        results = form.compiled.run({**inputs, **offered})
    for k, memory in given.items():
        results[k] = _in_memory(names[k], results[k], memory)
    return form.shown(results)


class StandingCall:
    """Runs of a program for a device over inputs and results in memory that stays: these are checked once."""

    def __init__(self, p: program, params: Mapping[str, object], outputs: Mapping[str, object]) -> None:
        """Check the standing inputs and the memory of results, which are tensors on the program's device.

        Raises:
            ParameterError: an input or result does not fit.
        """
        form = p._form
        assert form is not None and form.on is not None
        self._program, self._form, self._on, self._shapes = p, form, form.on, p._parameters()
        self._standing = {name: self._checked(name, value) for name, value in params.items()}
        for name, value in outputs.items():
            self.keep(name, value)

    def keep(self, name: str, memory: object) -> None:
        """Let later runs write a result to given memory on the device.

        Raises:
            ParameterError: the memory does not fit.
        """
        k = self._program.get_output_names().index(name)
        fitting = buffer_of(name, memory, self._form.results[k], self._form, self._program._open_dims)
        self._standing[output_buffer(k)] = fitting

    def run(self, params: Mapping[str, object], stream: int | None = None) -> Results:
        """Run on the other inputs and return the results on the device, in the form of the compiled program.

        Args:
            stream: enqueue the run in this stream and do not wait for it, if all inputs lie on the device.
        """
        checked = {name: self._checked(name, value) for name, value in params.items()}
        return self._on.run_there({**self._standing, **checked}, stream)

    def held(self) -> RecordableCall | None:
        """Return a call on the standing inputs that can be part of a recording; see `OnDevice.held`."""
        return self._on.held(self._standing)

    def _checked(self, name: str, value: object) -> object:
        return check(name, value, self._shapes[name], self._form, self._program._open_dims)


class UpdatingCall:
    """Runs of a program for the host that update caches in place: the caches are bound once."""

    def __init__(self, p: program, params: Mapping[str, object], outputs: Mapping[str, np.ndarray]) -> None:
        """Bind the inputs and the memory of results that stay; the first run checks them."""
        self._program, self._params, self._outputs = p, params, outputs
        self._merged: dict[str, object] | None = _merged(p, params, outputs)

    def run(self, params: Mapping[str, object]) -> Results:
        """Run on the other inputs, of the same names at each run, and return the results, as `program.run` does."""
        form = self._program._form
        if self._merged is not None and form is not None:
            self._merged.update(params)
            found = _fast(self._program, form, self._merged, self._outputs)
            if found is not None:
                return found
        return run_into(self._program, {**self._params, **params}, self._outputs)


def _quickly(p: program, params: Mapping[str, object], outputs: Inputs) -> list[object] | None:
    """Run by the program's fast path, which updates caches in place; None if the general path has to run."""
    merged = _merged(p, params, outputs)
    return None if merged is None or p._form is None else _fast(p, p._form, merged, outputs)


def _merged(p: program, params: Mapping[str, object], outputs: Mapping[str, object]) -> dict[str, object] | None:
    """Return inputs and memory of results under the names of the fast path; None if it does not take them."""
    form = p._form
    if form is None or form.on is not None:
        return None
    if form.result_places is None:
        form.result_places = {name: (k, output_buffer(k)) for k, name in enumerate(p.get_output_names())}
    merged = dict(params)
    for name, memory in outputs.items():
        if name not in form.result_places or not isinstance(memory, np.ndarray):
            return None
        merged[form.result_places[name][1]] = memory
    return merged


def _fast(
    p: program, form: CompiledForm, merged: Mapping[str, object], outputs: Mapping[str, np.ndarray]
) -> list[object] | None:
    """Run by the fast path on what `_merged` returned; None if the general path has to run."""
    results = form.fast_path(merged)
    if results is None and form.general_fast_path is not form.fast_path:
        results = form.general_fast_path(merged)
    if results is None:
        return None
    places = form.result_places
    assert places is not None
    for name, memory in outputs.items():
        k = places[name][0]
        if results[k] is not memory:
            memory = _in_memory(name, results[k], buffer_of(name, memory, form.results[k], form, p._open_dims))
            results[k] = result_of(memory, form.shapes_beside.get(k))
    return form.with_shapes(results) if form.shapes_beside else results


def _in_memory(name: str, result: Any, memory: Any) -> Any:
    """Return the result in the caller's memory, to which it is copied unless the run wrote it there."""
    if result is memory:
        return memory
    if isinstance(memory, DeviceArray) or isinstance(result, DeviceArray):
        if isinstance(memory, DeviceArray) and isinstance(result, DeviceArray) and memory.address == result.address:
            return result
        raise ParameterError(f"result {name!r} and the memory for it do not lie on the same device")
    if not isinstance(result, np.ndarray) or result.dtype != memory.dtype or result.shape != memory.shape:
        got = f"{result.dtype} {list(result.shape)}" if isinstance(result, np.ndarray) else type(result).__name__
        raise ParameterError(f"result {name!r} is {got}, the memory bound for it {memory.dtype} {list(memory.shape)}")
    memory[...] = result
    return memory
