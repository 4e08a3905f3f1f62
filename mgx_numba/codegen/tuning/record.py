"""Tuning records as plain data: a problem, a machine, and the fastest measured solver."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from ...dataclass import dataclass
from ...errors import FormatError
from ...messages import shortened

_REVISION = "solver "
"""Prefix of a solver's name among the versions of a fingerprint."""
_MAX_PARAMETER = 1 << 40  # more than any length in memory, and far from overflowing an int64


def canonical(value: object) -> str:
    """Return the canonical JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


Extents = tuple[object, ...]
"""The lengths by which most problems of an operation differ, see `extents_of`."""


def extents_of(fields: Mapping[str, Any]) -> Extents:
    """Return a few lengths of a problem as a cheap key; a field that the operation does not have is None."""
    lens = fields.get("in_lens")
    own = tuple(fields.get(name) for name in ("m", "n", "k", "in_channels", "out_channels"))
    return (*own, None if lens is None else tuple(lens))


@dataclass(frozen=True)
class Problem:
    """The task of a kernel, as the canonical JSON text of its fields.

    Fields are ``operation``, ``threads``, ``fast_math``, and the operation's own fields: lengths, dtype, strides,
    epilogue.
    """

    key: str

    @classmethod
    def of(cls, operation: str, threads: int, fields: Mapping[str, object]) -> Problem:
        """Return the problem decoded from its JSON fields."""
        return cls(canonical({**fields, "operation": operation, "threads": threads}))

    @functools.cached_property
    def fields(self) -> dict[str, Any]:
        """The fields by name."""
        return json.loads(self.key)

    @functools.cached_property
    def work(self) -> str:
        """Canonical text of all fields except ``threads``, which is equal on machines with other numbers of cores."""
        return canonical({k: v for k, v in self.fields.items() if k != "threads"})

    @property
    def operation(self) -> str:
        return str(self.fields["operation"])

    @classmethod
    def from_json(cls, value: object) -> Problem:
        """Return the problem with these ``fields``.

        Raises:
            FormatError: the fields are malformed.
        """
        if not isinstance(value, dict) or not isinstance(value.get("operation"), str):
            raise FormatError("tuning record: 'problem' must be an object with an 'operation'")
        if not _is_count(value.get("threads")):
            raise FormatError("tuning record: 'threads' of the problem must be a positive integer")
        try:
            return cls(canonical(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"tuning record: 'problem' is not plain data: {error}") from None


@dataclass(frozen=True)
class DeviceFingerprint:
    """Everything besides the problem that measured times depend on.

    Attributes:
        cpu: LLVM's name of the CPU.
        features: its enabled LLVM features, sorted.
        cores: logical cores of the machine.
        vector_bits: width of the vectors that kernels use.
        versions: versions of this package and its code generators, and revisions of the solvers that apply to the
            problem (`with_revisions`).
    """

    cpu: str
    features: tuple[str, ...]
    cores: int
    vector_bits: int
    versions: tuple[tuple[str, str], ...]

    @functools.cached_property
    def key(self) -> str:
        """Canonical JSON text."""
        return canonical(self.to_json())

    def with_revisions(self, revisions: Mapping[str, int]) -> DeviceFingerprint:
        """Return this fingerprint with revisions of solvers by name; a new revision invalidates earlier
        measurements."""
        if not revisions:
            return self
        named = ((_REVISION + name, str(number)) for name, number in revisions.items())
        return replace(self, versions=tuple(sorted((*self.versions, *named))))

    @functools.cached_property
    def machine(self) -> DeviceFingerprint:
        """This fingerprint without revisions of solvers."""
        return replace(self, versions=tuple(v for v in self.versions if not v[0].startswith(_REVISION)))

    def to_json(self) -> dict[str, object]:
        """Return the fingerprint as a JSON object."""
        return {
            "cpu": self.cpu,
            "features": list(self.features),
            "cores": self.cores,
            "vector_bits": self.vector_bits,
            "versions": dict(self.versions),
        }

    @classmethod
    def from_json(cls, value: object) -> DeviceFingerprint:
        """Return the fingerprint in a JSON object of `to_json`.

        Raises:
            FormatError: the object is malformed.
        """
        if not isinstance(value, dict):
            raise FormatError("tuning record: 'fingerprint' must be an object")
        cpu, features, versions = value.get("cpu"), value.get("features"), value.get("versions")
        if not isinstance(cpu, str):
            raise FormatError("tuning record: 'cpu' of the fingerprint must be a string")
        if not isinstance(features, list) or not all(isinstance(f, str) for f in features):
            raise FormatError("tuning record: 'features' of the fingerprint must be an array of strings")
        if not isinstance(versions, dict) or not all(isinstance(s, str) for kv in versions.items() for s in kv):
            raise FormatError("tuning record: 'versions' of the fingerprint must map names to strings")
        for name in ("cores", "vector_bits"):
            if not _is_count(value.get(name)):
                raise FormatError(f"tuning record: {name!r} of the fingerprint must be a positive integer")
        return cls(cpu, tuple(features), value["cores"], value["vector_bits"], tuple(sorted(versions.items())))


@dataclass(frozen=True)
class TuningRecord:
    """The fastest known solver of one problem on one machine.

    Attributes:
        solver: name of the solver.
        configuration: its parameters by name; empty for the solver's own choice.
        seconds: median time of one execution.
        noise: relative spread of the measured times (scaled median absolute deviation).
        date: date of the measurement, ISO 8601 in UTC.
    """

    problem: Problem
    fingerprint: DeviceFingerprint
    solver: str
    configuration: Mapping[str, int] = field(hash=False)
    seconds: float
    noise: float = 0.0
    date: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the record as a JSON object."""
        return {
            "problem": self.problem.fields,
            "fingerprint": self.fingerprint.to_json(),
            "solver": self.solver,
            "configuration": dict(self.configuration),
            "seconds": self.seconds,
            "noise": self.noise,
            "date": self.date,
        }

    @classmethod
    def from_json(cls, value: object) -> TuningRecord:
        """Return the record in a JSON object of `to_json`.

        Raises:
            FormatError: the object is malformed; the message names the field.
        """
        if not isinstance(value, dict):
            raise FormatError("a tuning record must be an object")
        for name in ("solver", "date"):
            if not isinstance(value.get(name), str):
                raise FormatError(f"tuning record: {name!r} must be a string")
        for name in ("seconds", "noise"):
            number = value.get(name)
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
                raise FormatError(f"tuning record: {name!r} must be a number from 0 on")
        configuration = value.get("configuration")
        if not isinstance(configuration, dict) or not all(
            isinstance(k, str) and (_is_count(v) or _is_zero(v)) for k, v in configuration.items()
        ):
            raise FormatError("tuning record: 'configuration' must map names to integers from 0 on")
        return cls(
            Problem.from_json(value.get("problem")),
            DeviceFingerprint.from_json(value.get("fingerprint")),
            value["solver"],
            configuration,
            float(value["seconds"]),
            float(value["noise"]),
            value["date"],
        )


def explain_miss(problem: Problem, fingerprint: DeviceFingerprint, records: Iterable[TuningRecord]) -> str:
    """Return the reason why no record fits exactly: the fields of problem and machine in which the nearest record
    differs."""
    same = [record for record in records if record.problem.operation == problem.operation]
    if not same:
        return f"no record of operation {problem.operation}"
    nearest = min(same, key=lambda record: _distance(record, problem, fingerprint))
    found = difference(nearest, problem, fingerprint)
    return f"the nearest record differs: {found}" if found else "a record of this problem and machine exists"


def difference(record: TuningRecord, problem: Problem, fingerprint: DeviceFingerprint) -> str:
    """Return a text that names the fields in which a record differs from a problem and a machine; empty if none."""
    parts = []
    if own := _differences(record.problem.fields, problem.fields):
        parts.append("the problem in " + ", ".join(own))
    if machine := _differences(record.fingerprint.to_json(), fingerprint.to_json()):
        parts.append("the machine in " + ", ".join(machine))
    return "; ".join(parts)


def _distance(record: TuningRecord, problem: Problem, fingerprint: DeviceFingerprint) -> tuple[int, int]:
    """Return the numbers of differing fields, the problem's first: a record of another problem is of no use."""
    own = _differences(record.problem.fields, problem.fields)
    return len(own), len(_differences(record.fingerprint.to_json(), fingerprint.to_json()))


def _differences(recorded: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    found = []
    for name in sorted(recorded.keys() | wanted.keys()):
        old, new = recorded.get(name), wanted.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            found += [f"{name}.{text}" for text in _differences(old, new)]
        elif name == "features" and isinstance(old, list) and isinstance(new, list):
            missing, extra = sorted(set(old) - set(new)), sorted(set(new) - set(old))
            words = [f"-{name}" for name in missing] + [f"+{name}" for name in extra]
            found.append(f"{name} ({shortened(' '.join(words), 60)})")
        else:
            found.append(f"{name} (recorded {shortened(canonical(old), 60)}, wanted {shortened(canonical(new), 60)})")
    return found


def _is_zero(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_PARAMETER
