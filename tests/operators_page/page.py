"""The text of ``docs/operators.md``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.defs

from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import registry
from mgx_numba.frontends.onnx.functions import EXPANDED
from mgx_numba.frontends.onnx.tensors import ELEMENT_NAMES, ir_type
from mgx_numba.graph.program import Program
from mgx_numba.graph.specialize import is_dynamic
from mgx_numba.runtime.plan import FallbackStep, Plan
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.cpu.program import optimize
from mgx_numba.targets.data_dependent_split import split
from mgx_numba.targets.gpu.lower import lowering, optimized
from mgx_numba.targets.lowering.job import LoweringJob
from mgx_numba.targets.lowering.tuples import without_tuples
from mgx_numba.targets.options import TargetOptions

from .examples import MOST, Key, examples
from .limits import LIMITS, REFUSED

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"

HEAD = """# ONNX operators

Written by `python -m tests.operators_page`, from the parsers, ONNX's schemas (onnx {version}) and plans of small
models; a test holds it to them. `ref` runs every operator by its NumPy meaning. **cpu** and **gpu** say what those
targets do for up to {most} tests of the operator alone, ONNX's or our own, with all inputs but the first constant:
*kernels*; *host*, steps by the NumPy meaning between kernels, which say why where they are shown; *both*, by types,
attributes and lengths; *view*, nothing at all, for a value that is another one's memory or is computed while a model is
read. A dash: there is no such test, or none can be planned before the lengths of its inputs are known.

**Operator sets** are those in which the operator's definition changed; all of them up to the newest of the installed
onnx are read. **Types** are those of its first input, as far as ONNX restricts them: *floats* are float16, bfloat16,
float and double, *ints* and *uints* the integers of 8 to 64 bits, *all* are all tensors. Strings, complex numbers,
sequences and optionals are computed on the host, whatever the operator. float8e8m0 and types below a byte are bytes to
kernels, which move and convert them.
"""

_GROUPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("floats", frozenset({"float16", "bfloat16", "float", "double"})),
    ("ints", frozenset({"int8", "int16", "int32", "int64"})),
    ("uints", frozenset({"uint8", "uint16", "uint32", "uint64"})),
    ("float8", frozenset({"float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"})),
    ("int4, int2", frozenset({"int4", "uint4", "int2", "uint2"})),
    ("complex", frozenset({"complex64", "complex128"})),
)


def page() -> str:
    """The page as it should be."""
    known = set(registry.handlers()) | {(_domain_of(name), name) for name in EXPANDED}
    planned = {
        key: [(_on_cpu(p), _on_gpu(p)) for p in programs] for key, programs in examples().items() if key in known
    }
    lines = [HEAD.format(version=onnx.__version__, most=MOST)]
    for domain in sorted({d for d, _ in known}):
        rows = [_row(key, planned.get(key, [])) for key in sorted(known) if key[0] == domain]
        lines += [f"## {domain or 'ai.onnx'}\n", _table(rows)]
    lines += ["## What is not there\n", "| operator | why |", "| --- | --- |"]
    lines += [f"| {name} ({domain}) | {why} |" for (domain, name), why in sorted(REFUSED.items())]
    return "\n".join(lines) + "\n"


def _domain_of(name: str) -> str:
    return next(d for d in ("", "ai.onnx.preview") if onnx.defs.has(name, d))


def _table(rows: Iterable[list[str]]) -> str:
    head = ["operator", "operator sets", "types", "cpu", "gpu", "limits"]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def _row(key: Key, planned: list[tuple[str, str]]) -> list[str]:
    schemas = _schemas().get(key, [])
    sets = ", ".join(str(s.since_version) for s in schemas) or "1"
    types = (_types(schemas[-1]) if schemas else "") or "-"
    return [
        key[1],
        sets,
        types,
        *(_both(column) for column in zip(*planned)),
        *["-"] * (0 if planned else 2),
        LIMITS.get(key, ""),
    ]


@cache
def _schemas() -> dict[Key, list[onnx.defs.OpSchema]]:
    """Return the schemas of each operator, oldest first."""
    found: dict[Key, list[onnx.defs.OpSchema]] = {}
    for schema in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda s: s.since_version):
        if not schema.deprecated:
            found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


def _types(schema: onnx.defs.OpSchema) -> str:
    """Return the types of the first input that has a choice of types."""
    if not schema.inputs:
        return ""
    constraints = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    allowed = constraints.get(schema.inputs[0].type_str, {schema.inputs[0].type_str})
    tensors = {t.removeprefix("tensor(").removesuffix(")") for t in allowed if t.startswith("tensor(")}
    tensors = {t for t in tensors if _is_held(t)}
    if tensors >= set(ELEMENT_NAMES[1:14]):
        names = ["all"]
    else:
        names = [group for group, members in _GROUPS if members <= tensors]
        rest = tensors - {t for group, members in _GROUPS if group in names for t in members}
        names += [t for t in ELEMENT_NAMES if t in rest]
    names += [kind for kind in ("seq", "optional") if any(t.startswith(f"{kind}(") for t in allowed)]
    return ", ".join(names).replace("seq", "sequences").replace("optional", "optionals")


def _is_held(name: str) -> bool:
    try:
        ir_type(ELEMENT_NAMES.index(name))
    except (MgxError, ValueError):
        return False
    return True


def _both(column: tuple[str, ...]) -> str:
    """Return the combined entry for several models of an operator."""
    kinds = {k for k in column if k}
    if not kinds:
        return "-"
    if len(kinds - {"view"}) > 1:
        return "both"
    return next(iter(kinds - {"view"}), "view")


def _on_cpu(program: Program) -> str:
    options = TargetOptions(num_threads=1)

    def first_plan(program: Program) -> Plan:
        stages = split(program, on_host=True)
        return lower(optimize(program if stages is None else stages.head, options), options)

    return _planned(program, first_plan)


def _on_gpu(program: Program) -> str:
    options = TargetOptions()
    return _planned(program, lambda p: lowering(LoweringJob(optimized(p, options), options)).run())


def _planned(program: Program, lowered) -> str:  # type: ignore[no-untyped-def]
    """``kernels``, ``host``, ``both`` or ``view``; empty where nothing can be planned before lengths are known."""
    if is_dynamic(program):
        return ""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            plan = lowered(without_tuples(program)[0])
        except MgxError:
            return ""
    hosted = [s for s in plan.steps if isinstance(s, FallbackStep)]
    works = [s for s in hosted if (s.label.startswith("ref::") and s.label != "ref::@return") or s.plans]
    native = len(plan.steps) - len(hosted)
    if works:
        return "both" if native and any(s.plans for s in works) else "host"
    return "kernels" if native else "view"
