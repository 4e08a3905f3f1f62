"""Kernel generators never write word numbers literally: `Arguments` and `RecordText` derive them from names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .sources import tree

CPU = Path(__file__).resolve().parents[2] / "mgx_numba" / "codegen" / "cpu"
WRITERS = {"arguments.py", "records.py"}
OTHERS = ("lang", "toolchain")
"""Folders of the language itself, which print nothing."""
TABLES = {("contraction/strassen/sums.py", "moves")}
"""Arrays of equal words that are filled while a kernel is printed: file and name."""

VALUE = "\0"
"""Placeholder for a formatted value, which may be a number."""
WORD_ACCESS = re.compile(
    r"\bpointer_(?:\w|\0)+\(args\b"  # bound by Arguments
    r"|\b(?:call_kernel|words_at|put_pointer|local_pointer_(?:\w|\0)+)\("  # printed by Arguments and RecordText
)
NUMBERED = re.compile(r"([\w\0]+)\[(?:\d|\0)")
"""A subscript that begins with a number or a formatted value."""


def printed(module: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each string that is no docstring, with `VALUE` for what is formatted into it."""
    nodes = list(ast.walk(module))
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # documentation
    skipped |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def slot_numbers(source: str, tables: frozenset[str] = frozenset()) -> list[str]:
    """Places where a module prints the access of a word by itself."""
    found = []
    for line, text in printed(tree(source)):
        by_number = [match[0] for match in NUMBERED.finditer(text) if match[1] not in tables]
        if by_number or WORD_ACCESS.search(text):
            found.append(f"line {line}: {text.replace(VALUE, '{}')}")
    return found


def generators() -> list[Path]:
    paths = (path for path in sorted(CPU.rglob("*.py")) if path.relative_to(CPU).parts[0] not in OTHERS)
    return [path for path in paths if path.relative_to(CPU).as_posix() not in WRITERS]


def test_benchmarks_print_none_either() -> None:
    assert slot_numbers((CPU.parents[2] / "bench" / "roofs.py").read_text()) == []


def test_no_generator_prints_the_number_of_a_word() -> None:
    assert len(generators()) > 100
    found = {}
    for path in generators():
        name = path.relative_to(CPU).as_posix()
        places = slot_numbers(path.read_text(), frozenset(array for file, array in TABLES if file == name))
        if places:
            found[name] = places
    assert found == {}


@pytest.mark.parametrize(
    "statement",
    [
        'line = "block[3] = 1"',
        'line = f"block[{slot}] = 1"',
        'line = f"{name}[{slot}] = 1"',
        'line = "x = pointer_float32(args, 0)"',
        'line = f"x = pointer_{dtype}(args, {slot})"',
        'line = f"call_kernel(args, {slot}, block, 0, 1)"',
        'line = "args = words_at(call, 0)"',
        'line = "put_pointer(block, 4, sums)"',
        'lines += [*before, f"queue[{place} + 1] = word"]',
    ],
)
def test_a_number_is_noticed(statement: str) -> None:
    (found,) = slot_numbers(statement)
    assert found.startswith("line 1: ")


@pytest.mark.parametrize(
    "statement",
    [
        '"""block[3] is the first."""',
        "x = block[3]",
        'line = "table[i] = 0"',
        'line = block.put("x", f"offset(x, {n})")',
    ],
)
def test_nothing_else_is(statement: str) -> None:
    assert slot_numbers(statement) == []
