"""`CacheMemory`: the caches of a decoder between its steps, in buffers on the host or on the program's device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from .decoder import CacheTensor, CompiledDecoder, PagedDecoder

if TYPE_CHECKING:
    from ..api.device import device_argument
    from ..api.placing import StandingCall, UpdatingCall
    from ..api.program import program as Program
    from ..core.device_array import DeviceArray
    from ..runtime.gpu.engine import Engine


def runs_on_device(program: Program) -> bool:
    """Return whether a compiled program runs on a device with memory of its own."""
    return program._form is not None and program._form.on is not None


class CacheMemory:
    """Runs a decoder's steps over caches that stay where the program runs.

    Caches that a step makes anew move to the device with the first step, and back when `arrays` is called. On a device
    the logits of equal steps go to the same memory, so that the recorded launches of the step before run again.

    Attributes:
        buffers: makes and copies the caches that steps update in place.
    """

    def __init__(self, decoder: CompiledDecoder | PagedDecoder, in_place: bool) -> None:
        """Hold no caches yet.

        Args:
            in_place: a step updates the caches in their memory; otherwise it makes new ones.
        """
        self._decoder, self._in_place = decoder, in_place
        self.on_device = runs_on_device(decoder.program)
        self.buffers: CacheBuffers[Any] = DeviceBuffers(self.device) if self.on_device else HostBuffers()
        self._host: list[np.ndarray] = []
        self._there: list[Any] = []  # on the device; empty while the arrays on the host are valid
        self._calls: dict[tuple[int, ...], StandingCall] = {}  # of the last step, by the lengths of its tokens
        self._updating: UpdatingCall | None = None  # on the host, of the caches in `_host`

    @property
    def device(self) -> int:
        """Return the number of the program's device."""
        options = self._decoder.program.compile_options
        return 0 if options is None else options.device_id

    def put(self, caches: Sequence[Any]) -> None:
        """Use arrays of the host as the caches; or, for steps in place, what `buffers` has made."""
        if self.on_device and self._in_place:
            from ..api.device import device_argument

            self._there, self._calls = [device_argument.wrap(cache) for cache in caches], {}
        else:
            self._host, self._there, self._updating = list(caches), [], None

    def arrays(self) -> list[np.ndarray]:
        """Return the caches on the host; copies of caches that steps on a device update in place."""
        if self._there and self._in_place:
            return list(map(on_host, self._there))
        if self._there:
            self._host, self._there = list(map(on_host, self._there)), []
        return self._host

    def run(self, feeds: Mapping[str, object], ids: np.ndarray) -> np.ndarray:
        """Run a step on tokens ``ids`` and return its logits.

        Args:
            feeds: the inputs beside the caches.
        """
        return on_host(self.run_there(feeds, ids)) if self.on_device else self._run_here(feeds)

    def _run_here(self, feeds: Mapping[str, object]) -> np.ndarray:
        decoder, caches = self._decoder, self._decoder.caches
        if self._updating is not None:
            return self._updating.run(feeds)[decoder.logits]  # type: ignore[no-any-return]
        held = {c.name: a for c, a in zip(caches, self._host)}
        if self._in_place:
            from ..api.placing import UpdatingCall

            self._updating = UpdatingCall(decoder.program, held, {c.present: a for c, a in zip(caches, self._host)})
            return self._run_here(feeds)
        found = decoder.program.run({**feeds, **held})
        self._host = [found[cache.result] for cache in caches]
        return found[decoder.logits]  # type: ignore[no-any-return]

    def run_there(self, feeds: Mapping[str, object], ids: np.ndarray) -> device_argument:
        """Run a step on the device and return its logits there, which the next step of equal lengths overwrites."""
        from ..api.device import device_argument, to_gpu
        from ..api.placing import StandingCall

        decoder, caches = self._decoder, self._decoder.caches
        program = decoder.program
        if not self._there:
            self._there = [to_gpu(np.ascontiguousarray(a), device_id=self.device) for a in self._host]
            self._calls = {}
        call = self._calls.get(ids.shape)
        if call is None:
            call = StandingCall(
                program,
                {c.name: a for c, a in zip(caches, self._there)},
                {c.present: a for c, a in zip(caches, self._there)} if self._in_place else {},
            )
        found = call.run(feeds)
        logits = device_argument.wrap(found[decoder.logits])
        if not self._in_place:
            self._there = [device_argument.wrap(found[cache.result]) for cache in caches]
        elif ids.shape not in self._calls:
            call.keep(program.get_output_names()[decoder.logits], logits)
            self._calls = {ids.shape: call}
        return logits


Rows = Sequence[int] | np.ndarray
B = TypeVar("B")


class CacheBuffers(Protocol[B]):
    """Operations on buffers (rows, heads, columns, size), of which a decoder has one for each cache."""

    def zeros(self, caches: Sequence[CacheTensor], rows: int, columns: int) -> list[B]:
        """Return new buffers of zeros."""

    def copy(self, targets: Sequence[B], rows: Rows, sources: Sequence[B], chosen: Rows, columns: int) -> None:
        """Copy the first ``columns`` columns of the rows ``chosen`` of the sources to ``rows`` of the targets.

        Targets may be the sources: all rows are read before one is written. Columns behind may be copied, too.
        """

    def first(self, buffer: B, rows: int) -> B:
        """Return the first rows of a buffer, which are the same memory."""

    def taken(self, buffer: np.ndarray | B) -> B:
        """Return the buffer itself, or a copy in this memory."""


class HostBuffers:
    """See `CacheBuffers`."""

    def zeros(self, caches: Sequence[CacheTensor], rows: int, columns: int) -> list[np.ndarray]:
        """See `CacheBuffers.zeros`; pages of memory that were never written take no memory."""
        return [np.zeros((rows, c.heads, columns, c.size), c.dtype) for c in caches]

    def copy(
        self, targets: Sequence[np.ndarray], rows: Rows, sources: Sequence[np.ndarray], chosen: Rows, columns: int
    ) -> None:
        """See `CacheBuffers.copy`."""
        for target, source in zip(targets, sources, strict=True):
            target[rows, :, :columns] = source[chosen, :, :columns]

    def first(self, buffer: np.ndarray, rows: int) -> np.ndarray:
        """See `CacheBuffers.first`."""
        return buffer[:rows]

    def taken(self, buffer: np.ndarray) -> np.ndarray:
        """See `CacheBuffers.taken`."""
        return on_host(buffer)


class DeviceBuffers:
    """See `CacheBuffers`; buffers are row-major `DeviceArray`."""

    def __init__(self, number: int) -> None:
        """Use the device with this number."""
        from ..runtime.gpu.engines import engine

        self._engine: Engine = engine(number)

    def zeros(self, caches: Sequence[CacheTensor], rows: int, columns: int) -> list[DeviceArray]:
        """See `CacheBuffers.zeros`."""
        return [self.taken(np.zeros((rows, c.heads, columns, c.size), c.dtype)) for c in caches]

    def copy(
        self, targets: Sequence[DeviceArray], rows: Rows, sources: Sequence[DeviceArray], chosen: Rows, columns: int
    ) -> None:
        """See `CacheBuffers.copy`; rows of equally long buffers are copied whole, others head by head."""
        into, out = ([int(row) for row in each] for each in (rows, chosen))
        if not into or not columns:
            return
        with self._engine.use():
            queue = self._engine.queue(0)
            for target, source in zip(targets, sources, strict=True):
                moves = _moves(target, into, source, out, columns)
                apart = target.address != source.address
                scratch = None if apart else self._engine.kept.take(sum(n for *_, n in moves), "moved caches")
                at = 0 if scratch is None else scratch.address
                for _, begin, size in moves if scratch is not None else ():
                    queue.copy(at, begin, size)
                    at += size
                at = 0 if scratch is None else scratch.address
                for end, begin, size in moves:
                    queue.copy(end, begin if scratch is None else at, size)
                    at += size
            queue.wait()  # work of other queues may follow

    def first(self, buffer: DeviceArray, rows: int) -> DeviceArray:
        """See `CacheBuffers.first`."""
        from ..core.device_array import DeviceArray
        from ..core.shape import Shape

        shape = Shape(buffer.shape.type, (rows, *buffer.shape.lens[1:]))
        return DeviceArray(shape, buffer.address, buffer.device, buffer.owner)

    def taken(self, buffer: np.ndarray | DeviceArray) -> DeviceArray:
        """See `CacheBuffers.taken`."""
        from ..runtime.gpu.transfers import to_device

        if not isinstance(buffer, np.ndarray):
            return buffer
        return to_device(self._engine, np.ascontiguousarray(buffer), "keys and values")


def _moves(
    target: DeviceArray, rows: list[int], source: DeviceArray, chosen: list[int], columns: int
) -> list[tuple[int, int, int]]:
    """Return target address, source address and bytes of each copy of the columns of rows."""
    _, heads, room, size = target.shape.lens
    line = size * target.shape.type.size
    length, whole = source.shape.lens[2] * line, room * line
    if length == whole:  # a row is copied as a whole
        heads, length, whole, columns = 1, length * heads, whole * heads, room * heads
    return [
        (target.address + (row * heads + k) * whole, source.address + (one * heads + k) * length, columns * line)
        for row, one in zip(rows, chosen, strict=True)
        for k in range(heads)
    ]


def on_host(tensor: np.ndarray | DeviceArray | device_argument) -> np.ndarray:
    """Return an array of the host, or a copy of a tensor on a device."""
    if isinstance(tensor, np.ndarray):
        return tensor
    from ..api.device import device_argument, from_gpu

    return np.asarray(from_gpu(tensor if isinstance(tensor, device_argument) else device_argument.wrap(tensor)))
