"""Ensembles of decision trees in one kernel: every comparison, extreme values, few and many rows."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import mgx_numba
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.ops.tree_ensemble import MISSING
from mgx_numba.runtime.plan import FallbackStep
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions
from tests.codegen.symbolic import scope_of

from .symbolic_plans import Lens, SymbolicCase

COMPARISONS: dict[int, Any] = {
    0: operator.le, 1: operator.lt, 2: operator.ge, 3: operator.gt, 4: operator.eq, 5: operator.ne,
}  # fmt: skip
MEMBER = 6
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3.4028235e38, 0.5]


def grown(seed: int, trees: int, depth: int, scores: int, modes: list[int]) -> dict[str, Any]:
    """Return random trees as lists: inner nodes (feature, split, mode, tracks, true, false, set), leaves and roots.

    A follower is ("leaf" or "node", number).
    """
    random = np.random.default_rng(seed)
    nodes: list[list[Any]] = []
    leaves: list[tuple[int, float]] = []

    def grow(level: int) -> tuple[str, int]:
        if level == 0 or (level < depth and random.random() < 0.2):
            leaves.append((int(random.integers(scores)), float(np.float32(random.standard_normal()))))
            return "leaf", len(leaves) - 1
        mode = int(random.choice(modes))
        split = float(random.choice(SPECIAL)) if mode != MEMBER else 0.0
        members = [float(v) for v in random.choice([v for v in SPECIAL if v == v], 3)] if mode == MEMBER else []
        own = len(nodes)
        nodes.append([int(random.integers(4)), split, mode, int(random.integers(2)), None, None, members])
        nodes[own][4], nodes[own][5] = grow(level - 1), grow(level - 1)
        return "node", own

    roots = [grow(depth)[1] for _ in range(trees)]
    return {"nodes": nodes, "leaves": leaves, "roots": roots, "scores": scores}


def model_of(forest: dict[str, Any], aggregate: int, dtype: Any, rows: Any) -> onnx.ModelProto:
    """Return a TreeEnsemble of operator set 5 of ai.onnx.ml."""
    nodes, leaves = forest["nodes"], forest["leaves"]
    columns = list(zip(*nodes))
    sets = [v for node in nodes if node[2] == MEMBER for v in (*node[6], math.nan)]

    def tensor(values: Any, kind: Any) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, kind))

    extra = {"membership_values": tensor(sets, dtype)} if sets else {}
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=forest["scores"],
        aggregate_function=aggregate,
        nodes_featureids=columns[0],
        nodes_splits=tensor(columns[1], dtype),
        nodes_modes=tensor(columns[2], np.uint8),
        nodes_missing_value_tracks_true=columns[3],
        nodes_truenodeids=[f[1] for f in columns[4]],
        nodes_trueleafs=[int(f[0] == "leaf") for f in columns[4]],
        nodes_falsenodeids=[f[1] for f in columns[5]],
        nodes_falseleafs=[int(f[0] == "leaf") for f in columns[5]],
        tree_roots=forest["roots"],
        leaf_targetids=[leaf[0] for leaf in leaves],
        leaf_weights=tensor([leaf[1] for leaf in leaves], dtype),
        **extra,
    )
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = helper.make_tensor_value_info("x", code, [rows, 4])
    graph = helper.make_graph([node], "trees", [x], [helper.make_tensor_value_info("y", code, None)])
    sets_of_operators = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph, opset_imports=sets_of_operators, ir_version=10)


def walked(forest: dict[str, Any], x: np.ndarray, aggregate: int) -> np.ndarray:
    """Return the scores of each row of ``x``, by a scalar walk through the trees."""
    kind, result = x.dtype.type, np.zeros((len(x), forest["scores"]))
    for row, sums in zip(x, result):
        found: list[list[float]] = [[] for _ in sums]
        for root in forest["roots"]:
            at = ("node", root)
            while at[0] == "node":
                feature, split, mode, tracks, true, false, members = forest["nodes"][at[1]]
                value = row[feature]
                if mode == MEMBER:
                    goes = any(value == kind(member) for member in members)
                else:
                    goes = bool(COMPARISONS[mode](value, kind(split)))
                at = true if goes or (tracks and np.isnan(value)) else false
            score, weight = forest["leaves"][at[1]]
            found[score].append(weight)
        for k, weights in enumerate(found):
            join = (lambda w: sum(w) / len(forest["roots"]), sum, min, max)[aggregate]
            sums[k] = join(weights) if weights else 0
    return result


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("modes", "scores", "aggregate"), [([0], 1, 1), ([*COMPARISONS], 3, 1), ([*COMPARISONS, MEMBER], 2, 0), ([3], 2, 3)]
)
def test_every_way_through_trees(dtype: Any, modes: list[int], scores: int, aggregate: int) -> None:
    rng = np.random.default_rng(scores)
    forest = grown(7, 9, 5, scores, modes)
    p = mgx_numba.parse_onnx(model_of(forest, aggregate, dtype, "n"))
    p.compile("cpu", num_threads=1)
    plain = mgx_numba.parse_onnx(model_of(forest, aggregate, dtype, "n")).compile("ref")
    for rows in (1, 3, 70):
        x = rng.choice([*SPECIAL, 0.25, 2.0], (rows, 4)).astype(dtype)
        expected = walked(forest, x, aggregate)
        for compiled in (p, plain):
            np.testing.assert_allclose(np.asarray(compiled.run({"x": x})[0]), expected, rtol=1e-5, atol=1e-6)


def tables(children: np.ndarray, **changed: np.ndarray) -> list[np.ndarray]:
    """Return the tables of a tree with a root and two leaves; ``changed`` replaces tables by name."""
    given = {
        "features": np.array([1, 0, 0], np.int32), "splits": np.array([0.5, 0, 0], np.float32),
        "children": children.astype(np.int32), "weights": np.array([[0], [1], [2]], np.float32),
        "roots": np.zeros(1, np.int32), "columns": np.zeros(1, np.int32), "depths": np.ones(1, np.int32),
    }  # fmt: skip
    return list((given | changed).values())


def ensemble(parts: list[np.ndarray], rows: int = 40) -> Program:
    """Return a program that evaluates one ensemble over ``rows`` rows of two features."""
    program = Program()
    main: Module = program.main
    x = main.add_parameter("x", mgx_numba.core.shape.Shape(Type.float_type, (rows, 2)))
    values = [main.add_literal(part) for part in parts]
    main.add_return([main.add_instruction("tree_ensemble", [x, *values], width=2)])
    return program


def test_tables_that_lead_out_of_themselves_have_no_kernel() -> None:
    """Kernels do not check indices, and a file may hold any indices."""
    fine = np.array([[1, 2], [1, 1], [2, 2]])
    plan = lower(ensemble(tables(fine)), TargetOptions())
    assert not [step for step in plan.steps if isinstance(step, FallbackStep)]
    wrong = [
        tables(np.array([[1, 3], [1, 1], [2, 2]])),
        tables(np.array([[1, -1], [1, 1], [2, 2]])),
        tables(fine, features=np.array([2, 0, 0], np.int32)),
        tables(fine, features=np.array([MISSING + 2, 0, 0], np.int32)),
        tables(fine, roots=np.array([3], np.int32)),
        tables(fine, columns=np.array([1], np.int32)),
        tables(fine, depths=np.array([-1], np.int32)),
    ]
    for parts in wrong:
        plan = lower(ensemble(parts), TargetOptions())
        (step,) = (step for step in plan.steps if isinstance(step, FallbackStep))
        assert "has values that are not from 0 to" in step.reason


def test_threads_share_rows() -> None:
    rng = np.random.default_rng(1)
    forest = grown(3, 6, 6, 1, [0])
    x = rng.standard_normal((1000, 4)).astype(np.float32)
    model = model_of(forest, 1, np.float32, 1000)
    found = [np.asarray(mgx_numba.parse_onnx(model).compile("cpu", num_threads=n).run({"x": x})[0]) for n in (1, 2, 5)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_allclose(found[0][:50], walked(forest, x[:50], 1), rtol=1e-5, atol=1e-6)


def test_one_plan_serves_any_number_of_rows() -> None:
    parts = tables(np.array([[1, 2], [1, 1], [2, 2]]))

    def build(m: Module, p: list[Instruction], n: Lens) -> Instruction:
        return m.add_instruction("tree_ensemble", [*p, *map(m.add_literal, parts)], width=2)

    case = SymbolicCase(*scope_of(rows=(1, None)), lambda n: [Shape(Type.float_type, (n["rows"], 2))], build)
    assert case.guards == [] and case.plan.condition == 1 and len(set(case.kernels)) == 2
    for rows in (1, 2, 7, 40, 1000):
        case.check(rows=rows)
