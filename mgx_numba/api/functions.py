"""Functions of MIGraphX's Python module that read models and optimise programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.shape import DynamicDimension
from ..environment import environment_flag
from ..errors import OptionError, ParseError
from ..interrupts import whole_module
from ..messages import recorded
from ..targets.registry import DEFAULT
from .changing import change
from .file_kinds import taken_for
from .options import parse_optimize_options, requested_quantizations
from .parsing import onnx_parser, parsed_onnx, parsed_tf
from .program import program
from .shape import dynamic_dimension, unwrap_dimension

if TYPE_CHECKING:
    from ..frontends.onnx.check import Finding
    from ..graph.program import Program


def parse_onnx(
    filename: str | os.PathLike[str] | Any,
    default_dim_value: int = 0,
    default_dyn_dim_value: dynamic_dimension | None = None,
    dim_params: Mapping[str, object] | None = None,
    map_input_dims: Mapping[str, Sequence[int]] | None = None,
    map_dyn_input_dims: Mapping[str, Sequence[object]] | None = None,
    skip_unknown_operators: bool = False,
    print_program_on_error: bool = False,
    max_loop_iterations: int = 10,
    limit_max_iterations: int = 65535,
    use_debug_symbols: bool = False,
    strict: bool = False,
    external_data_path: str = "",
) -> program:
    """Read an ONNX model from a file (or a ``ModelProto``).

    A deviation from the ONNX specification whose meaning is unambiguous is accepted, with a warning that names the
    node. `check_onnx` lists such deviations, and everything for which a model is refused.

    Args:
        filename: path of the model.
        default_dim_value: length of dimensions without a value; 0 leaves them dynamic without bounds.
        default_dyn_dim_value: range of dimensions without a value, instead of a length.
        dim_params: length or range by symbolic name.
        map_input_dims: lengths by input name, also the longest that ``program.reshape`` may give them later. For a
            ``ModelProto``, ``reshape`` needs the variable ``MIGRAPHX_DYNAMIC_SHAPE``: the program then refers to it.
        map_dyn_input_dims: ranges by input name.
        skip_unknown_operators: represent unknown operators as ``unknown:`` instructions instead of failing.
        print_program_on_error: on an error, print the part of the program that was parsed.
        max_loop_iterations: no effect. MIGraphX sizes scan outputs of loops with unknown trip count by it; here scan
            outputs have their exact length.
        limit_max_iterations: largest trip count.
        use_debug_symbols: store the names of ONNX nodes with the instructions.
        strict: refuse deviations that would be accepted with a warning.
        external_data_path: folder of external data (by default the model's own).

    Raises:
        ParseError: the file is malformed; the message names the node.
        OptionError: options contradict each other.
    """
    given = {name: value for name, value in locals().items() if name != "filename"}  # the parameters are the options
    options = _onnx_options(given)
    with taken_for(filename, "onnx"):
        found = parsed_onnx(filename, options)
        # A ModelProto would stay in memory for `reshape`: only MIGraphX's variable asks for that.
        if map_input_dims and (isinstance(filename, (str, os.PathLike)) or environment_flag("MIGRAPHX_DYNAMIC_SHAPE")):
            model = os.path.abspath(filename) if isinstance(filename, (str, os.PathLike)) else filename

            def read(lengths: Mapping[str, Sequence[int]]) -> Program:
                with recorded(quiet=True):
                    return onnx_parser({**options, "map_input_dims": dict(lengths)})(model, None).program

            from .reshaping import Reread

            found._source.reread = Reread(read, found._source.parameters(), map_input_dims)
        return found


def from_torch(
    model: object,
    example_inputs: object = None,
    dynamic_shapes: object = None,
    *,
    decompositions: Mapping[object, object] | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> program:
    """Translate a PyTorch model, exported by ``torch.export``.

    The program's inputs are named as the parameters of the model's ``forward``. Its constants use the memory of the
    model's parameters, which must not change until it is compiled.

    Args:
        model: an ``nn.Module`` in evaluation mode, or an ``ExportedProgram``.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of arguments by name.
        dynamic_shapes: open lengths, as ``torch.export.export`` takes them.
        decompositions: decompositions by operator that come before PyTorch's own.
        weights: a safetensors file, or a folder of them, with the parameters of a model without memory (on the device
            ``meta``, or exported with fake tensors).

    Raises:
        UnsupportedError: an operator is not supported; the message names node, operator and source line.
        OptionError: arguments contradict each other, or a parameter has no elements.
        FormatError: ``weights`` is no safetensors file.
    """
    whole_module("mgx_numba.frontends.torch.export")
    from ..frontends.torch.export import from_module

    return program.wrap(from_module(model, example_inputs, dynamic_shapes, decompositions, weights))


def parse_onnx_buffer(
    filename: bytes | bytearray | memoryview,
    default_dim_value: int = 0,
    default_dyn_dim_value: dynamic_dimension | None = None,
    map_input_dims: Mapping[str, Sequence[int]] | None = None,
    map_dyn_input_dims: Mapping[str, Sequence[object]] | None = None,
    skip_unknown_operators: bool = False,
    print_program_on_error: bool = False,
    external_data_path: str = "",
    use_debug_symbols: bool = False,
    dim_params: Mapping[str, object] | None = None,
    strict: bool = False,
) -> program:
    """Read an ONNX model from bytes, the argument ``filename`` as in MIGraphX; all else as in ``parse_onnx``."""
    given = {name: value for name, value in locals().items() if name != "filename"}  # the parameters are the options
    if not isinstance(filename, (bytes, bytearray, memoryview)):
        raise ParseError(f"parse_onnx_buffer needs the bytes of a model, got {type(filename).__name__}")
    return parsed_onnx(bytes(filename), _onnx_options(given))


def check_onnx(
    filename: str | os.PathLike[str] | Any,
    default_dim_value: int = 0,
    dim_params: Mapping[str, object] | None = None,
    map_input_dims: Mapping[str, Sequence[int]] | None = None,
    map_dyn_input_dims: Mapping[str, Sequence[object]] | None = None,
    external_data_path: str = "",
    strict: bool = False,
) -> list[Finding]:
    """Return all faults of an ONNX model at once; an empty list if it has none.

    Args:
        filename: path of the model, its bytes, or a ``ModelProto``.
        default_dim_value: as in `parse_onnx`.
        dim_params: as in `parse_onnx`.
        map_input_dims: as in `parse_onnx`.
        map_dyn_input_dims: as in `parse_onnx`.
        external_data_path: folder of external data (by default the model's own if ``filename`` is a path).
        strict: as in `parse_onnx`.

    Returns:
        The faults for which `parse_onnx` would refuse the model, each with its node, operator, domain, operator set and
        the supported alternatives; then the faults accepted with a warning (``accepted`` is True).

    Raises:
        OptionError: options contradict each other.
    """
    given = {name: value for name, value in locals().items() if name != "filename"}  # the parameters are the options
    whole_module("mgx_numba.frontends.onnx.check")
    from ..frontends.onnx.check import check
    from ..frontends.onnx.options import ParseOptions

    return check(filename, ParseOptions(**_onnx_options(given)))


def _onnx_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `parse_onnx` but the model as the frontend takes them: lengths and ranges by name."""
    ranges = _by_name("map_dyn_input_dims", given["map_dyn_input_dims"])
    for name, dims in ranges.items():
        ranges[name] = [unwrap_dimension(d) for d in dims] if isinstance(dims, Iterable) else dims
    options = {
        **given,
        "dim_params": {k: unwrap_dimension(v) for k, v in _by_name("dim_params", given["dim_params"]).items()},
        "map_input_dims": _by_name("map_input_dims", given["map_input_dims"]),
        "map_dyn_input_dims": ranges,
    }
    usual = given.get("default_dyn_dim_value")
    if usual is not None:
        n = unwrap_dimension(usual)
        options["default_dyn_dim_value"] = n if isinstance(n, DynamicDimension) else DynamicDimension(n, n)
    return options


def _by_name(option: str, given: object) -> dict[str, Any]:
    """Return an option that maps names to values; None maps none.

    Raises:
        OptionError: it is no mapping.
    """
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(f"{option} must be a mapping by name, got {given!r}")
    return dict(given or {})


def get_onnx_operators() -> list[str]:
    """Return the names of the supported ONNX operators, sorted."""
    whole_module("mgx_numba.frontends.onnx.parser")
    from ..frontends.onnx import get_onnx_operators as operators

    return operators()


def parse_tf(
    filename: str | os.PathLike[str],
    is_nhwc: bool = True,
    batch_size: int = 1,
    map_input_dims: Mapping[str, Sequence[int]] | None = None,
    output_names: Sequence[str] | None = None,
) -> program:
    """Read a frozen TensorFlow model from a GraphDef (``.pb``) or a SavedModel's folder.

    As in MIGraphX, with ``is_nhwc`` the program takes and returns four-dimensional tensors as [n, c, h, w] where the
    model has [n, h, w, c].

    Args:
        filename: path of the file or folder.
        is_nhwc: convert four-dimensional inputs and results to channels first.
        batch_size: length of dimensions that the model leaves open.
        map_input_dims: lengths by input name, in the program's layout.
        output_names: nodes (``name`` or ``name:1``) that give the results, in place of the model's.

    Raises:
        ParseError: the file is malformed; the message names the node.
        UnsupportedError: the model has an unsupported operator or type, or variables.
        OptionError: an option names an input or a result that does not exist.
    """
    given = {name: value for name, value in locals().items() if name != "filename"}  # the parameters are the options
    if not isinstance(filename, (str, os.PathLike)):
        raise ParseError(f"parse_tf needs the path of a model, got {type(filename).__name__}")
    with taken_for(filename, "tf"):
        return _parse_tf(filename, given)


def parse_tf_buffer(
    filename: bytes | bytearray | memoryview,
    is_nhwc: bool = True,
    batch_size: int = 1,
    map_input_dims: Mapping[str, Sequence[int]] | None = None,
    output_names: Sequence[str] | None = None,
) -> program:
    """Read a frozen TensorFlow model from the bytes of its file; otherwise ``parse_tf``."""
    given = {name: value for name, value in locals().items() if name != "filename"}  # the parameters are the options
    if not isinstance(filename, (bytes, bytearray, memoryview)):
        raise ParseError(f"parse_tf_buffer needs the bytes of a model, got {type(filename).__name__}")
    return _parse_tf(bytes(filename), given)


def _parse_tf(source: str | os.PathLike[str] | bytes, given: Mapping[str, Any]) -> program:
    """Parse a TensorFlow model; ``given`` are the arguments of `parse_tf` but the model."""
    names = given["output_names"]
    dims = _by_name("map_input_dims", given["map_input_dims"])
    return parsed_tf(
        source, **{**given, "map_input_dims": dims, "output_names": names if names is None else list(names)}
    )


def get_tf_operators() -> list[str]:
    """Return the names of the supported TensorFlow operators, sorted."""
    whole_module("mgx_numba.frontends.tf.parser")
    from ..frontends.tf import get_tf_operators as operators

    return operators()


def optimize(model: program, options: Mapping[str, Any] | None = None) -> program:
    """Apply target-independent optimisations to a program, in place, and return it.

    A compiled program is recompiled for its target, with its options.

    Args:
        options: ``level`` or ``aggressiveness``: 0 (nothing), 1 (default) or 2 (also changes of rounding).
            ``fusion_rules``, which a later ``compile`` honours. ``use_fp16`` and so on, as for ``compile``.

    Raises:
        OptionError: an option, level or rule is unknown, or ``model`` is not a program.
        CompileError: recompiling failed; the program is unchanged.
    """
    if not isinstance(model, program):
        raise OptionError(f"a program is needed, got {type(model).__name__}")
    whole_module("mgx_numba.graph.passes")
    from ..graph.passes import Options, run_passes

    level, disabled = parse_optimize_options(options or {})
    quantizations = requested_quantizations(options or {})
    if not level and not disabled and not quantizations:
        return model

    def changed(portable: Program) -> None:
        if level:
            names = ["normalize_ops", "eliminate_identity", "optimize_module", "dead_code_elimination"]
            run_passes(portable, names, Options(fast_math=level > 1))
        if quantizations:
            t = DEFAULT if model.compile_target is None else model.compile_target.name()
            batches = map(model._checked, (options or {}).get("calibration") or ())
            from .quantizing import quantize

            quantize(portable, quantizations, t, batches)

    return change(model, changed, disabled=disabled)
