"""What quantisation costs: each layer by itself, and which layers must stay as they are for a budget."""

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

__all__ = [
    "Budget",
    "In8Bits",
    "In16Bits",
    "Trial",
    "largest_difference",
    "largest_error",
    "parse_accuracy",
    "relative_error",
]

RANKING = 2
"""Samples by which layers are ranked, each by itself: with 1, 2 and 4 of them 44, 44 and 43 of YOLO's 60 convolutions
stay in float32, with 2 and 4 18 of BERT's 37 products."""

FEWEST_INPUTS = 16
"""Of a channel from which on float8 is worth a rounding. With fewer (images, channels by themselves) units that take
16 or 32 of float8 at a time have little to do, and where it is only stored roundings take a share of the products'
time: MobileNetV2 with AVX2 takes 4.7% longer than in float32 with such layers in float8, 2.7% without."""

Inputs = Mapping[str, np.ndarray]
Results = Sequence[np.ndarray]
Loss = Callable[[Results, Results], float]
Progress = Callable[[int, int, str], None]
Quantise = Callable[["Collection[Instruction]"], None]
"""Quantises a program, given the layers that stay as they are."""


def relative_error(found: Results, exact: Results) -> float:
    """Root mean square of the differences over that of the exact values, the largest of all floating results.

    Infinite if a value is finite in one alone.
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
    """`largest_difference`, the largest of all floating results."""
    return max((largest_difference(a, b) for a, b in _floating(found, exact)), default=0.0)


def largest_difference(found: np.ndarray, exact: np.ndarray) -> float:
    """Largest difference of two results relative to the largest magnitude of the exact one.

    Infinite if shapes differ, or if a value is finite in one alone or not the same infinity.
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
    """Those of the values that are finite, in float64; None unless shapes agree, and all others are the same."""
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
    """The most that results may lose: ``loss(found, exact)``, over samples as ``over`` says, at most ``most``.

    Attributes:
        over: what is made of the losses of all samples: their mean, or the largest.
        aim: the share of ``most`` that a choice of layers keeps on samples, since other inputs may lose more.
    """

    most: float
    loss: Loss = relative_error
    over: Callable[[Sequence[float]], float] = np.mean
    aim: float = 1.0


def parse_accuracy(given: str | float) -> float:
    """A share: ``"0.5%"`` or 0.005.

    Raises:
        OptionError: it is none between 0 and 1.
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
    """Values that are multiplied for each element of a contraction's result, of a convolution at each tap."""
    return ins.inputs[1].shape.dims[{"convolution": 1, "convolution_backwards": 0}.get(ins.name, -2)].max


class Trial(ABC):
    """A program that is to be quantised, on samples; the program itself is left as it is.

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
        """The layers of a program that is the same as that of this object."""

    def refused(self, layers: Sequence[Instruction]) -> dict[int, str]:
        """Layers, of these, that stay as they are whatever may be lost, and why."""
        return {}

    @abstractmethod
    def planned(self, program: Program) -> Quantise:
        """What quantises such a program, which is planned now."""

    @abstractmethod
    def measures(self) -> Sequence[Callable[[Budget, Collection[int]], float]]:
        """What tells what the results lose if some layers stay as they are, infinite if that is no number: each must
        find the budget kept, one after another."""

    @abstractmethod
    def _quantize_alone(self, program: Program, layers: Sequence[Instruction], quantise: Quantise) -> None:
        """Quantise layers that were added to a program for which ``quantise`` was planned."""

    def own_errors(self) -> dict[str, float]:
        """By layer, how far its result lies from the exact one if it alone is quantised (`relative_error`), NaN where
        float32 has no room for the squares; nothing without samples."""
        if not self.samples or not self.names:
            return {}
        self._tell(0, "errors of layers")
        compiled = self._compiled(self._beside())
        sums = np.zeros(2 * len(self.names))
        for inputs in self.samples:
            sums += np.array([float(np.asarray(r).reshape(-1)[0]) for r in compiled.run(inputs)])
        apart, size = np.sqrt(sums[::2]), np.sqrt(sums[1::2])
        with np.errstate(invalid="ignore"):  # squares that are infinite
            shares = apart / np.where(size > 0, size, 1)
        return dict(zip(self.names, shares.tolist()))

    def lost_as_compiled(self, budget: Budget, kept: Iterable[int]) -> float:
        """What results lose if these layers stay as they are, of the program that is compiled in the end."""
        copy = self.program.clone()
        self.planned(copy)(self.layers_at(copy, dict.fromkeys(kept, "")))
        compiled = compile_for(self.target, copy)
        exact = self._exact
        return _loss(budget, [[np.array(r) for r in compiled.run(inputs)] for inputs in self.samples], exact)

    def lost_switched(self, budget: Budget, kept: Collection[int], samples: int | None = None) -> float:
        """The same of a program that computes each layer exactly and quantised, and is told which to take; on the
        first ``samples`` alone, if that is given."""
        compiled, exact = self._switched
        taken = {_switch(k): np.array([k not in kept and k not in self._refused]) for k in range(len(self.names))}
        found = [[np.array(r) for r in compiled.run({**inputs, **taken})] for inputs in self.samples[:samples]]
        return _loss(budget, found, exact[:samples])

    def kept_within(self, budget: Budget) -> dict[int, str]:
        """Layers that stay as they are, and why: the fewest of those that lose most by themselves, so that all others
        together keep the budget; all of them if nothing else does. There must be samples.
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
        """Layers by number as instructions of a program that is the same as that of this object, and those that are
        refused."""
        layers = self.layers(program)
        return {layers[k]: reason for k, reason in {**kept, **self._refused}.items()}

    def _compiled(self, program: Program) -> Compiled:
        """Compiled for measuring: what is not quantised is computed as the program says."""
        return compile_for(self.target, program, TargetOptions(fast_math=False))

    @cached_property
    def _exact(self) -> list[Results]:
        compiled = compile_for(self.target, self.program)
        return [[np.array(result) for result in compiled.run(inputs)] for inputs in self.samples]

    @cached_property
    def _switched(self) -> tuple[Compiled, list[Results]]:
        """The program of `lost_switched`, and its results without quantisation."""
        copy = self.program.clone()
        layers, quantise = self.layers(copy), self.planned(copy)
        quantized = [_switched(copy, ins, _switch(number)) for number, ins in enumerate(layers)]
        self._quantize_alone(copy, quantized, quantise)
        compiled = self._compiled(copy)
        exact = {_switch(k): np.array([False]) for k in range(len(layers))}
        return compiled, [[np.array(r) for r in compiled.run({**inputs, **exact})] for inputs in self.samples]

    def _beside(self) -> Program:
        """A copy that computes each layer twice from the same values, exactly and quantised, and gives the sum of the
        squares of the difference and of the exact result, for each layer."""
        from ..graph.passes.build import RewriteBuilder

        copy = self.program.clone()
        main = copy.main
        layers, quantise = self.layers(copy), self.planned(copy)
        results, quantized = [], []
        end = main.return_instruction
        for ins in layers:
            quantized.append(main.insert_instruction(end, ins.op, ins.inputs))
            b = RewriteBuilder(main, end)
            # of recurrent steps all hidden states
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
    """The parameter that says whether a layer is taken quantised."""
    return f"layer {number} is quantised"


def _switched(program: Program, ins: Instruction, switch: str) -> Instruction:
    """A second instruction beside a layer, whose results are taken in the place of the layer's where a parameter is
    true; what a submodule reads stays the layer's."""
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
    """Quantisation to 8 bits."""

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
        told = dict.fromkeys(narrow, f"as it is: fewer than {FEWEST_INPUTS} inputs for each channel")
        transposed = {k: ins.inputs[0] for k, ins in enumerate(layers) if ins.name == "convolution_backwards"}
        if not transposed:
            return told
        from ..graph.passes.quantization_plan import calibrated_values

        can = target(self.target).pass_options(TargetOptions()).capabilities
        if self.type.is_floating or can is None or not can.scattered_integers:
            return told | dict.fromkeys(transposed, "as it is: the target has no kernel for it in 8 bits")
        values = calibrated_values(self.program, self.selection)
        points = [seen.observer.parameters(self.type).zero_point for seen in self.calibration.values]
        shifted = {x for x, point in zip(values, points, strict=True) if point}
        signed = [k for k, x in transposed.items() if x in shifted]
        return told | dict.fromkeys(signed, "as it is: its input has a zero point, and each result its own taps")

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
        """As compiled: what comes between two layers may be in 8 bits, too."""
        return (self.lost_as_compiled,)

    def _quantize_alone(self, program: Program, layers: Sequence[Instruction], quantise: Quantise) -> None:
        alone = set(layers)
        quantise([ins for ins in program.main if ins not in alone])


class In16Bits(Trial):
    """Computing in 16 bits: products that stay in float32 are layers that stay as they are."""

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
        """With operands of products rounded and sums in float32, since whether a kernel rounds an operand, which a
        program allows, differs from machine to machine, and with the number of threads; then as compiled for the
        target, which may round more than operands."""
        return (self.lost_switched, self.lost_as_compiled)

    def _quantize_alone(self, program: Program, layers: Sequence[Instruction], quantise: Quantise) -> None:
        from ..graph.passes.truncate_float import means_of_inputs, round_operands

        originals = self.layers(self.program)
        means = means_of_inputs(self.program.main, originals)
        for ins, original in zip(layers, originals, strict=True):
            round_operands(program.main, ins, self.type, means.get(original))
