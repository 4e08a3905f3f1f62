"""Calls that are recorded together: one recording then runs several programs, without the host in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.device_array import DeviceArray
from ..plan import Plan, Step
from .context import DeviceContext
from .engine import Queue

if TYPE_CHECKING:
    from .executor import DeviceExecutable


def holds(plan: Plan) -> bool:
    """Return whether a plan's calls can be recorded with others: every step is a kernel or a library call."""
    return all(isinstance(step, Step) for step in plan.steps)


class HeldCall:
    """A call with all data on the device, in a context of its own.

    Attributes:
        results: the memory of the results.
    """

    def __init__(
        self,
        executable: DeviceExecutable,
        inputs: Sequence[DeviceArray],
        outputs: Sequence[DeviceArray | None],
    ) -> None:
        """Prepare the call; arguments as of `DeviceExecutable.run`, of a plan that `holds`.

        Raises:
            DeviceError: there is not enough memory.
            ParameterError: results share memory with each other or with inputs, or data is not aligned to vectors.
            ShapeError: the plan does not serve the inputs' lengths.
        """
        self._executable, self._inputs = executable, inputs
        with executable.engine.use():
            self._context = DeviceContext(executable, held=True)
            self.results = self._context.hold(inputs, outputs, executable.bound(inputs))

    def enqueue(self, queue: Queue) -> None:
        """Enqueue the call on ``queue``, which must be recording."""
        self._context.enqueue(queue)

    def raise_fault(self) -> None:
        """Raise the error that a kernel recorded, once the call is complete.

        Raises:
            IndexRangeError: an index is out of range.
        """
        self._context.raise_fault()
