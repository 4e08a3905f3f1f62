"""Quantisation functions with the names and semantics of MIGraphX's Python module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..core.types import Type
from ..errors import OptionError
from ..interrupts import whole_module
from ..targets.registry import DEFAULT
from .changing import change
from .program import program
from .quantizing import (
    CONTRACTIONS,
    LAYERS_IN_8_BITS,
    quantize_8bits,
    quantize_int4,
    truncate,
    truncate_within,
    truncation_budget,
)
from .quantizing import calibrate as calibrated
from .sensitivity import Budget, Loss, largest_error, parse_accuracy, relative_error
from .target import get_target, target

if TYPE_CHECKING:
    from ..graph.calibration import Calibration
    from ..graph.passes.quantize_8bits import LayerChoice
    from ..graph.program import Program

Batches = Iterable[Mapping[str, Any]]


def quantize_fp16(
    prog: program,
    ins_names: Iterable[str] = ("all",),
    *,
    t: target | None = None,
    calibration: Batches = (),
    accuracy: str | float | None = None,
    loss: Loss = largest_error,
) -> program:
    """Convert instructions to float16, in place, and return the program; inputs and results keep their types.

    Args:
        ins_names: operators, nodes (of a model read with ``use_debug_symbols``) or patterns of either; ``~name``
            excludes. ``all`` leaves in float32 the values that may exceed float16's range: sums, norms, softmax and the
            chains that feed them, and sums of two computed values (residual streams). Names listed in addition to
            ``all`` are converted, too.
        t: target on which errors are measured for ``accuracy``; default: that of ``compile``.
        calibration: batches of inputs by name; errors are measured on the first four. Without batches, generated inputs
            are run, with a warning.
        accuracy: largest acceptable loss, as ``"0.5%"`` or 0.005. The fewest products that lose most stay in float32,
            so that each batch keeps the budget with a margin for other inputs. Each product is tried by itself, in one
            program that computes all products both ways. ``program.quantization_choices()`` lists the outcome. If
            float32 products do not suffice, the program is unchanged, with a warning.
        loss: loss of a batch's results, given the actual and the exact results. Default: the largest difference divided
            by the largest magnitude of a result.

    Raises:
        OptionError: a name matches neither operator nor node, or batches are given without ``accuracy``.
        ParameterError: a batch does not fit the program's inputs.
    """
    return _truncated(prog, "fp16", ins_names, t, calibration, accuracy, loss)


def quantize_bf16(
    prog: program,
    ins_names: Iterable[str] = ("all",),
    *,
    t: target | None = None,
    calibration: Batches = (),
    accuracy: str | float | None = None,
    loss: Loss = largest_error,
) -> program:
    """Convert instructions to bfloat16, otherwise as `quantize_fp16`."""
    return _truncated(prog, "bf16", ins_names, t, calibration, accuracy, loss)


def calibrate(
    prog: program,
    t: target | Batches | None = None,
    calibration: Batches = (),
    ins_names: Iterable[str] = LAYERS_IN_8_BITS,
    observer: str = "minmax",
) -> Calibration:
    """Return the value ranges that `quantize_int8` needs, observed on batches; the program is unchanged.

    `quantize_int8` accepts the result in place of batches. Calibrations of the same program on other batches can be
    merged (``merge``). A quantised program's file holds its calibration, see ``program.calibration()``.

    Args:
        t: target that runs the batches, as for `quantize_int8`.
        calibration: batches of inputs by name, as for `quantize_int8`.
        ins_names: operators and nodes whose operands are observed, as for `quantize_int8`.
        observer: method that chooses ranges, as for `quantize_int8`.

    Raises:
        OptionError: a name or the observer is unknown.
        ParameterError: a batch does not fit the program's inputs.
    """
    _program(prog)
    from ..graph.calibration import Calibration
    from ..progress import shown_progress

    chosen, batches = _where(t, calibration)
    if isinstance(batches, Calibration):
        raise OptionError("a calibration is made of batches, not of another one: merge those")
    with shown_progress("compiling") as progress:
        checked = (prog._checked(batch) for batch in batches)
        return calibrated(prog.portable.clone(), chosen.name(), checked, ins_names, observer, progress)


def quantize_int8(
    prog: program,
    t: target | Batches | Calibration | None = None,
    calibration: Batches | Calibration = (),
    ins_names: Iterable[str] = LAYERS_IN_8_BITS,
    observer: str = "minmax",
    accuracy: str | float | None = None,
    loss: Loss = relative_error,
) -> program:
    """Quantise contractions with constant weights to 8-bit integers, in place, and return the program.

    Weights get one scale per output channel, activations one scale and zero point each. Channels with very different
    ranges are equalised where that reduces the error, and the shift of means by rounding is corrected.
    ``program.quantization_choices()`` lists the outcome for each contraction. Transposed convolutions of values of both
    signs are not quantised, and no transposed convolution is if the target lacks kernels for it. Contractions of
    float16, bfloat16 and double are quantised in float32, between conversions. A warning says if nothing is quantised,
    and why.

    Args:
        t: target that runs the calibration; default: that of ``compile``. Or the calibration itself.
        calibration: batches of inputs by name, or the result of `calibrate`. Without batches, generated inputs are run,
            with a warning.
        ins_names: contractions to quantise, as for `quantize_fp16`; ``dot`` includes recurrent layers.
        observer: method that chooses the range of an activation: minmax, percentile, entropy or mse.
        accuracy: largest acceptable loss, as ``"0.5%"`` or 0.005. The fewest layers that lose most on the first batches
            stay unquantised so that the rest keeps the budget. Each layer is tried by itself, in one program that
            computes all layers both ways. A bisection finds the number of layers, with a few more compilations.
        loss: loss of a batch's results, given the actual and the exact results. Default: the root mean square of the
            differences divided by that of the exact values.

    Raises:
        OptionError: a name or the observer is unknown, ``accuracy`` is given without batches, or the calibration is of
            another program.
        ParameterError: a batch does not fit the program's inputs.
    """
    budget = None if accuracy is None else Budget(parse_accuracy(accuracy), loss)
    return _calibrated(prog, t, calibration, ins_names, observer, Type.uint8_type, budget)


def quantize_fp8(
    prog: program,
    t: target | Batches | Calibration | None = None,
    calibration: Batches | Calibration = (),
    observer: str = "minmax",
) -> program:
    """Quantise contractions to float8 (e4m3fn), with power-of-two scales and no zero points.

    Otherwise as `quantize_int8`. Contractions with fewer than 16 inputs per channel (images, depthwise convolutions)
    are not quantised.
    """
    return _calibrated(prog, t, calibration, LAYERS_IN_8_BITS, observer, Type.fp8e4m3fn_type)


def quantize_int4_weights(prog: program, ins_names: Iterable[str] = CONTRACTIONS) -> program:
    """Quantise constant weights of contractions to 4 bits with blockwise scales and zero points; return the program.

    The program is changed in place.

    Raises:
        OptionError: a name matches neither operator nor node.
    """
    names = _names(ins_names)
    return change(_program(prog), lambda portable: quantize_int4(portable, names), f"quantize_int4_weights {names!r}")


def autocast_fp8(prog: program) -> program:
    """Change float8 inputs and results of the program's interface to float32, in place, and return the program.

    NumPy has no float8 type of its own.
    """
    whole_module("mgx_numba.graph.passes")
    from ..graph.passes import run_passes

    return change(_program(prog), lambda portable: run_passes(portable, ["autocast_fp8"]), "autocast_fp8")


def _names(given: Iterable[str]) -> Any:
    """Return an iterable of names as a tuple, so that it can be read more than once."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else given


def _where(
    t: target | Batches | Calibration | None, calibration: Batches | Calibration
) -> tuple[target, Batches | Calibration]:
    """Return target and calibration from arguments of which the target may be left out."""
    if not isinstance(t, (target, str)) and t is not None and not calibration:
        calibration, t = t, None
    t = get_target(DEFAULT) if t is None else t
    if not isinstance(t, target):
        raise OptionError(f"calibration needs a target (get_target('cpu')), got {t!r}")
    batches = isinstance(calibration, Iterable) and not isinstance(calibration, (Mapping, str, bytes))
    if not batches and not hasattr(calibration, "observe"):
        given = "one mapping" if isinstance(calibration, Mapping) else repr(calibration)
        raise OptionError(f"calibration must be a list of mappings, one a batch, of inputs by name: got {given}")
    return t, calibration


def _truncated(
    prog: program,
    kind: str,
    ins_names: Iterable[str],
    t: target | None,
    calibration: Batches,
    accuracy: str | float | None,
    loss: Loss,
) -> program:
    if accuracy is None:
        if calibration:
            raise OptionError("calibration has no effect without accuracy, which is measured on its batches")
        names = _names(ins_names)
        return change(_program(prog), lambda portable: truncate(portable, kind, names), f"quantize_{kind} {names!r}")
    budget = truncation_budget(parse_accuracy(accuracy), loss)
    chosen, given = _where(t, calibration)
    if not isinstance(given, Iterable):
        raise OptionError("accuracy is measured on batches, which a calibration does not hold: give them")
    batches = given
    found: list[list[LayerChoice]] = []

    def truncated(portable: Program) -> None:
        from ..progress import shown_progress

        with shown_progress("compiling") as progress:
            checked = (prog._checked(batch) for batch in batches)
            found.append(truncate_within(portable, kind, chosen.name(), checked, budget, ins_names, progress))

    change(_program(prog), truncated)
    prog._note_layers(found[-1])
    return prog


def _calibrated(
    prog: program,
    t: target | Batches | Calibration | None,
    calibration: Batches | Calibration,
    ins_names: Iterable[str],
    observer: str,
    type: Type,
    budget: Budget | None = None,
) -> program:
    chosen, given = _where(t, calibration)
    found: list[tuple[list[LayerChoice], Calibration]] = []

    def quantized(portable: Program) -> None:
        from ..graph.calibration import Calibration
        from ..progress import shown_progress

        with shown_progress("compiling") as progress:
            batches = given if isinstance(given, Calibration) else (prog._checked(batch) for batch in given)
            found.append(quantize_8bits(portable, chosen.name(), batches, ins_names, observer, type, progress, budget))

    change(_program(prog), quantized)
    prog._note_layers(*found[-1])
    return prog


def _program(given: object) -> program:
    """Return the argument.

    Raises:
        OptionError: it is not a program.
    """
    if not isinstance(given, program):
        raise OptionError(f"a program is needed, got {type(given).__name__}")
    return given
