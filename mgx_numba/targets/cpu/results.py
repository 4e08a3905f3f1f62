"""Results that are tuples: plans have arrays alone, so a program is compiled with the members as its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.instruction import Instruction
from ...graph.program import Program

__all__ = ["Tree", "grouped", "without_tuples"]

Tree = Any
"""Position of an array among the results, or a list of trees for a tuple."""


def without_tuples(program: Program) -> tuple[Program, list[Tree] | None]:
    """The program with every tuple among its results replaced by its members, and how to put them together again.

    Returns:
        The program itself and ``None`` when no result is a tuple; else a copy and a tree for each result.
    """
    if not any(shape.sub_shapes for shape in program.output_shapes()):
        return program, None
    program = program.clone()
    leaves: list[Instruction] = []
    trees = [_split(ins, leaves) for ins in program.main.results()]
    program.main.replace_return(leaves)
    return program, trees


def grouped(trees: Sequence[Tree] | None, arrays: list[np.ndarray]) -> list[Any]:
    """Arrays put together again as the trees say."""
    return arrays if trees is None else [_group(tree, arrays) for tree in trees]


def _split(ins: Instruction, leaves: list[Instruction]) -> Tree:
    if not ins.shape.sub_shapes:
        leaves.append(ins)
        return len(leaves) - 1
    assert ins.module is not None
    members = [ins.module.add_instruction("get_tuple_elem", [ins], index=k) for k in range(len(ins.shape.sub_shapes))]
    return [_split(member, leaves) for member in members]


def _group(tree: Tree, arrays: list[np.ndarray]) -> Any:
    return arrays[tree] if isinstance(tree, int) else [_group(t, arrays) for t in tree]
