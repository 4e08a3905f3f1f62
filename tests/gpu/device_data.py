"""Programs with data on a device, and device tensors as other libraries provide them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen.gpu.driver.library import missing
from mgx_numba.core.dlpack import export_device

from ..interpreter.engine import interpreted


def on_devices(cases: Sequence[Any]) -> Sequence[Any]:
    """Return cases of a test marked ``gpu``: all of them if there is a device, else the first, which is skipped."""
    return cases[:1] if missing() else cases


PLACES = ["interpreter", *([] if missing() else [pytest.param("device", marks=pytest.mark.gpu)])]
"""Where programs run. Without a device its cases are left out: thousands of skipped tests cost seconds of a run."""


@contextlib.contextmanager
def place(name: str, devices: int = 1) -> Iterator[None]:
    """Use the interpreter as ``devices`` devices inside a ``with`` block, or this machine's devices."""
    with interpreted(devices) if name == "interpreter" else contextlib.nullcontext():
        yield


def softmax_of_sum(lens: tuple[int, ...] = (3, 5), type: str = "float") -> Any:
    """A program of two inputs, x and y, and two results: softmax(x + y) of the last axis, and x + y."""
    made = mgx.program()
    main = made.get_main_module()
    x, y = (main.add_parameter(name, mgx.shape(type=type, lens=list(lens))) for name in "xy")
    total = main.add_instruction(mgx.op("add"), [x, y])
    main.add_return([main.add_instruction(mgx.op("softmax", axis=len(lens) - 1), [total]), total])
    return made


def wanted(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return the reference of `softmax_of_sum`."""
    total = x + y
    e = np.exp(total - total.max(-1, keepdims=True))
    return [e / e.sum(-1, keepdims=True), total]


def one_input(build: Callable[[Any, Any], list[Any]], type: str, lens: list[int]) -> Any:
    """A program that makes results of its only input, x."""
    made = mgx.program()
    main = made.get_main_module()
    main.add_return(build(main, main.add_parameter("x", mgx.shape(type=type, lens=lens))))
    return made


def numbers(seed: int, lens: tuple[int, ...] = (3, 5)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(lens).astype(np.float32), rng.standard_normal(lens).astype(np.float32)


def close(results: list[Any], expected: list[np.ndarray]) -> None:
    assert len(results) == len(expected)
    for got, want in zip(results, expected):
        np.testing.assert_allclose(np.asarray(mgx.from_gpu(got)), want, atol=1e-6)


class Interfaced:
    """A tensor with only ``__cuda_array_interface__``, as Numba's; ``stream`` is its entry there."""

    def __init__(self, holder: Any, stream: int | None = None, strides: tuple[int, ...] | None = None) -> None:
        self.holder = holder
        self.told = {**holder.__cuda_array_interface__, "stream": stream}
        if strides is not None:
            self.told["strides"] = strides

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.told


class Packed:
    """A tensor with only DLPack, as PyTorch's; ``streams`` records the streams of the requests."""

    requires_grad = False

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self.streams: list[Any] = []

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        return export_device(self.holder._value, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.holder.__dlpack_device__()
