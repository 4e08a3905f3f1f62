"""Programs read from files, for a device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ...graph.program import Program
from ...runtime.gpu.constants import DeviceConstants
from ...runtime.gpu.engine import Engine, Queue
from ...runtime.gpu.held_call import HeldCall
from ..base import Inputs, Kept, KeptPlan, KeptSplit, Results
from ..options import TargetOptions
from ..restored import Restored
from ..serving_plans import ServingPlans
from .compiled import DeviceProgram, DeviceSymbolicSplit, OpenLengthsProgram, SplitGpuProgram


class DevicePlans(ServingPlans[Any], OpenLengthsProgram):
    """A program with dynamic inputs that runs the plans that it has."""

    def run_staying(self, inputs: Inputs, stream: int | None, stays: bool) -> list[object]:
        """See `DeviceCalls.run_staying`.

        Raises:
            Outgrown: no plan serves the lengths.
        """
        return self._chosen(inputs, lambda plan: plan.run_staying(inputs, stream, stays))  # type: ignore[no-any-return]

    def held(self, inputs: Inputs) -> HeldCall | None:
        """See `DeviceCalls.held`; raises `Outgrown` as `run_staying` does."""
        return self._chosen(inputs, lambda plan: plan.held(inputs))  # type: ignore[no-any-return]

    def run_on(self, queue: Queue, inputs: Inputs) -> Results:
        """See `DeviceCalls.run_on`; raises `Outgrown` as `run_staying` does."""
        return self._chosen(inputs, lambda plan: plan.run_on(queue, inputs))  # type: ignore[no-any-return]


class RestoredDeviceProgram(Restored[Any], OpenLengthsProgram):
    """A program read from a file, for a device; see `Restored`."""

    def __init__(
        self,
        kept: object,
        compile: Callable[[Any], Any],
        on: Engine,
        options: TargetOptions,
        shown: Callable[[], Program],
    ) -> None:
        """Create the program for the engine ``on``; ``kept`` and ``compile`` are as in `Restored`, ``shown`` as in
        `runnable`."""
        DeviceProgram.__init__(self, on, options, None, None, shown)
        Restored.__init__(self, kept, compile)

    @property
    def program(self) -> Program:
        """The optimised program, which is compiled anew."""
        return self._whole().program  # type: ignore[no-any-return]

    def run_staying(self, inputs: Inputs, stream: int | None, stays: bool) -> list[object]:
        return self._tried(lambda program: program.run_staying(inputs, stream, stays))  # type: ignore[no-any-return]

    def held(self, inputs: Inputs) -> HeldCall | None:
        return self._tried(lambda program: program.held(inputs))  # type: ignore[no-any-return]

    def run_on(self, queue: Queue, inputs: Inputs) -> Results:
        return self._tried(lambda program: program.run_on(queue, inputs))  # type: ignore[no-any-return]

    def step_seconds(self, inputs: Inputs) -> list[float]:
        return self._whole().step_seconds(inputs)  # type: ignore[no-any-return]


def runnable(
    kept: Kept, on: Engine, options: TargetOptions, shown: Callable[[], Program], constants: DeviceConstants
) -> object:
    """Return an executable program; ``shown`` returns the optimised program of a single plan."""

    def made(one: Kept) -> Any:
        return runnable(one, on, options, shown, constants)

    if isinstance(kept, KeptPlan):
        return DeviceProgram(on, options, kept.plan, kept.trees, shown, constants=constants)
    if isinstance(kept, KeptSplit):
        kind = DeviceSymbolicSplit if kept.given else SplitGpuProgram
        return kind(made(kept.head), made(kept.tail), kept.split_point, kept.trees, shown, on, options)
    plans = DevicePlans(on, options, None, None, shown)
    plans._names, plans.symbolic_plans = list(kept.names), [made(one) for one in kept.plans]
    plans.fixed_plans = OrderedDict((key, made(one)) for key, one in kept.fixed)
    return plans


def restored(
    kept: Kept,
    on: Engine,
    options: TargetOptions,
    shown: Callable[[], Program],
    compile: Callable[[DevicePlans | None], object],
) -> Any:
    """Return the program of a file; ``shown`` is as in `runnable`, ``compile`` as in `Restored`."""
    found = runnable(kept, on, options, shown, DeviceConstants(on))
    return found if isinstance(kept, KeptPlan) else RestoredDeviceProgram(found, compile, on, options, shown)
