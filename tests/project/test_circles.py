"""No circular imports between modules or packages, neither at import time nor late."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .sources import statements, tree

ROOT = Path(__file__).resolve().parents[2]


def modules() -> dict[str, Path]:
    found = {}
    for path in (ROOT / "mgx_numba").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package(name: str, known: Mapping[str, Path]) -> str:
    return name if known[name].name == "__init__.py" else name.rpartition(".")[0]


def imports(name: str, known: Mapping[str, Path], types: bool = False) -> set[str]:
    """The package's own modules that a module imports anywhere in its text; with ``types`` for type checkers, too."""
    found = set()
    body = tree(known[name].read_text()).body
    if not types:
        body = [node for node in body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))]
    for node in statements(body):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names} & known.keys()
        elif isinstance(node, ast.ImportFrom):
            outer = package(name, known).split(".")
            base = ".".join(outer[: len(outer) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                full = f"{source}.{alias.name}"
                found |= {full} if full in known else {source} & known.keys()
    return found - {name}


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(name, known) for name in known}


def test_a_circle_is_found() -> None:
    assert sorted(set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}))) == ["a", "b", "c"]


def test_no_modules_import_one_another(graph: dict[str, set[str]]) -> None:
    assert len(graph) > 300
    assert sum(map(len, graph.values())) > 1000
    assert circle(graph) == []


def test_no_packages_beside_one_another_import_one_another(graph: dict[str, set[str]]) -> None:
    """Modules of an outer package may be below its inner packages (shared by them) or above them (combining them)."""
    beside: dict[str, dict[str, set[str]]] = {}
    for name, used in graph.items():
        for other in used:
            mine, theirs = name.split("."), other.split(".")
            depth = next(k for k, (a, b) in enumerate(zip([*mine, ""], [*theirs, ""])) if a != b)
            own, foreign = ".".join(mine[: depth + 1]), ".".join(theirs[: depth + 1])
            if depth < min(len(mine), len(theirs)):
                beside.setdefault(".".join(mine[:depth]), {}).setdefault(own, set()).add(foreign)
    assert len(beside) > 10
    assert {outer: found for outer, used in beside.items() if (found := circle(used))} == {}


@pytest.mark.parametrize(
    "belongs",
    [
        lambda n: n.startswith("mgx_numba.frontends."),
        lambda n: n.startswith("mgx_numba.codegen.") and n.count(".") == 2,
    ],
    ids=["frontends", "codegen's own modules"],
)
def test_no_circle_hides_behind_type_checking(belongs: Callable[[str], bool]) -> None:
    """The builder of ONNX's parser functions knew the parser that makes it; kernels, back ends and the store one
    another."""
    known = modules()
    names = [name for name in known if belongs(name)]
    assert len(names) > 10
    assert circle({name: imports(name, known, types=True) for name in names}) == []
