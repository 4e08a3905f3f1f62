"""Checks of a compiled program against the reference evaluation: as a whole, step by step, and by prefixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dataclass import dataclass
from ..errors import MgxError
from ..graph.instruction import Instruction
from ..graph.passes import Options, run_passes
from ..graph.passes.base import KERNEL_OPERATORS
from ..graph.printer import format_instruction, instruction_names, program_lines
from ..graph.program import Program
from ..progress import track
from ..targets.base import Compiled, Observation
from ..targets.registry import REFERENCE, compile_for
from .compare import Difference, Tolerance, compare
from .trim import computing_instructions, keep_until

Inputs = Mapping[str, np.ndarray]
Compiler = Callable[[Program], Compiled]


@dataclass(frozen=True)
class Check:
    """The difference that one comparison found; ``what`` is the printed name of the compared value."""

    what: str
    difference: Difference


def reference(program: Program, inputs: Inputs, double: bool = False) -> list[object]:
    """Return a program's results on the ``ref`` target; with ``double``, floats are rounded only at the end."""
    return compile_for(REFERENCE, in_double(program) if double else program).run(inputs)


def in_double(program: Program) -> Program:
    """Return a copy that computes floats in double precision."""
    copy = program.clone()
    run_passes(copy, ["use_double", "dead_code_elimination"])
    return copy


def check_results(found: Sequence[object], expected: Sequence[object], tolerance: Tolerance) -> list[Check]:
    """Compare the results of two runs one by one (tuples by their members)."""
    a, b = arrays_of(found), arrays_of(expected)
    if len(a) != len(b):
        return [Check("results", Difference(f"{len(a)} results, expected {len(b)}", np.nan, np.nan))]
    pairs = enumerate(zip(a, b))
    return [Check(f"output {k} {list(y.shape)}", compare(x, y, tolerance)) for k, (x, y) in pairs]


def arrays_of(value: Any) -> list[np.ndarray]:
    """Return the arrays of a result, flattening tuples, sequences and optionals in order."""
    holds = (
        isinstance(value, np.ndarray)
        and value.dtype.hasobject
        and not all(isinstance(v, str) for v in value.reshape(-1))
    )
    if holds or isinstance(value, (tuple, list)):
        return [a for v in value for a in arrays_of(v)]
    return [np.asarray(value)]


def check_steps(compiled: Compiled, inputs: Inputs, tolerance: Tolerance) -> list[Check]:
    """Compare the output of each step of a compiled program with the reference value of its instruction.

    The reference evaluates the optimised program, so a difference is due to lowering or code generation. If several
    steps compute one instruction, the last step counts.
    """
    program = compiled.resolve(inputs)
    expected: dict[str, list[np.ndarray]] = {}

    def remember(seen: Observation) -> None:
        expected[seen.instruction] = arrays_of(seen.outputs())

    compile_for(REFERENCE, program).observe(inputs, remember)
    checks: dict[str, Check] = {}

    def note(seen: Observation) -> None:
        found, wanted = arrays_of(seen.outputs()), expected.get(seen.instruction, [])
        if [a.shape for a in found] == [a.shape for a in wanted]:
            differences = [compare(a, b, tolerance) for a, b in zip(found, wanted)]
            worst = next((d for d in differences if not d.passed), max(differences, key=lambda d: d.rms))
            why = f" (on the host: {seen.reason})" if seen.reason else ""
            checks[seen.instruction] = Check(f"{seen.instruction} [{seen.label}]{why}", worst)

    compiled.observe(inputs, note)
    return list(checks.values())


def check_layers(
    program: Program, compiled: Compiled, inputs: Inputs, tolerance: Tolerance, double: bool = False
) -> list[Check]:
    """Compare the results of the model's nodes, as far as a step writes a node's whole result, with the reference.

    Nodes are identified by the debug symbols of ``program``, from which ``compiled`` was made. Each step starts from
    the results of previous steps, so differences accumulate.
    """
    order = _symbols(program)
    expected: dict[str, list[np.ndarray]] = {}

    def remember(seen: Observation) -> None:
        for symbol in seen.instruction.partition(" # ")[2].split(", "):
            if symbol in order:
                expected[symbol] = arrays_of(seen.outputs())

    compile_for(REFERENCE, in_double(program) if double else program).observe(inputs, remember)
    lines = {line: ins for line, ins in program_lines(compiled.resolve(inputs)) if ins is not None}
    checks: dict[str, Check] = {}

    def note(seen: Observation) -> None:
        ins = lines.get(seen.instruction)
        for symbol, found in zip(_ends(ins, order) if ins is not None else (), arrays_of(seen.outputs())):
            wanted = expected.get(symbol, [])
            if len(wanted) == 1 and wanted[0].shape == found.shape:
                difference = compare(found.astype(wanted[0].dtype), wanted[0], tolerance)
                checks[symbol] = Check(f"{symbol} [{seen.label}]", difference)

    compiled.observe(inputs, note)
    return [checks[symbol] for symbol in order if symbol in checks]


def _symbols(program: Program) -> dict[str, int]:
    """Return the position of each debug symbol of the main module, in order of first occurrence."""
    symbols = dict.fromkeys(s for ins in program.main if not ins.is_literal for s in ins.debug_symbols)
    return {symbol: position for position, symbol in enumerate(symbols)}


def _ends(ins: Instruction, order: Mapping[str, int]) -> list[str]:
    """Return, for each result of an instruction, the last node fused into it, or an empty string."""
    ends = ins.module_args[0].results() if ins.name in KERNEL_OPERATORS else [ins]
    return [max(end.debug_symbols, key=lambda s: order.get(s, -1), default="") for end in ends]


def check_passes(
    program: Program, passes: Sequence[str], options: Options, inputs: Inputs, tolerance: Tolerance
) -> list[Check]:
    """Evaluate the program by reference after each pass that changed it; stop at the first difference."""
    expected = reference(program, inputs)
    copy = program.clone()
    text = str(copy)
    checks: list[Check] = []
    for position, name in enumerate(track(passes, len(passes), "Checking passes")):
        what = f"pass {position} {name}"
        try:
            run_passes(copy, [name], options)
            if str(copy) == text:
                continue
            text = str(copy)
            found = reference(copy, inputs)
        except MgxError as error:
            return [*checks, Check(what, Difference(str(error), np.nan, np.nan))]
        results = check_results(found, expected, tolerance)
        wrong = next((c for c in results if not c.difference.passed), None)
        if wrong is not None:
            return [*checks, Check(what, wrong.difference)]
        checks.append(Check(what, max((c.difference for c in results), key=lambda d: d.rms)))
    return checks


def check_prefix(program: Program, position: int, compiler: Compiler, inputs: Inputs, tolerance: Tolerance) -> Check:
    """Compile the program up to one instruction and compare that instruction's value with the reference."""
    names = instruction_names(program.reachable_modules())
    what = format_instruction(list(program.main)[position], names)
    part = keep_until(program, position)
    try:
        results = check_results(compiler(part).run(inputs), reference(part, inputs), tolerance)
    except MgxError as error:
        return Check(what, Difference(str(error), np.nan, np.nan))
    wrong = [c.difference for c in results if not c.difference.passed]
    return Check(what, wrong[0] if wrong else max((c.difference for c in results), key=lambda d: d.rms))


def check_prefixes(program: Program, compiler: Compiler, inputs: Inputs, tolerance: Tolerance) -> list[Check]:
    """Run `check_prefix` for every instruction that computes a value, up to the first difference."""
    checks = []
    positions = _positions(program)
    for position in track(positions, len(positions), "Checking instructions"):
        checks.append(check_prefix(program, position, compiler, inputs, tolerance))
        if not checks[-1].difference.passed:
            break
    return checks


def first_wrong_prefix(program: Program, compiler: Compiler, inputs: Inputs, tolerance: Tolerance) -> Check | None:
    """Return the check of the first instruction whose prefix is wrong, by bisection; None if all are right.

    The bisection assumes that a difference does not vanish further on.
    """
    positions = _positions(program)
    low, high = 0, len(positions)
    found: Check | None = None
    while low < high:
        middle = (low + high) // 2
        check = check_prefix(program, positions[middle], compiler, inputs, tolerance)
        if check.difference.passed:
            low = middle + 1
        else:
            found, high = check, middle
    return found


def _positions(program: Program) -> list[int]:
    members = list(program.main)
    return [k for k in computing_instructions(program) if not members[k].shape.sub_shapes]
