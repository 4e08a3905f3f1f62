"""Compile a model and compare its results with the reference target or ONNX Runtime."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping, Sequence

import numpy as np

from ...api.loading import load
from ...api.program import program
from ...errors import MgxError, OptionError, ParameterError, UnsupportedError
from ...graph.program import Program
from ...graph.specialize import is_dynamic, specialize
from ...targets.base import Compiled
from ...targets.options import TargetOptions
from ...targets.registry import REFERENCE, compile_for, target
from ..arguments import add_compile, add_inputs, add_loader
from ..compare import Difference, Tolerance, default_tolerance
from ..compiling import compilation, compile_model
from ..feeding import make_inputs
from ..loading import file_type, load_model
from ..precision import PrecisionCheck, in_float32, without_quantisation
from ..quantizing import requested_kinds
from ..verifying import (
    Check,
    check_layers,
    check_passes,
    check_prefixes,
    check_results,
    check_steps,
    first_wrong_prefix,
    reference,
)

DIFFERENT = 1  # exit status; 2 is for errors
LARGEST = 3
"""Number of layers, with the largest own errors, that are tried in exact form."""
MOST_LOST = 0.1
"""Default limit of --precision on the relative root mean square error. Networks in 8 bits lose 0.005 to 0.03."""
_OPTIONS = ("fast_math", "num_threads", "memory_reuse", "float32_matmul_precision")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_loader(parser)
    add_compile(parser)
    add_inputs(parser)
    group = parser.add_argument_group("verification")
    group.add_argument("--rms-tol", type=float, metavar="X", help="largest RMS error (default 0.001)")
    group.add_argument("--atol", type=float, metavar="X", help="largest absolute difference of an element")
    group.add_argument("--rtol", type=float, metavar="X", help="largest relative difference of an element")
    group.add_argument("--onnxruntime", action="store_true", help="compare with ONNX Runtime")
    group.add_argument("--ref-use-double", action="store_true", help="let the reference compute floats in double")
    group.add_argument("-c", "--compiled-model", metavar="FILE", help="an .mxr file that was saved compiled, to verify")
    how = group.add_mutually_exclusive_group()
    how.add_argument("-i", "--per-instruction", action="store_true", help="compare what each step computes")
    how.add_argument("-l", "--layerwise", action="store_true", help="compare the result of each node of the model")
    how.add_argument("-r", "--reduce", action="store_true", help="compare each longer part of the program")
    how.add_argument("--precision", action="store_true", help="compare each node with float32: where errors arise")
    how.add_argument("-b", "--bisect", action="store_true", help="find the first wrong pass and instruction")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    _check_flags(args)
    if args.onnxruntime:
        _check_onnxruntime(args)
    args.debug_symbols |= (args.layerwise or args.precision) and file_type(args) == "onnx"
    model = load_model(args)
    inputs = make_inputs(model, args)
    if args.reduce or args.bisect:
        return _by_parts(model, args, inputs)
    if args.precision:
        return _by_precision(model, args, inputs)
    tested = _compiled_model(args, inputs) if args.compiled_model else compile_model(model, args)
    arrays = model._checked(inputs)
    compiled, target = tested.compiled, compilation(tested, args)[0]
    assert compiled is not None
    tolerance = _tolerance([model.portable, compiled.resolve(arrays)], args)
    if args.per_instruction:
        checks = check_steps(compiled, arrays, tolerance)
        return _conclude(checks, target, f"{len(checks)} instructions")
    if args.layerwise:
        return _layerwise(model, compiled, arrays, tolerance, args, target)
    if args.onnxruntime:
        name, expected = "ONNX Runtime", _onnxruntime(args, _as_modelled(model, arrays))
    else:
        name, expected = REFERENCE, reference(model.portable, arrays, args.ref_use_double)
    return _conclude(check_results(compiled.run(arrays), expected, tolerance), target, f"comparison with {name}")


def _check_flags(args: argparse.Namespace) -> None:
    """Raise if flags contradict each other, so that some flag would have no effect."""
    parts = args.per_instruction or args.reduce or args.bisect or args.precision
    if args.ref_use_double and (parts or args.onnxruntime):
        raise OptionError(
            "--ref-use-double is for results and --layerwise; no reference in double is compared otherwise"
        )
    if args.compiled_model and (args.reduce or args.bisect or args.precision):
        raise OptionError(
            "--reduce, --bisect and --precision compile parts of the model, so that --compiled-model has no effect"
        )
    if args.onnxruntime and (parts or args.layerwise):
        raise OptionError("--onnxruntime compares results; it has no instructions or layers to compare")


def _compiled_model(args: argparse.Namespace, inputs: Mapping[str, np.ndarray]) -> program:
    """Return the compiled program of a file, which must have the model's inputs."""
    found = load(args.compiled_model, trust_objects=args.trust_objects)
    if not found.is_compiled():
        raise OptionError(f"--compiled-model {args.compiled_model}: it was not saved compiled")
    try:
        found._checked(inputs)
    except ParameterError as error:
        raise OptionError(f"--compiled-model {args.compiled_model}: {error}") from None
    return found


def _layerwise(
    model: program,
    compiled: Compiled,
    arrays: Mapping[str, np.ndarray],
    tolerance: Tolerance,
    args: argparse.Namespace,
    target: str,
) -> int:
    portable = model.portable
    if not any(ins.debug_symbols for ins in portable.main):
        raise OptionError(
            "--layerwise: the program has no names of nodes (an ONNX file, or --debug-symbols when saved)"
        )
    if is_dynamic(portable):
        portable = specialize(portable, {name: array.shape for name, array in arrays.items()})
    checks = check_layers(portable, compiled, arrays, tolerance, args.ref_use_double)
    return _conclude(checks, target, f"{len(checks)} nodes of the model")


def _by_precision(model: program, args: argparse.Namespace, inputs: Mapping[str, np.ndarray]) -> int:
    """Compare layers and results with float32.

    The reference is the unquantised model if flags ask for quantisation, else the model without its own Q/DQ pairs.
    """
    arrays = model._checked(inputs)
    kinds = requested_kinds(args)
    plain = load_model(without_quantisation(args, kinds)).portable if kinds else model.portable
    name, options = compilation(model, args)
    settings = TargetOptions(**{key: options[key] for key in _OPTIONS})
    lens = {key: array.shape for key, array in arrays.items()}
    exact, changed = (specialize(p, lens) if is_dynamic(p) else p for p in (in_float32(plain), model.portable))
    check = PrecisionCheck(exact, changed, lambda part: compile_for(name, part, settings), arrays)
    errors = check.errors()
    for error in errors:
        print(error)
    largest = sorted(errors, key=lambda e: -e.own)[:LARGEST]
    print(f"Results differ by {check.result_error:.3g} (relative root mean square)")
    for error in largest:
        print(f"  with {error.layer} exact: {check.error_with([error.layer]):.3g} (own error {error.own:.3g})")
    if check.result_error:
        print(f"Half of it comes from layers up to {check.half_way()}")
    most = MOST_LOST if args.rms_tol is None else args.rms_tol
    problem = "" if check.result_error <= most else f"more than {most:.3g}"
    return _conclude([Check("results", Difference(problem, check.result_error, check.largest))], name, "precision")


def _by_parts(model: program, args: argparse.Namespace, inputs: Mapping[str, np.ndarray]) -> int:
    portable = model.portable
    arrays = model._checked(inputs)
    name, options = compilation(model, args)
    if name == REFERENCE:
        raise OptionError(f"--reduce and --bisect compare a target with {REFERENCE}: give another target")

    disabled = (*model._file.disabled_passes, *options["disabled_passes"])

    settings = TargetOptions(disabled_passes=disabled, **{key: options[key] for key in _OPTIONS})

    def compiler(part: Program) -> Compiled:
        return compile_for(name, part, settings)

    tolerance = _tolerance([portable], args)
    if args.reduce:
        checks = check_prefixes(portable, compiler, arrays, tolerance)
        return _conclude(checks, name, f"{len(checks)} parts")
    names = [one for one in target(name).passes if one not in disabled]
    passes = check_passes(portable, names, target(name).pass_options(settings), arrays, tolerance)
    if any(not c.difference.passed for c in passes):
        print(f"First wrong pass: {passes[-1].what}")
        return _conclude(passes[-1:], name, "passes")
    print(f"Passes: {len(passes)} changed the program, all right")
    wrong = first_wrong_prefix(portable, compiler, arrays, tolerance)
    if wrong is not None:
        print(f"First wrong instruction: {wrong.what}")
    return _conclude([wrong] if wrong is not None else [], name, "bisection")


def _tolerance(programs: Sequence[Program], args: argparse.Namespace) -> Tolerance:
    return default_tolerance(programs, args.rms_tol, args.atol, args.rtol)


def _conclude(checks: Sequence[Check], target: str, what: str) -> int:
    """Print the outcomes and the verdict, and return the exit status."""
    for check in checks:
        print(f"{'ok' if check.difference.passed else 'FAILED'}: {check.what}: {check.difference}")
    if all(check.difference.passed for check in checks):
        print(f"MIGraphX verification passed successfully ({target}, {what}).")
        return 0
    print(f"FAILED: {target} ({what})")
    return DIFFERENT


def _check_onnxruntime(args: argparse.Namespace) -> None:
    if file_type(args) != "onnx":
        raise OptionError(f"--onnxruntime needs an ONNX file, got {args.file or '--test'}")
    if importlib.util.find_spec("onnxruntime") is None:
        raise UnsupportedError("--onnxruntime: the package onnxruntime is not installed")


def _as_modelled(model: program, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs, row-major and of the model's rank."""
    shapes = model._parameters()
    return {k: np.asarray(v, order="C").reshape(() if shapes[k].without_axes else v.shape) for k, v in inputs.items()}


def _onnxruntime(args: argparse.Namespace, inputs: Mapping[str, np.ndarray]) -> list[object]:
    """Return the results of ONNX Runtime for the same file and inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(args.file, options, providers=["CPUExecutionProvider"])
        wanted = {i.name for i in session.get_inputs()}
        names = args.output_names or [o.name for o in session.get_outputs()]
        return session.run(names, {k: v for k, v in inputs.items() if k in wanted})
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise MgxError(f"ONNX Runtime: {error}") from error
