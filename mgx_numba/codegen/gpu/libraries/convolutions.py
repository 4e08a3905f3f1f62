"""Convolutions by cuDNN: the operation graph of a convolution with its epilogue, and the library's engines for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import c_void_p
from dataclasses import asdict
from typing import Any

from ....dataclass import dataclass
from ....errors import DeviceError
from .cudnn import DATA_TYPES, Attribute, Cudnn, Descriptor, Kind, Value, cudnn, tensor

_CORRELATION = 1  # cudnnConvolutionMode_t: the filter is not mirrored
_HEURISTICS = (3, 2)  # CUDNN_HEUR_MODE_A and CUDNN_HEUR_MODE_FALLBACK
_ADD, _RELU = 0, 100  # cudnnPointwiseMode_t
_TENSOR_CORES, _ROUNDED_INPUTS, _ROUNDED_SUMS, _FFT, _ANY_ORDER = 0, 1, 2, 3, 4  # cudnnBackendNumericalNote_t
_WINOGRAD = range(5, 9)
_ALIGNMENT = 16
"""Alignment (bytes) of operands: `gpu.contraction.gpu_contraction.VECTOR_BYTES`."""
MOST_ENGINES = 10
"""Most engine configurations that tuning measures; some compile a kernel."""
MOST_REQUESTED = 64
"""Most configurations requested from the heuristic; the best ones may all be excluded by their rounding. No figures
kept."""
MOST_KNOBS, MOST_NOTES = 64, 32
"""Most knobs, and most notes, of an engine: more than the library defines."""


@dataclass(frozen=True)
class RequestedConvolution:
    """A channels-last convolution as cuDNN's graph describes it.

    Attributes:
        x_lens, w_lens, y_lens: images, channels, and two or three spatial lengths; of filters outputs and inputs first.
        x_strides, y_strides: strides in elements, same order.
        left, right, out: dtypes.
        sums: accumulator type; ``tf32`` for float32 multiplied in TF32.
        before, after: padding.
        steps, dilation: stride and dilation.
        added: dtype of a summand of the result, "" for none; ``added_strides``: its strides.
        bias: dtype of the per-channel bias, "" for none.
        relu: whether a ReLU follows.
        rounds: whether algorithms that change rounding (FFT, Winograd) are allowed.
        alignment: alignment (bytes) of the result and of the summand.
    """

    x_lens: tuple[int, ...]
    x_strides: tuple[int, ...]
    w_lens: tuple[int, ...]
    y_lens: tuple[int, ...]
    y_strides: tuple[int, ...]
    left: str
    right: str
    out: str
    sums: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    steps: tuple[int, ...]
    dilation: tuple[int, ...]
    added: str
    added_strides: tuple[int, ...]
    bias: str
    relu: bool
    rounds: bool
    alignment: int

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> RequestedConvolution:
        """Restore from the JSON form of `dataclasses.asdict`."""
        own: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        return cls(**own)


@dataclass(frozen=True)
class ConvolutionEngine:
    """An engine configuration of a library version: engine number, knob values by type, and ``workspace`` in bytes."""

    version: int
    number: int
    knobs: tuple[tuple[int, int], ...]
    workspace: int

    @property
    def configuration(self) -> dict[str, int]:
        """Return its numbers by name, as tuning records store them."""
        own = {"version": self.version, "number": self.number, "workspace": self.workspace}
        return own | {f"knob{kind}": value for kind, value in self.knobs}


class _ConvolutionGraph:
    """The operation graph of a convolution on the current device."""

    def __init__(self, library: Cudnn, number: int, what: RequestedConvolution) -> None:
        self.library, self._what = library, what
        self.handle = library.handle(number)
        self._count = 0
        self._sums = sums = "float32" if what.sums == "tf32" else what.sums
        spatial = range(2, len(what.w_lens))
        _, channels, *kernel = what.w_lens
        w_strides = [0, 1, *(0 for _ in kernel)]
        step = channels
        for axis in (*reversed(spatial), 0):
            w_strides[axis] = step
            step *= what.w_lens[axis]
        self.ids: dict[str, int] = {}
        x = self._stored("left", what.left, what.x_lens, what.x_strides, _ALIGNMENT)
        w = self._stored("right", what.right, what.w_lens, w_strides, _ALIGNMENT)
        how = Descriptor(library, Kind.CONVOLUTION)
        how.set(Attribute.CONVOLUTION_PRECISION, Value.DATA_TYPE, DATA_TYPES[sums])
        how.set(Attribute.CONVOLUTION_MODE, Value.CONVOLUTION_MODE, _CORRELATION)
        how.set(Attribute.CONVOLUTION_RANK, Value.INT64, len(kernel))
        for name, values in (
            (Attribute.CONVOLUTION_PRE_PADDINGS, what.before),
            (Attribute.CONVOLUTION_POST_PADDINGS, what.after),
            (Attribute.CONVOLUTION_STRIDES, what.steps),
            (Attribute.CONVOLUTION_DILATIONS, what.dilation),
        ):
            how.set(name, Value.INT64, *values)
        how.finish()
        following = bool(what.added) + bool(what.bias) + what.relu
        y = self._result(following)
        convolving = Descriptor(library, Kind.CONVOLVING)
        for name, one in (
            (Attribute.CONVOLVING_X, x),
            (Attribute.CONVOLVING_W, w),
            (Attribute.CONVOLVING_Y, y),
            (Attribute.CONVOLVING_HOW, how),
        ):
            convolving.set(name, Value.DESCRIPTOR, one)
        convolving.set(Attribute.CONVOLVING_ALPHA, Value.FLOAT, 1.0)
        convolving.set(Attribute.CONVOLVING_BETA, Value.FLOAT, 0.0)
        operations = [convolving.finish()]
        if what.added:
            following -= 1
            other = self._stored("added", what.added, what.y_lens, what.added_strides, what.alignment)
            y = self._calculated(operations, _ADD, y, other, following)
        if what.bias:
            following -= 1
            lens = (1, what.y_lens[1], *(1 for _ in kernel))
            other = self._stored("bias", what.bias, lens, (lens[1], 1, *(lens[1] for _ in kernel)), what.alignment)
            y = self._calculated(operations, _ADD, y, other, following)
        if what.relu:
            self._calculated(operations, _RELU, y, None, 0)
        self.graph = Descriptor(library, Kind.GRAPH).set(Attribute.GRAPH_HANDLE, Value.HANDLE, self.handle)
        self.graph.set(Attribute.GRAPH_OPERATIONS, Value.DESCRIPTOR, *operations).finish()

    def _stored(self, name: str, dtype: str, lens: Sequence[int], strides: Sequence[int], alignment: int) -> Descriptor:
        self._count += 1
        self.ids[name] = self._count
        return tensor(self.library, self._count, dtype, lens, strides, alignment, True)

    def _result(self, following: int) -> Descriptor:
        """Return the tensor of the result, or the virtual tensor that the next operation reads."""
        what = self._what
        if not following:
            return self._stored("out", what.out, what.y_lens, what.y_strides, what.alignment)
        self._count += 1
        return tensor(self.library, self._count, self._sums, what.y_lens, what.y_strides, _ALIGNMENT, False)

    def _calculated(
        self, operations: list[Descriptor], mode: int, x: Descriptor, other: Descriptor | None, following: int
    ) -> Descriptor:
        how = Descriptor(self.library, Kind.POINTWISE).set(Attribute.POINTWISE_MODE, Value.POINTWISE_MODE, mode)
        how.set(Attribute.POINTWISE_PRECISION, Value.DATA_TYPE, DATA_TYPES["float32"]).finish()
        y = self._result(following)
        made = Descriptor(self.library, Kind.CALCULATING)
        made.set(Attribute.CALCULATING_HOW, Value.DESCRIPTOR, how)
        made.set(Attribute.CALCULATING_X, Value.DESCRIPTOR, x)
        if other is not None:
            made.set(Attribute.CALCULATING_B, Value.DESCRIPTOR, other)
        operations.append(made.set(Attribute.CALCULATING_Y, Value.DESCRIPTOR, y).finish())
        return y


def engines(number: int, what: RequestedConvolution) -> list[ConvolutionEngine]:
    """Return the heuristic's engine configurations for a convolution on device ``number``, which is the current device,
    best first. Engines with unwanted rounding or non-deterministic order are excluded.

    Raises:
        DeviceError: the library is missing.
    """
    library = cudnn()
    with library.lock:
        try:
            graph = _ConvolutionGraph(library, number, what).graph
        except DeviceError:
            return []
        barred, made = _barred(what), dict[ConvolutionEngine, None]()
        for mode in _HEURISTICS:
            for one in _configurations(library, graph, mode):
                (engine,) = one.descriptors(Attribute.CONFIGURATION_ENGINE, Kind.ENGINE)
                notes = engine.numbers(Attribute.ENGINE_NOTES, Value.NUMERICAL_NOTE, MOST_NOTES)
                if len(made) < MOST_ENGINES and not barred.intersection(notes):
                    made[_engine(library, one, engine)] = None
        return list(made)


def _configurations(library: Cudnn, graph: Descriptor, mode: int) -> list[Descriptor]:
    """Return a heuristic mode's configurations; empty if it fails."""
    try:
        asked = Descriptor(library, Kind.HEURISTIC).set(Attribute.HEURISTIC_GRAPH, Value.DESCRIPTOR, graph)
        asked.set(Attribute.HEURISTIC_MODE, Value.HEURISTIC_MODE, mode).finish()
        return asked.descriptors(Attribute.HEURISTIC_RESULTS, Kind.CONFIGURATION, MOST_REQUESTED)
    except DeviceError:
        return []


def _engine(library: Cudnn, one: Descriptor, engine: Descriptor) -> ConvolutionEngine:
    """Return a configuration by its numbers."""
    knobs = []
    for choice in one.descriptors(Attribute.CONFIGURATION_KNOBS, Kind.KNOB_CHOICE, MOST_KNOBS):
        (kind,) = choice.numbers(Attribute.KNOB_TYPE, Value.KNOB_TYPE)
        (value,) = choice.numbers(Attribute.KNOB_VALUE, Value.INT64)
        knobs.append((kind, value))
    (number,) = engine.numbers(Attribute.ENGINE_NUMBER, Value.INT64)
    (workspace,) = one.numbers(Attribute.CONFIGURATION_WORKSPACE, Value.INT64)
    return ConvolutionEngine(library.version, number, tuple(sorted(knobs)), workspace)


def _barred(what: RequestedConvolution) -> set[int]:
    """Return the numerical notes that exclude an engine."""
    barred = {_ROUNDED_SUMS, _ANY_ORDER}
    if what.left == "float32" and what.sums != "tf32":
        barred |= {_TENSOR_CORES, _ROUNDED_INPUTS}
    return barred if what.rounds else barred | {_FFT, *_WINOGRAD}


class ConvolutionCall:
    """See `LibraryCall`. Operands: ``left``, ``right``, ``out``, and as needed ``bias``, ``added``, ``workspace``."""

    def __init__(self, number: int, what: RequestedConvolution, engine: ConvolutionEngine) -> None:
        """Prepare the call.

        Raises:
            DeviceError: the library has another version or lacks the engine.
        """
        self._library = library = cudnn()
        library.check_version(engine.version)
        with library.lock:
            self._graph = graph = _ConvolutionGraph(library, number, what)
            own = Descriptor(library, Kind.ENGINE).set(Attribute.ENGINE_GRAPH, Value.DESCRIPTOR, graph.graph)
            own.set(Attribute.ENGINE_NUMBER, Value.INT64, engine.number).finish()
            choices = []
            for kind, value in engine.knobs:
                choice = Descriptor(library, Kind.KNOB_CHOICE).set(Attribute.KNOB_TYPE, Value.KNOB_TYPE, kind)
                choices.append(choice.set(Attribute.KNOB_VALUE, Value.INT64, value).finish())
            chosen = Descriptor(library, Kind.CONFIGURATION).set(Attribute.CONFIGURATION_ENGINE, Value.DESCRIPTOR, own)
            if choices:
                chosen.set(Attribute.CONFIGURATION_KNOBS, Value.DESCRIPTOR, *choices)
            self._plan = Descriptor(library, Kind.PLAN).set(Attribute.PLAN_HANDLE, Value.HANDLE, graph.handle)
            self._plan.set(Attribute.PLAN_CONFIGURATION, Value.DESCRIPTOR, chosen.finish()).finish()
            (workspace,) = self._plan.numbers(Attribute.PLAN_WORKSPACE, Value.INT64)
        if workspace > engine.workspace:
            raise DeviceError(f"cuDNN's engine takes {workspace} bytes of workspace, {engine.workspace} were known")

    @classmethod
    def described(cls, fields: Mapping[str, Any], number: int) -> ConvolutionCall:
        """Restore a call from `fields` on device ``number``, which is the current device.

        Raises:
            DeviceError: see the class.
        """
        own = dict(fields["engine"])
        own["knobs"] = tuple((kind, value) for kind, value in own["knobs"])
        return cls(number, RequestedConvolution.of(fields["convolution"]), ConvolutionEngine(**own))

    @staticmethod
    def fields(what: RequestedConvolution, engine: ConvolutionEngine) -> dict[str, object]:
        """Return a call as JSON values."""
        return {"convolution": asdict(what), "engine": asdict(engine)}

    def enqueue(self, addresses: Mapping[str, int], stream: int) -> None:
        library, ids = self._library, self._graph.ids
        pack = Descriptor(library, Kind.VARIANT_PACK).set(Attribute.PACK_IDS, Value.INT64, *ids.values())
        pack.set(Attribute.PACK_ADDRESSES, Value.POINTER, *(addresses[name] for name in ids))
        pack.set(Attribute.PACK_WORKSPACE, Value.POINTER, addresses.get("workspace", 0)).finish()
        with library.lock:
            library.call("cudnnSetStream", self._graph.handle, c_void_p(stream))
            library.call("cudnnBackendExecute", self._graph.handle, self._plan.pointer, pack.pointer)
