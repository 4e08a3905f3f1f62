"""Constants of a plan under construction: arrays unchanged, and weights packed for solvers; constants that are used in
packed form alone are freed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.backend import Backend, LoadKernels
from ...codegen.kernel import KernelSource
from ...codegen.problems.gemm import BlockWeights, GemmProblem, StoredBlocks
from ...codegen.store import default_store
from ...core.argument import Argument
from ...core.dim import Dim, SymbolicLengthError
from ...core.pages import leave_memory
from ...core.shape import Shape
from ...graph.instruction import Instruction
from ...graph.program import Program
from ...parallel import run_all
from ...runtime.memory import address_of
from ...runtime.plan import Region
from .buffers import Buffer, View
from .shared_weights import SharedWeights, aligned, flat

if TYPE_CHECKING:
    from .lowering import Lowering


_UNUSED = np.empty(0, np.uint8)
"""Placeholder in a plan for a constant that no step refers to."""


class PlanConstants:
    """The constants of one plan, without duplicates.

    Attributes:
        constants: the arrays in the plan's order.
        shared: constants shared between the plans of several variants; None for a single plan.
        packing_room: bytes by which transformed weights may still exceed the model's own.
    """

    def __init__(
        self, backend: Backend, packing_room: int, shared: SharedWeights | None, load: LoadKernels | None = None
    ) -> None:
        """Create an empty set; ``load`` loads kernels that pack weights (None: `backend.load`)."""
        self.backend, self._load = backend, load or backend.load
        self.constants: list[np.ndarray] = []
        self.packing_room = packing_room
        self.shared = shared
        self._constant_owners: list[np.ndarray] = []
        self._constant_views: dict[int, View] = {}
        self._packed: dict[tuple[Any, ...], View] = {}
        self._unfilled: list[Callable[[], object]] = []
        self._compiled: dict[str, bool] = {}

    def constant(self, array: np.ndarray, shape: Shape | None = None) -> View:
        """Return a view of a constant array, which the plan keeps alive.

        Raises:
            SymbolicLengthError: the array holds symbolic lengths, which are no constants.
        """
        key = id(array)
        if key not in self._constant_views:
            if array.dtype.hasobject and any(isinstance(value, Dim) for value in array.flat):
                raise SymbolicLengthError("a constant of a plan would hold symbolic lengths")
            storage, own = flat(array)
            self.constants.append(storage)
            self._constant_owners.append(array)
            self._constant_views[key] = View(Buffer(Region.CONSTANT, len(self.constants) - 1), shape or own)
        return self._constant_views[key]

    def fill(self, pieces: Sequence[Callable[[], object]]) -> None:
        """Schedule functions that write constants which nothing reads before the plan is complete.

        The functions of all constants run together on all CPUs at the end. They run at once if other plans may already
        use the constants.
        """
        if self.shared is None:
            self._unfilled += pieces
        else:
            run_all(pieces)

    def aligned_constants(self, used: Collection[int]) -> list[np.ndarray]:
        """Return the constants as a plan keeps them, with a placeholder for each whose number is not in ``used``.

        Most weights are packed for solvers, and no step reads them: they are not copied to aligned memory.
        """
        made = []
        for k, (owner, storage) in enumerate(zip(self._constant_owners, self.constants)):
            if k not in used:
                made.append(_UNUSED)
            else:
                made.append(aligned(storage) if self.shared is None else self.shared.aligned(owner, storage))
        return made

    def owner_of(self, view: View) -> np.ndarray:
        """Return the array that was passed to `constant` for a view."""
        return self._constant_owners[view.buffer.index]

    def forget_constant(self, index: int, array: np.ndarray) -> None:
        """Drop a constant that no step reads, and the cache entries keyed by its address or identity."""
        first, last = np.lib.array_utils.byte_bounds(array)
        for key in [key for key in self._packed if first <= key[0] < last]:
            del self._packed[key]
        del self._constant_views[id(array)]
        self.constants[index] = self._constant_owners[index] = np.empty(0, np.uint8)

    def packed(self, solver: Any, problem: Any, weights: np.ndarray | BlockWeights | StoredBlocks) -> View:
        """Return constant weights packed for a solver; equal packings of one constant are shared."""
        lens = tuple(solver.packed_lens(problem))
        if isinstance(weights, (BlockWeights, StoredBlocks)):
            blocks = weights
            how = ("blocks", problem.blocks.half_scales, *lens)
            return self.packed_blocks(blocks, how, lambda: solver.pack_blocks(problem, blocks))
        place = address_of(weights), weights.shape, weights.strides
        how = (solver.packed_as or solver.name, lens, *solver.packing_key(problem))
        key = (*place, *how)
        if key not in self._packed:
            batch = len(problem.batch) if isinstance(problem, GemmProblem) else 0
            once = weights[tuple(slice(1 if stride == 0 else None) for stride in weights.strides[:batch])]
            dtype = np.dtype(problem.types.b)

            def given() -> np.ndarray:
                """The weights in the type that the problem says."""
                return weights if weights.dtype == dtype else np.broadcast_to(once.astype(dtype), weights.shape)

            view = self.packed_constant(once, how, lambda: self._pack(solver, problem, given()))
            self.packing_room -= solver.packing_growth(problem)
            self._packed[key] = view
        return self._packed[key]

    def _pack(self, solver: Any, problem: object, weights: np.ndarray) -> np.ndarray:
        """Return constant weights packed for a solver, by its packing kernel if there is one."""
        packed = solver.pack_by_kernel(problem, weights, self._load, self._is_compiled)
        return solver.pack_weights(problem, weights) if packed is None else packed

    def _is_compiled(self, source: KernelSource) -> bool:
        """Return whether a kernel is in the object store."""
        if source.symbol not in self._compiled:
            data = default_store().get(source)
            self._compiled[source.symbol] = data is not None and self.backend.loadable(source, data)
        return self._compiled[source.symbol]

    def packed_constant(self, weights: np.ndarray, how: Hashable, pack: Callable[[], np.ndarray]) -> View:
        """Return the constant that ``pack`` makes of weights.

        ``how`` identifies the packing; a constant that was packed so before, also for a plan with other lengths, is
        reused.
        """
        key = (address_of(weights), weights.shape, weights.strides, how)
        if key not in self._packed:
            waiting = len(self._unfilled)
            self._packed[key] = self.constant(pack() if self.shared is None else self.shared.packed(weights, how, pack))
            if len(self._unfilled) > waiting:
                self.fill([partial(leave_memory, weights)])
            else:
                leave_memory(weights)
        return self._packed[key]

    def packed_blocks(self, blocks: BlockWeights | StoredBlocks, how: Hashable, pack: Callable[[], np.ndarray]) -> View:
        """Return the packed constant of block-quantised weights.

        Scales and zero points are part of its key, since different weights may have the same codes.
        """
        identity = address_of if self.shared is None else self.shared.identity
        first, *rest = blocks.arrays
        return self.packed_constant(first, (how, *map(identity, rest)), pack)

    def _fill_all(self) -> None:
        """Run the functions passed to `fill`."""
        run_all(self._unfilled)
        self._unfilled.clear()


LEAST_BYTES = 1 << 16
"""Least size (bytes) of a constant that is worth freeing: the allocator keeps smaller blocks anyway."""


class ReleasedConstants:
    """Frees literals during a lowering, once nothing reads them, and counts them in `Draft.freed`."""

    def __init__(self, lowering: Lowering, original: Program) -> None:
        """Watch ``lowering``; literals of ``original`` are kept, since ``original`` holds their memory."""
        self._lowering = lowering
        self._kept = {id(ins.literal) for module in original.modules for ins in module if ins.literal is not None}
        self._holders: dict[int, list[Instruction]] = {}
        self._lowered: set[Instruction] = set()
        self._read: set[int] = set()
        self._looked = 0

    def lowered(self, ins: Instruction) -> None:
        """Record that an instruction has been lowered, and free the constants of which it was the last user."""
        self._lowered.add(ins)
        index = self._constant(ins)
        if index is not None:
            self._holders.setdefault(index, []).append(ins)
            return
        for index in {self._constant(i) for i in ins.inputs}:
            if index is None or self._lowering.constants[index].nbytes < LEAST_BYTES:
                continue
            holders = self._holders.get(index, [])
            if all(self._lowered.issuperset(holder.users) for holder in holders) and not self._is_read(index):
                self._free(index, holders)

    def _constant(self, ins: Instruction) -> int | None:
        """Return the index of the plan's constant that the instruction's value views; None for values computed at run
        time."""
        value = self._lowering.values.get(ins)
        if isinstance(value, View) and value.buffer.region is Region.CONSTANT:
            return value.buffer.index
        return None

    def _is_read(self, index: int) -> bool:
        """Return whether a step reads a constant. Steps are only added, so each step is examined once."""
        for step in self._lowering.draft.steps[self._looked :]:
            for view in (*step.operands.values(), *step.inputs, *step.outputs):
                if view.buffer.region is Region.CONSTANT:
                    self._read.add(view.buffer.index)
        self._looked = len(self._lowering.draft.steps)
        return index in self._read

    def _free(self, index: int, holders: list[Instruction]) -> None:
        literals = [ins for ins in holders if ins.literal is not None]
        if len(literals) != 1 or literals[0].literal is None or id(literals[0].literal) in self._kept:
            return
        literal = literals[0].literal
        if literal.array is None:
            return
        nothing = np.broadcast_to(np.zeros((), literal.array.dtype), literal.shape.lens)
        self._lowering.forget_constant(index, literal.array)
        literals[0].literal = Argument(literal.shape, nothing)
        self._lowering.draft.freed += 1
