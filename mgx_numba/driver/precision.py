"""Attribution of the error of a low-precision program to its layers, by comparison with float32.

Layers are nodes of the model, identified by name. A layer's own error results from its exact inputs, and is the cost of
its own precision. Its total error results from the program's actual values, and includes the errors of all layers
before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..api.sensitivity import relative_error
from ..core.shape import Shape
from ..core.types import Type, from_numpy
from ..dataclass import dataclass
from ..errors import OptionError
from ..graph.constants import STORED, is_constant
from ..graph.instruction import Instruction
from ..graph.module import Module
from ..graph.passes import run_passes
from ..graph.passes.build import RewriteBuilder
from ..graph.program import Program
from ..targets.base import Compiled
from .verifying import in_double

Inputs = Mapping[str, np.ndarray]
Compiler = Callable[[Program], Compiled]
NARROW = frozenset({Type.half_type, Type.bf16_type})


def without_quantisation(args: argparse.Namespace, kinds: Iterable[str]) -> argparse.Namespace:
    """Return a copy of the flags without quantisation."""
    changed = argparse.Namespace(**vars(args))
    for kind in kinds:
        setattr(changed, kind, False)
    changed.calibration, changed.accuracy, changed.quantization_report = [], None, False
    return changed


def in_float32(program: Program) -> Program:
    """Return a copy of a program without rounding to 8 bits and without 16-bit computation; weights are unchanged.

    Values are still clipped to the range of their 8-bit type: quantisers omit a ReLU that the range implies.
    """
    copy = program.clone()
    for module in copy.reachable_modules():
        for ins in list(module):
            q = ins.inputs[0] if ins.name == "dequantizelinear" else ins
            if q.name == "quantizelinear" and q is not ins and q.shape.type.is_integral:
                _limit(module, ins, q)
    run_passes(copy, ["dead_code_elimination"])
    types = {leaf.type for module in copy.reachable_modules() for ins in module for leaf in ins.shape.flatten()}
    return in_double(copy) if types & NARROW else copy


def _limit(module: Module, pair: Instruction, q: Instruction) -> None:
    """Replace a Q/DQ pair by a clip to the pair's range."""
    b = RewriteBuilder(module, pair)
    _, *parameters = pair.inputs
    ends = np.iinfo(q.shape.type.numpy)
    value = q.inputs[0]
    for name, end in (("max", ends.min), ("min", ends.max)):
        level = b.op("multibroadcast", b.literal([end], q.shape.type), q)
        value = b.op(name, value, b.op("dequantizelinear", level, *parameters))
    value.debug_symbols = pair.debug_symbols
    module.replace_instruction(pair, value)


@dataclass(frozen=True)
class LayerError:
    """Relative root mean square errors of a layer's result.

    Attributes:
        layer: name of the node.
        operator: operator that computes the layer.
        own: error from exact inputs.
        total: error from the program's actual inputs.
    """

    layer: str
    operator: str
    own: float
    total: float

    def __str__(self) -> str:
        return f"{self.layer} [{self.operator}]: own error {self.own:.3g}, with all before {self.total:.3g}"


class PrecisionCheck:
    """Comparison of a program with an equivalent program in float32.

    Attributes:
        layers: names of the nodes in both programs, in program order.
        result_error: relative root mean square error of the results.
        largest: largest absolute difference of the results.
    """

    def __init__(self, exact: Program, changed: Program, compiler: Compiler, inputs: Inputs) -> None:
        """Run both programs on the inputs.

        Args:
            compiler: compiles a program for the target.

        Raises:
            OptionError: the programs have no node names in common.
        """
        self._changed, self._compiler, self._inputs = changed, compiler, dict(inputs)
        of_exact, of_changed = _layers(exact), _layers(changed)
        alike = [n for n in of_exact if n in of_changed and of_exact[n].shape.lens == of_changed[n].shape.lens]
        self.layers = list({of_changed[name]: name for name in alike}.values())
        if not self.layers:
            raise OptionError(
                "--precision: the program has no names of nodes (an ONNX file, or --debug-symbols when saved)"
            )
        self._exact = dict(zip(self.layers, self._run(exact, self.layers)))
        self._expected = self._run(exact, None)
        found = self._run(changed, None)
        self.result_error = relative_error(found, self._expected)
        self.largest = max((float(np.abs(a - b).max(initial=0)) for a, b in zip(found, self._expected)), default=0.0)

    def errors(self) -> list[LayerError]:
        """Return the errors of each layer, in program order."""
        found = _layers(self._changed)
        values = zip(self.layers, self._from_exact(self.layers, self.layers), self._run(self._changed, self.layers))
        return [
            LayerError(name, found[name].name, *(relative_error([value], [self._exact[name]]) for value in both))
            for name, *both in values
        ]

    def error_with(self, right: Sequence[str]) -> float:
        """Return the relative error of the program's results if the layers ``right`` were exact."""
        return relative_error(self._from_exact(right, None), self._expected)

    def half_way(self) -> str:
        """Return the first layer such that exact layers up to it halve the results' error, by bisection."""
        low, high = 0, len(self.layers) - 1
        while low < high:
            middle = (low + high) // 2
            gone = self.error_with(self.layers[: middle + 1]) <= self.result_error / 2
            low, high = (low, middle) if gone else (middle + 1, high)
        return self.layers[low]

    def _from_exact(self, right: Sequence[str], wanted: Sequence[str] | None) -> list[np.ndarray]:
        """Run the changed program with the layers ``right`` replaced by their exact values for all readers.

        Args:
            wanted: layers whose own values are returned; None for the program's results.
        """
        copy = self._changed.clone()
        main, found = copy.main, _layers(copy)
        given = dict(self._inputs)
        for number, name in enumerate(right):
            value = found[name]
            key = f"exact:{number}"
            given[key] = self._exact[name].astype(value.shape.type.numpy)
            main.replace_instruction(value, main.add_parameter(key, Shape(value.shape.type, value.shape.lens)))
        return self._compute(copy, None if wanted is None else [found[name] for name in wanted], given)

    def _run(self, program: Program, wanted: Sequence[str] | None) -> list[np.ndarray]:
        copy = program.clone()
        found = _layers(copy)
        return self._compute(copy, None if wanted is None else [found[name] for name in wanted], self._inputs)

    def _compute(self, program: Program, wanted: Sequence[Instruction] | None, inputs: Inputs) -> list[np.ndarray]:
        if wanted is not None:
            program.main.replace_return(wanted)
        run_passes(program, ["dead_code_elimination"])
        needed = program.parameter_shapes()
        results = self._compiler(program).run({k: v for k, v in inputs.items() if k in needed})
        return [_wide(np.array(r)) for r in results]


def _layers(program: Program) -> dict[str, Instruction]:
    """Return the last floating instruction of each node of the main module, by node; constants are left out."""
    found: dict[str, Instruction] = {}
    for ins in program.main:
        stored = ins.name in STORED and is_constant(ins.inputs[0])
        if stored or is_constant(ins) or ins.shape.sub_shapes or ins.shape.is_dynamic:
            continue
        if ins.shape.type.is_floating:
            found.update(dict.fromkeys(ins.debug_symbols, ins))
    return found


def _wide(value: np.ndarray) -> np.ndarray:
    """Convert floats of any width to float64, for comparison."""
    return value.astype(np.float64) if from_numpy(value.dtype).is_floating else value
