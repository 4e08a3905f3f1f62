"""`InferenceSession`: a compiled program with ONNX Runtime's interface."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..api.device import from_gpu
from ..api.functions import parse_onnx, parse_onnx_buffer
from ..api.loading import load, load_buffer
from ..api.program import program
from ..api.saving import SAVED_OPTIONS
from ..errors import OptionError, ParameterError, ParseError
from .model import ModelMetadata, NodeArg, metadata_of, node_args
from .options import RunOptions, SessionOptions
from .providers import CPU, chosen_provider, target_of
from .tensors import described
from .values import IOBinding, OrtValue, ort_value

__all__ = ["InferenceSession"]

_MXR = (".mxr", ".migraphx")


class InferenceSession:
    """A model that is compiled and ready to run; any number of threads may run it at once.

    Args:
        path_or_bytes: an ONNX or an ``.mxr`` file, or the bytes of one. The latter brings its tuning records and, if it
            was saved compiled, the options that nothing here says otherwise.
        sess_options: see `SessionOptions`.
        providers: names of providers, or pairs of a name and options, those of ``program.compile``; the first that is
            available is used. Default: the CPU.
        provider_options: the options by themselves, in the order of ``providers``.
        trust_objects: that of ``load``, for machine code in an ``.mxr`` file.

    Dimensions that the model leaves open may have any length in a run, unless
    ``sess_options.add_free_dimension_override_by_name`` gives them one. Element types below a byte are those of a byte.

    Raises:
        ParseError, UnsupportedError: the model cannot be read; the message names the node.
        OptionError: an option has a value that cannot be.
        CompileError: a kernel cannot be made.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        trust_objects: bool = False,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise OptionError(
                f"InferenceSession knows no {', '.join(map(repr, kwargs))}; expected sess_options, providers,"
                " provider_options, trust_objects"
            )
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise OptionError(f"sess_options must be SessionOptions, got {type(sess_options).__name__}")
        self._options = SessionOptions() if sess_options is None else sess_options
        self._provider, given = chosen_provider(providers, provider_options)
        self._provider_options = dict(given)
        options = {**self._options.compile_options(), **given}
        target = target_of(self._provider)
        self._program = self._read(path_or_bytes, trust_objects)
        kept = self._program._options
        if kept is None or options or self._program._target is None or self._program._target.name() != target:
            saved = {} if kept is None else {name: getattr(kept, name) for name in SAVED_OPTIONS}
            self._program.compile(target, **{**saved, **options})
        path = self._options.optimized_model_filepath
        if path:
            if not path.endswith(_MXR):
                raise OptionError(f"optimized_model_filepath is {path!r}, expected the name of an .mxr file")
            self._program.save(path)
        shapes = self._program.get_parameter_shapes()
        self._inputs = node_args(list(shapes), [s._value for s in shapes.values()])
        names = self._program.get_output_names()
        shapes_out = [s._value for s in self._program.get_output_shapes()]
        self._outputs = node_args(names, shapes_out, self._program._origin.output_symbols)
        self._input_names = frozenset(shapes)
        self._positions = {name: k for k, name in enumerate(names)}

    def _read(self, source: Any, trust_objects: bool) -> program:
        lens = self._options.free_dimensions()
        folder = self._options.external_data_folder()
        in_memory = isinstance(source, (bytes, bytearray, memoryview))
        if not in_memory and not isinstance(source, (str, os.PathLike)):
            raise ParseError(f"a session needs the path or the bytes of a model, got {type(source).__name__}")
        if not (_is_map(source) if in_memory else os.fspath(source).endswith(_MXR)):
            if in_memory:
                return parse_onnx_buffer(source, dim_params=lens, external_data_path=folder)
            return parse_onnx(source, dim_params=lens)
        if lens:
            raise OptionError("dimensions can be overridden when an ONNX file is read, not those of an .mxr file")
        return load_buffer(source, trust_objects) if in_memory else load(source, trust_objects=trust_objects)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run once.

        Args:
            output_names: which results, in this order; None or empty for all.
            input_feed: an array or `OrtValue` for each input; a list for a sequence, a mapping for a map, None for an
                optional without a value.
            run_options: has no effect.

        Returns:
            An array for each tensor, and the same for what holds tensors.

        Raises:
            ParameterError: no such input or result, an input is missing, or one does not fit.
        """
        if not isinstance(input_feed, Mapping):
            kind = type(input_feed).__name__
            raise ParameterError(f"run needs names of results, or None, then a mapping of inputs to arrays, got {kind}")
        if isinstance(output_names, str):
            raise ParameterError(f"output_names must be a list of names, got {output_names!r}")
        unknown = [name for name in input_feed if name not in self._input_names]
        if unknown:
            known = ", ".join(i.name for i in self._inputs) or "none"
            raise ParameterError(f"no input {', '.join(map(repr, unknown))}; the model's are: {known}")
        for name in output_names or ():
            if name not in self._positions:
                raise ParameterError(f"no result {name!r}; the model's are: {', '.join(self._positions)}")
        feed = {name: v._value if isinstance(v, OrtValue) else v for name, v in input_feed.items()}
        found = [_on_host(result) for result in self._program.run(feed)]
        return [found[self._positions[name]] for name in output_names] if output_names else found

    @property
    def _has_device(self) -> bool:
        """Whether the session runs on a device, whose memory values may lie in."""
        return self._program._on is not None

    def _run_where(self, output_places: Mapping[str, tuple[bool, Any]], input_feed: Mapping[str, Any]) -> list[Any]:
        """Results by name, of which the first of each pair says whether it stays on the session's device; for
        `IOBinding`, else as `run`."""
        if not any(there for there, _ in output_places.values()):
            return list(self.run(list(output_places), input_feed))
        found = self._program._run_there(dict(input_feed))
        results = ((found[self._positions[name]], there) for name, (there, _) in output_places.items())
        return [result if there else _on_host(result) for result, there in results]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run once in another thread, which calls ``callback(results, user_data, error)`` when it has ended: without
        results and with a message if there was an error."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as problem:
                results, error = [], str(problem)
            callback(results, user_data, error)

        threading.Thread(target=work, name="mgx_numba.session").start()

    def io_binding(self) -> IOBinding:
        """A new `IOBinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run once on what is bound.

        Raises:
            ParameterError: as `run`, or memory that is bound for a result does not fit it.
        """
        iobinding.run(self)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As `run`, with and giving `OrtValue`.

        Raises:
            UnsupportedError: a result is no tensor.
        """
        names = output_names or list(self._positions)
        results = self.run(names, input_dict_ort_values, run_options)
        return [ort_value(name, result) for name, result in zip(names, results, strict=True)]

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, in the model's order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The results, in the model's order."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: initializers are constants."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """What the model's file says of itself."""
        return metadata_of(self._program._origin)

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """The provider that runs the model; after it the CPU, where what a GPU has no kernel for is computed."""
        return list(dict.fromkeys((self._provider, CPU)))

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options that had an effect, by provider."""
        given = {name: str(value) for name, value in self._provider_options.items()}
        return {name: given if name == self._provider else {} for name in self.get_providers()}


def _on_host(result: Any) -> Any:
    """A result as an array, which a device's is copied to, or as a list of results; maps and None as they are."""
    if isinstance(result, np.ndarray):
        return result.view(np.ndarray)
    if isinstance(result, list):
        return [_on_host(member) for member in result]
    if result is None or isinstance(result, dict):
        return result
    return np.asarray(from_gpu(result)).reshape(described(result).lens)


def _is_map(data: bytes | bytearray | memoryview) -> bool:
    """Whether bytes begin as a map of msgpack does, as no protobuf message can: its wire type would be 6 or 7, or its
    field one of a number that ``ModelProto`` does not have."""
    first = data[0] if len(data) else 0
    return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)
