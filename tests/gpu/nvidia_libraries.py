"""Stand-ins for libcublasLt and libcudnn: they parse descriptors and compute calls by NumPy at once.

Arguments arrive as ctypes passes them to the libraries. All memory that is read or written must be an engine's. A
workspace is overwritten, so that overlaps with other data are detected.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.gpu.contraction import library_solvers
from mgx_numba.codegen.gpu.libraries import calls, cublaslt, cudnn
from mgx_numba.codegen.gpu.libraries.cudnn import Attribute, Kind

from ..interpreter.engine import InterpreterEngine

CUDA_TYPES = {
    0: np.float32, 1: np.float64, 2: np.float16, 3: np.int8, 10: np.int32, 14: ml_dtypes.bfloat16,
    28: ml_dtypes.float8_e4m3fn, 29: ml_dtypes.float8_e5m2,
}  # fmt: skip
CUDNN_TYPES = {0: np.float32, 2: np.float16, 9: ml_dtypes.bfloat16}
WORKSPACE = 4096
INVALID, NOT_SUPPORTED = 7, 15


class _Memory:
    """Tensors in an engine's memory."""

    def __init__(self, engine: InterpreterEngine) -> None:
        self.engine = engine

    def tensor(self, address: int, dtype: Any, lens: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        """Return a view whose elements must all be in one allocation."""
        allocation, start = self.engine.memory.find(address)
        size = np.dtype(dtype).itemsize
        assert start + (sum((n - 1) * s for n, s in zip(lens, strides)) + 1) * size <= allocation.data.size, lens
        return np.ndarray(lens, dtype, allocation.data, start, [s * size for s in strides])

    def overwrite(self, address: int | None, size: int) -> None:
        """Write something all over a workspace."""
        if size:
            assert address is not None and address % 256 == 0
            self.tensor(address, np.uint8, (size,), (1,))[:] = 0xEE


class _Made:
    """Objects that the library's handles refer to."""

    def __init__(self) -> None:
        self.things: dict[int, Any] = {}
        self.alive = self._last = 0

    def keep(self, place: Any, thing: Any) -> int:
        self._last += 1
        self.alive += 1
        self.things[self._last] = thing
        place._obj.value = self._last
        return 0

    def drop(self, handle: Any) -> int:
        del self.things[handle.value]
        self.alive -= 1
        return 0


class CublasLtLibrary:
    """A stand-in for cuBLASLt with three algorithms, one of which needs a workspace; its 8-bit types are Hopper's."""

    def __init__(self, engine: InterpreterEngine, version: int = 130100) -> None:
        self.memory, self.made = _Memory(engine), _Made()
        self.cublasLtGetVersion = lambda: version  # one whose type of result can be set
        self.cublasLtGetStatusName = lambda status: b"CUBLAS_STATUS_NOT_SUPPORTED" if status == NOT_SUPPORTED else None
        self.cublasLtMatmulDescDestroy = self.cublasLtMatrixLayoutDestroy = self.made.drop
        self.cublasLtMatmulPreferenceDestroy = self.made.drop
        self.cublasLtMatmulDescSetAttribute = self.cublasLtMatrixLayoutSetAttribute = self._set
        self.cublasLtMatmulPreferenceSetAttribute = self._set
        self.products: list[dict[Any, Any]] = []

    def cublasLtCreate(self, place: Any) -> int:
        return self.made.keep(place, "handle")

    def cublasLtMatmulDescCreate(self, place: Any, compute: int, scale: int) -> int:
        return self.made.keep(place, {"compute": compute, "scale": scale})

    def cublasLtMatrixLayoutCreate(self, place: Any, dtype: int, rows: Any, columns: Any, pitch: Any) -> int:
        told = {"dtype": dtype, "rows": rows.value, "columns": columns.value, "pitch": pitch.value}
        return self.made.keep(place, told) if pitch.value >= rows.value else INVALID

    def cublasLtMatmulPreferenceCreate(self, place: Any) -> int:
        return self.made.keep(place, {})

    def _set(self, what: Any, attribute: int, value: Any, size: Any) -> int:
        assert size.value == ctypes.sizeof(value._obj)
        self.made.things[what.value][attribute] = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: Any, product: Any, a: Any, b: Any, c: Any, d: Any, how: Any, most: int, found: Any, count: Any
    ) -> int:
        told, left = self.made.things[product.value], self.made.things[a.value]
        preference = self.made.things[how.value]
        assert preference[3] == 2 and all(preference[k] in (1, 2, 4, 8, 16) for k in (5, 6, 7, 8))
        if np.dtype(CUDA_TYPES[left["dtype"]]).itemsize == 1 and (told.get(3), told.get(4)) != (1, 0):
            return NOT_SUPPORTED
        for number in range(3):
            self._init(found[number].algorithm, 60 + number)
            found[number].workspace, found[number].state = WORKSPACE * (number == 1), 0
        found[2].state = NOT_SUPPORTED
        count._obj.value = 3
        return 0

    @staticmethod
    def _init(algorithm: Any, number: int) -> None:
        algorithm.data[:] = [number, 0, 0, 0, 0, 0, 0, 0]
        for attribute in range(1, 9):
            CublasLtLibrary._write(algorithm, attribute, number + attribute)

    @staticmethod
    def _write(algorithm: Any, attribute: int, value: int) -> None:
        shift = 32 * (attribute % 2)
        word = algorithm.data[attribute // 2] & ~(0xFFFFFFFF << shift)
        algorithm.data[attribute // 2] = word | value << shift

    def cublasLtMatmulAlgoInit(self, handle: Any, *rest: Any) -> int:
        *_, number, algorithm = rest
        algorithm._obj.data[0] = number
        return 0

    def cublasLtMatmulAlgoConfigSetAttribute(self, algorithm: Any, attribute: int, value: Any, size: Any) -> int:
        self._write(algorithm._obj, attribute, value._obj.value)
        return 0

    def cublasLtMatmulAlgoConfigGetAttribute(
        self, algorithm: Any, attribute: int, value: Any, size: Any, written: Any
    ) -> int:
        assert size.value == ctypes.sizeof(value._obj) == (2 if attribute > 6 else 4)
        value._obj.value = algorithm._obj.data[attribute // 2] >> 32 * (attribute % 2) & 0xFFFFFFFF
        return 0

    def cublasLtMatmulAlgoCheck(self, handle: Any, *rest: Any) -> int:
        *_, algorithm, checked = rest
        wanted = type(algorithm._obj)()
        number = algorithm._obj.data[0] & 0xFFFFFFFF
        self._init(wanted, number)
        if list(wanted.data) != list(algorithm._obj.data) or number not in (60, 61):
            return NOT_SUPPORTED
        checked._obj.workspace = WORKSPACE * (number == 61)
        return 0

    def cublasLtMatmul(
        self, handle: Any, product: Any, alpha: Any, a: Any, a_layout: Any, b: Any, b_layout: Any, beta: Any, c: Any,
        c_layout: Any, d: Any, d_layout: Any, algorithm: Any, workspace: Any, size: Any, stream: Any,
    ) -> int:  # fmt: skip
        told = self.made.things[product.value]
        self.memory.overwrite(workspace.value, size.value)
        left, right, added, out = (
            self._matrices(place.value, layout)
            for place, layout in ((a, a_layout), (b, b_layout), (c, c_layout), (d, d_layout))
        )
        left, right = (v.swapaxes(-1, -2) if told.get(k) else v for k, v in ((3, left), (4, right)))
        wide = np.int64 if out.dtype == np.int32 else np.float64
        with np.errstate(all="ignore"):
            found = alpha._obj.value * (left.astype(wide) @ right.astype(wide))
            if beta._obj.value:
                found = found + beta._obj.value * added.astype(wide)
            epilogue = told.get(7, 1)
            assert epilogue in (1, 2, 4, 6, 32, 36)
            if epilogue & 4:
                bias = self.memory.tensor(told[8], out.dtype, out.shape[-2:-1], (1,))
                found = found + bias.astype(wide)[:, None]
            if epilogue & 2:
                found = np.maximum(found, 0)
            if epilogue & 32:
                found = found / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (found + 0.044715 * found**3)))
            out[...] = found.astype(out.dtype)
        self.products.append(told)
        return 0

    def _matrices(self, address: int, layout: Any) -> np.ndarray:
        told = self.made.things[layout.value]
        lens = (told.get(5, 1), told["rows"], told["columns"])
        return self.memory.tensor(address, CUDA_TYPES[told["dtype"]], lens, (told.get(6, 0), 1, told["pitch"]))


class CudnnLibrary:
    """A version of it with two engines; the second takes a workspace and has notes."""

    def __init__(self, engine: InterpreterEngine, version: int = 91900) -> None:
        self.memory, self.made = _Memory(engine), _Made()
        self.cudnnGetVersion = lambda: version
        self.cudnnGetErrorString = lambda status: b"CUDNN_STATUS_NOT_SUPPORTED" if status == NOT_SUPPORTED else None
        self.cudnnBackendDestroyDescriptor = self.made.drop
        self.notes: dict[int, list[int]] = {3: [], 4: []}

    def cudnnCreate(self, place: Any) -> int:
        return self.made.keep(place, "handle")

    def cudnnSetStream(self, handle: Any, stream: Any) -> int:
        return 0

    def cudnnBackendCreateDescriptor(self, kind: int, place: Any) -> int:
        return self.made.keep(place, {"kind": Kind(kind), "done": False})

    def cudnnBackendSetAttribute(self, what: Any, name: int, kind: int, count: Any, values: Any) -> int:
        own = self.made.things[what.value]
        assert not own["done"] and count.value == len(values)
        own[Attribute(name)] = list(values)
        return 0

    def cudnnBackendFinalize(self, what: Any) -> int:
        own = self.made.things[what.value]
        own["done"] = True
        if own["kind"] is Kind.ENGINE and own[Attribute.ENGINE_NUMBER][0] not in self.notes:
            return NOT_SUPPORTED
        return 0

    def cudnnBackendGetAttribute(self, what: Any, name: int, kind: int, most: Any, count: Any, values: Any) -> int:
        own, name = self.made.things[what.value], Attribute(name)
        if name is Attribute.HEURISTIC_RESULTS:
            found = [self._into(values[k], number, own) for k, number in enumerate(self.notes)]
        elif name is Attribute.CONFIGURATION_ENGINE:
            number = own["number"]
            told = {Attribute.ENGINE_NUMBER: [number], Attribute.ENGINE_NOTES: self.notes[number]}
            found = [self._fill(values[0], told)]
        elif name is Attribute.CONFIGURATION_KNOBS:
            knobs = [(2, 7), (5, own["number"])]
            found = [
                self._fill(values[k], {Attribute.KNOB_TYPE: [kind], Attribute.KNOB_VALUE: [value]})
                for k, (kind, value) in enumerate(knobs)
            ]
        elif name is Attribute.CONFIGURATION_WORKSPACE:
            found = values[:1] = [WORKSPACE * (own["number"] == 4)]
        elif name is Attribute.PLAN_WORKSPACE:
            found = values[:1] = [WORKSPACE * (self._engine(own) == 4)]
        else:
            found = own[name]
            values[: len(found)] = found
        assert len(found) <= most.value
        count._obj.value = len(found)
        return 0

    def _into(self, handle: int, number: int, asked: Any) -> int:
        return self._fill(handle, {"number": number, "graph": asked[Attribute.HEURISTIC_GRAPH][0]})

    def _fill(self, handle: int, told: Any) -> int:
        self.made.things[handle].update(told, done=True)
        return handle

    def _engine(self, plan: Any) -> int:
        chosen = self.made.things[plan[Attribute.PLAN_CONFIGURATION][0]]
        number = self.made.things[chosen[Attribute.CONFIGURATION_ENGINE][0]][Attribute.ENGINE_NUMBER][0]
        knobs = [self.made.things[k] for k in chosen[Attribute.CONFIGURATION_KNOBS]]
        assert [(k[Attribute.KNOB_TYPE], k[Attribute.KNOB_VALUE]) for k in knobs] == [([2], [7]), ([5], [number])]
        return int(number)

    def cudnnBackendExecute(self, handle: Any, plan: Any, pack: Any) -> int:
        own, told = self.made.things[plan.value], self.made.things[pack.value]
        chosen = self.made.things[own[Attribute.PLAN_CONFIGURATION][0]]
        engine = self.made.things[chosen[Attribute.CONFIGURATION_ENGINE][0]]
        graph = self.made.things[engine[Attribute.ENGINE_GRAPH][0]]
        places = dict(zip(told[Attribute.PACK_IDS], told[Attribute.PACK_ADDRESSES], strict=True))
        self.memory.overwrite(told[Attribute.PACK_WORKSPACE][0], WORKSPACE * (self._engine(own) == 4))
        known: dict[int, np.ndarray] = {}

        def read(number: int) -> np.ndarray:
            tensor = self.made.things[number]
            own = tensor[Attribute.TENSOR_ID][0]
            return known[own] if own in known else self._view(tensor, places[own])

        def write(number: int, value: np.ndarray) -> None:
            tensor = self.made.things[number]
            if tensor[Attribute.TENSOR_VIRTUAL][0]:
                known[tensor[Attribute.TENSOR_ID][0]] = value
            else:
                view = self._view(tensor, places[tensor[Attribute.TENSOR_ID][0]])
                assert view.shape == value.shape
                view[...] = value.astype(view.dtype)

        for operation in graph[Attribute.GRAPH_OPERATIONS]:
            step = self.made.things[operation]
            if step["kind"] is Kind.CONVOLVING:
                x, w, y, how = (step[Attribute[f"CONVOLVING_{name}"]][0] for name in ("X", "W", "Y", "HOW"))
                write(y, _convolved(read(x), read(w), self.made.things[how]))
                continue
            mode = self.made.things[step[Attribute.CALCULATING_HOW][0]][Attribute.POINTWISE_MODE][0]
            value = read(step[Attribute.CALCULATING_X][0])
            if mode == 0:
                value = value + read(step[Attribute.CALCULATING_B][0]).astype(np.float64)
            write(step[Attribute.CALCULATING_Y][0], np.maximum(value, 0) if mode == 100 else value)
        return 0

    def _view(self, tensor: Any, address: int) -> np.ndarray:
        dtype = CUDNN_TYPES[tensor[Attribute.TENSOR_TYPE][0]]
        assert address % tensor[Attribute.TENSOR_ALIGNMENT][0] == 0
        return self.memory.tensor(
            address, dtype, tuple(tensor[Attribute.TENSOR_LENS]), tuple(tensor[Attribute.TENSOR_STRIDES])
        )


def _convolved(x: np.ndarray, w: np.ndarray, how: Any) -> np.ndarray:
    assert how[Attribute.CONVOLUTION_MODE] == [1]
    pads = zip(how[Attribute.CONVOLUTION_PRE_PADDINGS], how[Attribute.CONVOLUTION_POST_PADDINGS])
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pads])
    rank = w.ndim - 2
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], how[Attribute.CONVOLUTION_DILATIONS])]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, 2 + rank)))
    steps = tuple(slice(None, None, s) for s in how[Attribute.CONVOLUTION_STRIDES])
    taps = tuple(slice(None, None, d) for d in how[Attribute.CONVOLUTION_DILATIONS])
    windows = windows[(slice(None), slice(None), *steps, *taps)]
    groups = x.shape[1] // w.shape[1]
    split = windows.reshape(x.shape[0], groups, w.shape[1], *windows.shape[2:])
    filters = w.astype(np.float64).reshape(groups, -1, *w.shape[1:])
    axes = "defijk"
    out, inner = axes[:rank], axes[3 : 3 + rank]
    found = np.einsum(f"ngc{out}{inner},goc{inner}->ngo{out}", split, filters)
    return found.reshape(x.shape[0], w.shape[0], *found.shape[3:])


class _Device:
    number = 0

    @staticmethod
    def use() -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@contextlib.contextmanager
def standing_in(
    engine: InterpreterEngine, monkeypatch: pytest.MonkeyPatch, products: Any = None, convolutions: Any = None
) -> Iterator[tuple[CublasLtLibrary, CudnnLibrary]]:
    """Replace both libraries for programs on an engine; caches of library functions are cleared before and after."""
    own = products or CublasLtLibrary(engine), convolutions or CudnnLibrary(engine)
    caches = (cublaslt.cublaslt, cudnn.cudnn, calls.bound_call, library_solvers.cached_tilings)
    for cache in caches:
        cache.cache_clear()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(cublaslt, "loaded_library", lambda names: own[0])
        meanwhile.setattr(cudnn, "loaded_library", lambda names, needs: own[1])
        meanwhile.setattr(library_solvers, "device", lambda: _Device)
        meanwhile.setattr(library_solvers, "missing", lambda: "")
        meanwhile.setattr(engine, "calls", calls.bound_call)
        yield own
    for cache in caches:
        cache.cache_clear()
