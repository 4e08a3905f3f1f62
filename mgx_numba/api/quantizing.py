"""Quantisation of portable programs: what ``quantize_*``, compile options and the driver's flags have in common."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.generate import generate
from ..core.shape import Shape
from ..core.types import Type
from ..environment import environment_flag
from ..errors import OptionError
from ..interrupts import whole_module
from ..targets.registry import compile_for

if TYPE_CHECKING:
    from ..graph.observers import Observer
    from ..graph.passes import Pass
    from ..graph.passes.quantize_8bits import LayerChoice
    from ..graph.passes.selection import Selection
    from ..graph.program import Program

__all__ = ["CONTRACTIONS", "KINDS", "quantize", "quantize_8bits", "quantize_int4", "truncate"]

CONTRACTIONS = ("dot", "convolution")
KINDS = ("int8", "fp8", "int4_weights", "fp16", "bf16")
"""What can be asked for, in the order in which several are done: what is in 8 bits stays so."""

Inputs = Mapping[str, np.ndarray]
Progress = Callable[[int, int, str], None]

_SIMPLIFY = ("normalize_ops", "optimize_module")


def truncate(portable: Program, kind: str, ins_names: Iterable[str] = ("all",)) -> None:
    """Let the instructions that ``ins_names`` chooses compute in ``fp16`` or ``bf16``, in place.

    Raises:
        OptionError: a name is none of an operator or a node.
    """
    whole_module("mgx_numba.graph.passes")
    from ..graph.passes.truncate_float import TruncateFloat

    step = TruncateFloat(ins_names, Type.half_type if kind == "fp16" else Type.bf16_type)
    step.selection.check(portable)
    _run(portable, [*_SIMPLIFY, step, "optimize_module", "dead_code_elimination"])


def quantize_int4(portable: Program, ins_names: Iterable[str] = CONTRACTIONS) -> None:
    """Put constant weights of the contractions that ``ins_names`` chooses into 4 bits, in place.

    Raises:
        OptionError: a name is none of an operator or a node.
    """
    whole_module("mgx_numba.graph.passes")
    from ..graph.passes.quantize_int4 import QuantizeInt4

    _run(portable, [*_SIMPLIFY, QuantizeInt4(_selection(portable, ins_names)), "dead_code_elimination"])


def quantize_8bits(
    portable: Program,
    target: str,
    batches: Iterable[Inputs],
    ins_names: Iterable[str] = CONTRACTIONS,
    observer: str = "minmax",
    type: Type = Type.uint8_type,
    progress: Progress | None = None,
) -> list[LayerChoice]:
    """Quantise contractions with constant weights to 8 bits, in place.

    Args:
        target: where the batches are run.
        batches: checked inputs; without any, generated ones are run, with a warning.
        observer: how ranges are chosen, one of `graph.observers.OBSERVERS`.
        type: of activations: uint8_type (with zero points), int8_type (symmetric) or fp8e4m3fn_type.

    Raises:
        OptionError: unknown names or observer, or a value that is never finite.
    """
    whole_module("mgx_numba.graph.passes")
    from ..graph.observers import make_observer
    from ..graph.passes.quantize_8bits import Quantize8Bits, calibrated_values

    make_observer(observer)
    selection = _selection(portable, ins_names)
    _run(portable, _SIMPLIFY)
    watched = portable.clone()
    watched.main.replace_return(calibrated_values(watched, selection))
    values = calibrated_values(portable, selection)
    observers = [make_observer(observer) for _ in values]
    if values:
        compiled = compile_for(target, watched)
        for count, inputs in enumerate(_some(portable, batches)):
            for one, result in zip(observers, compiled.run(inputs)):
                one.observe(np.asarray(result))
            if progress is not None:
                progress(count + 1, 0, "calibrating")
    _check_observed(observers)
    step = Quantize8Bits({v: o.parameters(type) for v, o in zip(values, observers)}, selection)
    _run(portable, [step, "eliminate_common_subexpression", "dead_code_elimination"])
    if environment_flag("MIGRAPHX_8BITS_QUANTIZATION_PARAMS"):
        print("\n".join(map(str, step.choices)))
    return step.choices


def _check_observed(observers: Iterable[Observer]) -> None:
    """Tell of infinities and NaNs, which ranges leave out.

    Raises:
        OptionError: a value has nothing else.
    """
    seen, strange = 0, 0
    for observer in observers:
        if observer.strange and not observer.seen:
            raise OptionError("calibration: a value is infinite or NaN in all batches, so that it has no range")
        seen, strange = seen + observer.seen, strange + observer.strange
    if strange:
        told = f"calibration: {strange} of {seen + strange} elements are infinite or NaN; ranges leave them out"
        warnings.warn(told, stacklevel=4)


def quantize(portable: Program, kinds: Iterable[str], target: str, batches: Iterable[Inputs] = ()) -> None:
    """Do what options ask for: some of `KINDS`, in their order, in place.

    Raises:
        OptionError: an unknown kind, or ``fp16`` beside ``bf16`` or ``int8`` beside ``fp8``.
    """
    wanted = set(kinds)
    if not wanted <= set(KINDS):
        raise OptionError(f"unknown quantisation {', '.join(sorted(wanted - set(KINDS)))}; known: {', '.join(KINDS)}")
    for pair in (("fp16", "bf16"), ("int8", "fp8")):
        if wanted.issuperset(pair):
            raise OptionError(f"{pair[0]} and {pair[1]} exclude each other")
    for kind in KINDS:
        if kind not in wanted:
            continue
        if kind in ("int8", "fp8"):
            type = Type.uint8_type if kind == "int8" else Type.fp8e4m3fn_type
            quantize_8bits(portable, target, batches, type=type)
        elif kind == "int4_weights":
            quantize_int4(portable)
        else:
            truncate(portable, kind)


def _selection(portable: Program, ins_names: Iterable[str]) -> Selection:
    from ..graph.passes.selection import Selection

    selection = Selection(ins_names)
    selection.check(portable)
    return selection


def _run(portable: Program, passes: Sequence[Pass | str]) -> None:
    from ..graph.passes import run_passes

    traced = environment_flag("MIGRAPHX_TRACE_QUANTIZATION")
    run_passes(portable, passes, trace=(lambda name, after: print(f"Pass: {name}\n{after}")) if traced else None)


def _some(portable: Program, batches: Iterable[Inputs]) -> Iterable[Inputs]:
    """The batches; without any, one of generated numbers from -1 to 1."""
    empty = True
    for inputs in batches:
        empty = False
        yield inputs
    if empty:
        warnings.warn("no calibration data is given: ranges are those of generated inputs", stacklevel=4)
        shapes = portable.parameter_shapes()
        yield {name: generate(Shape(shape.type, shape.max_lens)).numpy() for name, shape in shapes.items()}
