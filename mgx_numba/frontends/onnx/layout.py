"""Reshaping, transposition and broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from ...core.dim import Dim, all_of, equal, exact_quotient, known_equal, known_same, negate
from ...core.shape import MAX_RANK
from ...errors import ParseError, ShapeError
from ...graph.folding import integers
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .node import Node
from .registry import register
from .tensors import element_count

Vector: TypeAlias = "Sequence[int | None] | None"
LONGEST = 64
"""Largest vector (elements) and largest number of steps that are followed; shapes have as many elements as axes."""


def partial_ints(g: Builder, x: Instruction) -> list[int | None] | None:
    """Return the elements of an integer vector, ``None`` for unknown elements; ``None`` if nothing is known."""
    found = _elements(g, x, 0)
    return None if found is None else list(found)


def _elements(g: Builder, x: Instruction, depth: int) -> Vector:
    value = g.constants.value(x)
    if value is not None:
        return integers(value) if value.size <= LONGEST else None
    if depth > LONGEST or x.shape.is_dynamic or x.shape.elements > LONGEST:
        return None
    name = x.name
    if name == "dimensions_of":
        dims = x.inputs[0].shape.dims[x.op.start : x.op.end]  # type: ignore[attr-defined]
        return [d.min if d.is_fixed else None for d in dims]
    parts = [_elements(g, i, depth + 1) for i in x.inputs]
    if not parts or any(p is None for p in parts):
        return None
    first = list(parts[0] or ())
    if name in ("squeeze", "unsqueeze", "identity", "convert", "reshape", "contiguous"):
        return first
    if name == "concat":
        return [v for p in parts for v in p or ()]
    if name in ("slice", "gather", "step", "reverse"):
        return _rearranged(x, first, parts)
    if name in ("add", "sub", "mul", "div"):
        return _arithmetic(name, first, list(parts[1] or ()))
    return None


def _rearranged(x: Instruction, first: list[int | None], parts: Sequence[Vector]) -> Vector:
    """Return the elements of a rearranged vector, by applying its operator to the positions."""
    if x.inputs[0].shape.ndim != 1 or any(v is None for p in parts[1:] for v in p or ()):
        return None
    others = [
        np.array(p, i.shape.type.numpy).reshape(i.shape.lens) for p, i in zip(parts[1:], x.inputs[1:], strict=False)
    ]
    positions = x.op.compute(x.shape, [np.arange(len(first)), *others])
    return [first[int(p)] for p in np.asarray(positions).ravel()]


def _arithmetic(name: str, a: list[int | None], b: list[int | None]) -> Vector:
    if len(a) != len(b):
        return None

    def combine(p: int | None, q: int | None) -> int | None:
        if name == "mul" and 0 in (p, q):
            return 0
        if p is None or q is None:
            if q == (0 if name in ("add", "sub") else 1):
                return p
            return q if p is not None and p == {"add": 0, "mul": 1}.get(name) else None
        if name == "div":
            return int(p / q) if q else 0
        return {"add": p + q, "sub": p - q, "mul": p * q}[name]

    return [combine(p, q) for p, q in zip(a, b, strict=False)]


@register("Reshape")
def reshape(g: Builder, node: Node, x: Instruction, shape: Instruction) -> Instruction:
    """Emit Reshape: 0 copies a length (unless ``allowzero``), one -1 takes the remaining elements.

    The shape may contain lengths that depend on dynamic dimensions: a single one becomes -1.
    """
    dims = partial_ints(g, shape)
    if dims is None:
        dims = list(g.ints(shape, "shape"))
    unknown = [k for k, d in enumerate(dims) if d is None]
    if unknown and (len(unknown) > 1 or -1 in dims):
        g.ints(shape, "shape")
    target = [-1 if d is None else d for d in dims]
    if any(d < -1 for d in target) or target.count(-1) > 1:
        raise ParseError(f"shape {target} may hold one -1 and no other negative value")
    if x.shape.is_dynamic:
        if node.get_bool("allowzero") and 0 in target and -1 not in target:
            return g.literal(np.empty(target, x.shape.type.numpy))
        return g.op("reshape", x, dims=tuple(target))
    return g.reshape(x, _static_dims(g.lens(x), target, node.get_bool("allowzero")))


def _static_dims(lens: tuple[int, ...], target: list[int], allow_zero: bool) -> list[int]:
    """Return the lengths that a target shape stands for."""
    dims = list(target)
    for k, d in enumerate(target):
        if not allow_zero and (_copies(lens, target, k, d) if isinstance(d, Dim) else d == 0):
            if k >= len(lens):
                raise ParseError(f"shape {target} copies (0) dimension {k}, but the input is {list(lens)}")
            dims[k] = lens[k]
    total = prod(lens)
    if -1 in dims:
        place = dims.index(-1)
        known = prod(dims[:place] + dims[place + 1 :])
        rest = exact_quotient(total, known)
        if rest is None and (known == 0 or total % known):
            raise ShapeError(f"shape {target} does not fit an input of lengths {list(lens)}")
        dims[place] = total // known if rest is None else rest
    if element_count(dims, "the shape") != total:
        raise ShapeError(f"shape {target} does not fit an input of lengths {list(lens)}")
    return dims


def _copies(lens: tuple[int, ...], target: list[int], k: int, length: Dim) -> bool:
    """Return whether a symbolic length of a target is 0 and so copies a nonzero length.

    This matters only if both readings are possible. If no other target length is 0, nor the length for -1, the copy
    would have another number of elements than the (empty) input.
    """
    if k < len(lens) and exact_quotient(lens[k], length) is not None:
        return False
    empty = equal(length, 0)
    if empty == 0 if not isinstance(empty, Dim) else length.scope.answered(empty) is False:
        return False
    others = 0 if -1 in target else prod(target[:k] + target[k + 1 :])
    own = lens[k] if k < len(lens) else 1
    return bool(all_of(empty, equal(others, 0), negate(equal(own, 0))))


@register("Flatten")
def flatten(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit a matrix: the axes before ``axis`` are rows."""
    axes = rank(x)
    axis = node.get_int("axis", 1)
    if not -axes <= axis <= axes and axes:
        raise ParseError(f"axis is {axis}, expected {-axes} to {axes}")
    if not axes:
        return g.reshape(x, (1, 1))
    return g.op("flatten", x, axis=axis + axes if axis < 0 else axis)


@register("Transpose")
def transpose(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the permutation ``perm`` of axes; by default they are reversed."""
    axes = rank(x)
    permutation = node.get_ints("perm", range(axes)[::-1])
    if sorted(permutation) != list(range(axes)):
        raise ParseError(f"perm {permutation} does not order {axes} dimensions")
    return g.op("transpose", x, permutation=tuple(permutation)) if axes else g.op("identity", x)


def _axes(g: Builder, node: Node, axes: Instruction | None) -> list[int] | None:
    """Return axes from the attribute (before operator set 13) or the constant input."""
    if axes is not None:
        return g.ints(axes, "axes")
    return node.get_ints("axes") if node.has("axes") else None


@register("Squeeze")
def squeeze(g: Builder, node: Node, x: Instruction, axes: Instruction | None = None) -> Instruction:
    """Remove axes of length 1: the given axes, or all if the list of axes is absent or empty."""
    given = _axes(g, node, axes)
    found = g.axes(given, rank(x)) if given else [k for k, n in enumerate(g.lens(x)) if n == 1]
    for axis in found:
        dim = x.shape.dims[axis]
        if dim.min != 1 if dim.is_fixed else not dim.min <= 1 <= dim.max:
            raise ShapeError(f"axis {axis} has length {dim}, expected 1")
    return g.squeeze(x, sorted(found)) if found else g.op("identity", x)


@register("Unsqueeze")
def unsqueeze(g: Builder, node: Node, x: Instruction, axes: Instruction | None = None) -> Instruction:
    """Insert axes of length 1; ``axes`` are positions in the result."""
    given = _axes(g, node, axes)
    if given is None:
        raise ParseError("axes are given neither as attribute nor as input")
    return g.unsqueeze(x, g.axes(given, rank(x) + len(given))) if given else g.op("identity", x)


@register("Expand")
def expand(g: Builder, node: Node, x: Instruction, shape: Instruction) -> Instruction:
    """Broadcast ``x`` against the lengths in the input."""
    dims = partial_ints(g, shape)
    if dims is None or None in dims or x.shape.is_dynamic:
        value = g.constants.value(shape)
        if value is None:
            if shape.shape.elements > LONGEST:
                raise ParseError(f"the shape has {shape.shape.elements} elements, expected at most {LONGEST}")
            return g.op("broadcast_with_dims", x, shape)
        return g.op("multibroadcast", x, g.broadcast(g.literal(False), [int(v) for v in value.ravel()]))
    target = [d for d in dims if d is not None]
    element_count(target, "the shape input")
    lens = g.lens(x)
    out = g.outer_lens(lens, target)
    return g.op("identity", x) if known_same(out, lens) else g.broadcast(x, out)


@register("Tile")
def tile(g: Builder, node: Node, x: Instruction, repeats: Instruction) -> Instruction:
    """Emit repeated copies of ``x``: a broadcast along new axes, then a reshape."""
    lens = g.lens(x)
    counts = g.ints(repeats, "repeats")
    if len(counts) != len(lens) or any(n < 0 for n in counts):
        raise ParseError(f"repeats {counts} must be one count for each of {len(lens)} dimensions")
    if all(known_equal(n, 1) for n in counts):
        return g.op("identity", x)
    out = [n * m for n, m in zip(counts, lens, strict=False)]
    element_count(out, "the result")
    inner: list[int] = []
    wide: list[int] = []
    once = [known_equal(n, 1) for n in counts]
    joined = len(lens) + once.count(False) > MAX_RANK
    for axis, (count, length) in enumerate(zip(counts, lens, strict=True)):
        if once[axis] and joined and axis and once[axis - 1]:  # merge with the axis before
            inner[-1] *= length
            wide[-1] *= length
        elif once[axis] or (joined and known_equal(length, 1)):
            inner.append(length)
            wide.append(count * length)
        else:
            inner += [1, length]
            wide += [count, length]
    return g.reshape(g.broadcast(g.reshape(x, inner), wide), out)


@register("DepthToSpace")
def depth_to_space(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Rearrange blocks of channels into squares of pixels; ``mode`` says whether depth or column varies fastest."""
    lens = g.lens(x)
    block = node.get_int("blocksize")
    mode = node.get_choice("mode", ("DCR", "CRD"), "DCR")
    spatial = len(lens) - 2
    if spatial < 1 or block < 1 or lens[1] % block**spatial:
        raise ShapeError(f"lengths {list(lens)} do not fit blocksize {block}")
    depth = lens[1] // block**spatial
    blocks = [block] * spatial
    if mode == "DCR":
        parts = [lens[0], *blocks, depth, *lens[2:]]
        depth_axis, block_axes = spatial + 1, range(1, spatial + 1)
    else:
        parts = [lens[0], depth, *blocks, *lens[2:]]
        depth_axis, block_axes = 1, range(2, spatial + 2)
    order = [0, depth_axis]
    for k, axis in enumerate(block_axes):
        order += [spatial + 2 + k, axis]
    return g.reshape(g.transpose(g.reshape(x, parts), order), [lens[0], depth, *(n * block for n in lens[2:])])


@register("SpaceToDepth")
def space_to_depth(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Rearrange squares of pixels into blocks of channels, the inverse of DepthToSpace in mode DCR or CRD."""
    lens = g.lens(x)
    block = node.get_int("blocksize")
    spatial = len(lens) - 2
    if spatial < 1 or block < 1 or any(n % block for n in lens[2:]):
        raise ShapeError(f"lengths {list(lens)} do not fit blocksize {block}")
    parts = [lens[0], lens[1]]
    for n in lens[2:]:
        parts += [n // block, block]
    outer, inner = [2 + 2 * k for k in range(spatial)], [3 + 2 * k for k in range(spatial)]
    crd = node.get_choice("mode", ("DCR", "CRD"), "DCR") == "CRD"
    order = [0, 1, *inner, *outer] if crd else [0, *inner, 1, *outer]
    out = [lens[0], lens[1] * block**spatial, *(n // block for n in lens[2:])]
    return g.reshape(g.transpose(g.reshape(x, parts), order), out)
