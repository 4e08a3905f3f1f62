"""The C source of a program: the tables of its plans as data, and the layouts of the executor's blocks."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ....codegen.kernel import KernelSource
from ....core.types import from_numpy, numpy_dtype
from ...completed import Spaced
from ...host.sizes import EVALUATE
from ...plan import Plan, Step
from ..bind_kernel import BIND, ROOMS_EACH, Bound, Status, Write
from ..executor import IDLE_BYTES, Executable
from ..jumps import DRIVE, DriverOperation
from ..plan_tables import MAX_CLAIMS, PlanTables
from ..spmd import CONFINE, LEAD, WALK, WORKER, Job, Patch, Pool, StepRecord
from ..threads import MAX_THREADS, SPINS, YIELDS
from .cpuid import FeatureBit
from .nodes import (
    ChoiceNode,
    Lens,
    Node,
    PlanNode,
    StagesNode,
    executables_of,
    nodes_of,
    outputs_of,
    parameters_of,
)

EXECUTOR: Mapping[str, KernelSource] = {
    "LEAD": LEAD,
    "DRIVE": DRIVE,
    "WALK": WALK,
    "WORKER": WORKER,
    "CONFINE": CONFINE,
    "EVALUATE": EVALUATE,
    "BIND": BIND,
}
"""The executor's kernels that a library needs, by their names in the C sources; kernels that call Python are left
out."""

WEIGHTS_SYMBOL = "mgx_embedded_weights"
_FROM_ARENA, _FROM_WEIGHTS, _FROM_JOB, _FROM_CODE = range(4)  # same values as in plan.h
_NUMBERS_A_LINE = 12  # keeps lines near 100 characters
_PLAIN = frozenset((string.ascii_letters + string.digits + " !#$%&'()*+,-./:;<=>@[]^_`{|}~").encode())


def layout_text(
    name: str, counts: tuple[int, int], executor: Mapping[str, KernelSource], weights_magic: bytes, weights_head: int
) -> str:
    """Return the header ``layout.h``: names and numbers that the C sources share with the package.

    ``counts`` are those of the program's parameters and outputs; ``executor`` has the keys of `EXECUTOR`.
    """
    blocks = {"STEP": StepRecord, "JOB": Job, "POOL": Pool, "PATCH": Patch, "WRITE": Write, "BOUND": Bound}
    numbers: dict[str, object] = {
        f"{prefix}_{field}": value
        for prefix, block in blocks.items()
        for kind in reversed(block.__mro__)
        for field, value in vars(kind).items()
        if field.isupper()
    }
    numbers |= {f"STATUS_{status.name}": status.value for status in Status}
    own: dict[str, object] = {
        "LIBRARY_NAME": _string(name),
        "LIBRARY_FUNCTION": f"{name}_library",
        "PARAMETER_COUNT": counts[0],
        "OUTPUT_COUNT": counts[1],
        "ROOMS_EACH": ROOMS_EACH,
        "MAX_THREADS": MAX_THREADS,
        "MAX_CLAIMS": f"{MAX_CLAIMS}LL",
        "SPINS": SPINS,
        "YIELDS": YIELDS,
        "IDLE_BYTES": f"((size_t){IDLE_BYTES})",
        "WEIGHTS_MAGIC": _string(weights_magic.decode("ascii")),
        "WEIGHTS_HEAD_BYTES": weights_head,
        **{f"EXECUTOR_{word}": kernel.symbol for word, kernel in executor.items()},
    }
    numbers["POOL_CLOSED"] = f"{Pool.CLOSED}LL"
    return "\n".join(
        [
            "#ifndef MGX_LAYOUT_H",
            "#define MGX_LAYOUT_H",
            "#include <stddef.h>",
            "#include <stdint.h>",
            *(f"#define {word} {value}" for word, value in numbers.items()),
            *(f"#define MGX_{word} {value}" for word, value in own.items()),
            *map(_declaration, executor.values()),
            "#endif",
            "",
        ]
    )


def program_text(
    node: Node,
    output_names: Sequence[str],
    places: Mapping[int, int],
    size: int,
    digest: bytes,
    features: Sequence[FeatureBit],
    embed: bool,
) -> str:
    """Return the source ``plan.c``.

    Args:
        node: what the program runs; no plan has fallback steps.
        output_names: one name for each result.
        places: offsets of the constants in the weights, by the constants' addresses.
        size: size of the weights in bytes.
        digest: SHA-256 of the weights.
        features: features that the CPU must have.
        embed: whether the weights are inside the library.
    """
    executables = list(dict.fromkeys(executables_of(node)))
    kernels = {kernel: None for executable in executables for kernel in executable.plan.kernels()}
    nodes = nodes_of(node)
    own = [_node(f"node{k}", one, nodes, executables) for k, one in enumerate(nodes)]
    plans = [_plan(f"plan{k}", executable, places) for k, executable in enumerate(executables)]
    outputs = [(name, *tensor) for name, tensor in zip(output_names, outputs_of(node), strict=True)]
    fields = {
        "plans": "plans",
        "nodes": "nodes",
        "features": "features",
        "plan_count": len(plans),
        "node_count": len(own),
        "feature_count": len(features),
        "weights_bytes": size,
        "num_threads": executables[0].num_threads,
        "weights": WEIGHTS_SYMBOL if embed else "NULL",
        "digest": f"{{{', '.join(map(str, digest))}}}",
    }
    return "\n".join(
        [
            '#include "program.h"',
            *map(_declaration, kernels),
            *([f"extern const unsigned char {WEIGHTS_SYMBOL}[];"] if embed else []),
            *(line for lines, _ in (*plans, *own) for line in lines),
            f"static const {_array('mgx_plan plans', [text for _, text in plans], 1)}",
            f"static const {_array('mgx_node nodes', [text for _, text in own], 1)}",
            f"static const {_array('mgx_feature features', [_feature(bit) for bit in features])}",
            *_tensors("mgx_these_parameters", [(name, *tensor) for name, tensor in parameters_of(node).items()]),
            *_tensors("mgx_these_outputs", outputs),
            f"const mgx_content mgx_this_content = {_structure(fields)};",
            "",
        ]
    )


def _node(prefix: str, node: Node, nodes: Sequence[Node], executables: Sequence[Executable]) -> tuple[list[str], str]:
    """Return the arrays of a node, and the structure ``mgx_node``; names begin with ``prefix``."""
    count = len(outputs_of(node))
    results: Sequence[tuple[bool, int]] = ()
    completed: Sequence[str] = ()
    passed: Sequence[str] = ()
    lines: list[str] = []
    if isinstance(node, PlanNode):
        kind, members = "MGX_PLAN", [executables.index(node.executable)]
    elif isinstance(node, ChoiceNode):
        kind, members = "MGX_CHOICE", [nodes.index(member) for member in node.members]
    else:
        kind, members, results = "MGX_STAGES", [nodes.index(node.head), nodes.index(node.tail)], node.results
        passed = [*_passed(node)]
        for one in node.completed:
            if isinstance(one, Spaced):
                completed = [*completed, f"{{MGX_SPACED, {one.number}, {one.limit}, {one.delta}, 1, NULL}}"]
                continue
            lens = f"{prefix}_lens_{len(lines)}"
            lines.append(f"static const {_array(f'int64_t {lens}', _numbers(one.lens))}")
            completed = [*completed, f"{{MGX_COUNTED, {one.number}, {one.count}, 0, {len(one.lens)}, {lens}}}"]
    arrays = {
        "size_t members": list(map(str, members)),
        "size_t results": [f"{int(not early)}, {k}" for early, k in results],
        "mgx_completed completed": completed,
        "mgx_passed passed": passed,
    }
    lines += [f"static const {_array(_prefixed(prefix, declared), items)}" for declared, items in arrays.items()]
    fields: dict[str, object] = {"kind": kind, "member_count": len(members), "output_count": count}
    fields |= {declared.split()[1]: f"{prefix}_{declared.split()[1]}" for declared in arrays}
    fields |= {"completed_count": len(completed), "passed_count": len(passed)}
    return lines, _structure(fields)


def _passed(node: StagesNode) -> Iterator[str]:
    """Yield a structure ``mgx_passed`` for each input of the second stage."""
    for name, number in node.passed.items():
        kind = "MGX_OF_SIZE" if name in node.sizes else "MGX_OF_RESULT"
        yield f"{{{kind}, {_string(name)}, NULL, {number}}}"
    for name in node.shared:
        yield f"{{MGX_OF_INPUT, {_string(name)}, {_string(name)}, 0}}"
    for name, (source, axis) in node.lengths.items():
        yield f"{{MGX_OF_LENGTH, {_string(name)}, {_string(source)}, {axis}}}"


def _plan(prefix: str, executable: Executable, places: Mapping[int, int]) -> tuple[list[str], str]:
    """Return the arrays of a plan, and the structure ``mgx_plan``; names begin with ``prefix``."""
    plan, tables = executable.plan, executable.tables
    offsets = [places[address] for address in tables.constant_addresses]
    kernels = {kernel: number for number, kernel in enumerate(plan.kernels())}
    native = [step for step in plan.steps if isinstance(step, Step)]
    steps, slots = tables.steps.copy(), tables.slots.copy()
    steps[:-1, StepRecord.FUNCTION] = [kernels[step.kernel] for step in native]
    relocations = [
        *((slot, _FROM_ARENA, offset) for slot, offset in zip(tables.arena_slots, tables.arena_offsets, strict=True)),
        *((slot, _FROM_WEIGHTS, offsets[index] + offset) for slot, index, offset in tables.constant_slots),
        *((slot, _FROM_JOB, 8 * Job.FAULT) for slot in tables.fault_slots),
        *((slot, _FROM_CODE, kernels[kernel]) for slot, kernel in tables.code_slots),
    ]
    slots[[slot for slot, _, _ in relocations]] = 0  # addresses are valid in this process only
    checks = [check for step in native for check in step.checks]
    first_check, count = [], 0
    for step in native:
        first_check.append(count)
        count += len(step.checks)
    sizes, size_arrays = _sizes(prefix, plan, tables, places)
    arrays = [
        ("mgx_kernel kernels", [kernel.symbol for kernel in kernels]),
        ("int64_t steps", _numbers(steps.reshape(-1))),
        ("int64_t starts", _numbers(tables.starts)),
        ("int64_t slots", _numbers(slots)),
        ("int64_t patches", _numbers(tables.patches.reshape(-1))),
        ("int64_t operations", _numbers(tables.operations)),
        ("int64_t first_check", _numbers(first_check)),
        ("mgx_relocation relocations", [f"{{{', '.join(_numbers(one))}}}" for one in relocations]),
        ("mgx_check checks", [f"{{{_string(who)}, {_string(what)}}}" for who, what in checks]),
    ]
    single = PlanNode(executable)
    tensors: dict[str, list[tuple[str | None, str, Lens]]] = {
        "parameters": [(name, *tensor) for name, tensor in parameters_of(single).items()],
        "outputs": [(None, *tensor) for tensor in outputs_of(single)],
    }
    fields: dict[str, object] = {
        **{which: f"{prefix}_{which}" for which in tensors},
        **{declared.split()[1]: f"{prefix}_{declared.split()[1]}" for declared, _ in arrays},
        "parameter_count": len(plan.parameters),
        "output_count": len(plan.outputs),
        "step_count": len(native),
        "slot_count": len(slots),
        "relocation_count": len(relocations),
        "operation_count": len(tables.operations) // DriverOperation.WORDS,
        "arena_bytes": 0 if plan.symbols else plan.arena_bytes,
        "brief": int(tables.brief),
        "is_long": int(tables.long),
        "shares": int(executable.shares),
        **({"sizes": _structure(sizes)} if sizes else {}),
    }
    lines = [
        f"static const {_array(_prefixed(prefix, declared), items)}" for declared, items in [*arrays, *size_arrays]
    ]
    for which, own in tensors.items():
        lines += _tensors(f"{prefix}_{which}", own, "static ")
    return lines, _structure(fields)


def _sizes(
    prefix: str, plan: Plan, tables: PlanTables, places: Mapping[int, int]
) -> tuple[dict[str, object], list[tuple[str, list[str]]]]:
    """Return the fields of ``mgx_sizes``, and the arrays for them; both are empty unless the plan is symbolic."""
    binding = tables.binding
    if binding is None:
        return {}, []
    found = {word: table.copy() for word, table in binding.tables.items()}
    writes = found[Bound.WRITES].reshape(-1, Write.WORDS)
    for row in writes:
        if row[Write.BASE] > Write.TO_PATCH:
            row[Write.BASE] = places[int(row[Write.BASE])] + Write.TO_PATCH + 1
    words = [0] * Bound.WORDS
    for word, value in binding.words.items():
        if word not in found and word not in (Bound.EVALUATE, Bound.BIND):
            words[word] = value
    names: dict[str, Iterable[object]] = {
        "rows": found[Bound.ROWS], "ranges": found[Bound.RANGES], "sources": found[Bound.SOURCES],
        "numbers": found[Bound.NUMBERS], "writes": found[Bound.WRITES], "axes": found[Bound.AXES],
        "bytes": found[Bound.BYTES], "constants": binding.program.constants[::-1], "words": words,
    }  # fmt: skip
    counts = {
        "symbol_count": len(plan.symbols),
        "constant_count": len(binding.program.constants),
        "row_count": len(binding.program.rows),
        "write_count": len(writes),
        "axis_count": binding.words[Bound.AXIS_COUNT],
        "patch_count": len(tables.patches),
    }
    arrays = [(f"int64_t sizes_{name}", _numbers(table)) for name, table in names.items()]
    return {**{name: f"{prefix}_sizes_{name}" for name in names}, **counts}, arrays


def _declaration(kernel: KernelSource) -> str:
    return f"void {kernel.symbol}(int64_t *args, int64_t begin, int64_t end); /* {kernel.name} */"


def _structure(fields: Mapping[str, object]) -> str:
    return f"{{{', '.join(f'.{field} = {value}' for field, value in fields.items())}}}"


def _prefixed(prefix: str, declared: str) -> str:
    kind, name = declared.split()
    return f"{kind} {prefix}_{name}"


def _array(declared: str, items: Sequence[str], each: int = _NUMBERS_A_LINE) -> str:
    """Return the definition of an array with at least one item, as C requires; ``each`` in a line."""
    rows = [items[k : k + each] for k in range(0, len(items), each)] or [["0"]]
    return f"{declared}[] = {{\n" + "".join(f"    {', '.join(row)},\n" for row in rows) + "};"


def _tensors(which: str, tensors: Sequence[tuple[str | None, str, Lens]], storage: str = "") -> Iterator[str]:
    rows = []
    for number, (name, dtype, lens) in enumerate(tensors):
        place = f"{which}_lens_{number}" if lens else "NULL"
        if lens:
            known = ["MGX_OPEN_LENGTH" if length is None else str(length) for length in lens]
            yield f"static const size_t {place}[] = {{{', '.join(known)}}};"
        text = "NULL" if name is None else _string(name)
        rows.append(f"{{{text}, (mgx_type){int(from_numpy(numpy_dtype(dtype)))}, {len(lens)}, {place}, NULL}}")
    yield f"{storage}const {_array(f'mgx_tensor {which}', rows or ['{NULL, MGX_BOOL, 0, NULL, NULL}'])}"


def _feature(bit: FeatureBit) -> str:
    return f"{{{_string(bit.name)}, {bit.leaf:#x}u, {bit.subleaf}u, {bit.register}u, {bit.bit}u, {bit.state:#x}u}}"


def _numbers(values: Iterable[Any]) -> list[str]:
    """Return integer constants of C; the least 64-bit integer has no literal."""
    least = -(1 << 63)
    return [f"{int(v)}LL" if int(v) != least else "(-9223372036854775807LL - 1)" for v in values]


def _string(text: str) -> str:
    """Return a C string literal of the UTF-8 bytes. Bytes other than plain characters are octal escapes of three
    digits, which end by themselves."""
    body = "".join(chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in text.encode())
    return f'"{body}"'
