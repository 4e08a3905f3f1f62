"""Shape rules for symbolic lengths give the results of plain lengths for all lengths, with few guards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from mgx_numba.core.covering import covering
from mgx_numba.core.dim import Dim, Scope, evaluate, same
from mgx_numba.core.shape import UNBOUNDED, Shape, find_permutation
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.ops.base import Operator, Pointwise, known_operators, make_op, operator_class

SCOPE = Scope()
B, S, P, H = (
    SCOPE.symbol("b", 0, None, 37),
    SCOPE.symbol("s", 0, None, 41),
    SCOPE.symbol("p", 0, None, 43),
    SCOPE.symbol("h", 8, 4096, 47),
)
ROWS, IMAGE, CACHE = (B, S, 768), (B, 3, S, H), (B, 12, P, 64)


def _shape(lens: Sequence[Any], type: Type = Type.float_type, order: Sequence[int] = ()) -> Shape:
    return Shape.from_permutation(type, lens, order or range(len(lens)))


def _int64(*lens: Any) -> Shape:
    return Shape(Type.int64_type, lens)


Case = tuple[str, dict[str, Any], Sequence[Any]]
"""An operator's name and attributes, and its inputs: lengths of floats, or shapes."""

CASES: list[Case] = [
    ("add", {}, [ROWS, ROWS]),
    ("add", {}, [ROWS, _shape(ROWS, order=(1, 0, 2))]),
    ("mul", {}, [Shape(Type.float_type, ROWS, (0, 0, 1)), ROWS]),
    ("exp", {}, [_shape(IMAGE, order=(0, 2, 3, 1))]),
    ("where", {}, [Shape(Type.bool_type, (B, S)), (B, S), (B, S)]),
    ("convert", {"target_type": Type.half_type}, [ROWS]),
    ("equal", {}, [(S, S + P), (S, S + P)]),
    ("multibroadcast", {"out_lens": ROWS}, [(768,)]),
    ("multibroadcast", {"out_lens": ROWS}, [(1, S, 1)]),
    ("multibroadcast", {"out_lens": (B, 12, S, S + P)}, [(B, 1, 1, S + P)]),
    ("multibroadcast", {"out_lens": (B, 12, S, S + P)}, [Shape(Type.float_type)]),
    ("multibroadcast", {}, [(1, S), (B, S), (S,)]),
    ("broadcast", {"axis": 1, "out_lens": IMAGE}, [(3,)]),
    ("broadcast", {"axis": 0}, [(B,), ROWS]),
    ("broadcast_for_dot", {}, [(12, S, 64), (B, 1, 64, S)]),
    ("scalar", {"scalar_bcst_dims": ROWS}, [(1,)]),
    ("transpose", {"permutation": (0, 2, 1)}, [ROWS]),
    ("squeeze", {"axes": (1,)}, [(B, 1, S)]),
    ("squeeze", {}, [(1, S + 2, 1, 4)]),
    ("unsqueeze", {"axes": (0, 2)}, [(B, S)]),
    ("unsqueeze", {"axes": (1,), "steps": (4,)}, [(B, 8 * S)]),
    ("reshape", {"dims": (0, 0, 12, 64)}, [ROWS]),
    ("reshape", {"dims": (-1, 768)}, [ROWS]),
    ("reshape", {"dims": (0, -1)}, [ROWS]),
    ("reshape", {"dims": (0, -1, 12, 64)}, [ROWS]),
    ("reshape", {"dims": (B, S, -1)}, [(B, S, 12, 64)]),
    ("reshape", {"dims": (B * S, 768)}, [ROWS]),
    ("reshape", {"dims": (B, -1, 64)}, [(B * 12, S, 64)]),
    ("reshape", {"dims": (-1, S, 64)}, [(B, 12, S, 64)]),
    ("reshape", {"dims": (1, -1)}, [(B, S + P)]),
    ("reshape", {}, [(B, S, 4), (B, 4 * S)]),
    ("reshape_lazy", {"dims": (0, 0, 12, 64)}, [ROWS]),
    ("reshape_lazy", {"dims": (B * S, 768)}, [ROWS]),
    ("flatten", {"axis": 2}, [ROWS]),
    ("flatten", {"axis": 0}, [ROWS]),
    ("contiguous", {}, [_shape(IMAGE, order=(0, 2, 3, 1))]),
    ("layout", {"permutation": (0, 2, 3, 1)}, [IMAGE]),
    ("dimensions_of", {"start": 0, "end": 2}, [ROWS]),
    ("bit_cast", {"target_type": Type.int32_type}, [ROWS]),
    ("identity", {}, [ROWS]),
    ("slice", {"axes": (1,), "starts": (-1,), "ends": (2**63 - 1,)}, [ROWS]),
    ("slice", {"axes": (1,), "starts": (0,), "ends": (-1,)}, [ROWS]),
    ("slice", {"axes": (1,), "starts": (P,), "ends": (P + S,)}, [(B, P + S)]),
    ("slice", {"axes": (2,), "starts": (256,), "ends": (512,)}, [ROWS]),
    ("slice", {"axes": (0, 1), "starts": (0, 0), "ends": (S, S + P)}, [(1024, 1024)]),
    ("slice", {"axes": (0,), "starts": (1,), "ends": (4,)}, [(B, S)]),
    ("step", {"axes": (1, 2), "steps": (2, 3)}, [ROWS]),
    ("reverse", {"axes": (1,)}, [ROWS]),
    ("scan_slice", {"axis": 0}, [(S, B, 4), _int64(1)]),
    ("concat", {"axis": 2}, [CACHE, (B, 12, S, 64)]),
    ("concat", {"axis": 1}, [ROWS, (B, 1, 768), (B, 5, 768)]),
    ("concat", {"axis": 1}, [_shape(IMAGE, order=(0, 2, 3, 1)), _shape(IMAGE, order=(0, 2, 3, 1))]),
    ("concat", {"axis": 0}, [_int64(1), _int64(2)]),
    ("gather", {"axis": 0}, [(30000, 768), _int64(B, S)]),
    ("gather", {"axis": 1}, [ROWS, Shape(Type.int64_type)]),
    ("gather_elements", {"axis": 1}, [(B, S), _int64(B, 5)]),
    ("gathernd", {}, [ROWS, _int64(P, 2)]),
    ("gathernd", {"batch_dims": 1}, [ROWS, _int64(B, 7, 1)]),
    ("scatter_none", {"axis": 0}, [(S, 4), _int64(P, 4), (P, 4)]),
    ("scatternd_add", {}, [ROWS, _int64(P, 2), (P, 768)]),
    ("pad", {"pads": (0, 1, 2, 3)}, [(B, S)]),
    ("pad", {"pads": (0, 0, 0, P)}, [(B, S)]),
    ("pad_with", {"pads": (0, 1, 0, 1)}, [(B, S), Shape(Type.float_type)]),
    ("fixed_pad", {"output_lens": (B, S + 4)}, [(B, S)]),
    ("dot", {}, [(B, 12, S, 64), (B, 12, 64, S + P)]),
    ("dot", {}, [ROWS, Shape(Type.float_type, (B, 768, 3072), (0, 3072, 1))]),
    ("dot", {}, [(S, P), (P, H)]),
    ("quant_dot", {}, [_shape(ROWS, Type.int8_type), _shape((B, 768, 4), Type.int8_type)]),
    ("integer_dot", {}, [_shape(ROWS, Type.uint8_type), _shape((B, 768, 4), Type.int8_type),
                         Shape(Type.uint8_type), Shape(Type.int8_type)]),
    ("matmul_nbits", {"bits": 4, "block_size": 32},
     [ROWS, Shape(Type.uint8_type, (256, 24, 16)), Shape(Type.float_type, (256, 24))]),
    ("convolution", {"padding": (1, 1), "stride": (2, 2)}, [IMAGE, (8, 3, 3, 3)]),
    ("convolution", {}, [IMAGE, (8, 3, 1, 1)]),
    ("convolution", {"padding": (0, 2), "dilation": (1, 2)}, [_shape(IMAGE, order=(0, 2, 3, 1)), (8, 3, 1, 3)]),
    ("convolution", {"padding_mode": "same_upper", "stride": (2, 2)}, [IMAGE, (8, 3, 3, 3)]),
    ("convolution", {"padding": (1,), "stride": (1,), "dilation": (1,), "group": 4}, [(B, 4, S), (4, 1, 3)]),
    ("quant_convolution", {"padding": (1, 1)}, [_shape(IMAGE, Type.int8_type), _shape((8, 3, 3, 3), Type.int8_type)]),
    ("convolution_backwards", {"padding": (1, 1), "stride": (2, 2)}, [IMAGE, (3, 8, 4, 4)]),
    ("pooling", {"mode": "max", "lengths": (3, 3), "stride": (2, 2), "padding": (1, 1)}, [IMAGE]),
    ("pooling", {"mode": "average", "lengths": (2, 2), "stride": (2, 2), "ceil_mode": True}, [(B, 3, S, H)]),
    ("pooling", {"mode": "average", "dyn_global": True}, [IMAGE]),
    ("pooling", {"mode": "average", "lengths": (S, H)}, [IMAGE]),
    ("pooling", {"mode": "max", "lengths": (2, 2), "stride": (2, 2), "padding_mode": "same_lower"}, [IMAGE]),
    ("reduce_mean", {"axes": (-1,)}, [ROWS]),
    ("reduce_sum", {"axes": (1,)}, [ROWS]),
    ("reduce_max", {}, [ROWS]),
    ("reduce_mean", {"axes": (2, 3)}, [_shape(IMAGE, order=(0, 2, 3, 1))]),
    ("argmax", {"axis": 1}, [ROWS]),
    ("topk", {"k": 5, "axis": 2}, [ROWS]),
    ("softmax", {"axis": 3}, [(B, 12, S, S + P)]),
    ("logsoftmax", {"axis": 1}, [(B, 30000)]),
    ("prefix_scan_sum", {"axis": 1}, [_int64(B, S)]),
    ("lrn", {}, [IMAGE]),
    ("onehot", {"axis": 2, "depth": 5}, [_int64(B, S), (2,)]),
    ("fill", {}, [Shape(Type.float_type), ROWS]),
    ("iota", {"length": S + 1}, []),
    ("allocate", {"shape": _shape(ROWS)}, []),
    ("lengths", {"values": (B, S + 1), "lens": (2,)}, []),
    ("attention", {"scale": 0.125}, [(B, 12, S, 64), (B, 4, S, 64), (B, 4, S, 64)]),
    ("attention", {"scale": 0.125}, [(B, 12, S, 64), (B, 12, P + S, 64), (B, 12, P + S, 64), (B, 1, S, P + S)]),
    ("rnn", {"hidden_size": 8, "actv_func": ("tanh",)}, [(S, B, 4), (1, 8, 4), (1, 8, 8)]),
    ("gru", {"hidden_size": 8, "actv_func": ("sigmoid", "tanh")}, [(S, B, 4), (1, 24, 4), (1, 24, 8)]),
    ("lstm", {"hidden_size": 8, "direction": "bidirectional",
              "actv_func": ("sigmoid", "tanh", "tanh") * 2}, [(S, B, 4), (2, 32, 4), (2, 32, 8)]),
    ("rnn_last_hs_output", {}, [(S, 1, B, 8)]),
    ("rnn_var_sl_shift_sequence", {}, [(S, B, 4), Shape(Type.int32_type, (B,))]),
    ("rnn_var_sl_last_output", {}, [(S, 1, B, 8), Shape(Type.int32_type, (B,))]),
    ("resize", {"scales": (1.0, 1.0, 2.0, 2.0)}, [IMAGE]),
    ("resize", {"sizes": (B, 3, 2 * S, 2 * H)}, [IMAGE]),
    ("roialign", {"output_height": 7, "output_width": 7}, [IMAGE, (P, 4), _int64(P)]),
    ("unpack_int4", {"axis": 1}, [Shape(Type.uint8_type, (S, 8))]),
    ("pack_int4", {"axis": 1}, [Shape(Type.uint8_type, (S, 8))]),
    ("inverse", {}, [(B, 4, 4)]),
    ("determinant", {}, [(B, 4, 4)]),
    ("solve_triangular", {}, [(B, S, S), (B, S, 3)]),
    ("concat_past_present", {"kv_num_heads": 2}, [(B, 2, S, 64), (B, 1), (B, 2, 128, 64)]),
    ("multinomial", {"dtype": Type.int64_type}, [(B, 9), (B, S)]),
    ("random_uniform", {}, [_int64(1), ROWS]),
    ("gqa_rotary_embedding", {"num_heads": 4, "kv_num_heads": 2}, [(B, 8, S, 64), (B, 1), (4096, 32), (4096, 32)]),
    ("quantizelinear", {}, [ROWS, ROWS]),
]  # fmt: skip
ASKING = {
    "resize": 2,
    "concat_past_present": 1,
    "argmax": 1,
    "pooling": 1,
    "convolution": 1,
    "quant_convolution": 1,
    "convolution_backwards": 1,
}
"""Most questions of operators whose lengths have to be asked: whether float32 holds them, whether they fit a cache,
whether there are elements of which one is the largest, whether a window fits."""


def _inputs(case: Case) -> list[Shape]:
    return [one if isinstance(one, Shape) else _shape(one) for one in case[2]]


def _at(value: Any, values: dict[Dim, int]) -> Any:
    """A shape, an operator or a length for plain lengths."""
    if isinstance(value, Dim):
        return evaluate(value, values)
    if isinstance(value, (tuple, list)):
        return type(value)(_at(one, values) for one in value)
    if isinstance(value, Operator):
        return type(value)(**{k: _at(v, values) for k, v in value.attributes().items()})
    if isinstance(value, Shape):
        if value.sub_shapes:
            return Shape.tuple([_at(s, values) for s in value.sub_shapes])
        return Shape(value.type, _at(value.lens, values), _at(value.strides, values))
    return value


def _samples(rng: random.Random) -> list[dict[Dim, int]]:
    found = [{s: rng.choice([0, 1, 2, 3, 5, 16, 17, 33]) for s in SCOPE.symbols} for _ in range(8)]
    return [{**one, H: max(8, one[H])} for one in found]


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{k}" for k, (n, _, _) in enumerate(CASES)])
def test_a_shape_rule_serves_all_lengths(case: Case) -> None:
    SCOPE.guards.clear()
    op, inputs = make_op(case[0], **case[1]), _inputs(case)
    shape = op.compute_shape(inputs)
    flops = op.flops(shape, inputs)
    normal = op.normalized(inputs)
    assert normal.compute_shape(inputs) == shape
    assert len(SCOPE.guards) <= ASKING.get(case[0], 0), list(SCOPE.guards.values())
    assert hash(normal) is not None and normal == normal and not shape.is_dynamic
    for values in _samples(random.Random(case[0])):
        plain, shapes = _at(op, values), [_at(i, values) for i in inputs]
        if any(bool(evaluate(g.condition, values)) != g.answer for g in SCOPE.guards.values()):
            continue
        wanted = plain.compute_shape(shapes)
        found = _at(shape, values)
        if "reshape" in case[0] and not wanted.elements:  # what -1 is of nothing is nowhere said
            assert not found.elements
            continue
        for a, b in zip(found.flatten(), wanted.flatten()):
            assert a.type is b.type and a.lens == b.lens, values
            assert {0, 1} & {*a.lens} or a.strides == b.strides, values
        assert evaluate(flops, values) == plain.flops(wanted, shapes), values
        assert _at(normal, values).compute_shape(shapes).lens == wanted.lens
        assert 0 in found.lens or evaluate(shape.bytes, values) == found.bytes


def _of_symbols(low: int, hints: Sequence[int]) -> tuple[Scope, list[Dim]]:
    scope = Scope()
    return scope, [scope.symbol("nmk"[k], low, None, hint) for k, hint in enumerate(hints)]


@pytest.mark.parametrize(
    ("name", "attributes", "lens"),
    [
        ("add", {}, ("nk", "mk")), ("concat", {"axis": 1}, ("nk", "mk")), ("multibroadcast", {}, ("n", "m")),
        ("dot", {}, ("kn", "mk")), ("multibroadcast", {}, ("kn", "m", "km")), ("where", {}, ("nk", "mk", "nk")),
        ("attention", {}, ("nkkk", "mkkk", "mkkk")), ("convolution", {}, ("knkk", "kmkk")),
    ],
)  # fmt: skip
def test_lengths_that_have_to_be_equal_are_asked_for_once(name: str, attributes: dict[str, Any], lens: Any) -> None:
    for hints in ((37, 37, 5), (37, 41, 5)):
        scope, symbols = _of_symbols(2, hints)
        inputs = [_shape([symbols["nmk".index(c)] for c in own]) for own in lens]
        inputs[0] = inputs[0].with_type(Type.bool_type) if name == "where" else inputs[0]
        if hints[0] == hints[1]:
            make_op(name, **attributes).compute_shape(inputs)
            assert [str(g.condition) for g in scope.guards.values()] == ["(m == n)"]
        else:
            with pytest.raises(ShapeError):
                make_op(name, **attributes).compute_shape(inputs)


def test_lengths_that_data_decides_are_ranges_that_hold_for_all_symbols() -> None:
    scope, (n, _, _) = _of_symbols(1, (37, 41, 5))
    found = make_op("nonzero", use_dyn_output=True).compute_shape([_shape((n, 4))])
    assert found.flatten()[0].is_dynamic and found.flatten()[0].dims[1].max == UNBOUNDED
    assert same(make_op("unique", axis=1).compute_shape([_shape((n, 4))]).flatten()[0].max_lens, (n, 4))
    axes = make_op("reduce_sum").compute_shape([_shape((n, 4)), _int64(1)])
    assert [(d.min, d.max) for d in axes.dims] == [(1, UNBOUNDED), (1, 4)]
    assert not scope.guards


def test_a_length_that_may_be_1_is_asked_whether_it_broadcasts() -> None:
    scope, (n, m, _) = _of_symbols(1, (1, 41, 5))
    op = make_op("multibroadcast", out_lens=(m, 4))
    assert op.compute_shape([_shape((n, 4))]) == Shape(Type.float_type, (m, 4), (0, 1))
    assert [str(g.condition) for g in scope.guards.values()] == ["(m == n)", "(1 == n)"]


def test_flops_of_all_pointwise_operators_are_lengths() -> None:
    for name in known_operators():
        kind = operator_class(name)
        if issubclass(kind, Pointwise):
            assert evaluate(kind().flops(_shape(ROWS), []), {B: 2, S: 3}) == kind().flops(_shape((2, 3, 768)), [])


def test_orders_of_axes_in_memory_are_found_without_questions() -> None:
    SCOPE.guards.clear()
    for order in ((0, 2, 3, 1), (3, 1, 2, 0), (1, 0, 3, 2)):
        assert find_permutation([_shape((B, S, 12, H), order=order), Shape(Type.float_type, (1,))]) == order
    heads = Shape(Type.float_type, (B, 12, S, 64), (768 * S, 64, 768, 1))
    assert find_permutation([heads]) == (0, 2, 1, 3) and heads.packed and heads.transposed and not heads.standard
    assert Shape(Type.float_type, (B, S - 1), (0, 1)).broadcasted and not Shape(Type.float_type, (B, S - 1)).broadcasted
    assert Shape(Type.float_type, (S,), (0,)).ndim == 1 and not Shape(Type.float_type, (S,), (0,)).without_axes
    assert covering(_shape((B, 4)), _shape((S, 4))).max_lens[1] == 4  # type: ignore[union-attr]
    assert not SCOPE.guards
