"""Graphs with complex values, written again with real and imaginary parts as tensors of their own.

PyTorch's ``ComplexTensor`` states the arithmetic. Fourier transforms become products with matrices of constants.
Complex inputs and results of a graph are views of real tensors there. An operator that has no such form stays as it is.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses.complex_tensor import ComplexTensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_any, tree_leaves, tree_map

from .decompositions import decomposition_table
from .symbols import hint

_aten = torch.ops.aten
_MOST_POINTS = 512
"""Points of the longest Fourier transform that is one product; longer ones are two, of factors of their length."""
_ARITHMETIC = frozenset("add.Tensor sub.Tensor rsub.Tensor eq.Tensor ne.Tensor pow.Tensor_Tensor".split())
"""Operators of two tensors, where numbers are operands."""
_MOST_PRIME = 4096
"""Points of the longest transform whose length has no factors: its matrix has 64 MB in float32."""


def without_complex(graph_module: GraphModule) -> GraphModule:
    """Return a graph without complex values, where they can be avoided; the graph itself if it has none.

    Args:
        graph_module: a functional ATen graph with fake tensors in ``meta["val"]``.
    """
    nodes = list(graph_module.graph.nodes)
    bodies = any(
        n.op == "get_attr" and isinstance(getattr(graph_module, str(n.target), None), GraphModule) for n in nodes
    )
    if bodies or not any(tree_any(_is_complex, n.meta.get("val")) for n in nodes):
        return graph_module
    sources = [n for n in nodes if n.op == "placeholder"] + [n for n in nodes if n.op == "get_attr"]
    fakes = [n.meta["val"] for n in sources]
    mode = detect_fake_mode(fakes)
    reader = _Reader(graph_module)
    with torch.no_grad(), contextlib.nullcontext() if mode is None else mode, torch.fx.traceback.preserve_node_meta():
        made = make_fx(reader.results, decomposition_table=decomposition_table())(*fakes)
    made.graph.eliminate_dead_code()
    inputs = made.graph.find_nodes(op="placeholder")
    for source, node in zip(sources, inputs, strict=True):
        if source.op == "placeholder":
            node.name = node.target = source.name
            node.meta = dict(source.meta)
        else:
            _make_attribute(graph_module, made, source, node)
    made.recompile()
    return made


def _make_attribute(old: GraphModule, new: GraphModule, source: Node, node: Node) -> None:
    """Replace an input of a graph by an attribute of the graph that it was made from."""
    new.register_buffer(source.name, operator.attrgetter(str(source.target))(old))
    with new.graph.inserting_before(node):
        own = new.graph.get_attr(source.name)
    own.meta = dict(source.meta)
    node.replace_all_uses_with(own)
    new.graph.erase_node(node)


def _is_complex(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.is_complex()


def _split(value: object) -> object:
    """Return a complex tensor as its parts; all else as it is."""
    if not _is_complex(value) or isinstance(value, ComplexTensor):
        return value
    both = torch.view_as_real(value.resolve_conj())
    return ComplexTensor(both.select(-1, 0), both.select(-1, 1))


def _joined(value: object, like: object = None) -> object:
    """Return a value with its tensors dense in the order of axes of ``like``, two parts as a complex tensor."""
    if not isinstance(value, torch.Tensor) or not (isinstance(like, torch.Tensor) or _is_complex(value)):
        return value
    axes = list(range(value.dim()))
    strides = [hint(n) for n in like.stride()] if isinstance(like, torch.Tensor) else [None]
    if None not in strides:
        axes.sort(key=lambda k: -strides[k])  # type: ignore[operator]
    ordered, back = axes == sorted(axes), sorted(axes, key=axes.__getitem__)
    if not isinstance(value, ComplexTensor):
        lies = like is None or [hint(n) for n in value.stride()] == strides
        return value if ordered or lies else value.permute(axes).contiguous().permute(back)
    parts = value.re, value.im
    both = torch.stack(parts if ordered else [part.permute(axes) for part in parts], -1)
    return torch.view_as_complex(both if ordered else both.permute([*back, value.dim()]))


class _Reader(Interpreter):
    """An interpreter of a graph that has `ComplexTensor` in the place of complex tensors.

    Results that are views of complex inputs are such views, as in PyTorch: their strides say where they lie.
    """

    def results(self, *values: object) -> list[object]:
        """Return the graph's results for its inputs, then for its attributes."""
        self._views: dict[object, object] = {}
        count = len(self.module.graph.find_nodes(op="placeholder"))  # type: ignore[union-attr, operator]
        self._attributes = iter(values[count:])
        self._views.update(zip(self.module.graph.find_nodes(op="placeholder"), values))  # type: ignore[union-attr, operator]
        found = self.run(*values[:count], enable_io_processing=False)
        graph: Graph = self.module.graph  # type: ignore[assignment]
        nodes = graph.output_node().args[0]
        nodes = nodes if isinstance(nodes, (list, tuple)) else [nodes]
        found = found if isinstance(found, (list, tuple)) else [found]
        return [self._result(n, x) for n, x in zip(nodes, found)]

    def _result(self, node: object, value: object) -> object:
        """Return the result of a node, of which ``value`` is the value."""
        if isinstance(node, Node) and node in self._views:
            return self._views[node]
        return _joined(value, node.meta.get("val") if isinstance(node, Node) else None)

    def run_node(self, n: Node) -> object:
        """Return the result of a node; of PyTorch's own operator if the parts have another type than its result."""
        found = super().run_node(n)
        self._note_view(n)
        if n.op != "call_function" or _types(found) == _types(n.meta.get("val")):
            return found
        with self._set_current_node(n):
            return _whole(n.target, *self.fetch_args_kwargs_from_env(n))

    def _note_view(self, n: Node) -> None:
        """Record the value of a node that is a view of a complex input: a result takes it, and else it is dead code."""
        source = n.args[0] if n.args else None
        if n.op != "call_function" or source not in self._views:
            return
        if n.target is operator.getitem:
            self._views[n] = self._views[source][n.args[1]]  # type: ignore[index]
        elif getattr(n.target, "is_view", False):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self._views[n] = n.target(self._views[source], *args[1:], **kwargs)  # type: ignore[operator]

    def placeholder(self, target: object, args: object, kwargs: object) -> object:
        """Return an input."""
        return _split(super().placeholder(target, args, kwargs))

    def get_attr(self, target: object, args: object, kwargs: object) -> object:
        """Return an attribute."""
        return _split(next(self._attributes))

    def call_function(self, target: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]) -> object:
        """Return the result of an operator."""
        if target is operator.getitem:
            return super().call_function(target, args, kwargs)
        own = _MADE.get(target)
        inputs = [x for x in (args, kwargs) if tree_any(lambda v: isinstance(v, ComplexTensor), x)]
        try:
            if own is not None:
                return own(*args, **kwargs)
            arithmetic = str(target).removeprefix("aten.") in _ARITHMETIC
            if arithmetic and isinstance(kwargs.get("alpha"), complex):
                args, kwargs = (args[0], _MADE[_aten.mul.Tensor](args[1], kwargs["alpha"])), {}
            return tree_map(_split, target(*_promoted(args, arithmetic), **kwargs))
        except Exception:
            if not inputs and own is None:
                raise
            return _whole(target, args, kwargs)


def _whole(target: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]) -> object:
    """Return the parts of the result of an operator on complex tensors."""
    args, kwargs = tree_map(_joined, (args, kwargs))
    return tree_map(_split, target(*args, **kwargs))


def _types(values: object) -> list[torch.dtype]:
    return [x.dtype for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def _pair(x: object) -> tuple[torch.Tensor, torch.Tensor]:
    return (x.re, x.im) if isinstance(x, ComplexTensor) else (x, torch.zeros_like(x))


def _to_copy(x: torch.Tensor, *, dtype: torch.dtype | None = None, **options: object) -> object:
    if dtype is None:
        dtype = x.dtype
    if not dtype.is_complex:
        return _aten._to_copy.default(_pair(x)[0], dtype=dtype, **options)
    return ComplexTensor(*(_aten._to_copy.default(part, dtype=dtype.to_real(), **options) for part in _pair(x)))


def _convert(x: object, dtype: torch.dtype) -> object:
    return _to_copy(x, dtype=dtype)


def _where(condition: object, a: object, b: object) -> object:
    if not (_is_complex(a) or _is_complex(b)):
        return _aten.where.self(condition, a, b)
    (ar, ai), (br, bi) = _pair(a), _pair(b)
    return ComplexTensor(torch.where(condition, ar, br), torch.where(condition, ai, bi))


def _each(op: OpOverload) -> Callable[..., object]:
    """Return a function that applies an operator to each part of its values; the other part of real ones is 0."""
    joins = op in (_aten.cat.default, _aten.stack.default)  # integers among other operators' tensors are positions

    def part(x: object, k: int) -> object:
        if isinstance(x, torch.Tensor) and (joins or _is_complex(x) or x.is_floating_point()):
            return _pair(x)[k]
        return (x.real, x.imag)[k] if isinstance(x, (float, complex)) else x

    def apply(*args: object, **kwargs: object) -> object:
        if not tree_any(_is_complex, (args, kwargs)):
            return op(*args, **kwargs)
        parts = []
        for k in range(2):
            own = tree_map(lambda x, k=k: part(x, k), (args, kwargs))
            parts.append(op(*own[0], **own[1]))
        if isinstance(parts[0], (list, tuple)):
            return [ComplexTensor(a, b) for a, b in zip(*parts)]
        return ComplexTensor(*parts)

    return apply


def _padded(x: torch.Tensor, pad: Sequence[int | torch.SymInt], value: complex = 0) -> object:
    return _each(_aten.constant_pad_nd.default)(x, pad, complex(value) if _is_complex(x) else value)


def _scaled(op: OpOverload) -> Callable[..., object]:
    """Return a function that applies an operator whose second operand may be real: then to each part."""

    def apply(a: object, b: object, **kwargs: object) -> object:
        if op is _aten.mul.Tensor and not _is_complex(a):
            a, b = b, a
        if _is_complex(a) and isinstance(b, (torch.Tensor, int, float, torch.SymInt)) and not _is_complex(b):
            return ComplexTensor(op(a.re, b), op(a.im, b))
        return op(*_promoted((a, b)), **kwargs)

    return apply


def _promoted(values: Sequence[object], numbers: bool = True) -> Sequence[object]:
    """Return the operands of an elementwise function with a common kind: all complex if one of them is.

    Args:
        values: a tree of tensors, `ComplexTensor`s and numbers.
        numbers: whether Python numbers become complex tensors, too.
    """
    tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
    some = next(filter(_is_complex, tensors), None)
    if some is None and numbers and _has_complex(values):
        real = tensors[0] if tensors[0].is_floating_point() else tensors[0].to(torch.get_default_dtype())
        some = ComplexTensor(real, torch.zeros_like(real))
    if some is None:
        return values

    def promoted(x: object) -> object:
        if isinstance(x, torch.Tensor):
            return ComplexTensor(*_pair(x)) if x.is_floating_point() else x
        if numbers and isinstance(x, (int, float, complex)):
            return ComplexTensor(*(some.re.new_full((), part) for part in (complex(x).real, complex(x).imag)))
        return x

    return tree_map(promoted, values)


def _created(op: OpOverload) -> Callable[..., object]:
    """Return a function that applies an operator that fills a tensor."""

    def apply(*args: object, dtype: torch.dtype | None = None, **kwargs: object) -> object:
        if dtype is None and tree_any(_is_complex, args):
            dtype = next(filter(_is_complex, tree_leaves(args))).dtype
        args, kwargs = tree_map(lambda x: x.re if isinstance(x, ComplexTensor) else x, (args, kwargs))
        if dtype is None or not dtype.is_complex:
            return op(*args, dtype=dtype, **kwargs)
        numbers = [tree_map(lambda x, k=k: (x.real, x.imag)[k] if isinstance(x, complex) else x, args) for k in (0, 1)]
        real = op(*numbers[0], dtype=dtype.to_real(), **kwargs)
        return ComplexTensor(
            real, op(*numbers[1], dtype=dtype.to_real(), **kwargs) if _has_complex(args) else torch.zeros_like(real)
        )

    return apply


def _has_complex(args: object) -> bool:
    """Return whether there is a complex number of Python among arguments."""
    return tree_any(lambda x: isinstance(x, complex), args)


def _power(x: torch.Tensor, exponent: complex) -> torch.Tensor:
    """Return a power: products for the exponents 2 and 3, as in eager mode."""
    if not (_is_complex(x) or isinstance(exponent, complex)):
        return _aten.pow.Tensor_Scalar(x, exponent)
    if exponent in (2, 3):
        return x * x if exponent == 2 else x * x * x
    return _aten.pow.Tensor_Tensor(*_promoted((x, exponent)))


def _angle(x: object) -> object:
    return torch.atan2(x.im, x.re) if isinstance(x, ComplexTensor) else _aten.angle.default(x)


def _abs(x: object) -> object:
    return torch.hypot(x.re, x.im) if isinstance(x, ComplexTensor) else _aten.abs.default(x)


def _tanh(x: torch.Tensor) -> torch.Tensor:
    """Return ``tanh(a + bi)``, for large ``a``, too: with ``e = exp(-2 |a|)`` it is

    ``(sign(a) (1 - e^2) + 4 e sin(b) cos(b) i) / ((1 - e)^2 + 4 e cos(b)^2)``.
    """
    if not _is_complex(x):
        return _aten.tanh.default(x)
    size, cosine = x.re.abs(), x.im.cos()
    e, rest = (-2 * size).exp(), torch.expm1(-2 * size)
    below = rest * rest + 4 * e * cosine * cosine
    return ComplexTensor(x.re.sgn() * -torch.expm1(-4 * size) / below, 4 * e * x.im.sin() * cosine / below)


def _tan(x: torch.Tensor) -> torch.Tensor:
    if not _is_complex(x):
        return _aten.tan.default(x)
    turned = _tanh(ComplexTensor(-x.im, x.re))
    return ComplexTensor(turned.im, -turned.re)


def _eager(op: OpOverload) -> Callable[..., object]:
    """Return a function that leaves an operator of complex values to PyTorch: its formula there is not precise."""
    return lambda x: _whole(op, (x,), {}) if _is_complex(x) else op(x)


def _scale(lens: Sequence[int | torch.SymInt], normalization: int) -> float:
    """Return the factor of a transform: 1 for normalization 0, one over the root for 1, one over the number for 2."""
    return math.prod(lens) ** (-normalization / 2)


def _product(
    re: torch.Tensor, im: torch.Tensor | None, cosine: torch.Tensor, sine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the product of complex rows with a matrix; ``im`` None stands for zeros."""
    if im is None:
        return re @ cosine, re @ sine
    return re @ cosine - im @ sine, re @ sine + im @ cosine


def _waves(rows: int, columns: int, points: int, sign: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of ``sign * 2 pi j k / points`` for j < rows, k < columns."""
    j, k = torch.arange(rows, device=like.device), torch.arange(columns, device=like.device)
    angles = (j[:, None] * k % points).to(torch.float64) * (sign * 2 * math.pi / points)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _transformed(
    re: torch.Tensor, im: torch.Tensor | None, sign: int, bins: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first ``bins`` of the Fourier transform of the last axis."""
    n = int(re.shape[-1])
    factor = next((f for f in range(math.isqrt(n), 1, -1) if n % f == 0), 1) if n > _MOST_POINTS else 1
    if factor == 1 and n > _MOST_PRIME:
        raise NotImplementedError(f"a transform of {n} points has too large a matrix")
    if factor == 1:
        return _product(re, im, *_waves(n, n if bins is None else bins, n, sign, re))
    rest = n // factor
    rows = [None if p is None else p.unflatten(-1, (rest, factor)).transpose(-1, -2) for p in (re, im)]
    re, im = _transformed(rows[0], rows[1], sign)
    cosine, sine = _waves(factor, rest, n, sign, re)
    re, im = re * cosine - im * sine, re * sine + im * cosine
    re, im = _transformed(re.transpose(-1, -2), im.transpose(-1, -2), sign)
    found = [p.transpose(-1, -2).flatten(-2) for p in (re, im)]
    return (found[0], found[1]) if bins is None else (found[0][..., :bins], found[1][..., :bins])


def _along(
    axis: int, re: torch.Tensor, im: torch.Tensor | None, transform: Callable[..., Sequence[torch.Tensor]]
) -> tuple[torch.Tensor, ...]:
    """Return a function's results on the parts with an axis as the last."""
    made = transform(re.movedim(axis, -1), None if im is None else im.movedim(axis, -1))
    return tuple(part.movedim(-1, axis) for part in made)


def _fft_c2c(x: torch.Tensor, dim: Sequence[int], normalization: int, forward: bool) -> object:
    re, im = _pair(x)
    for axis in dim:
        re, im = _along(axis, re, im, lambda a, b: _transformed(a, b, -1 if forward else 1))
    scale = _scale([x.shape[axis] for axis in dim], normalization)
    return ComplexTensor(re * scale, im * scale)


def _fft_r2c(x: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> object:
    *others, last = dim
    bins = int(x.shape[last]) // 2 + 1 if onesided else None
    re, im = _along(last, x, None, lambda a, b: _transformed(a, b, -1, bins))
    scale = _scale([x.shape[axis] for axis in dim], normalization)
    made = ComplexTensor(re * scale, im * scale)
    return _fft_c2c(made, others, 0, True) if others else made


def _fft_c2r(x: torch.Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> torch.Tensor:
    *others, last = dim
    scale = _scale([*(x.shape[axis] for axis in others), last_dim_size], normalization)
    re, im = _pair(_fft_c2c(x, others, 0, False) if others else x)
    bins, n = last_dim_size // 2 + 1, last_dim_size

    def whole(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
        a, b = a[..., :bins], b[..., :bins]
        mirrored = slice(1, n - bins + 1)
        full = torch.cat([a, a[..., mirrored].flip(-1)], -1), torch.cat([b, -b[..., mirrored].flip(-1)], -1)
        return (_transformed(full[0], full[1], 1)[0] * scale,)

    return _along(last, re, im, whole)[0]


_MADE: dict[object, Callable[..., object]] = {
    _aten.view_as_complex.default: lambda x: ComplexTensor(x.select(-1, 0), x.select(-1, 1)),
    _aten.view_as_real.default: lambda x: torch.stack([x.re, x.im], -1),
    _aten.complex.default: lambda re, im: ComplexTensor(*torch.broadcast_tensors(re, im)),
    _aten.polar.default: lambda size, angle: ComplexTensor(size * angle.cos(), size * angle.sin()),
    _aten._to_copy.default: _to_copy,
    torch.ops.prims.convert_element_type.default: _convert,
    _aten.where.self: _where,
    _aten.angle.default: _angle,
    _aten.constant_pad_nd.default: _padded,
    _aten.abs.default: _abs,
    _aten.tan.default: _tan,
    _aten.tanh.default: _tanh,
    _aten.pow.Tensor_Scalar: _power,
    _aten._fft_c2c.default: _fft_c2c,
    _aten._fft_r2c.default: _fft_r2c,
    _aten._fft_c2r.default: _fft_c2r,
}
"""Operators by functions of their own: PyTorch gives them no form, or one that is slow or imprecise."""
_EACH = (
    "index.Tensor gather embedding slice_scatter select_scatter cat stack split.Tensor split_with_sizes unbind.int "
    "expand clone lift_fresh_copy index_put diag_embed roll reflection_pad1d "
    "reflection_pad2d replication_pad1d replication_pad2d tril triu unfold scatter.src take index_select pixel_shuffle "
    "alias_copy diagonal_copy expand_copy permute_copy squeeze_copy squeeze_copy.dim squeeze_copy.dims t_copy "
    "view_copy transpose_copy.int unsqueeze_copy unfold_copy split_with_sizes_copy unbind_copy.int "
    "_unsafe_index.Tensor channel_shuffle im2col col2im index_copy zero put"
).split()
"""Operators that apply to each part alone, and that PyTorch states no form of, or only one of a single tensor."""
for _name in _EACH:
    _op = operator.attrgetter(_name if "." in _name else f"{_name}.default")(_aten)
    _MADE[_op] = _each(_op)
for _name in (
    "full scalar_tensor zeros ones empty.memory_format new_full new_zeros new_ones full_like zeros_like ones_like "
    "new_empty empty_like eye eye.m"
).split():
    _op = operator.attrgetter(_name if "." in _name else f"{_name}.default")(_aten)
    _MADE[_op] = _created(_op)
for _name in "expm1 log1p asin acos atan asinh acosh atanh".split():
    _op = operator.attrgetter(f"{_name}.default")(_aten)
    _MADE[_op] = _eager(_op)
for _name in ("mul.Tensor", "div.Tensor"):
    _op = operator.attrgetter(_name)(_aten)
    _MADE[_op] = _scaled(_op)
