"""Lowering rules: how a target turns an instruction of each operator into steps of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

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

SHARED_FAMILIES = {
    "gather_scatter": "gather gather_elements gathernd scan_slice onehot scatter_none scatter_add scatter_mul "
    "scatter_min scatter_max scatternd_none scatternd_add scatternd_mul scatternd_min scatternd_max",
    "ordering": "argmax argmin topk prefix_scan_sum",
    "recurrent": "recurrent_steps",
}
"""Rarely used operators whose rules all targets share, by the module with the rules, for
`RuleTable.register_lazily`."""

Lower = Callable[["Lowering", Instruction], None]
Accepts = Callable[[Instruction, Shape], bool]


class Body(Protocol):
    """A compiled submodule that a fallback step runs."""

    @property
    def plan(self) -> Plan | None:
        """The body's plan; None if the body runs by its NumPy meaning, or has a plan for each set of lengths."""

    @property
    def kernels(self) -> Sequence[KernelSource]:
        """Kernels that plans made by this body may need."""

    def at(self, values: Mapping[Dim, int]) -> Body:
        """Return the body with the symbols of its lengths replaced by values."""

    def within(self, outer: Mapping[Instruction, object]) -> Callable[[Sequence[np.ndarray]], list]:
        """Return a function that runs the body on arguments, with captured values ``outer``."""

    def repeat(
        self,
        outer: Mapping[Instruction, object],
        trips: int,
        condition: np.ndarray,
        carried: Sequence[np.ndarray],
        place: Callable[[int], str],
    ) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
        """Run the body as a loop with captured values ``outer``; see `RunModule.repeat`."""

    def keep_growth(self, keep: Callable[[object], None]) -> None:
        """Have ``keep`` called when a run makes further plans of the body; see `Growing`."""

    def write(self, lengths: LengthsWriter) -> tuple[str, object, Sequence[Instruction]]:
        """Return the kind of the body, its JSON values, and the values that it captures from outside.

        Raises:
            UnsupportedError: no file can hold the body.
        """


@dataclass(frozen=True)
class LoweringRule:
    """How one operator is lowered.

    Attributes:
        lower: appends the steps and registers the value.
        accepts: whether the result can be written directly into memory of a given shape (strides).
        dynamic: whether results may have lengths that are known only at run time.
        hosted: whether inputs may also have such lengths, and be values of fallback steps.
        surrounds: whether the rule takes an input that was written in place inside the memory of its result.
    """

    lower: Lower
    accepts: Accepts
    dynamic: bool
    hosted: bool
    surrounds: bool


class RuleTable:
    """The lowering rules of one target by operator name, with ``base`` as fallback; modules of rules fill it when
    imported.

    Attributes:
        families: for each operator, the module with its rule, imported when the rule is first needed.
    """

    def __init__(self, base: RuleTable | None = None) -> None:
        self._rules: dict[str, LoweringRule] = {}
        self._base = base
        self.families: dict[str, str] = {}

    def register_lazily(self, package: str, families: Mapping[str, str]) -> None:
        """Register modules of a package that are imported when a rule of theirs is first needed.

        Args:
            families: names of operators, separated by spaces, by module.
        """
        for module, names in families.items():
            self.families.update(dict.fromkeys(names.split(), f"{package}.{module}"))

    @property
    def rules(self) -> Mapping[str, LoweringRule]:
        """All rules by operator name; imports all modules of rules."""
        for module in set(self.families.values()):
            whole_module(module)
        return {**(self._base.rules if self._base is not None else {}), **self._rules}

    def get(self, name: str) -> LoweringRule | None:
        """Return the rule of an operator; None if it has none and runs by its NumPy meaning."""
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
        """Return a decorator that registers a function as the rule of the named operators.

        Arguments are those of `LoweringRule`. By default ``accepts`` takes every shape.
        """

        def decorate(function: Lower) -> Lower:
            for name in names:
                fits = accepts or (lambda ins, shape: True)
                self._rules[name] = LoweringRule(function, fits, dynamic, hosted, surrounds)
            return function

        return decorate
