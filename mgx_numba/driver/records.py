"""Tuning records on the command line: readers for files of any kind, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..codegen.backend import backend
from ..codegen.tuning.files import records_from
from ..codegen.tuning.record import Problem, TuningRecord, difference, explain_miss
from ..codegen.tuning.request import least_bytes, problem_of
from ..codegen.tuning.session import Choice
from ..codegen.tuning.source import read_file
from ..errors import FormatError
from ..runtime.limits import Limits
from ..targets.registry import DEFAULT, Target, target, target_names
from .report import ABOVE_LIMIT


def read_any(path: str) -> list[TuningRecord]:
    """Return the tuning records in an ``.mxr`` file, a JSON file or an SQLite database.

    Raises:
        FormatError: the file cannot be read, or has another content.
    """
    if path.lower().endswith(".mxr"):
        from ..graph.mxr import load_program

        return records_from(load_program(path)[1]["tuning"])
    try:
        return read_file(Path(path).expanduser())
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None


def describe(problem: Problem) -> str:
    """Return a problem in one line: sizes in the usual notation, then attributes that differ from their defaults."""
    fields = problem.fields
    get = fields.get
    if problem.operation == "dot":
        batch = get("batch")
        words = [f"dot {_lens(batch) + ' x ' if batch else ''}{get('m')}x{get('n')}x{get('k')}"]
    else:
        lens = [_lens(get(name)) for name in ("in_lens", "kernel", "stride")]
        words = [f"conv {get('batch')}x{get('in_channels')}x{lens[0]} -> {get('out_channels')}, {lens[1]}/{lens[2]}"]
        words += [f"groups {get('groups')}"] if get("groups") != 1 else []
        words += ["transposed"] if get("transposed") else []
    epilogue = get("epilogue")
    name = epilogue.get("name") if isinstance(epilogue, dict) else ""
    return " ".join([*words, *([f"+ {name}"] if name else []), str(get("dtype")), f"{get('threads')}t"])


def write_table(records: Sequence[TuningRecord], origin: str) -> None:
    """Print a table of records.

    Its columns are problem, solver, configuration, time, fraction of this machine's limit, noise and origin. For
    records measured elsewhere it lists how that machine differs.
    """
    if not records:
        print(f"no tuning records: {origin}")
        return
    tuned = [one for one in map(target, dict.fromkeys((DEFAULT, *target_names()))) if one.tunes]
    machines = {one: backend(one.backend).fingerprint() for one in tuned}
    limits: dict[tuple[Target, int], Limits | None] = {}
    rows = [
        ("problem", "solver", "configuration", "ms", "of limit", "noise", "measured on", "date", "origin", "differs")
    ]
    for record in records:
        threads = record.problem.fields["threads"]
        mine = next((one for one, machine in machines.items() if machine == record.fingerprint.machine), tuned[0])
        here = machines[mine]
        own = record.fingerprint.machine == here and threads <= here.cores
        if own and (mine, threads) not in limits:
            limits[mine, threads] = mine.limits(threads)
        rows.append(
            (
                describe(record.problem),
                record.solver,
                _configuration(record.configuration),
                f"{record.seconds * 1e3:.4g}",
                _fraction(record, limits[mine, threads]) if own else "-",
                f"{record.noise:.1%}",
                "this machine" if own else record.fingerprint.cpu,
                record.date,
                origin,
                difference(record, record.problem, record.fingerprint if own else here),
            )
        )
    _write(rows)
    if any(row[4].rstrip("%").isdecimal() and int(row[4].rstrip("%")) > 100 for row in rows):
        print("".join(ABOVE_LIMIT), end="")


def write_difference(first: Sequence[TuningRecord], second: Sequence[TuningRecord]) -> int:
    """Print the problems that differ between two sets of records, and return their number.

    A problem differs if the sets solve it differently, or only one set has it. For the latter, the fields in which the
    other set's nearest record differs are printed.
    """
    sets = [{(r.problem.key, r.fingerprint.key): r for r in records} for records in (first, second)]
    rows = [("problem", "measured on", "first", "second", "why")]
    for key in dict.fromkeys([*sets[0], *sets[1]]):
        a, b = (records.get(key) for records in sets)
        if a is not None and b is not None and (a.solver, a.configuration) == (b.solver, b.configuration):
            continue
        known = a or b
        assert known is not None
        others = [] if a and b else list(sets[a is not None].values())
        why = "" if a and b else explain_miss(known.problem, known.fingerprint, others)
        rows.append((describe(known.problem), known.fingerprint.cpu, _solution(a), _solution(b), why))
    _write(rows)
    return len(rows) - 1


def write_choices(choices: Sequence[Choice]) -> None:
    """Print the solver of each problem of a program, its origin, and why there is no record of this machine."""
    rows = [("problem", "solver", "configuration", "origin", "why no record decided")]
    rows += [(describe(c.problem), c.solver, _configuration(c.configuration), c.origin, c.miss) for c in choices]
    _write(rows)


def _lens(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _solution(record: TuningRecord | None) -> str:
    if record is None:
        return "-"
    return f"{record.solver} {_configuration(record.configuration)} {record.seconds * 1e3:.4g} ms"


def _configuration(values: Mapping[str, int]) -> str:
    return ",".join(f"{k}={v}" for k, v in values.items()) or "default"


def _fraction(record: TuningRecord, limits: Limits | None) -> str:
    """Return the roofline bound on the time (of arithmetic and memory traffic) divided by the measured time."""
    problem = problem_of(record)
    if problem is None or limits is None or not record.seconds:
        return "-"
    try:
        least = max(problem.flops / (limits.gflops * 1e9), least_bytes(problem) / (limits.gbytes * 1e9))
    except OverflowError:
        return "-"
    return f"{least / record.seconds:.0%}"


def _write(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{text:<{width}}" for text, width in zip(row, widths)).rstrip())
