"""Sensitivity analysis of quantisation: the loss by each layer alone, and the layers to exclude for a loss budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..core.shape import Shape
from ..core.types import Type, from_numpy
from ..dataclass import dataclass
from ..errors import OptionError
from ..targets.options import TargetOptions
from ..targets.registry import compile_for, target

if TYPE_CHECKING:
    from ..graph.calibration import Calibration
    from ..graph.instruction import Instruction
    from ..graph.passes.selection import Selection
    from ..graph.program import Program
    from ..targets.base import Compiled

RANKING = 2
"""Number of samples by which layers are ranked, each alone. With 1, 2 and 4 samples, 44, 44 and 43 of YOLO's 60
convolutions stay in float32; with 2 and 4, 18 of BERT's 37 products."""

FEWEST_INPUTS = 16
"""Fewest inputs per channel for which float8 is used. Units that take 16 or 32 float8 values at a time gain little with
fewer (images, depthwise convolutions). Where float8 is only a storage type, rounding takes part of the products' time.
MobileNetV2 with AVX2 takes 4.7% longer than in float32 with such layers in float8, 2.7% without."""

Inputs = Mapping[str, np.ndarray]
Results = Sequence[np.ndarray]
Loss = Callable[[Results, Results], float]
Progress = Callable[[int, int, str], None]
Quantise = Callable[["Collection[Instruction]"], None]
"""Quantises a program, except the layers passed to it."""


def relative_error(found: Results, exact: Results) -> float:
    """Return the RMS of the differences divided by the RMS of the exact values, the largest of all floating results.

    Infinite if a value is finite in only one of the two results.
    """
    worst = 0.0
    for a, b in _floating(found, exact):
        if (pair := _finite(a, b)) is None:
            return float("inf")
        size = float(np.linalg.norm(pair[1]))
        apart = float(np.linalg.norm(pair[0] - pair[1]))
        worst = max(worst, apart / size if size else float(apart > 0))
    return worst


def largest_error(found: Results, exact: Results) -> float:
    """Return the largest `largest_difference` of all floating results."""
    return max((largest_difference(a, b) for a, b in _floating(found, exact)), default=0.0)


def largest_difference(found: np.ndarray, exact: np.ndarray) -> float:
    """Return ``max|found - exact| / max|exact|``.

    Infinite if shapes differ, or if a value is finite in only one of the two results, or is another infinity.
    """
    pair = _finite(found, exact)
    if pair is None:
        return float("inf")
    a, b = pair
    size, apart = float(np.abs(b).max(initial=0)), float(np.abs(a - b).max(initial=0))
    return apart / size if size else (float("inf") if apart else 0.0)


def _floating(found: Results, exact: Results) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(a, b) for a, b in zip(found, exact, strict=True) if from_numpy(b.dtype).is_floating]


def _finite(found: np.ndarray, exact: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the finite values of both results in float64; None if shapes differ, or the non-finite values do."""
    if found.shape != exact.shape:
        return None
    a, b = found.astype(np.float64).reshape(-1), exact.astype(np.float64).reshape(-1)
    finite = np.isfinite(b)
    if finite.all():
        return (a, b) if np.isfinite(a).all() else None
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return None
    return a[finite], b[finite]


@dataclass(frozen=True)
class Budget:
    """A limit on the loss of results: ``over`` of ``loss(found, exact)`` for all samples must not exceed ``most``.

    Attributes:
        over: aggregate of the losses of all samples: their mean, or the largest.
        aim: fraction of ``most`` to use up on the samples, since other inputs may lose more.
    """

    most: float
    loss: Loss = relative_error
    over: Callable[[Sequence[float]], float] = np.mean
    aim: float = 1.0


def parse_accuracy(given: str | float) -> float:
    """Return the fraction that ``"0.5%"`` or 0.005 stands for.

    Raises:
        OptionError: it is not between 0 and 1.
    """
    text = str(given).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1 or isinstance(given, bool):
        raise OptionError(f"accuracy is {given!r}, expected a share of what may be lost, as '0.5%' or 0.005")
    return share


def _inputs(ins: Instruction) -> int:
    """Return the length of a contraction's reduction, for a convolution per kernel tap."""
    return ins.inputs[1].shape.dims[{"convolution": 1, "convolution_backwards": 0}.get(ins.name, -2)].max


class Trial(ABC):
    """A trial quantisation of a program, measured on samples; works on clones, so the program is unchanged.

    Layers are numbered in the order of `layers`.
    """

    def __init__(
        self, program: Program, target: str, samples: Sequence[Inputs], progress: Progress | None = None
    ) -> None:
        from ..graph.passes.quantization_plan import layer_name

        self.program, self.target, self.samples = program, target, list(samples)
        self._progress = progress
        place = {ins: number for number, ins in enumerate(program.main)}
        layers = self.layers(program)
        self.names = [layer_name(ins, place[ins]) for ins in layers]
        self._refused = self.refused(layers)

    @abstractmethod
    def layers(self, program: Program) -> list[Instruction]:
        """Return the quantisable layers of a clone of the program, in a fixed order."""

    def refused(self, layers: Sequence[Instruction]) -> dict[int, str]:
        """Return the numbers of the layers that are never quantised, with the reason."""
        return {}

    @abstractmethod
    def planned(self, program: Program) -> Quantise:
        """Plan the quantisation of a clone of the program, and return the function that performs it."""

    @abstractmethod
    def measures(self) -> Sequence[Callable[[Budget, Collection[int]], float]]:
        """Return functions that measure the loss if some layers stay unquantised; each in turn must keep the budget.

        A loss that is not a number counts as infinite.
        """

    @abstractmethod
    def _quantize_alone(self, program: Program, layers: Sequence[Instruction], quantise: Quantise) -> None:
        """Quantise only ``layers``, which were added to a program after ``quantise`` was planned for it."""

    def own_errors(self) -> dict[str, float]:
        """Return, by layer name, the `relative_error` of the layer's result if it alone is quantised.

        Empty without samples; NaN if the sums of squares overflow float32.
        """
        if not self.samples or not self.names:
            return {}
        self._tell(0, "errors of layers")
        compiled = self._compiled(self._beside())
        sums = np.zeros(2 * len(self.names))
        for inputs in self.samples:
            sums += np.array([float(np.asarray(r).reshape(-1)[0]) for r in compiled.run(inputs)])
        apart, size = np.sqrt(sums[::2]), np.sqrt(sums[1::2])
        with np.errstate(invalid="ignore"):  # inf / inf
            shares = apart / np.where(size > 0, size, 1)
        return dict(zip(self.names, shares.tolist()))

    def lost_as_compiled(self, budget: Budget, kept: Iterable[int]) -> float:
        """Return the loss of the fully compiled program if the layers ``kept`` stay unquantised."""
        copy = self.program.clone()
        self.planned(copy)(self.layers_at(copy, dict.fromkeys(kept, "")))
        compiled = compile_for(self.target, copy)
        exact = self._exact
        return _loss(budget, [[np.array(r) for r in compiled.run(inputs)] for inputs in self.samples], exact)

    def lost_switched(self, budget: Budget, kept: Collection[int], samples: int | None = None) -> float:
        """Return the loss if the layers ``kept`` stay unquantised, by a program that computes every layer both ways.

        Boolean parameters select the exact or the quantised result of each layer. ``samples`` limits the number of
        samples.
        """
        compiled, exact = self._switched
        taken = {_switch(k): np.array([k not in kept and k not in self._refused]) for k in range(len(self.names))}
        found = [[np.array(r) for r in compiled.run({**inputs, **taken})] for inputs in self.samples[:samples]]
        return _loss(budget, found, exact[:samples])

    def kept_within(self, budget: Budget) -> dict[int, str]:
        """Return the fewest layers that must stay unquantised to keep the budget, with the reason for each.

        Layers are excluded in order of their loss alone, and bisection finds their number; all if nothing else keeps
        the budget. There must be samples.
        """
        most = budget.most * budget.aim
        layers = [k for k in range(len(self.names)) if k not in self._refused]
        alone: dict[int, float] = {}
        order: list[int] = []
        fewest = 0
        for lost in self.measures():
            if not layers or lost(budget, order[:fewest]) <= most:
                continue
            if not order:
                for number in layers:
                    self._tell(number, "sensitivity of layers")
                    alone[number] = self.lost_switched(budget, set(layers) - {number}, RANKING)
                order = sorted(layers, key=lambda k: -alone[k])
            low, high = min(fewest + 1, len(layers)), len(layers)
            while low < high:
                self._tell(len(self.names), "layers to keep")
                middle = (low + high) // 2
                low, high = (low, middle) if lost(budget, order[:middle]) <= most else (middle + 1, high)
            fewest = low
        reason = "as it is: alone it loses {:.3g}%, and all may lose {:.3g}%"
        return {k: reason.format(100 * alone[k], 100 * budget.most) for k in order[:fewest]}

    def layers_at(self, program: Program, kept: Mapping[int, str]) -> dict[Instruction, str]:
        """Return the instructions, in a clone of the program, of the layers ``kept`` and refused, with reasons."""
        layers = self.layers(program)
        return {layers[k]: reason for k, reason in {**kept, **self._refused}.items()}

    def _compiled(self, program: Program) -> Compiled:
        """Compile for measuring, without ``fast_math``, so that unquantised parts are rounded as written."""
        return compile_for(self.target, program, TargetOptions(fast_math=False))

    @cached_property
    def _exact(self) -> list[Results]:
        compiled = compile_for(self.target, self.program)
        return [[np.array(result) for result in compiled.run(inputs)] for inputs in self.samples]

    @cached_property
    def _switched(self) -> tuple[Compiled, list[Results]]:
        """Return the program of `lost_switched`, and its results without quantisation."""
        copy = self.program.clone()
        layers, quantise = self.layers(copy), self.planned(copy)
        quantized = [_switched(copy, ins, _switch(number)) for number, ins in enumerate(layers)]
        self._quantize_alone(copy, quantized, quantise)
        compiled = self._compiled(copy)
        exact = {_switch(k): np.array([False]) for k in range(len(layers))}
        return compiled, [[np.array(r) for r in compiled.run({**inputs, **exact})] for inputs in self.samples]

    def _beside(self) -> Program:
        """Return a clone that computes each layer both exactly and quantised, from the same inputs.

        Its results, for each layer, are the sums of squares of the difference and of the exact result.
        """
        from ..graph.passes.build import RewriteBuilder

        copy = self.program.clone()
        main = copy.main
        layers, quantise = self.layers(copy), self.planned(copy)
        results, quantized = [], []
        end = main.return_instruction
        for ins in layers:
            quantized.append(main.insert_instruction(end, ins.op, ins.inputs))
            b = RewriteBuilder(main, end)
            # The result of a recurrent layer is compared by all hidden states.
            pair = [b.op("get_tuple_elem", v, index=0) if v.shape.sub_shapes else v for v in (quantized[-1], ins)]
            apart = b.op("sub", *pair)
            axes = tuple(range(apart.shape.ndim))
            results += [b.op("reduce_sum", b.op("mul", v, v), axes=axes) for v in (apart, pair[1])]
        main.replace_return(results)
        self._quantize_alone(copy, quantized, quantise)
        return copy

    def _tell(self, done: int, what: str) -> None:
        if self._progress is not None:
            self._progress(done, len(self.names), what)


def _loss(budget: Budget, found: Sequence[Results], exact: Sequence[Results]) -> float:
    losses = [float(budget.loss(a, b)) for a, b in zip(found, exact, strict=True)]
    return float("inf") if np.isnan(losses).any() else float(budget.over(losses))


def _switch(number: int) -> str:
    """Return the name of the boolean parameter that selects a layer's quantised result."""
    return f"layer {number} is quantised"


def _switched(program: Program, ins: Instruction, switch: str) -> Instruction:
    """Insert a second copy of a layer, whose results are used if the parameter ``switch`` is true; return the copy.

    Submodules still read the original layer.
    """
    from ..graph.passes.build import RewriteBuilder
    from ..graph.passes.merge_rnn_outputs import last_states

    main = program.main
    order = list(main)
    following = order[order.index(ins) + 1]
    chosen = main.add_parameter(switch, Shape(Type.bool_type, (1,)))
    again = main.insert_instruction(following, ins.op, ins.inputs)
    parts = [user for user in ins.users if ins.shape.sub_shapes or user in last_states(ins)]
    pairs = [(part, main.insert_instruction(part, part.op, [again])) for part in parts if part.module is main]
    if not ins.shape.sub_shapes:
        pairs.append((ins, again))
    for exact, other in pairs:
        users = [user for user in exact.users if user not in parts and user.module is main]
        if not users:
            continue
        order = list(main)
        b = RewriteBuilder(main, order[max(map(order.index, (exact, other))) + 1])
        if exact.shape.is_dynamic:
            everywhere = b.op("multibroadcast", chosen, exact)
        else:
            everywhere = b.op("multibroadcast", chosen, out_lens=exact.shape.lens)
        taken = b.op("where", everywhere, other, exact)
        for user in users:
            main.set_inputs(user, {k: taken for k, i in enumerate(user.inputs) if i is exact})
    return again


class In8Bits(Trial):
    """A trial of quantisation to 8 bits."""

    def __init__(
        self,
        program: Program,
        selection: Selection,
        calibration: Calibration,
        type: Type,
        target: str,
        samples: Sequence[Inputs],
        progress: Progress | None = None,
    ) -> None:
        self.selection, self.calibration, self.type = selection, calibration, type
        super().__init__(program, target, samples, progress)

    def layers(self, program: Program) -> list[Instruction]:
        from ..graph.passes.quantization_plan import layers_of

        return layers_of(program, self.selection)

    def refused(self, layers: Sequence[Instruction]) -> dict[int, str]:
        narrow = [k for k, ins in enumerate(layers) if self.type.is_floating and _inputs(ins) < FEWEST_INPUTS]
        reasons = dict.fromkeys(narrow, f"as it is: fewer than {FEWEST_INPUTS} inputs for each channel")
        transposed = {k: ins.inputs[0] for k, ins in enumerate(layers) if ins.name == "convolution_backwards"}
        if not transposed:
            return reasons
        from ..graph.passes.quantization_plan import calibrated_values

        can = target(self.target).pass_options(TargetOptions()).capabilities
        if self.type.is_floating or can is None or not can.scattered_integers:
            return reasons | dict.fromkeys(transposed, "as it is: the target has no kernel for it in 8 bits")
        values = calibrated_values(self.program, self.selection)
        points = [seen.observer.parameters(self.type).zero_point for seen in self.calibration.values]
        shifted = {x for x, point in zip(values, points, strict=True) if point}
        signed = [k for k, x in transposed.items() if x in shifted]
        return reasons | dict.fromkeys(signed, "as it is: its input has a zero point, and each result its own taps")

    def planned(self, program: Program) -> Quantise:
        from ..graph.passes import run_passes
        from ..graph.passes.quantization_plan import make_plans
        from ..graph.passes.quantize_8bits import Quantize8Bits

        plans = make_plans(program, self.selection, self.calibration, self.type)
        steps = not self.type.is_floating

        def quantise(kept: Collection[Instruction]) -> None:
            step = Quantize8Bits(plans, self.selection, dict.fromkeys(kept, ""), steps)
            run_passes(program, [step, "eliminate_common_subexpression", "dead_code_elimination"])

        return quantise

    def measures(self) -> Sequence[Callable[[Budget, Collection[int]], float]]:
        """Return the loss as compiled alone: values between two quantised layers may be in 8 bits, too."""
        return (self.lost_as_compiled,)

    def _quantize_alone(self, program: Program, layers: Sequence[Instruction], quantise: Quantise) -> None:
        alone = set(layers)
        quantise([ins for ins in program.main if ins not in alone])


class In16Bits(Trial):
    """A trial of computation in 16 bits; its layers are the products of `TruncateFloat.layers`."""

    def __init__(
        self,
        program: Program,
        ins_names: Sequence[str],
        type: Type,
        target: str,
        samples: Sequence[Inputs],
        progress: Progress | None = None,
    ) -> None:
        self.ins_names, self.type = ins_names, type
        super().__init__(program, target, samples, progress)

    def layers(self, program: Program) -> list[Instruction]:
        from ..graph.passes.truncate_float import TruncateFloat

        return TruncateFloat(self.ins_names, self.type).layers(program)

    def planned(self, program: Program) -> Quantise:
        from ..graph.passes import run_passes
        from ..graph.passes.truncate_float import TruncateFloat

        def quantise(kept: Collection[Instruction]) -> None:
            step = TruncateFloat(self.ins_names, self.type, kept)
            run_passes(program, [step, "optimize_module", "dead_code_elimination"])

        return quantise

    def measures(self) -> Sequence[Callable[[Budget, Collection[int]], float]]:
        """Return two measures: with rounded operands and float32 sums, then as compiled for the target.

        Whether a kernel rounds an operand differs from machine to machine, and with the number of threads. The first
        measure rounds every operand of a product, as a program allows. The second includes whatever else the target
        rounds.
        """
        return (self.lost_switched, self.lost_as_compiled)

    def _quantize_alone(self, program: Program, layers: Sequence[Instruction], quantise: Quantise) -> None:
        from ..graph.passes.truncate_float import means_of_inputs, round_operands

        originals = self.layers(self.program)
        means = means_of_inputs(self.program.main, originals)
        for ins, original in zip(layers, originals, strict=True):
            round_operands(program.main, ins, self.type, means.get(original))
