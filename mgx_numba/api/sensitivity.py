"""What quantisation to 8 bits costs: each layer by itself, and which layers must stay as they are for a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.types import Type
from ..dataclass import dataclass
from ..errors import OptionError
from ..targets.registry import compile_for

if TYPE_CHECKING:
    from ..graph.calibration import Calibration
    from ..graph.instruction import Instruction
    from ..graph.passes.selection import Selection
    from ..graph.program import Program

__all__ = ["Budget", "Quantization", "parse_accuracy", "relative_error"]

FEWEST_INPUTS = 16
"""Of a channel from which on float8 is worth a rounding. With fewer (images, channels by themselves) units that take
16 or 32 of float8 at a time have little to do, and where it is only stored roundings take a share of the products'
time: MobileNetV2 with AVX2 takes 4.7% longer than in float32 with such layers in float8, 2.7% without."""

Inputs = Mapping[str, np.ndarray]
Results = Sequence[np.ndarray]
Loss = Callable[[Results, Results], float]
Progress = Callable[[int, int, str], None]


def relative_error(found: Results, exact: Results) -> float:
    """Root mean square of the differences over that of the exact values, the largest of all floating results."""
    worst = 0.0
    for a, b in zip(found, exact, strict=True):
        if np.issubdtype(b.dtype, np.floating):
            size = float(np.linalg.norm(b.astype(np.float64)))
            apart = float(np.linalg.norm(a.astype(np.float64) - b.astype(np.float64)))
            worst = max(worst, apart / size if size else float(apart > 0))
    return worst


@dataclass(frozen=True)
class Budget:
    """The most that results may lose: ``loss(found, exact)``, the mean over samples, at most ``most``."""

    most: float
    loss: Loss = relative_error


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
    return ins.inputs[1].shape.dims[1 if ins.name == "convolution" else -2].max


class Quantization:
    """A program that is to be quantised, on samples; the program itself is left as it is.

    Layers are numbered in the order of `layers_of`.
    """

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
        from ..graph.passes.quantization_plan import layer_name, layers_of

        self.program, self.selection, self.calibration, self.type = program, selection, calibration, type
        self.target, self.samples = target, list(samples)
        self._progress = progress
        place = {ins: number for number, ins in enumerate(program.main)}
        layers = layers_of(program, selection)
        self.names = [layer_name(ins, place[ins]) for ins in layers]
        narrow = [k for k, ins in enumerate(layers) if type.is_floating and _inputs(ins) < FEWEST_INPUTS]
        self._narrow = dict.fromkeys(narrow, f"as it is: fewer than {FEWEST_INPUTS} inputs for each channel")

    def own_errors(self) -> dict[str, float]:
        """By layer, how far its result lies from the exact one if it alone is quantised (`relative_error`); nothing
        without samples."""
        if not self.samples or not self.names:
            return {}
        self._tell(0, "errors of layers")
        compiled = compile_for(self.target, self._beside())
        sums = np.zeros(2 * len(self.names))
        for inputs in self.samples:
            sums += np.array([float(np.asarray(r).reshape(-1)[0]) for r in compiled.run(inputs)])
        apart, size = np.sqrt(sums[::2]), np.sqrt(sums[1::2])
        return dict(zip(self.names, (apart / np.where(size > 0, size, 1)).tolist()))

    def kept_within(self, budget: Budget) -> dict[int, str]:
        """Layers that stay as they are, and why: the fewest of those that lose most by themselves, so that all others
        together keep the budget. There must be samples.
        """
        exact = [self._results(self.program, inputs) for inputs in self.samples]
        total = len(self.names)

        def lost(kept: Iterable[int]) -> float:
            changed = self._quantized(kept)
            compiled = compile_for(self.target, changed)
            pairs = ([np.asarray(r) for r in compiled.run(inputs)] for inputs in self.samples)
            return float(np.mean([budget.loss(found, right) for found, right in zip(pairs, exact)]))

        if lost(()) <= budget.most:
            return {}
        alone = []
        for number in range(total):
            self._tell(number, "sensitivity of layers")
            alone.append(lost(set(range(total)) - {number}))
        order = sorted(range(total), key=lambda k: -alone[k])
        low, high = 1, total
        while low < high:
            self._tell(total, "layers to keep")
            middle = (low + high) // 2
            low, high = (low, middle) if lost(order[:middle]) <= budget.most else (middle + 1, high)
        reason = "as it is: alone it loses {:.3%}, and all may lose {:.3%}"
        return {k: reason.format(alone[k], budget.most) for k in order[:low]}

    def layers_at(self, program: Program, kept: Mapping[int, str]) -> dict[Instruction, str]:
        """Layers by number as instructions of a program that is the same as that of this object, and those of few
        inputs, which stay as they are, too."""
        from ..graph.passes.quantization_plan import layers_of

        layers = layers_of(program, self.selection)
        return {layers[k]: reason for k, reason in {**self._narrow, **kept}.items()}

    def _quantized(self, kept: Iterable[int]) -> Program:
        from ..graph.passes import run_passes
        from ..graph.passes.quantization_plan import make_plans
        from ..graph.passes.quantize_8bits import Quantize8Bits

        copy = self.program.clone()
        plans = make_plans(copy, self.selection, self.calibration, self.type)
        kept_here = self.layers_at(copy, dict.fromkeys(kept, ""))
        step = Quantize8Bits(plans, self.selection, kept_here, not self.type.is_floating)
        run_passes(copy, [step, "eliminate_common_subexpression", "dead_code_elimination"])
        return copy

    def _beside(self) -> Program:
        """A copy that computes each layer twice from the same values, exactly and quantised, and gives the sum of the
        squares of the difference and of the exact result, for each layer."""
        from ..graph.passes import run_passes
        from ..graph.passes.build import RewriteBuilder
        from ..graph.passes.quantization_plan import layers_of, make_plans
        from ..graph.passes.quantize_8bits import Quantize8Bits

        copy = self.program.clone()
        main = copy.main
        layers = layers_of(copy, self.selection)
        plans = make_plans(copy, self.selection, self.calibration, self.type)
        results = []
        end = main.return_instruction
        for ins in layers:
            again = main.insert_instruction(end, ins.op, ins.inputs)
            b = RewriteBuilder(main, end)
            # of recurrent steps all hidden states
            pair = [b.op("get_tuple_elem", v, index=0) if v.shape.sub_shapes else v for v in (again, ins)]
            apart = b.op("sub", *pair)
            axes = tuple(range(apart.shape.ndim))
            results += [b.op("reduce_sum", b.op("mul", v, v), axes=axes) for v in (apart, pair[1])]
        main.replace_return(results)
        step = Quantize8Bits(plans, self.selection, dict.fromkeys(layers, ""), not self.type.is_floating)
        run_passes(copy, [step, "eliminate_common_subexpression", "dead_code_elimination"])
        return copy

    def _results(self, program: Program, inputs: Inputs) -> Results:
        return [np.asarray(result) for result in compile_for(self.target, program).run(inputs)]

    def _tell(self, done: int, what: str) -> None:
        if self._progress is not None:
            self._progress(done, len(self.names), what)
