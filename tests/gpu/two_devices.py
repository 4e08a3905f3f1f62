"""NVIDIA's driver with two devices that differ; it only takes notes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

A100, H200 = {16: 108, 75: 8, 76: 0, 38: 40 << 20}, {16: 132, 75: 9, 76: 0, 38: 50 << 20}
"""Attributes of cuda.h: multiprocessors, compute capability, L2."""
NAMES, CONTEXTS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H200"), (1000, 2000)
OTHERS = 5000
"""Context that another library has made current."""


class Library:
    """A libcuda with two devices; ``calls`` are the functions with the context that was current."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.modules: list[tuple[int, str]] = []
        self.current = OTHERS
        self._made = 0
        self._kept: Any = None

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu") or name == "cuFuncLoad":
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            self.calls.append((name, self.current))
            getattr(self, f"_{name}", self._new)(*arguments)
            return 0

        return function

    def _new(self, *arguments: Any) -> None:
        """Give a number to the object that a function makes."""
        if arguments and hasattr(arguments[0], "_obj"):
            self._made += 1
            arguments[0]._obj.value = self.current + self._made

    def _cuInit(self, flags: int) -> None: ...

    def _cuDriverGetVersion(self, version: Any) -> None:
        version._obj.value = 13000

    def _cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = 2

    def _cuDeviceGet(self, handle: Any, number: int) -> None:
        handle._obj.value = number

    def _cuDeviceGetName(self, name: Any, size: int, handle: Any) -> None:
        name.value = NAMES[handle.value].encode()

    def _cuDeviceGetAttribute(self, value: Any, number: int, handle: Any) -> None:
        value._obj.value = (A100, H200)[handle.value].get(number, 1)

    def _cuDevicePrimaryCtxRetain(self, context: Any, handle: Any) -> None:
        context._obj.value = CONTEXTS[handle.value]

    def _cuCtxGetCurrent(self, context: Any) -> None:
        context._obj.value = self.current or None

    def _cuCtxSetCurrent(self, context: Any) -> None:
        self.current = context.value or 0

    def _cuLinkAddData_v2(self, state: Any, kind: int, text: bytes, *rest: Any) -> None:
        self._kept = ctypes.create_string_buffer(b"\x7fELF" + text)

    def _cuLinkComplete(self, state: Any, data: Any, size: Any) -> None:
        data._obj.value, size._obj.value = ctypes.addressof(self._kept), len(self._kept)

    def _cuModuleLoadData(self, module: Any, code: bytes) -> None:
        target = code.split(b".target ")[1].split(b"\n")[0].decode()
        self.modules.append((self.current, target))
        self._new(module)
