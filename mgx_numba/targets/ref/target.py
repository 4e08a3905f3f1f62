"""The ``ref`` target: operators by their NumPy meaning, the oracle."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NoReturn

from ...errors import OptionError
from ...interrupts import whole_module
from .interpreter import PASSES

if TYPE_CHECKING:
    from ...graph.passes import Options
    from ...graph.program import Program
    from ..base import KeptPlan, Progress
    from ..options import TargetOptions
    from .program import RefProgram


class RefTarget:
    """The ``ref`` target; see `Target`. No option has an effect."""

    name = "ref"
    backend = ""
    passes = PASSES
    tunes = False
    device_options: frozenset[str] = frozenset()

    def compile(self, program: Program, options: TargetOptions, progress: Progress | None = None) -> RefProgram:
        whole_module("mgx_numba.targets.ref.program")
        from .program import RefProgram

        return RefProgram(program.clone())

    def pass_options(self, options: TargetOptions) -> Options:
        from ...graph.passes import Options

        return Options()

    def machine(self, device_id: int = 0) -> None:
        """Return None: this target keeps no plans."""

    def restore(self, kept: KeptPlan, options: TargetOptions, portable: Callable[[], Program]) -> NoReturn:
        """Raise an error: there are no plans to restore.

        Raises:
            OptionError: always.
        """
        raise OptionError("the target ref has no plans")

    def limits(self, num_threads: int = 0, units: Collection[str] = ()) -> None:
        """Return None: no run of this target is compared with a machine's limits."""


TARGET = RefTarget()
