"""Each rule on views: resulting structure and equal values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import run_passes
from mgx_numba.graph.passes.optimize_module import OptimizeModule
from mgx_numba.graph.passes.propagate_constant import PropagateConstant
from mgx_numba.graph.passes.rules.views import squeezed_axes
from mgx_numba.graph.passes.simplify_reshapes import SimplifyReshapes

from .support import Graph, check, find, names

Build = Callable[[Graph, Instruction], Instruction]


def simplified(build: Build, *lens: int) -> list[str]:
    """Operators that are left of an expression in one parameter, after checking values."""
    g = Graph()
    program = g.ret(g.op("exp", build(g, g.param("x", lens or [2, 3, 4]))))
    after = check(program, SimplifyReshapes(), special=True)
    found = names(after)
    found.remove("exp")
    return found


def reshape(g: Graph, x: Instruction, *dims: int) -> Instruction:
    return g.op("reshape", x, dims=dims)


def transpose(g: Graph, x: Instruction, *permutation: int) -> Instruction:
    return g.op("transpose", x, permutation=permutation)


def slice_(g: Graph, x: Instruction, axis: int, start: int, end: int) -> Instruction:
    return g.op("slice", x, axes=(axis,), starts=(start,), ends=(end,))


def scatter(g: Graph, x: Instruction, axis: int, places: list[int], negative: bool = False) -> Instruction:
    """Return ``x`` with other values at places of an axis, by ScatterElements."""
    lens = [len(places) if k == axis else n for k, n in enumerate(x.shape.lens)]
    row = np.array(places).reshape([-1 if k == axis else 1 for k in range(len(lens))])
    updates = g.op("neg", g.op("slice", x, axes=(axis,), starts=(0,), ends=(len(places),)))
    index = g.op("multibroadcast", g.lit(row - negative * x.shape.lens[axis], np.int64), out_lens=tuple(lens))
    return g.op("scatter_none", x, index, updates, axis=axis)


def interleaved(g: Graph, x: Instruction) -> Instruction:
    """Return an interleaving of two halves, written by two scatters."""
    even, odd = (slice_(g, x, 2, k, k + 2) for k in (2, 0))
    places = [g.op("multibroadcast", g.lit([[[k, k + 2]]], np.int64), out_lens=(2, 3, 2)) for k in (0, 1)]
    first = g.op("scatter_none", x, places[0], even, axis=2)
    return g.op("scatter_none", first, places[1], odd, axis=2)


def tuples(g: Graph, x: Instruction, *axes: list[int]) -> Instruction:
    """Return ``x`` with other values at a grid of places of its first axes, by ScatterND."""
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    counts = tuple(map(len, axes))
    updates = g.op("neg", g.op("slice", x, axes=tuple(range(len(axes))), starts=(0,) * len(axes), ends=counts))
    return g.op("scatternd_none", x, g.lit(grid, np.int64), updates)


def grid(*lens: int) -> np.ndarray:
    """The tuple of coordinates of each element, in the last axis."""
    return np.stack(np.meshgrid(*map(np.arange, lens), indexing="ij"), -1)


def gathered(g: Graph, x: Instruction, indices: np.ndarray) -> Instruction:
    return g.op("gathernd", x, g.lit(indices, np.int64))


CASES: list[tuple[str, Build, list[str]]] = [
    ("reshape to the same lengths", lambda g, x: reshape(g, x, 2, 3, 4), []),
    ("slice of everything", lambda g, x: slice_(g, x, 1, 0, 3), []),
    ("transpose by identity", lambda g, x: transpose(g, x, 0, 1, 2), []),
    ("pad by nothing", lambda g, x: g.op("pad", x, pads=(0,) * 6), []),
    ("reshape twice", lambda g, x: reshape(g, reshape(g, x, 6, 4), 3, 8), ["reshape"]),
    ("reshape and back", lambda g, x: reshape(g, reshape(g, x, 6, 4), 2, 3, 4), []),
    ("flatten", lambda g, x: g.op("flatten", x, axis=2), ["reshape"]),
    ("flatten and back", lambda g, x: reshape(g, g.op("flatten", x, axis=1), 2, 3, 4), []),
    ("insert ones", lambda g, x: reshape(g, x, 2, 1, 3, 4, 1), ["unsqueeze"]),
    ("insert and remove ones", lambda g, x: g.op("squeeze", g.op("unsqueeze", x, axes=(1,)), axes=(1,)), []),
    (
        "copy before reshape",
        lambda g, x: reshape(g, g.op("contiguous", transpose(g, x, 2, 0, 1)), 8, 3),
        ["transpose", "reshape"],
    ),
    ("copy of standard", lambda g, x: g.op("contiguous", x), []),
    (
        "layout of layout",
        lambda g, x: g.op("layout", g.op("layout", x, permutation=(2, 1, 0)), permutation=(0, 1, 2)),
        [],
    ),
    ("transpose and back", lambda g, x: transpose(g, transpose(g, x, 2, 0, 1), 1, 2, 0), []),
    ("transpose twice", lambda g, x: transpose(g, transpose(g, x, 2, 0, 1), 2, 0, 1), ["transpose"]),
    ("broadcast twice", lambda g, x: g.spread(g.spread(x, 5, 2, 3, 4), 6, 5, 2, 3, 4), ["multibroadcast"]),
    (
        "broadcast along axis",
        lambda g, x: g.op("broadcast", reshape(g, x, 24), axis=0, out_lens=(24, 5)),
        ["reshape", "multibroadcast"],
    ),
    ("slice of slice", lambda g, x: slice_(g, slice_(g, x, 2, 1, 4), 2, 1, 2), ["slice"]),
    ("slice of slice on another axis", lambda g, x: slice_(g, slice_(g, x, 2, 1, 4), 1, 1, 2), ["slice"]),
    ("slice of transpose", lambda g, x: transpose(g, slice_(g, transpose(g, x, 2, 0, 1), 0, 1, 3), 1, 2, 0), ["slice"]),
    ("slice of broadcast axis", lambda g, x: slice_(g, g.spread(x, 7, 2, 3, 4), 0, 1, 3), ["multibroadcast"]),
    (
        "slice beside broadcast axis",
        lambda g, x: slice_(g, g.spread(x, 7, 2, 3, 4), 3, 1, 3),
        ["slice", "multibroadcast"],
    ),
    (
        "unsqueeze of broadcast",
        lambda g, x: g.op("unsqueeze", g.spread(x, 7, 2, 3, 4), axes=(2,)),
        ["unsqueeze", "multibroadcast"],
    ),
    (
        "transpose of broadcast",
        lambda g, x: transpose(g, g.spread(x, 7, 2, 3, 4), 1, 0, 2, 3),
        ["unsqueeze", "multibroadcast"],
    ),
    (
        "split, turn, merge whole axes",
        lambda g, x: reshape(g, transpose(g, reshape(g, x, 2, 3, 2, 2), 1, 0, 2, 3), 3, 8),
        ["transpose", "reshape"],
    ),
    ("transpose after relu", lambda g, x: transpose(g, g.op("relu", transpose(g, x, 2, 0, 1)), 1, 2, 0), ["relu"]),
    ("reshape after relu", lambda g, x: reshape(g, g.op("relu", reshape(g, x, 4, 6)), 2, 3, 4), ["relu"]),
    ("concat of one", lambda g, x: g.op("concat", x, axis=1), []),
    (
        "concat of slices in a row",
        lambda g, x: g.op("concat", slice_(g, x, 2, 0, 1), slice_(g, x, 2, 1, 4), axis=2),
        [],
    ),
    (
        "concat of some slices",
        lambda g, x: g.op("concat", slice_(g, x, 2, 0, 1), slice_(g, x, 2, 1, 3), x, axis=2),
        ["slice", "concat"],
    ),
    (
        "concat of slices out of order",
        lambda g, x: g.op("concat", slice_(g, x, 2, 1, 4), slice_(g, x, 2, 0, 1), axis=2),
        ["slice", "slice", "concat"],
    ),
    ("nested concat", lambda g, x: g.op("concat", g.op("concat", x, x, axis=1), x, axis=1), ["concat"]),
    (
        "nested concat of another axis",
        lambda g, x: g.op("concat", *[g.op("concat", x, x, axis=0)] * 2, axis=1),
        ["concat", "concat"],
    ),
    (
        "slice of a part of concat",
        lambda g, x: slice_(g, g.op("concat", g.op("neg", x), x, axis=1), 1, 4, 6),
        ["slice"],
    ),
    ("slice of one whole part", lambda g, x: slice_(g, g.op("concat", g.op("neg", x), x, axis=1), 1, 3, 6), []),
    (
        "slice across parts",
        lambda g, x: slice_(g, g.op("concat", g.op("neg", x), x, axis=1), 1, 2, 5),
        ["neg", "concat", "slice"],
    ),
    (
        "concat of transposes",
        lambda g, x: g.op("concat", transpose(g, x, 2, 1, 0), transpose(g, g.op("neg", x), 2, 1, 0), axis=0),
        ["neg", "concat", "transpose"],
    ),
    ("gather one position", lambda g, x: g.op("gather", x, g.lit(-1, np.int64), axis=1), ["slice", "squeeze"]),
    ("gather a range", lambda g, x: g.op("gather", x, g.lit([1, 2], np.int64), axis=2), ["slice"]),
    ("gather everything", lambda g, x: g.op("gather", x, g.lit([0, 1, 2, 3], np.int64), axis=2), []),
    ("gather every second", lambda g, x: g.op("gather", x, g.lit([0, 2], np.int64), axis=2), ["slice", "step"]),
    (
        "gather a matrix of positions",
        lambda g, x: g.op("gather", x, g.lit([[0, 1], [2, 3]], np.int64), axis=2),
        ["reshape"],
    ),
    ("gather tuples of all positions", lambda g, x: gathered(g, x, grid(2, 3, 4)), []),
    ("gather tuples of two axes", lambda g, x: gathered(g, x, grid(2, 3)), []),
    ("gather tuples within ranges", lambda g, x: gathered(g, x, grid(2, 2, 3) + np.array([0, 1, 1])), ["slice"]),
    ("gather tuples in another order", lambda g, x: gathered(g, x, grid(2, 3).swapaxes(0, 1)), ["transpose"]),
    (
        "gather tuples of one fixed index",
        lambda g, x: gathered(g, x, np.stack([np.arange(2), np.full(2, 1)], -1)[:, None] + np.zeros((3, 1), int)),
        ["slice", "multibroadcast"],
    ),
    ("gather tuples along a diagonal", lambda g, x: gathered(g, x, np.array([[0, 0], [1, 1]])), ["gathernd"]),
    ("gather tuples out of order", lambda g, x: gathered(g, x, np.array([[1], [0]])), ["gathernd"]),
    ("scatter everything", lambda g, x: scatter(g, x, 2, [0, 1, 2, 3]), ["neg"]),
    ("scatter a range", lambda g, x: scatter(g, x, 1, [1, 2], negative=True), ["slice", "neg", "slice", "concat"]),
    (
        "scatter to every second",
        lambda g, x: scatter(g, x, 2, [1, 3]),
        ["slice", "neg", "reshape", "unsqueeze", "slice", "concat", "reshape"],
    ),
    ("interleave by scatters", interleaved, ["slice", "slice", "unsqueeze", "unsqueeze", "concat", "reshape"]),
    (
        "scatter in descending order",
        lambda g, x: scatter(g, x, 1, [1, 0]),
        ["slice", "neg", "multibroadcast", "scatter_none"],
    ),
    (
        "scatter twice to a place",
        lambda g, x: scatter(g, x, 1, [1, 1]),
        ["slice", "neg", "multibroadcast", "scatter_none"],
    ),
    ("scatter unevenly", lambda g, x: scatter(g, x, 2, [0, 1, 3]), ["slice", "neg", "multibroadcast", "scatter_none"]),
    ("scatter tuples", lambda g, x: tuples(g, x, [0, 1], [1, 2]), ["slice", "neg", "slice", "concat"]),
    (
        "scatter tuples of all axes",
        lambda g, x: tuples(g, x, [0, 1], [0, 1, 2], [0, 2]),
        ["slice", "neg", "reshape", "unsqueeze", "slice", "concat", "reshape"],
    ),
    ("scatter tuples of two parts", lambda g, x: tuples(g, x, [1], [0, 2]), ["slice", "neg", "scatternd_none"]),
    ("gather out of order", lambda g, x: g.op("gather", x, g.lit([1, 0], np.int64), axis=2), ["gather"]),
    ("gather with repetition", lambda g, x: g.op("gather", x, g.lit([1, 1], np.int64), axis=2), ["gather"]),
]


@pytest.mark.parametrize(("build", "left"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_views_are_simplified(build: Build, left: list[str]) -> None:
    assert simplified(build) == left


def test_transposes_of_axes_of_length_one_are_reshapes() -> None:
    assert simplified(lambda g, x: transpose(g, x, 0, 2, 1, 3), 1, 1, 12, 64) == ["reshape"]
    assert simplified(lambda g, x: transpose(g, x, 0, 2, 3, 1), 2, 1, 5, 6) == ["reshape"]
    assert simplified(lambda g, x: reshape(g, transpose(g, reshape(g, x, 1, 1, 3, 4), 0, 2, 1, 3), 1, 12), 1, 12) == []


def test_shuffled_channels_stay() -> None:
    def shuffle(g: Graph, x: Instruction) -> Instruction:
        return reshape(g, transpose(g, reshape(g, x, 1, 2, 3, 5, 5), 0, 2, 1, 3, 4), 1, 6, 5, 5)

    assert simplified(shuffle, 1, 6, 5, 5) == ["reshape", "transpose", "reshape"]


def test_channels_last_detours_around_pointwise_operations_vanish() -> None:
    g = Graph()
    x = g.param("x", [2, 3, 4, 5])
    y = transpose(g, x, 0, 2, 3, 1)
    y = g.op("add", y, g.spread(g.random(3), 2, 4, 5, 3))
    y = g.op("clip", y, g.scalar(0.0, y), g.scalar(6.0, y))
    z = g.op("mul", y, transpose(g, g.op("exp", x), 0, 2, 3, 1))
    after = check(g.ret(transpose(g, z, 0, 3, 1, 2)), SimplifyReshapes(), special=True)
    left = [n for n in names(check(after, PropagateConstant())) if n != "multibroadcast"]
    assert sorted(left) == ["add", "clip", "exp", "mul"]


def test_a_transpose_that_one_operand_lacks_stays() -> None:
    g = Graph()
    x, y = g.param("x", [2, 3]), g.param("y", [3, 2])
    after = check(g.ret(g.op("add", transpose(g, x, 1, 0), y)), SimplifyReshapes())
    assert names(after) == ["transpose", "add"]


def test_split_projections_are_views_of_one_reshape() -> None:
    g = Graph()
    x = g.param("x", [2, 5, 24])
    parts = [reshape(g, slice_(g, x, 2, k * 8, k * 8 + 8), 2, 5, 4, 2) for k in range(3)]
    after = check(g.ret(*parts), OptimizeModule())
    assert names(after) == ["reshape", "slice", "slice", "slice"]
    assert find(after, "reshape").shape.lens == (2, 5, 12, 2)


def test_slices_that_cut_a_part_are_reshaped_where_they_are() -> None:
    assert simplified(lambda g, x: reshape(g, slice_(g, x, 1, 1, 5), 3, 2, 2), 3, 6) == ["slice", "reshape"]


def test_rows_regrouped_around_a_dense_layer_stay_as_they_were() -> None:
    g = Graph()
    x = g.param("x", [2, 5, 8])
    flat = reshape(g, x, 10, 8)
    y = g.op("add", g.op("dot", flat, g.random(8, 6)), g.spread(g.random(6), 10, 6))
    y = g.op("gelu_erf", reshape(g, y, 2, 5, 6))
    flat = reshape(g, y, 10, 6)
    y = g.op("add", g.op("dot", flat, g.random(6, 8)), g.spread(g.random(8), 10, 8))
    after = check(g.ret(g.op("add", reshape(g, y, 2, 5, 8), x)), OptimizeModule())
    assert names(after, views=False) == ["dot", "add", "gelu_erf", "dot", "add", "add"]
    assert "reshape" not in names(after)


def test_rows_of_one_image_around_a_dense_layer_stay_as_they_were() -> None:
    g = Graph()
    x = g.param("x", [1, 5, 8])
    y = g.op("add", g.op("dot", reshape(g, x, 5, 8), g.random(8, 6)), g.spread(g.random(6), 5, 6))
    y = g.op("gelu_erf", reshape(g, y, 1, 5, 6))
    y = g.op("add", g.op("dot", reshape(g, y, 5, 6), g.random(6, 8)), g.spread(g.random(8), 5, 8))
    after = check(g.ret(g.op("add", reshape(g, y, 1, 5, 8), x)), OptimizeModule())
    assert names(after, views=False) == ["dot", "add", "gelu_erf", "dot", "add", "add"]
    assert not {"reshape", "squeeze", "unsqueeze"} & set(names(after))


def test_what_a_dot_allows_stays_allowed() -> None:
    g = Graph()
    y = g.op("dot", g.param("x", [10, 8]), g.random(8, 6), accuracy_level=4)
    dot = find(check(g.ret(reshape(g, y, 2, 5, 6)), OptimizeModule()), "dot")
    assert dot.shape.lens == (2, 5, 6)
    assert dot.op.attributes()["accuracy_level"] == 4


def test_rows_do_not_become_matrices() -> None:
    g = Graph()
    y = g.op("dot", g.param("x", [10, 8]), g.random(8, 6))
    after = check(g.ret(g.op("unsqueeze", y, axes=(1,))), OptimizeModule())
    assert find(after, "dot").shape.lens == (10, 6)


def test_a_dot_with_another_user_keeps_its_reshape() -> None:
    g = Graph()
    y = g.op("dot", g.param("x", [10, 8]), g.random(8, 6))
    after = check(g.ret(reshape(g, y, 2, 5, 6), y), SimplifyReshapes())
    assert names(after) == ["dot", "reshape"]


def test_scalars_and_vectors_of_one_element_are_told_apart() -> None:
    g = Graph()
    table, x = g.param("x", [4, 3]), g.param("i", [1], "int64_t")
    scalar = g.op("squeeze", x, axes=(0,))
    again = g.op("unsqueeze", scalar, axes=(0,))
    rows = g.op("gather", table, scalar, axis=0), g.op("gather", table, again, axis=0)
    inputs = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "i": np.array([2])}
    after = check(g.ret(*rows), OptimizeModule(), inputs=inputs)
    assert [s.lens for s in after.output_shapes()] == [(3,), (1, 3)]


def test_empty_parts_of_a_concat_vanish() -> None:
    g = Graph()
    x, empty = g.param("x", [2, 3]), g.param("e", [2, 0])
    assert names(check(g.ret(g.op("exp", g.op("concat", empty, x, axis=1))), SimplifyReshapes())) == ["exp"]


@pytest.mark.parametrize(
    ("lens", "target", "axes"),
    [
        ((1, 3, 1), (1, 3), (2,)),
        ((1, 3, 1), (3, 1), (0,)),
        ((1, 1, 5), (1, 5), (1,)),
        ((2, 3), (3, 2), None),
        ((2, 1, 3), (6,), None),
        ((2, 3), (2, 3), None),
    ],
)
def test_squeezed_axes(lens: tuple[int, ...], target: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    assert squeezed_axes(lens, target) == axes


def test_random_chains_of_views_keep_their_values() -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        g = Graph()
        x = y = g.param("x", [int(n) for n in rng.choice([1, 2, 3, 4], 3)])
        for _ in range(int(rng.integers(2, 8))):
            y = random_view(g, y, rng)
        check(g.ret(g.op("neg", y), x), SimplifyReshapes())
        check(g.program, OptimizeModule())


def random_view(g: Graph, x: Instruction, rng: np.random.Generator) -> Instruction:
    """Append a random view or pointwise step to a value."""
    lens = x.shape.lens
    kind = rng.integers(9)
    if kind == 0:
        return transpose(g, x, *map(int, rng.permutation(len(lens))))
    if kind == 1:
        factors = [f for n in lens for f in ([2, n // 2] if n % 2 == 0 and n else [n])]
        return reshape(g, x, *factors) if len(factors) < 7 else reshape(g, x, -1)
    if kind == 2:
        cut = int(rng.integers(0, len(lens) + 1))
        return reshape(g, x, int(np.prod(lens[:cut])), int(np.prod(lens[cut:])))
    if kind == 3:
        return g.op("unsqueeze", x, axes=(int(rng.integers(0, len(lens) + 1)),)) if len(lens) < 6 else x
    if kind == 4 and 1 in lens[:-1] and len(lens) > 1:
        return g.op("squeeze", x, axes=(lens.index(1),))
    if kind == 5:
        axis = int(rng.integers(len(lens)))
        return slice_(g, x, axis, 0, max(1, lens[axis] - 1))
    if kind == 6:
        return g.spread(x, *(2 if n == 1 else n for n in lens))
    if kind == 7:
        axis = int(rng.integers(len(lens)))
        return g.op("concat", x, x, axis=axis) if lens[axis] < 5 else x
    return g.op("add", x, g.scalar(1.5, x)) if rng.integers(2) else g.op("relu", x)


def test_a_rule_pass_can_be_explained_by_instruction() -> None:
    g = Graph()
    x = g.param("x", [3, 4, 6])
    cut = reshape(g, slice_(g, x, 2, 1, 5), 3, 4, 2, 2)
    program = g.ret(cut)
    step = SimplifyReshapes()
    run_passes(program, [step])
    assert "whole parts" in step.explain(cut)["slice_reshape"]


def test_negative_axes_are_understood() -> None:
    assert simplified(lambda g, x: g.op("squeeze", g.spread(x, 7, 2, 1, 4), axes=(-2,)), 2, 1, 4) == [
        "squeeze",
        "multibroadcast",
    ]
    assert simplified(lambda g, x: g.op("unsqueeze", g.spread(x, 7, 2, 3, 4), axes=(-1,))) == [
        "unsqueeze",
        "multibroadcast",
    ]


def test_a_copy_of_a_tensor_without_axes_was_taken_for_a_vector() -> None:
    g = Graph()
    x = g.module.add_parameter("x", Shape(Type.float_type))
    vector = g.op("contiguous", g.spread(x, 1))
    assert x.shape.without_axes and not vector.shape.without_axes
    program = g.ret(g.op("unsqueeze", vector, axes=(0,)))
    run_passes(program, [SimplifyReshapes()], validate=True)
    assert program.output_shapes()[0].lens == (1, 1)
