"""Tuning of one compiled program: which records it uses, what is still to be measured, where new records go."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...dataclass import dataclass
from ...environment import environment_flag
from ...errors import MgxError
from ...messages import warn
from ..backend import Backend
from .record import DeviceFingerprint, Problem, TuningRecord, explain_miss, extents_of
from .request import Asked, Candidate, Estimate, Request
from .source import (
    ENVIRONMENT,
    Found,
    MemoryLayer,
    RecordLayer,
    ShippedLayer,
    Sources,
    UserLayer,
    given_layer,
    keep_in_file,
)

if TYPE_CHECKING:
    from .tuner import Outcome

__all__ = ["Choice", "Progress", "Tuning", "open_tuning"]

Progress = Callable[[int, int, str], None]
"""``progress(done, remaining, best)``: problems tuned, problems left, and in words the best so far."""


@dataclass(frozen=True)
class Choice:
    """How one problem of a program is solved, and why so.

    Attributes:
        problem: what is computed; ``problem.fields`` has it field by field.
        solver: name of the solver.
        configuration: its parameters by name; empty means the solver's own choice.
        record: the tuning record that decided; None if the cost model did.
        origin: where the record is from (a file, ``model``, ``user database``, ``shipped``, ``measured``), else
            ``cost model``.
        miss: why there is no record of this problem and machine, with the fields in which the nearest one differs;
            empty if there is one.
        instructions: those of the compiled program that it computes, as they are printed.
    """

    problem: Problem
    solver: str
    configuration: Mapping[str, int] = field(hash=False)
    record: TuningRecord | None
    origin: str
    miss: str
    instructions: tuple[str, ...] = ()


Asking = tuple[dict[Problem, tuple[Asked, int]], dict[Problem, dict[str, Candidate]]]
"""Requests and their numbers, and the instructions that they are for."""


class Tuning:
    """Answers how to compute each contraction of a program; may be asked from several threads.

    Attributes:
        backend: whose solvers there are to choose from.
        exhaustive: whether problems without a record of this machine are to be measured.
        budget: seconds that all measurements may take, None for as long as they need.
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
        self._keys: dict[Asked, Problem] = {}
        self._requests: dict[Problem, tuple[Asked, int]] = {}
        self._used: dict[Problem, Found] = {}
        self._new: dict[Problem, Found] = {}
        self._unusable: dict[Problem, str] = {}
        self._told: dict[str, str] = {}
        self._placed: dict[Problem, dict[str, Candidate]] = {}

    @functools.cached_property
    def fingerprint(self) -> DeviceFingerprint:
        """This machine's."""
        return self.backend.fingerprint()

    def _fingerprint_of(self, request: Asked) -> DeviceFingerprint:
        """What times of a problem depend on: this machine, and the revisions of solvers that apply to it."""
        revisions = self.backend.revisions(request)
        if not revisions:
            return self.fingerprint
        key = tuple(sorted(revisions.items()))
        found = self._revised.get(key)
        if found is None:
            found = self._revised[key] = self.fingerprint.with_revisions(revisions)
        return found

    def choose(self, request: Asked) -> Candidate:
        """The solver and blocking of the first record found, else what the cost model says.

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
            candidate = self.backend.candidate_of(request, found.record)
            if candidate is not None:
                self._used[problem] = found
                return candidate
            if found.origin != ShippedLayer.origin:  # for CPUs of this name, of which some have more features
                self._unusable[problem] = found.record.solver
        return self.backend.choose(request)

    def is_shipped(self, request: Asked) -> bool:
        """Whether a record that comes with the package decided."""
        found = self._used.get(request.key())
        return found is not None and found.origin == ShippedLayer.origin

    def recorded(self, request: Asked) -> Candidate | None:
        """The solver and blocking of the first record found, of which nothing is kept; None if there is no record."""
        found = self._sources.find(request.key(), self._fingerprint_of(request))
        return None if found is None else self.backend.candidate_of(request, found.record)

    def knows(self, request: Request) -> bool:
        """Whether some record may be of the problem: quicker to tell than `recorded`."""
        return extents_of(vars(request.problem)) in self._sources.extents

    def place(self, request: Asked, instruction: str, taken: Candidate) -> None:
        """An instruction of the program is computed so: by another solver than was chosen, where weights do not fit it
        or would grow too much."""
        problem = self._keys.get(request) or request.key()
        self._placed.setdefault(problem, {})[instruction] = taken

    def in_place(self, request: Request, operand: str) -> None:
        """Measure a problem that was asked for with its result in the place of this operand: a plan does so."""
        if self.exhaustive:
            problem = request.key()
            self._requests[problem] = (replace(request, replaced=operand), self._requests[problem][1])

    @property
    def told(self) -> list[str]:
        """Texts of the warnings given."""
        return list(self._told.values())

    def pending(self) -> list[tuple[Asked, int]]:
        """Problems asked for that have no record of this machine, and how often the program has each."""
        return [
            entry for problem, entry in self._requests.items()
            if problem not in self._used or not self._used[problem].exact
        ]  # fmt: skip

    def asked(self) -> Asking:
        """What was asked for until now, for `forget_since`."""
        return dict(self._requests), {problem: dict(placed) for problem, placed in self._placed.items()}

    def forget_since(self, before: Asking) -> None:
        """Forget what was asked for since then: it is asked for once more, with what was learnt since."""
        self._requests, self._placed = dict(before[0]), {problem: dict(placed) for problem, placed in before[1].items()}

    def hint(self, request: Asked) -> Candidate | None:
        """What a record of another machine says."""
        found = self._used.get(request.key())
        return None if found is None else self.backend.candidate_of(request, found.record)

    def learn(self, request: Asked, outcome: Outcome[Candidate]) -> None:
        """Take a measured winner as the record of its problem, and keep it."""
        problem, candidate = request.key(), outcome.candidate
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record = TuningRecord(
            problem, self._fingerprint_of(request), candidate.solver.name, candidate.configuration, outcome.seconds,
            outcome.noise, date,
        )  # fmt: skip
        self._new[problem] = self._used[problem] = Found(record, "measured", True)
        self._keep([record])

    def used(self) -> list[Found]:
        """The records that decided, in the order of the program."""
        return [self._used[problem] for problem in self._requests if problem in self._used]

    def records(self) -> list[TuningRecord]:
        """The records that decided, to be saved with the program."""
        return [found.record for found in self.used()]

    def explain(self, request: Asked) -> str:
        """Why a problem has no record of this machine that can be used."""
        unusable = self._unusable.get(request.key())
        if unusable is not None:
            return f"the solver {unusable} of its record does not apply here"
        return explain_miss(request.key(), self._fingerprint_of(request), self._sources.records())

    def choices(self) -> list[Choice]:
        """How each problem asked for is solved, in the order of the program."""
        return [self._choice(problem, request) for problem, (request, _) in list(self._requests.items())]

    def choice_of(self, instruction: str) -> tuple[Choice, list[Estimate]] | None:
        """How an instruction of the compiled program is solved, and what the cost model says of all solvers; None if it
        is not known for a contraction."""
        for problem, (request, _) in list(self._requests.items()):
            if instruction in self._placed.get(problem, ()):
                return self._choice(problem, request), self.backend.estimates(request)
        return None

    def _choice(self, problem: Problem, request: Asked) -> Choice:
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

    def _candidate(self, request: Asked, found: Found | None) -> Candidate:
        candidate = None if found is None else self.backend.candidate_of(request, found.record)
        return candidate or self.backend.choose(request)

    def decline(self, reason: str) -> None:
        """Measure nothing; says why, if measuring was asked for."""
        if self.exhaustive:
            self.exhaustive = False
            self._tell("declined", f"exhaustive_tune: {reason}")

    def tell(self) -> None:
        """Warn, once, of records that were measured elsewhere or that cannot be used."""
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
    """Tuning from all sources, first hit wins: ``problem_cache``, ``MIGRAPHX_PROBLEM_CACHE``, the model's own
    ``records``, the user's database, what the package ships for this CPU.

    New records go to the first file that the caller or the variable names, else to the user's database.
    ``MIGRAPHX_MLIR_TUNE_EXHAUSTIVE`` asks for ``exhaustive``, ``MIGRAPHX_SKIP_BENCHMARKING`` rules it out.

    Raises:
        OptionError: a file of ``problem_cache`` does not exist (with ``exhaustive`` the first one is made).
        FormatError: a file that is named holds something else.
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
