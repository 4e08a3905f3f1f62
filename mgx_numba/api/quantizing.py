"""Quantisation of portable programs: the common part of ``quantize_*``, compile options and the driver's flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ..core.generate import generate
from ..core.shape import UNBOUNDED, Shape
from ..core.types import Type
from ..environment import environment_flag
from ..errors import OptionError
from ..interrupts import whole_module
from ..messages import warn
from ..targets.registry import compile_for

if TYPE_CHECKING:
    from ..graph.calibration import Calibration
    from ..graph.passes import Pass
    from ..graph.passes.quantize_8bits import LayerChoice
    from ..graph.passes.selection import Selection
    from ..graph.passes.widen_layers import WidenLayers
    from ..graph.program import Program
    from .sensitivity import Budget, Loss

CONTRACTIONS = ("dot", "convolution")
LAYERS_IN_8_BITS = (*CONTRACTIONS, "convolution_backwards")
KINDS = ("int8", "fp8", "int4_weights", "fp16", "bf16")
"""Kinds of quantisation, in order of application: later kinds leave values in 8 bits as they are."""

SAMPLES = 4
"""Number of batches on which errors are measured: enough to rank layers, few enough to run once for each layer."""

AIM = 0.65
"""Fraction of the 16-bit loss budget to use up on the samples, since other inputs lose up to 1.44 times as much.
Measured on BERT and two YOLO networks, 8 in all, on AMX and on an H200; 1.3 is usual."""

Inputs = Mapping[str, np.ndarray]
Progress = Callable[[int, int, str], None]

_TYPES = {"fp16": Type.half_type, "bf16": Type.bf16_type}
_SIMPLIFY = ("normalize_ops", "rewrite_gelu", "optimize_module")
"""Passes before 16-bit quantisation: activations must be found before their constants are folded into weights."""
_SIMPLIFY_8BITS = ("normalize_ops", "rewrite_gelu", "rewrite_rnn", "optimize_module")
"""Passes before 8-bit quantisation. ``rewrite_rnn`` splits a recurrent layer into one product of all inputs, which is
quantised like any other, and the recurrent steps."""


MOST_REASONS = 3  # in one warning; `quantization_choices` lists all
NO_LAYERS = "the main module has no contraction that is chosen"


def _nothing(kind: str, reasons: Sequence[str]) -> None:
    """Warn that nothing was quantised; equal reasons are counted, and at most `MOST_REASONS` are listed."""
    messages = {reason: reasons.count(reason) for reason in reasons}
    few = [f"{reason} ({count} layers)" if count > 1 else reason for reason, count in messages.items()][:MOST_REASONS]
    listed = "; ".join(few) + (f"; and {len(messages) - len(few)} more reasons" if len(messages) > len(few) else "")
    warn(f"quantize_{kind}: nothing is quantised: {listed}")


def truncate(portable: Program, kind: str, ins_names: Iterable[str] = ("all",)) -> None:
    """Convert the instructions that ``ins_names`` selects to ``fp16`` or ``bf16``, in place.

    Raises:
        OptionError: a name matches neither operator nor node.
    """
    whole_module("mgx_numba.graph.passes")
    from ..graph.passes.truncate_float import WIDE, TruncateFloat

    step = TruncateFloat(ins_names, _TYPES[kind])
    step.selection.check(portable)
    _run(portable, [*_SIMPLIFY, step])
    if not step.converted:
        wide = any(leaf.type in WIDE for m in portable.reachable_modules() for i in m for leaf in i.shape.flatten())
        chosen = "what is chosen takes no float32 or double, or has to stay in it"
        _nothing(kind, [chosen if wide else "the program has no value of float32 or double"])
    _run(portable, ["optimize_module", "dead_code_elimination"])


def truncation_budget(most: float, loss: Loss | None = None) -> Budget:
    """Return the budget for `truncate_within`: ``most`` bounds the loss of any batch, by default of `largest_error`."""
    from .sensitivity import Budget, largest_error

    return Budget(most, largest_error if loss is None else loss, max, AIM)


def truncate_within(
    portable: Program,
    kind: str,
    target: str,
    batches: Iterable[Inputs],
    budget: Budget,
    ins_names: Iterable[str] = ("all",),
    progress: Progress | None = None,
) -> list[LayerChoice]:
    """Convert instructions as `truncate` does, but leave in float32 the fewest products that keep the budget, in place.

    Args:
        target: name of the target on which errors are measured.
        batches: inputs, of which the first `SAMPLES` are run; without batches, generated inputs are run, with a
            warning.

    Returns:
        The choice for each product.

    Raises:
        OptionError: a name matches neither operator nor node.
    """
    whole_module("mgx_numba.graph.passes")
    from ..graph.passes.quantize_8bits import LayerChoice
    from ..graph.passes.selection import Selection
    from .sensitivity import In16Bits

    names, type = list(ins_names), _TYPES[kind]
    Selection(names).check(portable)
    _run(portable, _SIMPLIFY)
    samples = list(islice(_some(portable, batches, "errors"), SAMPLES))
    trial = In16Bits(portable, names, type, target, samples, progress)
    kept = trial.kept_within(budget)
    errors = trial.own_errors()
    # If some products are converted, `kept_within` has found the budget kept.
    lost = trial.lost_as_compiled(budget, kept) if len(kept) == len(trial.names) else 0.0
    if lost > budget.most:
        warn(
            f"accuracy: with all {len(kept)} products in float32 {kind} still loses {100 * lost:.3g}%, more"
            f" than {100 * budget.most:.3g}%; the program stays as it is"
        )
    else:
        trial.planned(portable)(trial.layers_at(portable, kept))
    return [LayerChoice(layer, kept.get(k, kind), error=errors[layer]) for k, layer in enumerate(trial.names)]


def quantize_int4(portable: Program, ins_names: Iterable[str] = CONTRACTIONS) -> None:
    """Quantise constant weights of the contractions that ``ins_names`` selects to 4 bits, in place.

    Raises:
        OptionError: a name matches neither operator nor node.
    """
    whole_module("mgx_numba.graph.passes")
    from ..graph.passes.quantize_int4_weights import FEWEST, QuantizeInt4

    step = QuantizeInt4(_selection(portable, ins_names))
    _run(portable, [*_SIMPLIFY, step, "dead_code_elimination"])
    if not step.quantized:
        _nothing(
            "int4_weights", [f"no contraction that is chosen has finite constant weights of {FEWEST} or more elements"]
        )


def calibrate(
    portable: Program,
    target: str,
    batches: Iterable[Inputs],
    ins_names: Iterable[str] = LAYERS_IN_8_BITS,
    observer: str = "minmax",
    progress: Progress | None = None,
    samples: list[Inputs] | None = None,
) -> Calibration:
    """Return the calibration of the values to quantise, observed on batches; the program is simplified in place.

    Args:
        target: name of the target that runs the batches.
        batches: inputs, checked as they are read; without batches, generated inputs are run, with a warning.
        observer: method that chooses ranges, a key of `graph.observers.OBSERVERS`.
        samples: receives the first `SAMPLES` batches.

    Raises:
        OptionError: a name or the observer is unknown, or a value is never finite.
    """
    selection, _ = _prepared(portable, ins_names)
    return _observed(portable, selection, target, batches, observer, progress, samples)


def _prepared(portable: Program, ins_names: Iterable[str]) -> tuple[Selection, WidenLayers]:
    """Prepare a program for quantisation to 8 bits: simplify it and convert the selected layers to float32."""
    whole_module("mgx_numba.graph.passes")
    from ..graph.passes.widen_layers import WidenLayers

    selection = _selection(portable, ins_names)
    widened = WidenLayers(selection)
    _run(portable, [*_SIMPLIFY_8BITS, "dead_code_elimination", widened])
    return selection, widened


def _observed(
    portable: Program,
    selection: Selection,
    target: str,
    batches: Iterable[Inputs],
    observer: str,
    progress: Progress | None,
    samples: list[Inputs] | None,
) -> Calibration:
    from ..graph.passes.quantization_plan import calibrated_values, make_calibration

    calibration = make_calibration(portable, selection, observer)
    if calibration.values:
        watched = portable.clone()
        watched.main.replace_return(calibrated_values(watched, selection))
        compiled = compile_for(target, watched)
        batches = _first(_some(portable, batches, "ranges"), [] if samples is None else samples)
    for count, inputs in enumerate(batches):
        results = compiled.run(inputs) if calibration.values else ()
        calibration.observe([np.asarray(result) for result in results])
        if progress is not None:
            progress(count + 1, 0, "calibrating")
    _check_observed(calibration)
    return calibration


def quantize_8bits(
    portable: Program,
    target: str,
    batches: Iterable[Inputs] | Calibration,
    ins_names: Iterable[str] = LAYERS_IN_8_BITS,
    observer: str = "minmax",
    type: Type = Type.uint8_type,
    progress: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[list[LayerChoice], Calibration]:
    """Quantise contractions with constant weights to 8 bits, in place.

    Args:
        batches: as for `calibrate`, or its result. Errors are measured on the first `SAMPLES` batches.
        type: element type of activations: uint8_type (with zero points), int8_type (symmetric) or fp8e4m3fn_type.
        budget: largest acceptable loss of the results.

    Returns:
        The choice for each layer, and the calibration.

    Raises:
        OptionError: a name or the observer is unknown, the calibration is of another program, or a budget has no
            batches.
    """
    selection, widened = _prepared(portable, ins_names)
    from ..graph.calibration import Calibration
    from ..graph.passes.quantization_plan import make_calibration, make_plans
    from ..graph.passes.quantize_8bits import Quantize8Bits
    from .sensitivity import In8Bits

    samples: list[Inputs] = []
    if isinstance(batches, Calibration):
        if budget is not None:
            raise OptionError("accuracy is measured on batches, which a calibration does not hold: give them")
        calibration = batches
    else:
        calibration = _observed(portable, selection, target, batches, observer, progress, samples)
    labels = [value.label for value in make_calibration(portable, selection, "minmax").values]
    calibration.expect(labels, "the program")
    trial = In8Bits(portable, selection, calibration, type, target, samples, progress)
    kept = trial.kept_within(budget) if budget is not None else {}
    errors = trial.own_errors()
    plans = make_plans(portable, selection, calibration, type)
    step = Quantize8Bits(plans, selection, trial.layers_at(portable, kept), not type.is_floating)
    _run(portable, [step])
    widened.restore(portable.main)
    _run(portable, ["eliminate_common_subexpression", "dead_code_elimination"])
    choices = [replace(c, error=errors.get(c.layer, c.error)) for c in step.choices]
    if all(c.choice.startswith("as it is") for c in choices):
        _nothing("int8" if not type.is_floating else "fp8", [c.choice for c in choices] or [NO_LAYERS])
    if environment_flag("MIGRAPHX_8BITS_QUANTIZATION_PARAMS"):
        print("\n".join(map(str, choices)))
    return choices, calibration


def _check_observed(calibration: Calibration) -> None:
    """Warn of infinities and NaNs, which ranges exclude.

    Raises:
        OptionError: a value has no finite elements.
    """
    seen, strange = 0, 0
    for value in calibration.values:
        observer = value.observer
        if observer.strange and not observer.seen:
            raise OptionError(
                f"calibration: the input of {value.label} is infinite or NaN in all batches, so that it has no range"
            )
        seen, strange = seen + observer.seen, strange + observer.strange
    if strange:
        messages = f"calibration: {strange} of {seen + strange} elements are infinite or NaN; ranges leave them out"
        warn(messages)


def _first(batches: Iterable[Inputs], samples: list[Inputs]) -> Iterable[Inputs]:
    """Yield the batches, and append the first `SAMPLES` to ``samples``."""
    for inputs in batches:
        if len(samples) < SAMPLES:
            samples.append(inputs)
        yield inputs


def quantize(
    portable: Program,
    kinds: Iterable[str],
    target: str,
    batches: Iterable[Inputs] = (),
    progress: Progress | None = None,
    accuracy: float | None = None,
) -> tuple[list[LayerChoice], Calibration | None] | None:
    """Apply the requested kinds of quantisation, members of `KINDS`, in the order of `KINDS`, in place.

    Args:
        accuracy: largest acceptable loss of the 8-bit quantisation, or of the 16-bit one if 8 bits are not requested.

    Returns:
        The choice for each layer and the calibration, if 8 bits or an accuracy are requested.

    Raises:
        OptionError: a kind is unknown, or ``fp16`` is combined with ``bf16``, or ``int8`` with ``fp8``.
    """
    wanted = set(kinds)
    if not wanted <= set(KINDS):
        raise OptionError(f"unknown quantisation {', '.join(sorted(wanted - set(KINDS)))}; known: {', '.join(KINDS)}")
    for pair in (("fp16", "bf16"), ("int8", "fp8")):
        if wanted.issuperset(pair):
            raise OptionError(f"{pair[0]} and {pair[1]} exclude each other")
    from .sensitivity import Budget

    found: tuple[list[LayerChoice], Calibration | None] | None = None
    for kind in KINDS:
        if kind not in wanted:
            continue
        if kind in ("int8", "fp8"):
            type = Type.uint8_type if kind == "int8" else Type.fp8e4m3fn_type
            budget = None if accuracy is None else Budget(accuracy)
            found = quantize_8bits(portable, target, batches, type=type, progress=progress, budget=budget)
        elif kind == "int4_weights":
            quantize_int4(portable)
        elif accuracy is None or found is not None:
            truncate(portable, kind)
        else:
            within = truncation_budget(accuracy)
            found = truncate_within(portable, kind, target, batches, within, progress=progress), None
    return found


def _selection(portable: Program, ins_names: Iterable[str]) -> Selection:
    from ..graph.passes.selection import Selection

    selection = Selection(ins_names)
    selection.check(portable)
    return selection


def _run(portable: Program, passes: Sequence[Pass | str]) -> None:
    from ..graph.passes import Options, run_passes

    traced = environment_flag("MIGRAPHX_TRACE_QUANTIZATION")
    # fast_math folds factors into weights before rounding; the change is smaller than the narrow type's rounding.
    options = Options(fast_math=True)
    run_passes(
        portable, passes, options, trace=(lambda name, after: print(f"Pass: {name}\n{after}")) if traced else None
    )


def _some(portable: Program, batches: Iterable[Inputs], what: str) -> Iterable[Inputs]:
    """Yield the batches; if there are none, yield one batch of generated numbers from -1 to 1.

    Raises:
        OptionError: there are no batches, and a length of an input has no upper bound.
    """
    empty = True
    for inputs in batches:
        empty = False
        yield inputs
    if empty:
        shapes = portable.parameter_shapes()
        for name, shape in shapes.items():
            if any(dim.max == UNBOUNDED for dim in shape.dims):
                raise OptionError(
                    f"no calibration data is given, and none can be generated: a length of input {name!r}, {shape}, has"
                    " no upper bound; give calibration data, or read the model with lengths"
                )
        warn(f"no calibration data is given: {what} are those of generated inputs")
        yield {name: generate(Shape(shape.type, shape.max_lens)).numpy() for name, shape in shapes.items()}
