"""Functions of problems that are found for many lengths by computing them for few, as tracing compilers do.

A function is computed on integers that note what is done with them (`guarded_int`). What was computed, and which
questions were asked on the way, is a path of a *trace tree*: its inner nodes are questions, its branches answers, its
leaves results in which integers are left open. Another problem walks the tree by its own answers; where one leads to no
branch the function is computed again, and becomes another path.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from ...codegen.problems.cluster import STRUCTURAL
from ...codegen.problems.element_types import ElementTypes
from ...codegen.problems.epilogue import Epilogue, Prologue
from ...dataclass import dataclass
from ...errors import MgxError
from ...graph.module import Module
from .guarded_int import Event, GuardedInt, LengthTrace, UntraceableError

__all__ = ["TraceTrees"]

MOST_LEAVES = 128
"""Paths of a tree, some ten kilobytes each; results beyond them are computed. Kernels of reductions have the most: one
for each number of threads, width of vectors and number of these that a thread holds."""
WHOLE = (Module, Epilogue, Prologue, ElementTypes)
"""What is the same of all problems of a tree: nothing in it is a length."""

T = TypeVar("T")
Filled = Callable[[Sequence[int]], Any]


class TraceTrees:
    """A tree for each form of problems: all of them that is no integer. May be used from any thread."""

    def __init__(self) -> None:
        self._trees: dict[Hashable, _Tree] = {}
        self._lock = threading.Lock()

    def of(self, kind: Hashable, problem: Any, known: Hashable, function: Callable[[Any], T]) -> T | None:
        """What a function gives for a problem, of frozen dataclasses, tuples and integers; None if that is no matter of
        noting: it raises something, does what cannot be noted, or has too many paths.

        Args:
            kind: tells the function from others.
            known: stands for the modules in the problem.
        """
        numbers: list[int] = []
        form = kind, known, _form(problem, numbers)
        with self._lock:
            tree = self._trees.setdefault(form, _Tree())
        found = tree.result(numbers)
        if found is None and tree.grows:
            found = self._grown(tree, problem, numbers, function)
        return None if found is None else found.value  # type: ignore[no-any-return]

    def _grown(
        self, tree: _Tree, problem: Any, numbers: Sequence[int], function: Callable[[Any], Any]
    ) -> _Constant | None:
        """The result of a path that is new, None if there is none."""
        trace = LengthTrace(numbers)
        try:
            made = _filling(function(_with(problem, iter(trace.symbols))))
        except MgxError:
            return None
        except (AttributeError, TypeError, ValueError):  # what it does cannot be noted
            tree.grows = False
            return None
        with self._lock:
            tree.add(trace, made)
        return made if isinstance(made, _Constant) else _Constant(made(trace.values))


@dataclass(frozen=True)
class _Constant:
    """A result, or a part of one, without open integers."""

    value: Any


class _Node:
    """What is computed before a question, the question, and what follows each answer; of a leaf the result."""

    __slots__ = ("branches", "computed", "question", "result")

    def __init__(self) -> None:
        self.computed: list[Event] = []
        self.question: Event | None = None
        self.branches: dict[Any, _Node] = {}
        self.result: Filled | _Constant | None = None


class _Tree:
    """The paths of one form; ``grows`` says whether others are worth noting."""

    def __init__(self) -> None:
        self.grows = True
        self._leaves = 0
        self._root: _Node | None = None

    def result(self, numbers: Sequence[int]) -> _Constant | None:
        """The result for these integers; None if they lead to an answer that was not met before."""
        node, values = self._root, list(numbers)
        try:
            while node is not None:
                for function, a, b in node.computed:
                    values.append(a if function is None else function(values[a], values[b]))
                if node.question is None:
                    made = node.result
                    return made if made is None or isinstance(made, _Constant) else _Constant(made(values))
                question, a, b = node.question
                assert question is not None
                node = node.branches.get(question(values[a], values[b]))
        except ArithmeticError:  # the function would raise it, too
            pass
        return None

    def add(self, trace: LengthTrace, result: Filled | _Constant) -> None:
        """Note a path, unless it is there, or asks something else than others whose answers were the same. Who walks
        the tree meanwhile sees all of it or nothing."""
        node = self._root
        if node is None:
            self._root = _path(trace, 0, result)
            self._leaves = 1
            return
        for k, (event, answer) in enumerate(trace.events):
            if answer is None:
                continue
            if node.question != event:  # what is computed depends on more than integers
                self.grows = False
                return
            if answer not in node.branches:
                node.branches[answer] = _path(trace, k + 1, result)
                self._leaves += 1
                self.grows = self._leaves < MOST_LEAVES
                return
            node = node.branches[answer]


def _path(trace: LengthTrace, begin: int, result: Filled | _Constant) -> _Node:
    """The rest of a path, from an event on."""
    first = node = _Node()
    for event, answer in trace.events[begin:]:
        if answer is None:
            node.computed.append(event)
            continue
        node.question = event
        following = node.branches[answer] = _Node()
        node = following
    node.result = result
    return first


def _form(value: Any, numbers: list[int]) -> Hashable:
    """All of a value that is no integer; these are appended to ``numbers``."""
    kind: Any = type(value)
    if kind is int:
        numbers.append(value)
        return int
    if kind is tuple:
        if all(type(v) is int for v in value):
            numbers += value
            return len(value)
        return tuple([_form(v, numbers) for v in value])
    if kind is float:
        return value.hex()  # tells zeros apart
    if isinstance(value, Module):
        return None
    if isinstance(value, WHOLE) or not is_dataclass(value):
        return value  # type: ignore[no-any-return]
    own = [_form(getattr(value, name), numbers) for name in _fields(kind)]
    return kind, tuple([getattr(value, name) for name in _structural(kind)]), tuple(own)


def _with(value: Any, numbers: Iterator[Any]) -> Any:
    """A copy with the next numbers in the place of its integers, in the order of `_form`."""
    kind: Any = type(value)
    if kind is int:
        return next(numbers)
    if kind is tuple:
        return tuple([_with(v, numbers) for v in value])
    if isinstance(value, WHOLE) or not is_dataclass(value):
        return value
    copy = object.__new__(kind)  # it was checked when it was made
    copy.__dict__.update({name: getattr(value, name) for name in _structural(kind)})
    copy.__dict__.update({name: _with(getattr(value, name), numbers) for name in _fields(kind)})
    return copy


def _filling(value: Any) -> Filled | _Constant:
    """What makes a value of its trace's values, its guarded integers being left open."""
    kind: Any = type(value)
    if isinstance(value, GuardedInt):
        return operator.itemgetter(value.place)
    if isinstance(value, (tuple, list)):
        parts = [_filling(v) for v in value]
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [_filling(getattr(value, name)) for name in _fields(kind)]
    elif isinstance(value, (dict, set)):
        raise UntraceableError(f"a {type(value).__name__} in a result")
    else:
        return _Constant(value)
    if all(isinstance(part, _Constant) for part in parts):
        return _Constant(value)
    own = [_given(part.value) if isinstance(part, _Constant) else part for part in parts]
    if isinstance(value, (tuple, list)):
        return lambda values: kind([part(values) for part in own])
    return lambda values: kind(*[part(values) for part in own])


def _given(value: Any) -> Filled:
    return lambda values: value


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass, but for those that are `STRUCTURAL`."""
    return tuple([f.name for f in fields(kind) if f.metadata != STRUCTURAL])


@functools.cache
def _structural(kind: type) -> tuple[str, ...]:
    """The others."""
    return tuple([f.name for f in fields(kind) if f.metadata == STRUCTURAL])
