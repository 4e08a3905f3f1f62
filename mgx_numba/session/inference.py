"""`InferenceSession`: a compiled program with ONNX Runtime's interface. A run that overrides initializers takes a
variant compiled for it (`Overrides`)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.device import from_gpu
from ..api.placing import run_into
from ..api.program import program
from ..api.saving import SAVED_OPTIONS
from ..core.shape import Shape
from ..errors import MgxError, OptionError, ParameterError, UnsupportedError
from ..messages import warn
from .binding import IOBinding
from .devices import OrtMemoryInfo
from .enums import OrtAllocatorType, OrtDeviceVendorId, OrtMemType
from .epdevices import OrtEpDevice, get_ep_devices
from .exceptions import as_onnxruntime, error_of
from .model import ModelMetadata, NodeArg, metadata_of, node_args
from .options import RunOptions, SessionOptions, refuse_terminated
from .providers import CPU, chosen_provider, get_available_providers, refuse_unknown, target_of
from .reading import Source
from .values import OrtValue, OrtValueVector, copy_tensors, described, fed, ort_value

if TYPE_CHECKING:
    from .profiling import Profile

__all__ = ["InferenceSession"]

_KNOWN = ("disabled_optimizers", "enable_fallback", "read_config_from_model")
"""Arguments of ONNX Runtime's constructor that do not affect results; they are accepted and ignored."""


class InferenceSession:
    """A compiled model, ready to run; any number of threads may run it at once.

    Args:
        path_or_bytes: an ONNX or ``.mxr`` file, or the bytes of such a file. An ``.mxr`` file brings its tuning
            records. If it was saved compiled, it also brings its compile options, unless they are given here.
        sess_options: see `SessionOptions`.
        providers: names of providers, or pairs of a name and options of ``program.compile``; the first available
            provider is used. Default: the CPU.
        provider_options: options for each of ``providers``, if ``providers`` has names only.
        trust_objects: as in ``load``, for machine code in an ``.mxr`` file.
        kwargs: ``disabled_optimizers``, ``enable_fallback`` and ``read_config_from_model``, which have no effect.

    Dimensions that the model leaves dynamic may have any length in a run, unless
    ``sess_options.add_free_dimension_override_by_name`` fixes the length. Element types smaller than a byte are passed
    as one byte per element.

    Raises:
        MgxError: as below; each error is also of ONNX Runtime's corresponding class (`mgx_numba.session.exceptions`).
        ParseError, UnsupportedError: the model cannot be read; the message names the node.
        OptionError: an option has an invalid value.
        CompileError: a kernel cannot be compiled.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        trust_objects: bool = False,
        **kwargs: object,
    ) -> None:
        try:
            self._make(path_or_bytes, sess_options, providers, provider_options, trust_objects, kwargs)
        except MgxError as error:
            raise as_onnxruntime(error) from error.__cause__

    def _make(
        self,
        path_or_bytes: object,
        sess_options: SessionOptions | None,
        providers: Sequence[object] | None,
        provider_options: Sequence[Mapping[str, object]] | None,
        trust_objects: bool,
        others: Mapping[str, object],
    ) -> None:
        unknown = [name for name in others if name not in _KNOWN]
        if unknown:
            raise OptionError(
                f"InferenceSession knows no {', '.join(map(repr, unknown))}; expected sess_options, providers,"
                f" provider_options, trust_objects, {', '.join(_KNOWN)}"
            )
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise OptionError(f"sess_options must be SessionOptions, got {type(sess_options).__name__}")
        self._options = SessionOptions() if sess_options is None else sess_options
        self._source = Source(path_or_bytes, self._options, trust_objects)
        if providers is None and self._options.has_providers():
            providers = self._options.providers()
        self._compile(providers, provider_options)

    def _compile(
        self, providers: Sequence[object] | None, provider_options: Sequence[Mapping[str, object]] | None
    ) -> None:
        """Read the model and compile it for the chosen provider."""
        self._provider, given = chosen_provider(providers, provider_options)
        self._provider_options = dict(given)
        asked = {**self._options.compile_options(), **given}
        self._profile: Profile | None = None
        if self._options.enable_profiling:
            from .profiling import Profile  # late: few sessions are profiled

            self._profile = Profile(self._options.profile_file_prefix, self, self._provider)
        target = target_of(self._provider)
        begin = time.perf_counter_ns()
        self._program = self._source.read()
        self._note("model_loading_uri" if self._source.path is not None else "model_loading_array", begin)
        kept = self._program.compile_options
        if (
            kept is None
            or asked
            or self._program.compile_target is None
            or self._program.compile_target.name() != target
        ):
            saved = {} if kept is None else {name: getattr(kept, name) for name in SAVED_OPTIONS}
            self._program.compile(target, **{**saved, **asked})
        if self._options.optimized_model_filepath:
            self._source.save(self._options.optimized_model_filepath, self._program)
        self._source.release()
        self._overrides = Overrides(self._source, self._program, lambda found: found.compile(target, **asked))
        self._describe()
        self._note("session_initialization", begin)

    def __reduce__(self) -> Any:
        raise error_of(
            TypeError, UnsupportedError, "a session cannot be copied or pickled: make a session of the model's file"
        )

    def _describe(self) -> None:
        """Record names, types and lengths of inputs and results."""
        self._shapes: dict[str, Shape] = {n: s._value for n, s in self._program.get_parameter_shapes().items()}
        names = self._program.get_output_names()
        results = [s._value for s in self._program.get_output_shapes()]
        self._inputs = node_args(list(self._shapes), list(self._shapes.values()))
        self._outputs = node_args(names, results, self._program._origin.output_dims)
        defaults = self._source.defaults
        known = node_args(list(defaults), list(defaults.values()))
        self._overridable = [NodeArg(a.name, a.type, self._source.declared[a.name]) for a in known]
        self._shapes.update(defaults)
        self._required = {i.name for i in self._inputs if not i.type.startswith("optional")}
        self._positions = {name: k for k, name in enumerate(names)}
        self._plain = {n for n, s in zip(names, results) if s.element is None and not s.type.holds_objects}

    def _note(self, event: str, since: int) -> None:
        if self._profile is not None:
            self._profile.note(event, since)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model once.

        Args:
            output_names: names of the results to return, in order; None or empty for all.
            input_feed: an array or `OrtValue` for each input; a list for a sequence, a mapping for a map, None for an
                empty optional. A list for a tensor is converted to the input's element type; integer types truncate
                fractions. Initializers that are also inputs may be overridden.
            run_options: only ``terminate`` has an effect.

        Returns:
            An array for each tensor; lists, mappings or None for sequences, maps and optionals.

        Raises:
            ParameterError: an input or result does not exist, or an input is missing or does not fit.
            Fail: ``run_options.terminate`` is set.
        """
        try:
            return self._run(output_names, input_feed, run_options)
        except MgxError as error:
            raise as_onnxruntime(error, running=True) from error.__cause__

    def _run(
        self,
        output_names: Sequence[str] | None,
        input_feed: object,
        run_options: RunOptions | None,
        memory: Mapping[str, np.ndarray] | None = None,
    ) -> list[object]:
        """See `run`; ``memory`` has arrays for results, by name."""
        if not isinstance(input_feed, Mapping):
            kind = type(input_feed).__name__
            raise ParameterError(f"run needs names of results, or None, then a mapping of inputs to arrays, got {kind}")
        if output_names is not None and (isinstance(output_names, str) or not isinstance(output_names, Collection)):
            raise error_of(TypeError, ParameterError, f"output_names must be a list of names, got {output_names!r}")
        refuse_terminated(run_options)
        feed = self._fed(input_feed)
        if not self._required <= feed.keys():
            missing = [name for name in self._shapes if name in self._required and name not in feed]
            raise ParameterError(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")
        for name in output_names or ():
            if name not in self._positions:
                raise ParameterError(f"no result {name!r}; the model's are: {', '.join(self._positions)}")
        model = self._overrides.program_for(feed) if self._overridable else self._program
        profile = self._profile
        if profile is not None and profile.is_open:
            results = profile.run(model, feed)
        else:
            results = run_into(model, feed, memory) if memory else model.run(feed)
        refuse_terminated(run_options)
        found = [_on_host(result) for result in results]
        return [found[self._positions[name]] for name in output_names] if output_names else found

    def _fed(self, given: Mapping[str, object]) -> dict[str, object]:
        """Return the values of inputs in the form that programs accept."""
        unknown = [name for name in given if name not in self._shapes]
        if unknown:
            known = ", ".join(i.name for i in (*self._inputs, *self._overridable)) or "none"
            raise ParameterError(f"no input {', '.join(map(repr, unknown))}; the model's are: {known}")
        return fed(given, self._shapes)

    @property
    def _has_device(self) -> bool:
        """Return whether the session runs on a device, so that inputs and results may lie in device memory."""
        return self._program._form is not None and self._program._form.on is not None

    def _run_where(self, output_places: Mapping[str, tuple[bool, Any]], input_feed: Mapping[str, Any]) -> list[Any]:
        """Run as `run` does, for `IOBinding`, and return the named results.

        Each pair of ``output_places`` says whether the result stays on the session's device, and has memory for it.
        """
        stays = any(there for there, _ in output_places.values())
        memory = {
            name: to
            for name, (there, to) in output_places.items()
            if to is not None and there == stays and name in self._plain
        }
        if not stays:
            return self._run(list(output_places), input_feed, None, memory)
        feed = self._fed(input_feed)
        model = self._overrides.program_for(feed)
        found = run_into(model, feed, memory, stays) if memory else model._run_there(feed)
        results = ((found[self._positions[name]], there) for name, (there, _) in output_places.items())
        return [result if there else _on_host(result) for result, there in results]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        callback: Callable[[list[Any], Any, str], None],
        user_data: object,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run once in another thread, which then calls ``callback(results, user_data, error)``.

        ``error`` is a message, and results are empty, if the run failed.
        """

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as problem:
                results, error = [], str(problem)
            callback(results, user_data, error)

        threading.Thread(target=work, name="mgx_numba.session").start()

    def io_binding(self) -> IOBinding:
        """Return a new `IOBinding` for this session."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run once with bound inputs and results.

        Raises:
            ParameterError: as in `run`, or the memory bound to a result does not fit.
            Fail: ``run_options.terminate`` is set.
        """
        try:
            refuse_terminated(run_options)
            iobinding.run(self)
            refuse_terminated(run_options)
        except MgxError as error:
            raise as_onnxruntime(error, running=True) from error.__cause__

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run as `run` does, with inputs and results as `OrtValue`.

        Raises:
            UnsupportedError: a result is not a tensor.
        """
        names = output_names or list(self._positions)
        results = self.run(names, input_dict_ort_values, run_options)
        return [ort_value(name, result) for name, result in zip(names, results, strict=True)]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[object] = (),
    ) -> None:
        """Run as `run_with_ort_values` does, with lists of names and tensors.

        Results are copied into the members of ``fetches``, and further results are appended. ``fetch_devices`` has no
        effect: appended results lie on the host.
        """
        found = self.run_with_ort_values(fetch_names, dict(zip(feed_names, feeds, strict=True)), run_options)
        copy_tensors(found[: len(fetches)], fetches[: len(found)])
        fetches.extend(found[len(fetches) :])

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs, in the model's order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the results, in the model's order, with the lengths and symbols that the model declares."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the initializers that are also inputs; a run that does not override them uses the model's values."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata in the model's file."""
        return metadata_of(self._program._origin)

    def get_session_options(self) -> SessionOptions:
        """Return the options that the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return the provider that runs the model, then the CPU, the fallback for operators without a GPU kernel."""
        return list(dict.fromkeys((self._provider, CPU)))

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options that have an effect, by provider."""
        given = {name: str(value) for name, value in self._provider_options.items()}
        return {name: given if name == self._provider else {} for name in self.get_providers()}

    def set_providers(
        self, providers: Sequence[object] | None = None, provider_options: Sequence[Mapping[str, object]] | None = None
    ) -> None:
        """Read the model again and compile it for another provider.

        Args:
            providers: as in the constructor; None for all available providers.
            provider_options: options for each of ``providers``, if ``providers`` has names only.

        Raises:
            MgxError: as in the constructor, or a provider name is unknown; the session is then unchanged.
        """
        before, profile = dict(self.__dict__), self._profile
        try:
            refuse_unknown(providers)
            self._compile(get_available_providers() if providers is None else providers, provider_options)
        except MgxError as error:
            self.__dict__.update(before)
            raise as_onnxruntime(error) from error.__cause__
        if profile is not None:
            profile.end()

    def disable_fallback(self) -> None:
        """Do nothing: a failed run is never repeated on another provider."""

    def enable_fallback(self) -> None:
        """Do nothing, as `disable_fallback`."""

    def end_profiling(self) -> str:
        """Write the profile that ``SessionOptions.enable_profiling`` has recorded, and stop recording.

        Returns:
            Name of the file (JSON for Perfetto and Chrome's tracing page, as in ONNX Runtime); "" without a recording.

        Raises:
            FormatError: the file cannot be written.
        """
        return "" if self._profile is None else self._profile.end()

    def get_profiling_start_time_ns(self) -> int:
        """Return the start of profiling in ns, comparable to `time.monotonic_ns`; 0 if profiling is off."""
        return 0 if self._profile is None else self._profile.start

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the memory of each input that is not bound by an `IOBinding`."""
        return [self._memory() for _ in self._inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the memory of each result that is not bound by an `IOBinding`."""
        return [self._memory() for _ in self._outputs]

    @staticmethod
    def _memory() -> OrtMemoryInfo:
        return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """Return the device that each input is read on."""
        (own,) = (device for device in get_ep_devices() if device.ep_name == self._provider)
        return [own for _ in self._inputs]

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Warn that the options have no effect: a compiled program has no run-time provider options.

        Raises:
            OptionError: ``options`` is empty.
        """
        if not options:
            raise error_of(RuntimeError, OptionError, "set_ep_dynamic_options was given no options")
        warn(f"options of providers have no effect after compilation: {', '.join(options)}", RuntimeWarning)

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: object,
        device_type: str,
        device_id: int = 0,
        vendor_id: int | OrtDeviceVendorId = -1,
    ) -> OrtValue:
        """Return a new tensor, as `OrtValue.ortvalue_from_shape_and_type` does."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, int(vendor_id))

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: launch graphs belong to plans, not to annotation ids."""

    def get_tuning_results(self) -> list[dict[str, object]]:
        """Return an empty list: tuning records belong to the program (``exhaustive_tune``), not to a provider."""
        return []

    def set_tuning_results(self, results: Sequence[Mapping[str, object]], *, error_on_invalid: bool = False) -> None:
        """Ignore the tuning records: see `get_tuning_results`.

        Raises:
            OptionError: ``results`` is not empty, and ``error_on_invalid`` is set.
        """
        if results and error_on_invalid:
            raise as_onnxruntime(OptionError("tuning records of ONNX Runtime's providers are not known here"))

    @property
    def _sess(self) -> InferenceSession:
        """Return the session itself in place of ONNX Runtime's inner session, which has the same methods."""
        return self

    @property
    def _model_path(self) -> str | None:
        """Return the path of the model's file, or None for bytes; an attribute of ONNX Runtime's sessions."""
        return self._source.path


def _on_host(result: Any) -> object:
    """Return a result in host memory: an array or a list of results; maps and None are unchanged."""
    if isinstance(result, np.ndarray):
        return result.view(np.ndarray)
    if isinstance(result, list):
        return [_on_host(member) for member in result]
    if result is None or isinstance(result, dict):
        return result
    return np.asarray(from_gpu(result)).reshape(described(result).lens)


class Overrides:
    """Compiled programs by the set of initializers that a run overrides.

    In each program the overridden initializers are inputs, and all other initializers are constants. A program is
    compiled when a run first overrides its set of initializers.

    Args:
        source: the source from which the model is read again.
        default: the compiled program without overridden initializers.
        compile: function that compiles a program for the session.
    """

    def __init__(self, source: Source, default: program, compile: Callable[[program], object]) -> None:
        self._source = source
        self._compile = compile
        self._programs: dict[frozenset[str], program] = {frozenset(): default}
        self._lock = threading.Lock()

    def program_for(self, feed: Mapping[str, object]) -> program:
        """Return the compiled program for the inputs of a run.

        Raises:
            MgxError: the model cannot be read or compiled with these initializers as inputs.
        """
        names = frozenset(name for name in self._source.defaults if name in feed)
        found = self._programs.get(names)
        if found is None:
            with self._lock:
                if names not in self._programs:
                    made = self._source.read_with_inputs(names)
                    self._compile(made)
                    self._programs[names] = made
                found = self._programs[names]
        return found
