"""List numbers without a stated origin in the package: `python -m tests.project.constants [FOLDER]`.

A number has a word if a comment stands beside it, directly above it or above the assignments that it stands among, if a
string follows it, or if the docstring of its class names it in double backquotes. Two kinds are looked for:

*   constants: names in capitals of modules and classes, to which nothing but numbers is assigned;
*   literals in functions of code generation that have to come from somewhere: not small integers, powers of two and
    their masks (widths, sizes of types), units, patterns of bits (written in hexadecimal or octal).
"""

from __future__ import annotations

import ast
import functools
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .sources import statements, tree

__all__ = ["Bare", "bare_constants", "bare_literals", "found_in"]

ROOT = Path(__file__).resolve().parents[2]
_CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]*$")
_DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|pragma)")
_WORDS = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|\'{3}(?:\\.|[^\\])*?\'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*''', re.DOTALL
)
"""Strings, in which nothing is a comment, and comments. Python's tokenizer finds the same 20 times slower."""
_SMALL = 16
"""Lanes of the widest vectors of float32: numbers up to here are mostly structure."""
_UNITS = frozenset({1.5, 100, 1000, 10**6, 10**9})
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Scope = (*Function, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, order=True)
class Bare:
    """A number without a word: where it is, and its text."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def is_number(node: ast.AST | None) -> bool:
    """True for numbers, arithmetic of numbers, and tuples, lists, sets and dicts of them."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float | complex) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts) and all(map(is_number, node.elts))
    if isinstance(node, ast.Dict):
        return bool(node.values) and all(map(is_number, node.values))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "frozenset":
        return len(node.args) == 1 and is_number(node.args[0])
    return False


def is_scalar(node: ast.AST) -> bool:
    """True for a number and arithmetic of numbers."""
    if isinstance(node, ast.BinOp):
        return is_scalar(node.left) and is_scalar(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_scalar(node.operand)
    return isinstance(node, ast.Constant) and is_number(node)


@functools.lru_cache(maxsize=1)
def read(source: str) -> tuple[ast.Module, set[int], set[int]]:
    """Return a file's tree, its lines that have a comment, and those that have nothing else.

    Directives to tools are no comments.
    """
    every, whole = set(), set()
    line, at = 1, 0
    for found in _WORDS.finditer(source):
        if found[0].startswith("#") and not _DIRECTIVE.match(found[0]):
            line, at = line + source.count("\n", at, found.start()), found.start()
            every.add(line)
            if not source[source.rfind("\n", 0, at) + 1 : at].strip():
                whole.add(line)
    return tree(source), every, whole


def lines_of(node: Any) -> set[int]:
    return set(range(node.lineno, node.end_lineno + 1))


def has_word(body: Sequence[ast.stmt], k: int, every: set[int], whole: set[int]) -> bool:
    if every & lines_of(body[k]):
        return True
    after = body[k + 1] if k + 1 < len(body) else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return True
    while k and isinstance(body[k - 1], ast.Assign | ast.AnnAssign) and body[k - 1].end_lineno == body[k].lineno - 1:
        k -= 1
    return body[k].lineno - 1 in whole


def bare_constants(source: str, path: str = "") -> Iterator[Bare]:
    module, every, whole = read(source)
    for scope in (module, *(n for n in statements(module.body) if isinstance(n, ast.ClassDef))):
        told = ast.get_docstring(scope) or "" if isinstance(scope, ast.ClassDef) else ""
        for k, node in enumerate(scope.body):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not is_number(node.value):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            named = all(f"``{name}``" in told for name in names)
            if any(map(_CONSTANT.match, names)) and not named and not has_word(scope.body, k, every, whole):
                yield Bare(path, node.lineno, ast.unparse(node))


def is_plain(value: complex) -> bool:
    """Small, a power of two or the mask of one, a unit, infinite or NaN."""
    if isinstance(value, complex):
        return False
    if not math.isfinite(value) or value in _UNITS or math.frexp(value)[0] in (0.0, 0.5, -0.5):
        return True
    if value != int(value):
        return False
    whole = abs(int(value))
    return whole <= _SMALL or whole & (whole + 1) == 0


def bare_literals(source: str, path: str = "") -> Iterator[Bare]:
    module, every, whole = read(source)
    for function in statements(module.body):
        if isinstance(function, Function):
            for statement in function.body:
                yield from _literals(statement, source, path, every, whole)


def _literals(node: Any, source: str, path: str, every: set[int], whole: set[int]) -> Iterator[Bare]:
    """Yield the numbers of a statement or expression without a stated origin.

    Nested functions and classes, and numbers in messages, are skipped.
    """
    if isinstance(node, (*Function, ast.ClassDef, ast.JoinedStr)):
        return
    if is_scalar(node):
        value = eval(compile(ast.Expression(node), path, "eval"), {"__builtins__": {}})
        if not is_plain(value) and not every & lines_of(node) and node.lineno - 1 not in whole:
            text = ast.get_source_segment(source, node) or ""
            if "0x" not in text and "0o" not in text:
                yield Bare(path, node.lineno, text)
        return
    for child in ast.iter_child_nodes(node):
        yield from _literals(child, source, path, every, whole)


def found_in(root: Path = ROOT) -> tuple[list[Bare], list[Bare]]:
    """Constants of the package and literals of its code generation, where the package lies in ``root``."""
    constants, literals = [], []
    for file in sorted((root / "mgx_numba").rglob("*.py")):
        path, source = file.relative_to(root).as_posix(), file.read_text()
        constants += bare_constants(source, path)
        if path.startswith("mgx_numba/codegen/"):
            literals += bare_literals(source, path)
    return constants, sorted(literals)


def main(root: Path) -> None:
    constants, literals = found_in(root)
    for bare in [*constants, *literals]:
        print(bare)
    print(f"{len(constants)} constants, {len(literals)} literals in functions of code generation")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
