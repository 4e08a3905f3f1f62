"""``program`` of MIGraphX's Python module: a model that can be built, printed, compiled and run."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.shape import Shape
from ..errors import MgxError, ParameterError
from ..interrupts import whole_module
from ..messages import warn
from ..targets.base import Compiled, OpenPlan, OpenPlanned
from ..targets.registry import DEFAULT, REFERENCE
from .argument import argument
from .background import AfterCompilation, PendingCompilation
from .checking import check
from .compiled_form import UNCOMPILED, CompiledForm, reference_form
from .compiling import compiled_form
from .options import CompileOptions
from .portable import FileForm, PortableForm
from .results import result_shape
from .shape import shape, shape_map
from .target import target

if TYPE_CHECKING:
    from ..codegen.tuning.record import TuningRecord
    from ..codegen.tuning.session import Choice
    from ..graph.calibration import Calibration
    from ..graph.origin import Origin
    from ..graph.passes.quantize_8bits import LayerChoice
    from ..graph.program import Program
    from ..graph.rewrite_log import RewriteLog
    from .explaining import Explanation
    from .module import module
    from .traced_run import trace_info


class program:
    """A model. ``compile`` prepares it for a target in place; the portable form is retained, and ``save`` writes it.

    ``copy`` and ``pickle`` make independent programs, compiled as the original is; ``pickle`` retains as much as
    ``save`` does.
    """

    _source = AfterCompilation[PortableForm]()
    _file = AfterCompilation[FileForm]()
    _form = AfterCompilation["CompiledForm | None"]()
    _now_form: CompiledForm | None
    _background: PendingCompilation | None = None

    def __init__(self) -> None:
        self._source, self._file, self._form = PortableForm(), FileForm(), None
        self._layer_choices: list[LayerChoice] = []
        self._told_uncompiled = False  # whether a run has warned that the program is not compiled

    @classmethod
    def wrap(cls, source: Program | PortableForm, file: FileForm | None = None) -> program:
        """Return the public form of an IR program."""
        self = cls()
        self._source = source if isinstance(source, PortableForm) else PortableForm.of(source)
        self._file = file or self._file
        return self

    @property
    def portable(self) -> Program:
        """The portable form: the model as it was read or built, before the passes of a target."""
        return self._source.program

    @portable.setter
    def portable(self, value: Program) -> None:
        self._source.program = value

    @property
    def _origin(self) -> Origin:
        return self._runner()._source.origin

    @property
    def compiled(self) -> Compiled | None:
        """The compiled form, with kernels, plans and observers; None if the program is not compiled."""
        return None if self._form is None else self._form.compiled

    @property
    def compile_target(self) -> target | None:
        """The target that the program was compiled for, here or before it was saved."""
        return self._file.target

    @property
    def compile_options(self) -> CompileOptions | None:
        """The options that the program was compiled with, here or before it was saved."""
        return self._file.options

    @property
    def tuning_records(self) -> list[TuningRecord]:
        """The measured kernel choices that travel with the program."""
        return self._file.records

    @property
    def shown(self) -> Program:
        """The program as ``print`` shows it: after the passes if it is compiled, else the portable form."""
        return self._form.compiled.program if self._form is not None else self.portable

    def _become(self, other: program) -> None:
        """Take over the state of another program, which must not be used afterwards."""
        self.__dict__ = other.__dict__

    def _needed(self, why: str) -> CompiledForm:
        """Return the compiled form, or raise `MgxError` if the program is not compiled, which ends with ``why``."""
        if self._form is None:
            raise MgxError(f"the program is not compiled; {why}")
        return self._form

    def _note_layers(self, choices: list[LayerChoice], calibration: Calibration | None = None) -> None:
        """Record what a quantisation chose for each layer, and its calibration, if it has one."""
        self._layer_choices = choices
        if calibration is not None:
            self._file.calibration = calibration

    def get_parameter_names(self) -> list[str]:
        """Return the names of the inputs, in order of declaration.

        If results stay on a device, the names of the optional output buffers follow: ``main:#output_0`` and so on.
        """
        return [*self._parameters(), *self._buffers()]

    def get_parameter_shapes(self) -> shape_map:
        """Return the shape of each of `get_parameter_names`; keys are names, or integers for positions."""
        return shape_map({name: shape.wrap(s) for name, s in {**self._parameters(), **self._buffers()}.items()})

    def _running(self) -> PendingCompilation | None:
        """Return the compilation in the background that has not ended; its ``stand_in`` computes runs."""
        return now if (now := self._background) is not None and not now.ended() else None

    def _runner(self) -> program:
        return self if (early := self._running()) is None else early.stand_in

    def _parameters(self) -> dict[str, Shape]:
        self = self._runner()
        return self._source.parameters() if self._form is None else self._form.parameters

    def _buffers(self) -> Mapping[str, Shape]:
        """Return the shapes of output buffers; see `CompiledForm.buffers`."""
        self = self._runner()
        return {} if self._form is None else self._form.buffers

    def get_output_shapes(self) -> list[shape]:
        """Return the shapes of the results; for a compiled program row-major, as ``run`` returns the results."""
        self = self._runner()
        if self._form is not None:
            return [shape.wrap(result_shape(s)) for s in self._form.results]
        return [shape.wrap(s) for s in self._source.results()]

    def get_output_names(self) -> list[str]:
        """Return the names of the results, in order: the model's, or ``output_0`` and so on without names."""
        return self._origin.names(len(self.get_output_shapes()))

    def get_main_module(self) -> module:
        """Return the main module (of the compiled form, once compiled)."""
        whole_module("mgx_numba.api.module")
        from .module import module

        return module(self.shown.main)

    def create_module(self, name: str) -> module:
        """Add a new empty submodule and return it.

        Raises:
            ValidationError: ``name`` is not a string, or is taken.
        """
        whole_module("mgx_numba.api.module")
        from .module import module

        return module(self.portable.create_module(name))

    def is_compiled(self) -> bool:
        """Return whether ``compile`` has succeeded."""
        return self._form is not None

    def reshape(self, inputs: Mapping[str, Sequence[object]]) -> program:
        """Narrow the dimensions of dynamic inputs, in place; return the program, which is then uncompiled.

        A program that was parsed with ``map_input_dims`` accepts any lengths up to these for the inputs named there:
        the model's file is parsed again. If the program was compiled, it is compiled again.

        Args:
            inputs: lengths or ranges (``dynamic_dimension``) by input, within the input's present ranges; other inputs
                are unchanged.

        Raises:
            OptionError: an input is unknown, or has another rank, or a dimension is out of range; or the model would
                have to be parsed again, but the program was changed since.
            MgxError: the lengths do not fit the model.
        """
        whole_module("mgx_numba.api.reshaping")
        from .reshaping import reshaped

        self._become(reshaped(self, inputs))
        return self

    def compile(
        self,
        t: Any = None,
        offload_copy: bool | Mapping[str, Any] = True,
        fast_math: bool = True,
        exhaustive_tune: bool = False,
        wait: bool = True,
        **options: Any,
    ) -> program:
        """Compile for a target, in place; return the program.

        Args:
            t: a target from ``get_target``, or its name. Default: ``cpu``.
            offload_copy: copy inputs to the device and results back. A mapping here holds all options, which take
                precedence. If False, inputs and results of a program for ``gpu`` lie on the device: `to_gpu`,
                `device_argument`.
            fast_math: allow transformations and functions that change rounding. A rewritten expression has an error of
                at most 1e-5 of its largest intermediate value in float32, and 4e-3 in float16, against float64. It is
                never zero, infinite or NaN where the written order gives a normal number. Without ``fast_math`` each
                operation is rounded as written.
            exhaustive_tune: measure the kernel choices that have no tuning record, for at most ``tune_budget`` seconds.
                The records are saved with the program, and in ``problem_cache`` or the user's database.
            wait: False compiles for ``cpu`` in a thread and returns at once. Until its end runs are computed by the
                target ``ref`` (NumPy), whose results differ by rounding; ``wait()`` and all calls but runs wait for it.
            options: further options, ``num_threads=0``, ``memory_reuse=True``, ... ``use_fp16`` and so on quantise the
                program first, as ``quantize_fp16`` does. ``plan_cache=False`` disables the plan cache for models read
                from files.

        Raises:
            OptionError: an option is unknown; the message lists the known options.
            CompileError: a pass or code generation failed; the program is unchanged and still usable.
        """
        given = {"fast_math": fast_math, "exhaustive_tune": exhaustive_tune, "wait": wait, **options}
        given.update(offload_copy if isinstance(offload_copy, Mapping) else {"offload_copy": offload_copy})
        form = compiled_form(self._source, self._file, DEFAULT if t is None else t, given, self._quantized)
        if isinstance(form, PendingCompilation):
            form.start(program.wrap(form.portable.clone()).compile(REFERENCE))
            self._background = form
        else:
            self._form = form
        return self

    def wait(self) -> program:
        """Wait for the end of ``compile(..., wait=False)``; return the program.

        Raises:
            CompileError: as ``compile`` does; the program is unchanged and still usable.
        """
        if (background := self._background) is not None:
            try:
                self._form = background.result()
            finally:
                if background.ended():  # an interrupt leaves the thread at work
                    self._background = None
        return self

    def _quantized(self, kinds: Sequence[str], t: str, given: Mapping[str, Any]) -> Program:
        """Return a copy of the portable form, quantised as compile options request, and note what became of layers."""
        whole_module("mgx_numba.api.quantizing")
        from .quantizing import quantize

        changed = self.portable.clone()
        if found := quantize(changed, kinds, t, map(self._checked, given.get("calibration") or ())):
            self._layer_choices, self._file.calibration = found
        return changed

    def _compile_as(self, other: program) -> None:
        """Compile with the target and options of another program, if that has any."""
        if other.compile_options is not None:
            self.compile(other.compile_target, dataclasses.asdict(other.compile_options))

    def run(self, params: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None) -> list[argument]:
        """Run the program on inputs and return the results; safe to call from any number of threads at once.

        An uncompiled program runs on the target ``ref``, with a `RuntimeWarning` once.

        Args:
            params: an array, ``argument``, buffer or DLPack exporter for every parameter; other names are ignored.
                A program for ``gpu`` reads tensors of any library that lie on its device in place. With
                ``offload_copy=False`` all inputs must lie there. Results are then `device_argument`, in new memory or
                in the output buffers passed under their names in `get_parameter_names`.
                Results are new arrays; inputs are read in place. Both have the model's rank. Where the shape is a
                scalar ({1}, {0}), results have no axes, and inputs have no axes or one element. A Python number counts
                as one element and is converted, unless the conversion loses its kind (a float to integers, a number to
                bool).
                Strings are arrays, or nested lists, of ``str`` (or bytes, UTF-8). A sequence is a list of tensors, an
                optional is its value or ``None``, a map is a dictionary, in inputs and in results.
            outputs: memory for results, by name (`get_output_names`): writeable arrays, or tensors on the device of the
                program. The results are written there. Memory of a key or value cache that is also an input is updated
                in place: only the new rows are written. Results are right whatever memory the caller shares.

        Raises:
            ParameterError: a parameter is missing, or has the wrong type or shape; the message names the parameter, the
                value's shape and the expected shape.
        """
        if outputs and self._background is None:
            whole_module("mgx_numba.api.placing")
            from .placing import run_into

            return run_into(self, {} if params is None else params, outputs)
        form = self._now_form
        if form is not None:
            results = form.fast_path(params)
            if results is None and form.general_fast_path is not form.fast_path:
                results = form.general_fast_path(params)
            if results is not None:
                return form.with_shapes(results) if form.shapes_beside else results
        return self._run_checked({} if params is None else params, outputs)

    eval = run

    def run_async(self, params: Mapping[str, object] | None, stream: int, stream_name: str) -> list[argument]:
        """Submit a run to a device stream without waiting for it.

        On the target ``gpu`` with ``offload_copy=False`` this returns at once, and work submitted to the stream later
        sees the results. Inputs and output buffers must stay valid until then. An index out of range is reported by a
        later run. Results that go to the host (``offload_copy``, fallback steps) are complete on return. On ``ref`` and
        ``cpu``, which have no streams, results are complete on return, whatever the stream has pending.

        Args:
            params: as for ``run``.
            stream: handle of a CUDA stream (``torch.cuda.Stream().cuda_stream``); 0 for the default stream.
            stream_name: its type: ``cudaStream_t``, or ``ihipStream_t`` as in MIGraphX.

        Raises:
            ParameterError: as in ``run``; or ``stream`` is not an integer from 0 on, or ``stream_name`` not a string.
        """
        if not isinstance(stream, int) or isinstance(stream, bool) or stream < 0:
            raise ParameterError(f"run_async: stream must be an integer from 0 on, got {stream!r}")
        if not isinstance(stream_name, str):
            raise ParameterError(f"run_async: stream_name must be a string, got {stream_name!r}")
        form = self._form
        if form is None:
            return self.run(params)
        results = form.in_stream(params, stream)
        if results is not None:
            return form.with_shapes(results)
        if form.on is None or form.level:
            return self.run(params)
        return form.shown(form.on.run_in(self._checked({} if params is None else params, stream), stream))

    def run_trace(self, params: Mapping[str, object], callback: Callable[[trace_info], object]) -> list[argument]:
        """Run step by step, call ``callback`` with a `trace_info` after each instruction, and return the results.

        Raises:
            ParameterError: as in ``run``; or ``callback`` is no function. What it raises ends the run.
        """
        whole_module("mgx_numba.api.traced_run")
        from .traced_run import run_trace

        return run_trace(self._form_to_run(), self._checked(params), callback)

    def _run_there(self, params: Mapping[str, object]) -> list[object]:
        """Run a program for a device and leave the results there, whatever ``offload_copy`` is."""
        form = self._form
        assert form is not None and form.on is not None
        return form.shown(form.on.run_there(self._checked(params)))

    def _run_checked(self, params: Any, outputs: Mapping[str, object] | None = None) -> list[argument]:
        """Check the arguments of ``run``, then run; the general path."""
        if (early := self._running()) is not None:
            return early.run(params, outputs)
        if self._background is not None:
            return self.wait().run(params, outputs)
        inputs = self._checked(params)
        form = self._form_to_run()
        run = form.compiled
        return form.shown(run.trace(inputs, form.level, sys.stdout) if form.level else run.run(inputs))

    def _form_to_run(self) -> CompiledForm:
        """Return the compiled form; that for the target ``ref`` of a program that is not compiled, with a warning."""
        if self._form is not None:
            return self._form
        if not self._told_uncompiled:
            self._told_uncompiled = True
            warn(UNCOMPILED, RuntimeWarning)
        return reference_form(self.portable)

    def _checked(self, given: Mapping[str, object], stream: int | None = None) -> dict[str, Any]:
        """Return a checked array or device tensor for every parameter; other names are ignored.

        Device tensors are complete for work submitted to ``stream``.
        """
        if type(given) is not dict and not isinstance(given, Mapping):
            raise ParameterError(f"run needs a mapping of parameter names to arrays, got {type(given).__name__}")
        shapes, inputs = self._parameters(), dict[str, object]()
        for name, wanted in {**shapes, **self._buffers()}.items():
            if name in given:
                inputs[name] = check(name, given[name], wanted, self._form, self._open_dims, stream)
            elif name in shapes:
                listed = ", ".join(map(str, given)) or "none"
                raise ParameterError(f"Parameter not found: {name} (given: {listed}; expected: {', '.join(shapes)})")
        return inputs

    def _open_dims(self, name: str) -> Mapping[int, str]:
        """Return the symbols of a parameter's axes whose lengths are known only by default; see `Program.open_dims`."""
        return self.portable.open_dims.get(name, {})

    def to_py(self) -> str:
        """Return Python source that builds the program."""
        whole_module("mgx_numba.graph.export")
        from ..graph.export import to_py

        return to_py(self.portable)

    def save(
        self,
        filename: str | os.PathLike[str],
        format: str = "msgpack",
        embed_objects: bool = False,
        embed_library: bool = False,
    ) -> None:
        """Write the program to a file, as ``mgx_numba.save(program, filename, ...)`` does."""
        from .saving import save

        save(self, filename, format, embed_objects, embed_library)

    def export_library(
        self,
        folder: str | os.PathLike[str],
        name: str = "model",
        embed_weights: bool = False,
        link: bool | None = None,
        c_interface: bool = False,
    ) -> Path:
        """Write the compiled program as a shared library for C and C++ that runs without Python: see docs/cpp.md.

        Args:
            folder: receives ``lib/lib<name>.so`` with its weights and CMake package file, ``include`` and ``example``.
            name: an identifier of C.
            embed_weights: put the weights inside the library, not into a file next to it.
            link: None links with the system's C compiler if there is one, and otherwise leaves object files, which
                CMake links in the user's build. False always leaves object files; True requires a compiler.
            c_interface: add the functions of ``migraphx.h``, for C programs without other libraries (C++ compiler).

        Returns:
            Path of the library, or of the folder of object files.

        Raises:
            MgxError: the program is not compiled.
            UnsupportedError: the program has steps that run in Python (the message names each, with its reason), or
                its first run makes a plan; or the system is not Linux on x86-64.
            OptionError: the name is not an identifier, the target is not ``cpu``, or the weights are too large to
                embed.
            CompileError: ``link`` is True and there is no compiler, or the compiler fails.
            FormatError: a file cannot be written.
        """
        from ..runtime.library_form import LibraryForm
        from .saving import export_library

        return export_library(self, folder, name, LibraryForm(embed_weights, link, c_interface))

    def clone(self) -> program:
        """Return an uncompiled copy of the portable form."""
        result = program.wrap(self.portable.clone(), self._file.copy())
        result._layer_choices = self._layer_choices
        result._source.reread = copy.copy(self._source.reread)
        return result

    def __copy__(self, memo: object = None) -> program:
        result = self.clone()
        result._compile_as(self)
        return result

    __deepcopy__ = __copy__

    def __reduce__(self) -> tuple[object, ...]:
        """Return the reader and the bytes of ``save_buffer``; the device number is kept."""
        from .. import load_buffer, save_buffer

        device_id = 0 if self.compile_options is None else self.compile_options.device_id
        return functools.partial(load_buffer, device_id=device_id), (save_buffer(self),)

    def sort(self) -> None:
        """Sort the instructions topologically."""
        self.portable.sort()

    def print(self) -> None:
        """Print the program's text form."""
        print(self, end="")

    def kernels(self) -> list[Any]:
        """Return the kernels of the compiled program.

        Each has a ``name``, its Python source ``text``, and ``origin``, the instructions that it computes.

        Raises:
            MgxError: the program is not compiled.
        """
        return self._needed("kernels exist after compile()").compiled.kernels()

    def open_plans(self) -> list[OpenPlan]:
        """Return the symbolic plans of a compiled program with dynamic inputs.

        Printed, a plan shows its symbols, its guards, and the steps that only some lengths execute. The list is empty
        if lengths are static, or if the target makes a plan for each set of lengths.

        Raises:
            MgxError: the program is not compiled.
        """
        compiled = self._needed("plans exist after compile()").compiled
        return compiled.open_plans() if isinstance(compiled, OpenPlanned) else []

    def rewrite_log(self) -> RewriteLog:
        """Return the log of rewrites by passes and lowering.

        ``applied`` counts rules by name. ``refusals()`` lists refused rewrites, each with ``rule``, ``op``, ``shape``
        and ``reason``; the reasons of fallback steps are included.

        Raises:
            MgxError: the program is not compiled.
        """
        return self._needed("compile() rewrites it").compiled.rewrite_log()

    def tuning_choices(self) -> list[Choice]:
        """Return the solver of each matrix product and convolution of the compiled program, in order of first use.

        Each has ``problem``, ``solver``, ``configuration``, the ``record`` that decided and its ``origin``, and
        ``miss``: why there was no record of this problem and machine, with the fields that differ.

        Raises:
            MgxError: the program is not compiled.
        """
        tuning = self._needed("kernels are chosen by compile()").tuning
        return tuning.choices() if tuning is not None else []

    def explain(self, name: str, params: Mapping[str, object] | None = None, iterations: int = 0) -> list[Explanation]:
        """Return how an instruction or a node of the model was compiled, and why.

        Args:
            name: a node of the model (read with ``use_debug_symbols=True``), an instruction as ``print`` shows it
                (``@12``, or its line), or an operator, which matches all its instructions.
            params: inputs as for ``run``. Needed only to measure, or if inputs are dynamic or lengths depend on data.
            iterations: number of measured runs, from which the fraction of the machine's limit is computed.

        Returns:
            One explanation for each instruction; its ``str`` is a readable text.

        Raises:
            MgxError: the program is not compiled.
            OptionError: the name is unknown, or ``params`` is needed.
        """
        whole_module("mgx_numba.api.explaining")
        from .explaining import explanations

        form = self._needed("explain() tells of kernels, which compile() chooses")
        checked = None if params is None else functools.partial(self._checked, params)
        return explanations(form, self._file, self.portable, name, checked, iterations)

    def quantization_choices(self) -> list[LayerChoice]:
        """Return how the last quantisation to 8 bits, or to 16 with an ``accuracy``, treated each contraction.

        Each has ``layer``, ``choice``, ``parameters``, ``error`` and ``weight_error``, and prints range and errors. The
        choices are not saved to files.
        """
        return list(self._layer_choices)

    def calibration(self) -> Calibration | None:
        """Return the calibration of the quantisation to 8 bits, also if read from a file; None if not quantised."""
        return self._file.calibration

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Raise `AttributeError` for an unknown attribute, with an alternative."""
            if name.startswith("_"):
                return self.__getattribute__(name)
            from .missing import missing_method

            raise AttributeError(missing_method(name, dir(type(self))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, program) and self.shown == other.shown

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        """Return a one-line summary; `print` shows the instructions."""
        count = sum(not ins.name.startswith("@") for module in self.shown.reachable_modules() for ins in module)
        target = "not compiled" if self._form is None else f"compiled for {self._form.target.name()}"
        names = ", ".join(self.get_parameter_names())
        return f"<program of {count} instructions, inputs {names or 'none'}, {target}; print() shows it>"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a summary of one line that unfolds to the instructions."""
        from html import escape

        return f"<details><summary>{escape(repr(self))}</summary><pre>{escape(str(self))}</pre></details>"

    def __str__(self) -> str:
        reasons = self._form.compiled.fallback_reasons() if self._form is not None else {}
        if not reasons:
            return str(self.shown)
        from ..graph.printer import print_program

        return print_program(self.shown, {line: f"on the host: {reason}" for line, reason in reasons.items()})
