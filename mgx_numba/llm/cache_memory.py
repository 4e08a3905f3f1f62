"""`CacheMemory`: the caches of a decoder between its steps, on the host or on the program's device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .cache_buffers import CacheBuffers, DeviceBuffers, HostBuffers, on_host
from .decoder import CompiledDecoder, PagedDecoder

if TYPE_CHECKING:
    from ..api.device import device_argument
    from ..api.placing import StandingCall, UpdatingCall
    from ..api.program import program as Program


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
