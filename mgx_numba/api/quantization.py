"""Quantisation, with the names and the meaning that MIGraphX's Python module has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..core.types import Type
from ..errors import OptionError
from ..interrupts import whole_module
from ..targets.registry import DEFAULT
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

__all__ = [
    "autocast_fp8",
    "calibrate",
    "quantize_bf16",
    "quantize_fp8",
    "quantize_fp16",
    "quantize_int4_weights",
    "quantize_int8",
]


def quantize_fp16(
    prog: program,
    ins_names: Iterable[str] = ("all",),
    *,
    t: target | None = None,
    calibration: Batches = (),
    accuracy: str | float | None = None,
    loss: Loss = largest_error,
) -> program:
    """Let instructions compute in float16, in place, and return the program; inputs and results keep their types.

    Args:
        ins_names: operators, nodes (of a model read with ``use_debug_symbols``) or patterns of either; ``~name`` leaves
            one out. ``all`` leaves in float32 what float16 has no room for: sums, norms, softmax and what leads to
            them, and sums of two computed values (residual streams); what is named besides is converted too.
        t: where errors are measured for ``accuracy``; default: that of ``compile``.
        calibration: inputs by name, of any number of batches; errors are measured on the first four. Without any,
            generated ones are run, with a warning.
        accuracy: what may be lost at most, as ``"0.5%"`` or 0.005: products that lose most stay in float32, as few as
            keep it on each of these batches with something to spare for others. Each is tried by itself, in one
            program that computes all of them both ways. What became of each is in ``program.quantization_choices()``.
            Where float32 products do not suffice, the program stays as it is, with a warning.
        loss: of the results of a batch, given those found and the exact ones: by default the largest difference over
            the largest magnitude of a result.

    Raises:
        OptionError: a name is none of an operator or a node, or batches are given without ``accuracy``.
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
    """As `quantize_fp16`, in bfloat16."""
    return _truncated(prog, "bf16", ins_names, t, calibration, accuracy, loss)


def calibrate(
    prog: program,
    t: target | Batches | None = None,
    calibration: Batches = (),
    ins_names: Iterable[str] = LAYERS_IN_8_BITS,
    observer: str = "minmax",
) -> Calibration:
    """What `quantize_int8` must know of the values that it quantises, for a program that stays as it is.

    The result takes the place of batches there. Those of other batches of the same program may be merged into it
    (``merge``); the one that a program was quantised by is kept in its file, see ``program.calibration()``.

    Args:
        t: the target that the batches run on, as for `quantize_int8`.
        calibration: batches of inputs by name, as for `quantize_int8`.
        ins_names: operators and nodes whose operands are observed, as for `quantize_int8`.
        observer: how ranges are found, as for `quantize_int8`.

    Raises:
        OptionError: unknown names or observer.
        ParameterError: a batch does not fit the program's inputs.
    """
    if not isinstance(prog, program):
        raise OptionError(f"a program is needed, got {type(prog).__name__}")
    from ..graph.calibration import Calibration
    from ..progress import shown_progress

    chosen, batches = _where(t, calibration)
    if isinstance(batches, Calibration):
        raise OptionError("a calibration is made of batches, not of another one: merge those")
    with shown_progress("compiling") as progress:
        checked = (prog._checked(batch) for batch in batches)
        return calibrated(prog._portable.clone(), chosen.name(), checked, ins_names, observer, progress)


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

    Weights get a scale for each output channel, activations one scale and zero point each. Channels whose ranges differ
    much are made alike where that pays, and what rounding moves the means of results by is corrected. What became of
    each contraction is in ``program.quantization_choices()``. Transposed convolutions of values of both signs stay as
    they are, and so do all where the target has no kernels for them. Contractions of float16, bfloat16 and double are
    quantised in float32, between conversions. A warning says if nothing is quantised, and why.

    Args:
        t: where the calibration runs; default: that of ``compile``. Or the calibration itself.
        calibration: inputs by name, of any number of batches, or what `calibrate` gave. Without any, generated ones are
            run, with a warning.
        ins_names: which contractions, as for `quantize_fp16`; ``dot`` stands for recurrent layers, too.
        observer: how the range of an activation is chosen: minmax, percentile, entropy or mse.
        accuracy: what may be lost at most, as ``"0.5%"`` or 0.005: layers that lose most on the first batches stay as
            they are, as few as keep it. Each layer is tried by itself, in one program that computes all of them
            both ways; how many stay takes a few more compilations, by bisection.
        loss: of the results of a batch, given those found and the exact ones: by default the root mean square of the
            differences over that of the exact values.

    Raises:
        OptionError: unknown names or observer, ``accuracy`` without batches, or a calibration of another program.
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
    """As `quantize_int8`, to float8 (e4m3fn), with scales that are powers of two and without zero points.

    Contractions with fewer than 16 inputs for each channel stay as they are: those of images, and of channels by
    themselves.
    """
    return _calibrated(prog, t, calibration, LAYERS_IN_8_BITS, observer, Type.fp8e4m3fn_type)


def quantize_int4_weights(prog: program, ins_names: Iterable[str] = CONTRACTIONS) -> program:
    """Put constant weights of contractions into 4 bits, with scales and zero points by blocks, in place, and return the
    program.

    Raises:
        OptionError: a name is none of an operator or a node.
    """
    names = _names(ins_names)
    return _in_place(prog, lambda portable: quantize_int4(portable, names), f"quantize_int4_weights {names!r}")


def autocast_fp8(prog: program) -> program:
    """Let inputs and results that are float8 be float32 outside, in place, and return the program.

    NumPy has no float8 of its own.
    """
    whole_module("mgx_numba.graph.passes")
    from ..graph.passes import run_passes

    return _in_place(prog, lambda portable: run_passes(portable, ["autocast_fp8"]), "autocast_fp8")


def _names(given: Any) -> Any:
    """Names that can be read more than once."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else given


def _where(
    t: target | Batches | Calibration | None, calibration: Batches | Calibration
) -> tuple[target, Batches | Calibration]:
    """The target and the calibration of arguments, of which the first may be left out."""
    if not isinstance(t, (target, str)) and t is not None and not calibration:
        calibration, t = t, None
    t = get_target(DEFAULT) if t is None else t
    if not isinstance(t, target):
        raise OptionError(f"calibration needs a target (get_target('cpu')), got {t!r}")
    if calibration is None or isinstance(calibration, Mapping):
        given = "None" if calibration is None else "one mapping"
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
        return _in_place(prog, lambda portable: truncate(portable, kind, names), f"quantize_{kind} {names!r}")
    budget = truncation_budget(parse_accuracy(accuracy), loss)
    chosen, given = _where(t, calibration)
    if not isinstance(given, Iterable):
        raise OptionError("accuracy is measured on batches, which a calibration does not hold: give them")
    batches = given
    found: list[list[LayerChoice]] = []

    def change(portable: Program) -> None:
        from ..progress import shown_progress

        with shown_progress("compiling") as progress:
            checked = (prog._checked(batch) for batch in batches)
            found.append(truncate_within(portable, kind, chosen.name(), checked, budget, ins_names, progress))

    _in_place(prog, change)
    prog._layer_choices = found[-1]
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

    def change(portable: Program) -> None:
        from ..graph.calibration import Calibration
        from ..progress import shown_progress

        with shown_progress("compiling") as progress:
            batches = given if isinstance(given, Calibration) else (prog._checked(batch) for batch in given)
            found.append(quantize_8bits(portable, chosen.name(), batches, ins_names, observer, type, progress, budget))

    _in_place(prog, change)
    prog._layer_choices, prog._calibration = found[-1]
    return prog


def _in_place(prog: program, change: Callable[[Program], None], call: str = "") -> program:
    """Change a program's portable form; one that is compiled is compiled again, with its options.

    Args:
        call: all that the change depends on; empty if it depends on more than can be said.
    """
    if not isinstance(prog, program):
        raise OptionError(f"a program is needed, got {type(prog).__name__}")
    if not prog.is_compiled():
        if not (call and prog._lineage is not None and _derived(prog, call, change)):
            prog._lineage = None
            change(prog._portable)
        return prog
    changed = prog.clone()
    change(changed._portable)
    assert prog._options is not None
    changed.compile(prog._target, dataclasses.asdict(prog._options))
    prog._become(changed)
    return prog


def _derived(prog: program, call: str, change: Callable[[Program], None]) -> bool:
    """See `kept_models.derive`."""
    from .kept_models import derive

    return derive(prog, call, change)
