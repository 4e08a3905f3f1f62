"""``program``: a model that can be built, printed, compiled and run, as MIGraphX's Python module has it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import MgxError, OptionError, ParameterError
from ..graph.argument import Argument
from ..graph.program import Program
from ..graph.shape import Shape
from ..targets.base import Compiled, compile_for
from .argument import argument
from .module import module
from .options import CompileOptions, parse_compile_options
from .shape import shape, shape_map
from .target import target

__all__ = ["program"]


class program:
    """A model. ``compile`` prepares it for a target in place; the portable form is kept and is what ``save`` writes."""

    def __init__(self) -> None:
        self._portable = Program()
        self._compiled: Compiled | None = None
        self._signature: dict[str, Shape] = {}
        self._options: CompileOptions | None = None
        self._target: target | None = None
        self._disabled_passes: tuple[str, ...] = ()

    @classmethod
    def wrap(cls, value: Program) -> program:
        """The public form of an IR program."""
        self = cls()
        self._portable = value
        return self

    @property
    def _shown(self) -> Program:
        return self._compiled.program if self._compiled is not None else self._portable

    def get_parameter_names(self) -> list[str]:
        """Names of the inputs, in order of declaration."""
        return list(self._portable.parameter_shapes())

    def get_parameter_shapes(self) -> shape_map:
        """Shapes of the inputs by name (an integer key gives the shape at that position)."""
        return shape_map({name: shape.wrap(s) for name, s in self._portable.parameter_shapes().items()})

    def get_output_shapes(self) -> list[shape]:
        """Shapes of the results."""
        return [shape.wrap(s) for s in self._portable.output_shapes()]

    def get_main_module(self) -> module:
        """The main module (of the compiled form, once compiled)."""
        return module(self._shown.main)

    def create_module(self, name: str) -> module:
        """A new empty submodule."""
        return module(self._portable.create_module(name))

    def is_compiled(self) -> bool:
        """Whether ``compile`` has succeeded."""
        return self._compiled is not None

    def compile(self, t: Any = None, options: Mapping[str, Any] | None = None, /, **keywords: Any) -> program:
        """Compile for a target, in place; returns the program.

        Args:
            t: what ``get_target`` gives, or a target's name; also as keyword ``t``. Default: ``cpu``.
            options: options as a mapping; the same as keywords (``offload_copy=True``, ``fast_math=True``,
                ``exhaustive_tune=False``, ``num_threads=0``, ``memory_reuse=True``, ...).

        Raises:
            OptionError: an unknown option; the known ones are listed.
            CompileError: a pass or code generation failed; the program is as before and still usable.
        """
        if "t" in keywords:
            t = keywords.pop("t")
        if isinstance(options, bool):
            keywords["offload_copy"], options = options, None
        given = {**(options or {}), **keywords}
        if isinstance(t, str):
            from .target import get_target

            t = get_target(t)
        if t is None:
            t = target("cpu")
        if not isinstance(t, target):
            raise OptionError(f"compile needs a target (get_target('cpu')), got {type(t).__name__}")
        parsed = parse_compile_options(given)
        with _progress() as progress:
            compiled = compile_for(
                t.name(),
                self._portable,
                fast_math=parsed.fast_math,
                num_threads=parsed.num_threads,
                memory_reuse=parsed.memory_reuse,
                disabled_passes=(*self._disabled_passes, *parsed.disabled_passes),
                progress=progress,
            )
        self._signature = self._portable.parameter_shapes()
        self._compiled, self._options, self._target = compiled, parsed, t
        return self

    def run(self, params: Mapping[str, Any] | None = None) -> list[argument]:
        """Run on inputs by name and return the results; safe from any number of threads at once.

        Args:
            params: an array, ``argument``, buffer or DLPack exporter for every parameter; other names are ignored.
                Results are new arrays; inputs are read in place.

        Raises:
            ParameterError: a parameter is missing, or has the wrong type or shape; the message says which, what was
                given and what was expected.
        """
        inputs = self._checked(params or {})
        compiled = self._compiled or compile_for("ref", self._portable)
        level = os.environ.get("MIGRAPHX_TRACE_EVAL")
        if level and level != "0":
            results = compiled.trace(inputs, int(level), sys.stdout)
        else:
            results = compiled.run(inputs)
        return [_result(r) for r in results]

    eval = run

    def _checked(self, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """A checked array for every parameter; other names are ignored."""
        shapes = self._signature if self._compiled is not None else self._portable.parameter_shapes()
        for name in shapes:
            if name not in given:
                listed = ", ".join(map(str, given)) or "none"
                raise ParameterError(
                    f"Parameter not found: {name} (given: {listed}; expected: {', '.join(shapes)})"
                )
        return {name: _check(name, given[name], wanted) for name, wanted in shapes.items()}

    def to_py(self) -> str:
        """Python source that builds the program."""
        from ..graph.export import to_py

        return to_py(self._portable)

    def save(self, filename: str | os.PathLike[str], format: str = "msgpack") -> None:
        """Write to a file; the same as ``mgx_numba.save(program, filename, format)``."""
        from .functions import save

        save(self, filename, format)

    def clone(self) -> program:
        """A copy of the portable form, not compiled."""
        copy = program.wrap(self._portable.clone())
        copy._disabled_passes = self._disabled_passes
        return copy

    def sort(self) -> None:
        """Order the instructions topologically."""
        self._portable.sort()

    def print(self) -> None:
        """Print the text form."""
        print(self, end="")

    def kernels(self) -> list[Any]:
        """The kernels of the compiled program: ``name``, Python source (``text``), instructions it came from (``origin``).

        Raises:
            MgxError: the program is not compiled.
        """
        if self._compiled is None:
            raise MgxError("the program is not compiled; kernels exist after compile()")
        return self._compiled.kernels()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, program) and self._shown == other._shown

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return str(self._shown)


def _check(name: str, value: Any, wanted: Shape) -> np.ndarray:
    if type(value) is np.ndarray and value.shape == wanted.lens and value.dtype == wanted.type.numpy and value.ndim:
        return value
    try:
        given = value.unwrap() if isinstance(value, argument) else Argument.from_array(value)
    except (MgxError, TypeError, ValueError) as error:
        raise ParameterError(f"parameter {name}: {error}; expected {wanted}") from None
    array, actual = given.numpy(), given.shape
    if wanted.is_dynamic:
        fits = len(actual.lens) == wanted.ndim and all(
            d.min <= n <= d.max for n, d in zip(actual.lens, wanted.dyn_dims)
        )
    else:
        fits = actual.lens == wanted.lens or (wanted.elements == 1 and actual.elements == 1 and actual.scalar)
    if actual.type is not wanted.type or not fits:
        raise ParameterError(f"Incorrect shape {{{actual}}} for parameter: {name} should be: {{{wanted}}}")
    if not wanted.is_dynamic and array.shape != wanted.lens:
        array = array.reshape(wanted.lens)
    return array


def _result(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_result(v) for v in value]
    return value.view(argument)


def _progress() -> Any:
    from ..targets.progress import compile_progress

    return compile_progress()
