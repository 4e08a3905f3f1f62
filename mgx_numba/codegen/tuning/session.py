"""Tuning of one compiled program: which records it uses, which problems are still to be measured, where new records
go."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...dataclass import dataclass
from ...environment import environment_flag
from ...errors import MgxError
from ...messages import warn
from ..backend import Backend
from .record import DeviceFingerprint, Extents, Problem, TuningRecord, explain_miss, extents_of
from .request import Candidate, Estimate, Request, TuningRequest
from .source import (
    ENVIRONMENT,
    MemoryLayer,
    RecordHit,
    RecordLayer,
    ShippedLayer,
    Sources,
    UserLayer,
    given_layer,
    keep_in_file,
)

if TYPE_CHECKING:
    from .tuner import Outcome

Progress = Callable[[int, int, str], None]
"""``progress(done, remaining, best)``: numbers of tuned and remaining problems, and a text on the best solver so
far."""


@dataclass(frozen=True)
class Choice:
    """The solver of one problem of a program, and the reason for the choice.

    Attributes:
        problem: the problem; ``problem.fields`` has it field by field.
        solver: name of the solver.
        configuration: its parameters by name; empty for the solver's own choice.
        record: the tuning record that decided; None if the cost model did.
        origin: source of the record (a file, ``model``, ``user database``, ``shipped``, ``measured``), else ``cost
            model``.
        miss: why this problem and machine have no record, with the fields in which the nearest record differs; empty if
            they have one.
        instructions: the instructions of the compiled program that the solver computes, as printed.
    """

    problem: Problem
    solver: str
    configuration: Mapping[str, int] = field(hash=False)
    record: TuningRecord | None
    origin: str
    miss: str
    instructions: tuple[str, ...] = ()


Requests = tuple[dict[Problem, tuple[TuningRequest, int]], dict[Problem, dict[str, Candidate]]]
"""Requests with their numbers of uses, and candidates by instruction."""


class Tuning:
    """Chooses a solver for each contraction of a program; thread-safe.

    Attributes:
        backend: the back end whose solvers are candidates.
        exhaustive: whether problems without a record of this machine are to be measured.
        budget: seconds that all measurements may take, None for no limit.
    """

    def __init__(
        self,
        backend: Backend,
        sources: Sources,
        keep: Callable[[Sequence[TuningRecord]], None],
        exhaustive: bool = False,
        budget: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.backend = backend
        self.exhaustive = exhaustive
        self.budget = budget
        self.progress = progress
        self._sources = sources
        self._keep = keep
        self._revised: dict[tuple[tuple[str, int], ...], DeviceFingerprint] = {}
        self._keys: dict[TuningRequest, Problem] = {}
        self._requests: dict[Problem, tuple[TuningRequest, int]] = {}
        self._used: dict[Problem, RecordHit] = {}
        self._new: dict[Problem, RecordHit] = {}
        self._unusable: dict[Problem, str] = {}
        self._told: dict[str, str] = {}
        self._placed: dict[Problem, dict[str, Candidate]] = {}

    @functools.cached_property
    def fingerprint(self) -> DeviceFingerprint:
        """This machine's fingerprint."""
        return self.backend.fingerprint()

    def _fingerprint_of(self, request: TuningRequest) -> DeviceFingerprint:
        """Return this machine's fingerprint with the revisions of the solvers that apply to a problem."""
        revisions = self.backend.solvers.revisions(request)
        if not revisions:
            return self.fingerprint
        key = tuple(sorted(revisions.items()))
        found = self._revised.get(key)
        if found is None:
            found = self._revised[key] = self.fingerprint.with_revisions(revisions)
        return found

    def choose(self, request: TuningRequest) -> Candidate:
        """Return the solver and blocking of the first record found, else of the cost model.

        Raises:
            UnsupportedError: no solver applies.
        """
        problem = self._keys.get(request)
        if problem is None:
            problem = self._keys[request] = request.key()
        known = self._requests.get(problem)
        self._requests[problem] = (known[0], known[1] + 1) if known else (request, 1)
        found = self._new.get(problem) or self._used.get(problem)
        found = found or self._sources.find(problem, self._fingerprint_of(request))
        if found is not None:
            candidate = self.backend.solvers.candidate_of(request, found.record)
            if candidate is not None:
                self._used[problem] = found
                return candidate
            if found.origin != ShippedLayer.origin:  # shipped records are for a CPU name; features may vary
                self._unusable[problem] = found.record.solver
        return self.backend.solvers.choose(request)

    def recorded(self, request: TuningRequest) -> Candidate | None:
        """Return the solver and blocking of the first record found, without recording the request; None if there is no
        record."""
        found = self._sources.find(request.key(), self._fingerprint_of(request))
        return None if found is None else self.backend.solvers.candidate_of(request, found.record)

    @property
    def extents(self) -> Collection[Extents]:
        """Extents of all problems with records."""
        return self._sources.extents

    def knows(self, problem: object) -> bool:
        """Return whether a record of the problem may exist: a faster test than `recorded`."""
        return extents_of(vars(problem)) in self.extents

    def note_instruction(self, request: TuningRequest, instruction: str, taken: Candidate) -> None:
        """Record that an instruction uses another candidate than the chosen one.

        The reason is that its weights do not fit the chosen solver or would grow too much.
        """
        problem = self._keys.get(request) or request.key()
        self._placed.setdefault(problem, {})[instruction] = taken

    def in_place(self, request: Request, operand: str) -> None:
        """Measure a requested problem with its result in the memory of ``operand``, as the plan runs it."""
        if self.exhaustive:
            problem = request.key()
            self._requests[problem] = (replace(request, replaced=operand), self._requests[problem][1])

    @property
    def messages(self) -> list[str]:
        """Texts of the warnings given."""
        return list(self._told.values())

    def pending(self) -> list[tuple[TuningRequest, int]]:
        """Return the requested problems without a record of this machine, and their numbers of uses in the program."""
        return [
            entry for problem, entry in self._requests.items()
            if problem not in self._used or not self._used[problem].exact
        ]  # fmt: skip

    def requests(self) -> Requests:
        """Return a snapshot of the requests, for `forget_since`."""
        return dict(self._requests), {problem: dict(placed) for problem, placed in self._placed.items()}

    def forget_since(self, before: Requests) -> None:
        """Restore a snapshot of `requests`, so that problems are requested again with the records learnt since."""
        self._requests, self._placed = dict(before[0]), {problem: dict(placed) for problem, placed in before[1].items()}

    def hint(self, request: TuningRequest) -> Candidate | None:
        """Return the candidate in the used record, which may be of another machine; None if there is no record."""
        found = self._used.get(request.key())
        return None if found is None else self.backend.solvers.candidate_of(request, found.record)

    def record_outcome(self, request: TuningRequest, outcome: Outcome[Candidate]) -> None:
        """Make a measured winner the record of its problem, and store the record."""
        problem, candidate = request.key(), outcome.candidate
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record = TuningRecord(
            problem, self._fingerprint_of(request), candidate.solver.name, candidate.configuration, outcome.seconds,
            outcome.noise, date,
        )  # fmt: skip
        self._new[problem] = self._used[problem] = RecordHit(record, "measured", True)
        self._keep([record])

    def used(self) -> list[RecordHit]:
        """Return the records that decided, in program order."""
        return [self._used[problem] for problem in self._requests if problem in self._used]

    def records(self) -> list[TuningRecord]:
        """Return the records that decided, to be saved with the program."""
        return [found.record for found in self.used()]

    def explain(self, request: TuningRequest) -> str:
        """Return the reason why a problem has no usable record of this machine."""
        unusable = self._unusable.get(request.key())
        if unusable is not None:
            return f"the solver {unusable} of its record does not apply here"
        return explain_miss(request.key(), self._fingerprint_of(request), self._sources.records())

    def choices(self) -> list[Choice]:
        """Return the choice for each requested problem, in program order."""
        return [self._choice(problem, request) for problem, (request, _) in list(self._requests.items())]

    def choice_of(self, instruction: str) -> tuple[Choice, list[Estimate]] | None:
        """Return the choice for an instruction of the compiled program, and the cost model's estimates of all solvers.

        None if the instruction is not a requested contraction.
        """
        for problem, (request, _) in list(self._requests.items()):
            if instruction in self._placed.get(problem, ()):
                return self._choice(problem, request), self.backend.solvers.estimates(request)
        return None

    def _choice(self, problem: Problem, request: TuningRequest) -> Choice:
        found = self._used.get(problem)
        placed = self._placed.get(problem, {})
        candidate = self._candidate(request, found)
        miss = "" if found is not None and found.exact else self.explain(request)
        record, origin = (None, "cost model") if found is None else (found.record, found.origin)
        taken = next(iter(placed.values()), candidate)
        if taken.solver.name != candidate.solver.name:
            miss = f"{candidate}, chosen by {origin}, is not taken: its weights do not fit it or would grow too much, "
            miss += "its errors are too large here, or two layers are computed at once"
            candidate, record, origin = taken, None, "cost model"
        return Choice(problem, candidate.solver.name, candidate.configuration, record, origin, miss, tuple(placed))

    def _candidate(self, request: TuningRequest, found: RecordHit | None) -> Candidate:
        candidate = None if found is None else self.backend.solvers.candidate_of(request, found.record)
        return candidate or self.backend.solvers.choose(request)

    def decline(self, reason: str) -> None:
        """Disable measuring; warn with ``reason`` if measuring was requested."""
        if self.exhaustive:
            self.exhaustive = False
            self._tell("declined", f"exhaustive_tune: {reason}")

    def tell(self) -> None:
        """Warn, once, about records that were measured elsewhere or that cannot be used."""
        hints = [(problem, found.record) for problem, found in self._used.items() if found.is_hint]
        if hints:
            problem, record = hints[0]
            why = explain_miss(problem, self._fingerprint_of(self._requests[problem][0]), [record])
            count = f"{len(hints)} of {len(self._requests)}"
            elsewhere = "on another machine, for another number of threads or with other kernels"
            self._tell("hints", f"{count} tuning records were measured {elsewhere} and are used as hints; {why}")
        if self._unusable:
            names = ", ".join(sorted(set(self._unusable.values())))
            self._tell("solvers", f"tuning records of solvers that do not apply here are ignored: {names}")

    def _tell(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told[kind] = text
            warn(text, RuntimeWarning)


def open_tuning(
    backend: Backend,
    records: Sequence[TuningRecord] = (),
    problem_cache: Sequence[str | os.PathLike[str]] = (),
    exhaustive: bool = False,
    budget: float | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Open the tuning of a program, with records from all sources.

    The first hit wins, in this order: ``problem_cache``, ``MIGRAPHX_PROBLEM_CACHE``, the model's own ``records``, the
    user's database, records shipped for this CPU.
    New records go to the first file that the caller or the variable names, else to the user's database.
    ``MIGRAPHX_MLIR_TUNE_EXHAUSTIVE`` enables ``exhaustive``, ``MIGRAPHX_SKIP_BENCHMARKING`` disables it.

    Raises:
        OptionError: a file of ``problem_cache`` does not exist (with ``exhaustive`` the first one is created).
        FormatError: a named file holds other data.
    """
    wanted = exhaustive or environment_flag("MIGRAPHX_MLIR_TUNE_EXHAUSTIVE")
    exhaustive = wanted and not environment_flag("MIGRAPHX_SKIP_BENCHMARKING")
    layers: list[RecordLayer] = [
        given_layer(path, may_be_new=exhaustive and number == 0) for number, path in enumerate(problem_cache)
    ]
    paths: list[Any] = list(problem_cache)
    environment = os.environ.get(ENVIRONMENT)
    if environment:
        layers.append(given_layer(environment, may_be_new=True))
        paths.append(environment)
    if records:
        layers.append(MemoryLayer("model", records))
    user = UserLayer()
    layers += [user, ShippedLayer(backend.family())]

    def keep(new: Sequence[TuningRecord]) -> None:
        if not paths:
            user.put(new)
            return
        try:
            keep_in_file(Path(paths[0]), new)
        except MgxError as error:
            warn(f"tuning records are not kept: {error}", RuntimeWarning)

    return Tuning(backend, Sources(layers), keep, exhaustive, budget, progress)
