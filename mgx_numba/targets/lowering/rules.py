"""Lowering rules: how a target turns an instruction of each operator into steps of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...core.dim import Dim
from ...core.shape import Shape
from ...dataclass import dataclass
from ...graph.instruction import Instruction
from ...interrupts import whole_module

if TYPE_CHECKING:
    from ...codegen.kernel import KernelSource
    from ...runtime.plan import Plan
    from ...runtime.plan_json import LengthsWriter
    from .lowering import Lowering

__all__ = ["SHARED_FAMILIES", "Body", "LoweringRule", "RuleTable"]

SHARED_FAMILIES = {
    "indexing": "gather gather_elements gathernd scan_slice onehot scatter_none scatter_add scatter_mul "
    "scatter_min scatter_max scatternd_none scatternd_add scatternd_mul scatternd_min scatternd_max",
    "ordering": "argmax argmin topk prefix_scan_sum",
    "recurrent": "recurrent_steps",
}
"""Operators that few programs need by the module that has their rules, for `RuleTable.import_late`: those of which all
targets have the same."""

Lower = Callable[["Lowering", Instruction], None]
Accepts = Callable[[Instruction, Shape], bool]


class Body(Protocol):
    """A submodule that a host step runs, compiled."""

    @property
    def plan(self) -> Plan | None:
        """Its plan; None if it runs by its NumPy meaning, or has one for each set of lengths."""

    @property
    def kernels(self) -> Sequence[KernelSource]:
        """What plans that it makes may need."""

    def at(self, values: Mapping[Dim, int]) -> Body:
        """It, for values of the symbols of its lengths."""

    def within(self, outer: Mapping[Instruction, Any]) -> Callable[[Sequence[Any]], list]:
        """What runs it on arguments, with values from outside."""

    def repeat(
        self,
        outer: Mapping[Instruction, Any],
        trips: int,
        condition: np.ndarray,
        carried: Sequence[np.ndarray],
        place: Callable[[int], str],
    ) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
        """See `RunModule.repeat`, with values from outside."""

    def write(self, lengths: LengthsWriter) -> tuple[str, Any, Sequence[Instruction]]:
        """The kind of the body, JSON values of which it is made again, and the values from outside that it takes.

        Raises:
            UnsupportedError: no file can hold it.
        """


@dataclass(frozen=True)
class LoweringRule:
    """How one operator is lowered.

    Attributes:
        lower: appends the steps and registers the value.
        accepts: whether the result can be written straight into memory of a given shape (strides).
        dynamic: whether results may have lengths that are known at run time only.
        hosted: whether inputs may have such lengths, too, and be values of host steps.
        surrounds: whether it takes as its own what its input has written inside of the memory of its result.
    """

    lower: Lower
    accepts: Accepts
    dynamic: bool
    hosted: bool
    surrounds: bool


class RuleTable:
    """The rules of one target by operator name, beside those of ``base``; modules of rules fill it when imported.

    Attributes:
        families: modules that are imported when a program has one of their operators, by the operator's name.
    """

    def __init__(self, base: RuleTable | None = None) -> None:
        self._rules: dict[str, LoweringRule] = {}
        self._base = base
        self.families: dict[str, str] = {}

    def import_late(self, package: str, families: Mapping[str, str]) -> None:
        """Let modules of a package be imported when one of their operators is asked for: each has the rules of those
        that ``families`` names for it, parted by spaces."""
        for module, names in families.items():
            self.families.update(dict.fromkeys(names.split(), f"{package}.{module}"))

    @property
    def rules(self) -> Mapping[str, LoweringRule]:
        """All rules by operator name."""
        for module in set(self.families.values()):
            whole_module(module)
        return {**(self._base.rules if self._base is not None else {}), **self._rules}

    def get(self, name: str) -> LoweringRule | None:
        """The rule of an operator, or None: it then runs by its NumPy meaning."""
        if name in self.families:
            whole_module(self.families[name])
        found = self._rules.get(name)
        return self._base.get(name) if found is None and self._base is not None else found

    def lowering(
        self,
        *names: str,
        accepts: Accepts | None = None,
        dynamic: bool = False,
        hosted: bool = False,
        surrounds: bool = False,
    ) -> Callable[[Lower], Lower]:
        """Decorator: the function lowers these operators; arguments as in `LoweringRule`; by default all fits."""

        def decorate(function: Lower) -> Lower:
            for name in names:
                fits = accepts or (lambda ins, shape: True)
                self._rules[name] = LoweringRule(function, fits, dynamic, hosted, surrounds)
            return function

        return decorate
