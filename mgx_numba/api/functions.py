"""The module-level functions of MIGraphX's Python module."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.shape import DynamicDimension
from ..errors import OptionError, ParseError
from ..interrupts import whole_module
from .options import CompileOptions, parse_compile_options, parse_optimize_options
from .program import program
from .shape import dynamic_dimension, unwrap_dimension
from .target import get_target, target

__all__ = [
    "get_onnx_operators",
    "load",
    "load_buffer",
    "optimize",
    "parse_onnx",
    "parse_onnx_buffer",
    "save",
    "save_buffer",
]


def parse_onnx(
    filename: str | os.PathLike[str] | Any,
    default_dim_value: int = 0,
    default_dyn_dim_value: dynamic_dimension | None = None,
    dim_params: Mapping[str, Any] | None = None,
    map_input_dims: Mapping[str, Sequence[int]] | None = None,
    map_dyn_input_dims: Mapping[str, Sequence[Any]] | None = None,
    skip_unknown_operators: bool = False,
    print_program_on_error: bool = False,
    max_loop_iterations: int = 10,
    limit_max_iterations: int = 65535,
    use_debug_symbols: bool = False,
) -> program:
    """Read an ONNX model from a file (or a ``ModelProto``).

    Args:
        filename: path of the model; external data is looked for beside it.
        default_dim_value: length of dimensions without a value (1 if 0).
        default_dyn_dim_value: range of those dimensions instead.
        dim_params: length or range by symbolic name.
        map_input_dims: lengths by input name.
        map_dyn_input_dims: ranges by input name.
        skip_unknown_operators: represent unknown operators as ``unknown:`` instructions instead of failing.
        print_program_on_error: print what was parsed before an error.
        max_loop_iterations: trip count of loops whose count is not known.
        limit_max_iterations: largest trip count.
        use_debug_symbols: keep the names of ONNX nodes with the instructions.

    Raises:
        ParseError: the file is malformed; the message names the node.
        OptionError: contradictory options.
    """
    whole_module("mgx_numba.frontends.onnx.parser")
    from ..frontends.onnx import parse_onnx as parse

    return program.wrap(
        parse(
            filename,
            default_dim_value=default_dim_value,
            default_dyn_dim_value=_range(default_dyn_dim_value),
            dim_params={k: unwrap_dimension(v) for k, v in (dim_params or {}).items()},
            map_input_dims=dict(map_input_dims or {}),
            map_dyn_input_dims=_dynamic_dims(map_dyn_input_dims),
            skip_unknown_operators=skip_unknown_operators,
            print_program_on_error=print_program_on_error,
            max_loop_iterations=max_loop_iterations,
            limit_max_iterations=limit_max_iterations,
            use_debug_symbols=use_debug_symbols,
        )
    )


def parse_onnx_buffer(
    filename: bytes | bytearray | memoryview,
    default_dim_value: int = 0,
    default_dyn_dim_value: dynamic_dimension | None = None,
    map_input_dims: Mapping[str, Sequence[int]] | None = None,
    map_dyn_input_dims: Mapping[str, Sequence[Any]] | None = None,
    skip_unknown_operators: bool = False,
    print_program_on_error: bool = False,
    external_data_path: str = "",
    use_debug_symbols: bool = False,
) -> program:
    """Read an ONNX model from bytes, which MIGraphX calls ``filename`` too; otherwise ``parse_onnx``."""
    whole_module("mgx_numba.frontends.onnx.parser")
    from ..frontends.onnx import parse_onnx as parse

    if not isinstance(filename, (bytes, bytearray, memoryview)):
        raise ParseError(f"parse_onnx_buffer needs the bytes of a model, got {type(filename).__name__}")
    return program.wrap(
        parse(
            bytes(filename),
            default_dim_value=default_dim_value,
            default_dyn_dim_value=_range(default_dyn_dim_value),
            map_input_dims=dict(map_input_dims or {}),
            map_dyn_input_dims=_dynamic_dims(map_dyn_input_dims),
            skip_unknown_operators=skip_unknown_operators,
            print_program_on_error=print_program_on_error,
            external_data_path=external_data_path,
            use_debug_symbols=use_debug_symbols,
        )
    )


def _range(given: Any) -> DynamicDimension | None:
    if given is None:
        return None
    value = unwrap_dimension(given)
    return value if isinstance(value, DynamicDimension) else DynamicDimension(value, value)


def _dynamic_dims(given: Mapping[str, Sequence[Any]] | None) -> dict[str, list[Any]]:
    return {name: [unwrap_dimension(d) for d in dims] for name, dims in (given or {}).items()}


def get_onnx_operators() -> list[str]:
    """Names of the supported ONNX operators, sorted."""
    whole_module("mgx_numba.frontends.onnx.parser")
    from ..frontends.onnx import get_onnx_operators as operators

    return operators()


def optimize(model: program, options: Mapping[str, Any] | None = None) -> program:
    """Apply target-independent optimisations to a program, in place, and return it.

    A program that is compiled already is compiled again for its target, with its options.

    Args:
        options: ``level`` or ``aggressiveness`` 0 (nothing), 1 (default) or 2 (also changes of rounding), and
            ``fusion_rules``, which ``compile`` honours later.

    Raises:
        OptionError: unknown option, level or rule.
        CompileError: compiling again failed; the program is as before.
    """
    whole_module("mgx_numba.graph.passes")
    from ..graph.passes import Options, run_passes

    level, disabled = parse_optimize_options(options or {})
    if not level and not disabled:
        return model
    changed = model.clone() if model.is_compiled() else model
    if level:
        names = ["normalize_ops", "eliminate_identity", "optimize_module", "dead_code_elimination"]
        run_passes(changed._portable, names, Options(fast_math=level > 1))
    changed._disabled_passes = tuple(dict.fromkeys((*model._disabled_passes, *disabled)))
    if model._options is not None and changed is not model:
        changed.compile(model._target, dataclasses.asdict(model._options))
        model._become(changed)
    return model


def save(p: program, filename: str | os.PathLike[str], format: str = "msgpack", embed_objects: bool = False) -> None:
    """Write a program to a file: the portable form, its weights and how it was compiled.

    Args:
        format: ``msgpack`` or ``json``.
        embed_objects: add the machine code of the compiled program, for readers that pass ``trust_objects=True``.

    Raises:
        OptionError: unknown format; machine code in JSON, or of a program that is not compiled for ``cpu``.
    """
    whole_module("mgx_numba.graph.mxr")
    from ..graph.mxr import save_program

    objects = machine_code(p) if embed_objects else None
    save_program(p._portable, filename, _format(format), saved_options(p), objects)
    if format == "msgpack" and p.is_compiled() and os.path.isfile(filename):  # a pipe's content is gone
        from ..graph.content import open_content
        from .saved_plans import keep

        keep(open_content(filename), p, embed_objects)


def load(filename: str | os.PathLike[str], format: str = "msgpack", trust_objects: bool = False) -> program:
    """Read what ``save`` wrote; a program that was saved compiled is compiled for this machine.

    The plan of a compiled program is kept in the cache folder; if this file has one there, it is used, and the file is
    decoded when its program is asked for, which must not have changed by then. Otherwise it is read as a whole and may
    change as soon as this returns.

    Args:
        format: ``msgpack`` or ``json``.
        trust_objects: use the machine code in the file where CPU, features and versions match. Whoever wrote the file
            can then run anything in this process. Without it that code is passed over and kernels are built here.

    Raises:
        FormatError: the file is malformed, or becomes shorter while it is read.
        OptionError: unknown format.
    """
    if _format(format) == "json":
        whole_module("mgx_numba.graph.mxr")
        from ..graph.mxr import load_program

        return restore(*load_program(filename, format, trust_objects))
    whole_module("mgx_numba.api.saved_plans")
    from ..graph.content import open_content
    from .saved_plans import find, keep

    content = open_content(filename)

    def decoded() -> Any:
        whole_module("mgx_numba.graph.mxr")
        from ..graph.mxr import load_content

        return load_content(content.whole(), filename, with_objects=trust_objects)

    found = find(content, decoded, trust_objects)
    if found is None:
        found = restore(*decoded())
        keep(content, found, trust_objects)
    return found


def save_buffer(p: program, embed_objects: bool = False) -> bytes:
    """What ``save`` would write (msgpack), as bytes."""
    whole_module("mgx_numba.graph.mxr")
    from ..graph.mxr import save_buffer as to_bytes

    return to_bytes(p._portable, saved_options(p), objects=machine_code(p) if embed_objects else None)


def load_buffer(b: bytes, trust_objects: bool = False) -> program:
    """A program from what ``save_buffer`` gave; ``trust_objects`` is that of ``load``."""
    whole_module("mgx_numba.graph.mxr")
    from ..graph.mxr import load_buffer as from_bytes

    return restore(*from_bytes(b, trust_objects))


def _format(name: str) -> str:
    if name not in ("msgpack", "json"):
        raise OptionError(f"Unknown format: {name}; known: msgpack, json")
    return name


_SAVED_OPTIONS = ("fast_math", "num_threads", "memory_reuse", "disabled_passes")


def saved_options(p: program) -> dict[str, Any]:
    """What `save` keeps beside a program: how it was compiled, and the tuning records it went by."""
    extra: dict[str, Any] = {
        "disabled_passes": list(p._disabled_passes),
        "tuning": [record.to_json() for record in p._records],
    }
    if p._target is not None and p._options is not None:
        extra["compiled"] = {
            "target": p._target.name(),
            **{name: getattr(p._options, name) for name in _SAVED_OPTIONS},
            "disabled_passes": list(p._options.disabled_passes),
        }
    return extra


def machine_code(p: program) -> dict[str, Any]:
    """What `save` with ``embed_objects`` adds.

    Raises:
        OptionError: the program is not compiled for ``cpu``.
    """
    if p._compiled is None:
        raise OptionError("embed_objects: a program that is not compiled has no machine code")
    return p._compiled.machine_code()


def restore(value: Any, extra: Mapping[str, Any]) -> program:
    """The program that a file held: its portable form and what was kept beside it; compiled if it was.

    Raises:
        FormatError: what was kept beside it is malformed.
    """
    from ..errors import FormatError, MgxError
    from ..graph.machine_code import OBJECTS

    result = program.wrap(value)
    if OBJECTS in extra:
        from ..codegen.embedding import EmbeddedStore

        result._store = EmbeddedStore(extra[OBJECTS])
    try:
        result._disabled_passes = tuple(str(n) for n in extra.get("disabled_passes", ()))
        if extra.get("tuning"):
            from ..codegen.tuning.files import records_from

            result._records = records_from(extra["tuning"])
        compiled = extra.get("compiled")
        if compiled:
            result.compile(get_target(compiled["target"]), _saved_compile_options(compiled))
    except (AttributeError, KeyError, TypeError, OptionError) as error:
        raise FormatError(f"compile options in the file are malformed: {error}") from error
    except MgxError:
        raise
    return result


def _saved_compile_options(compiled: Mapping[str, Any]) -> dict[str, Any]:
    """The options among what `saved_options` kept of a compilation.

    Raises:
        FormatError: others than those are there: a file must not make its reader measure, or read and write files of
            tuning records.
    """
    from ..errors import FormatError

    options = {k: v for k, v in compiled.items() if k != "target"}
    unknown = options.keys() - set(_SAVED_OPTIONS)
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise FormatError(f"compile options in the file are malformed: unknown {names}")
    return options


def compile_options_from(compiled: Mapping[str, Any]) -> tuple[CompileOptions, target]:
    """Options and target of the compilation that `saved_options` kept."""
    chosen = get_target(compiled["target"])
    return parse_compile_options(_saved_compile_options(compiled), chosen.name()), chosen
