"""The first elements of a row in sorted order, by a radix sort: for many of its elements.

Elements become unsigned keys in whose order they are wanted. If few of a row are wanted, a histogram of the keys' high
bits gives a bound, and only keys below it are sorted. Their digits of 8 bits are sorted from the lowest to the highest,
each time stably, so that equal elements stay in order. A digit that all keys share takes no pass. Few keys are ranked.
"""

from __future__ import annotations

from math import prod

from ....core.dim import Length, SharedLength, ceil_div
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...space import collapse
from ...statements import cast_text, const_text, dtype_name, for_tasks, indent, kernel_text, load_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import Odometer, tasks_unless_empty

DIGIT = 8
"""Bits sorted in one pass: 256 counters of each digit stay in the L1 cache beside the row."""
BUCKETS = 1 << DIGIT
SORT_CYCLES = 40.0
"""Cycles to sort one element of 32 bits: its key, its place and four passes.

Zen 3: 64 rows of 1024 elements take 0.76 ms, 4 rows of 8400 elements 0.47 ms (3.3 GHz)."""
SELECT_CYCLES = 3.5
"""Cycles to find out whether an element is sorted at all: its key, the histogram and the comparison with the bound.

Zen 3: 500 of 12,800 elements take 30 us in all, 2,000 of 87,965 take 94 us (before: 205 and 937)."""
RANKED = 80
"""Most elements that are ranked by comparing each with all, which takes quadratic time, instead of by digits. Zen 4, ns
a row of float32 by ranking and by digits: 16 elements 88 and 582, 64 498 and 872, 100 1144 and 1079."""
HIGH = 12
"""Bits of the histogram: sign, exponent and three bits of the fraction of float32. 4,096 counters of 4 bytes are half
of the L1 cache."""
SELECTED_SHARE, SHORTEST_SELECTED = 4, 1024
"""A row's elements for each wanted one, and elements of a row, from which keys are selected before they are sorted."""
BELOW_BOUND = 2.0
"""Keys below the bound for each wanted element, of normal numbers."""


def key_dtype(x: Tensor) -> str:
    """Return the dtype of the keys of a tensor's elements."""
    return "uint64" if x.type.size == 8 else "uint32"


def sort_pitch(length: Length) -> SharedLength:
    """Return the elements of scratch memory for a row of ``length`` elements: whole vectors may be written."""
    return length + 2 * host.lanes("float32")


def sort_launch(
    k: Length, axis: int, largest: bool, x: Tensor, values: Tensor, positions: Tensor, groups: Length, origin: str = ""
) -> Launch:
    """Return the launch for the ``k`` largest or smallest elements along an axis, best first.

    The axis is shorter than 2**31. Of equal elements the one with the lower position comes first; NaN counts as larger
    than any number. Operands, for `sort_pitch` as pitch:

    - ``x``, ``values`` and ``positions`` (int64), the latter two of length ``k`` along the axis.
    - scratch memory: ``keys`` [groups, 2, pitch] of `key_dtype` and int32 ``places`` [groups, 2, pitch].

    Arguments are those of `topk.topk_launch`; ``groups`` is the number of tasks, each of which sorts several rows.
    """
    key, storage = key_dtype(x), dtype_name(x.type)
    lanes = host.lanes(key)
    arguments = Arguments()
    for name, dtype in (
        ("x", storage),
        ("values", storage),
        ("positions", "int64"),
        ("keys", key),
        ("places", "int32"),
    ):
        arguments.pointer(f"p_{name}", name, dtype)
    kept = [a for a in range(len(x.lens)) if a != axis]
    lens = tuple(1 if a == axis else n for a, n in enumerate(x.lens))
    space = collapse(lens, [x.strides, values.strides, positions.strides], order_by=0, axes=kept)
    odometer = Odometer(arguments, space.lens, space.strides)
    rows, length = prod(lens), x.lens[axis]
    arguments.integers(rows=rows, batch=ceil_div(rows, groups), k=k, last=length, pitch=sort_pitch(length))
    arguments.integers(value_step=values.strides[axis], position_step=positions.strides[axis], x_step=x.strides[axis])
    step = arguments.step("t0", x.strides[axis])

    def keyed(left: str) -> list[str]:
        loaded = load_text("r_x", "c", x.strides[axis], step, lanes, left)
        return [
            *key_lines(cast_text(loaded, storage, dtype_name(x.type.compute)), x, lanes, largest),
            "store(keys, c, key)",
            f"store(places, c, add(iota_int32({lanes}), cast_int32(c)))",
        ]

    row = [
        *odometer.start("row"),
        f"r_x = offset(p_x, {odometer.offset(0)})",
        f"r_values = offset(p_values, {odometer.offset(1)})",
        f"r_positions = offset(p_positions, {odometer.offset(2)})",
        *vector_loop(lanes, keyed, first="0"),
        *selected_lines(key),
        *sort_lines(key),
        "for e in range(k):",
        "    place = cast_int64(load_scalar(places, turn * pitch + e))",
        "    store_scalar(r_values, e * value_step, load_scalar(r_x, place * x_step))",
        "    store_scalar(r_positions, e * position_step, place)",
    ]
    task = [
        "keys = offset(p_keys, task * 2 * pitch)",
        "places = offset(p_places, task * 2 * pitch)",
        "for row in range(task * batch, imin(rows, task * batch + batch)):",
        *indent(row),
    ]
    text = kernel_text([*arguments.bind(), *counters(key), *for_tasks(task)])
    return Launch(
        kernel=cpu_kernel("topk_sort_kernel", text, origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(groups, [*x.lens, k])),
        flops=prod(x.lens),
        bytes=x.footprint + values.footprint + positions.footprint,
    )


def sort_cycles(k: int, length: int) -> float:
    """Return the expected cycles to find the first ``k`` of ``length`` elements of 32 bits in random order."""
    if length < max(SHORTEST_SELECTED, SELECTED_SHARE * k):
        return SORT_CYCLES * length
    return SELECT_CYCLES * length + SORT_CYCLES * BELOW_BOUND * k


def selected_lines(key: str, count: str = "last", k: str = "k") -> list[str]:
    """Return lines that move the keys that may be among the first ``k`` of ``count``, and their places, to the front of
    ``keys`` and ``places``, in order, and set ``found`` to their number: ``count`` if a selection does not pay."""
    lanes, whole = host.lanes(key), host.lanes("int32")
    shift = _bits(key) - HIGH

    def selection(left: str) -> list[str]:
        mask = "lt(key, bound)"
        if left:
            mask = f"logical_and({mask}, lane_mask(left, {lanes}))"
        return [
            f"key = load(keys, c, {lanes})",
            f"mask = {mask}",
            "if reduce_or(mask):",
            f"    store_where(places, found, load(places, c, {lanes}), mask)",
            "    found += store_where(keys, found, key, mask)",
        ]

    counting = [
        f"for e in range({(1 << HIGH) // whole}):",
        f"    store(high, e * {whole}, const_int32(0, {whole}))",
        f"for e in range({count}):",
        f"    at = cast_int64(shift_right(load_scalar(keys, e), cast_{key}({shift})))",
        "    store_scalar(high, at, load_scalar(high, at) + cast_int32(1))",
        "below = 0",
        "bucket = 0",
        f"while below < {k}:",
        "    below += cast_int64(load_scalar(high, bucket))",
        "    bucket += 1",
    ]
    moving = [f"bound = cast_{key}(bucket << {shift})", "found = 0", *vector_loop(lanes, selection, "0", count)]
    return [
        f"found = {count}",
        f"if {count} >= {SHORTEST_SELECTED} and {SELECTED_SHARE} * {k} <= {count}:",
        *indent([*counting, f"if 2 * below <= {count}:", *indent(moving)]),
    ]


def key_lines(value: str, x: Tensor, lanes: int, largest: bool) -> list[str]:
    """Return lines that set ``key`` to unsigned numbers in whose ascending order elements of ``x`` are wanted.

    ``value`` is the expression of a vector of them, in their compute type.
    """
    key, compute = key_dtype(x), dtype_name(x.type.compute)
    top = const_text(key, 1 << (_bits(key) - 1), lanes)
    if x.type.is_floating:
        signed, nan = key[1:], const_text(compute, float("nan"), lanes)
        # Zeros of either sign are equal, and so are all NaNs. Of negative numbers all bits are inverted.
        lines = [
            f"v = {value}",
            f"v = where(isnan(v), {nan}, add(v, {const_text(compute, 0.0, lanes)}))",
            f"below = lt(bits_{signed}(v), {const_text(signed, 0, lanes)})",
            f"key = bits_{key}(v)",
            f"key = where(below, bitwise_not(key), bitwise_xor(key, {top}))",
        ]
    elif x.type.is_signed:
        lines = [f"key = bitwise_xor(cast_{key}({value}), {top})"]
    else:
        lines = [f"key = cast_{key}({value})"]
    return [*lines, "key = bitwise_not(key)"] if largest else lines


def counters(key: str) -> list[str]:
    """Return the statements that make the counters of `sort_lines` and `selected_lines`, at the start of a kernel."""
    return [f"counts = local_int64({_bits(key) // DIGIT * BUCKETS})", f"high = local_int32({1 << HIGH})"]


def sort_lines(key: str) -> list[str]:
    """Return lines that sort the first ``found`` of ``keys`` (dtype ``key``) together with int32 ``places``.

    Either is followed, ``pitch`` elements later, by as much scratch memory. The result begins at ``turn * pitch``.
    """
    digits = range(_bits(key) // DIGIT)
    lanes = host.lanes("int64")

    def digit(shift: str) -> str:
        return f"cast_int64(bitwise_and(shift_right(key, cast_{key}({shift})), cast_{key}({BUCKETS - 1})))"

    counting = ["key = load_scalar(keys, e)"]
    for p in digits:
        counting.append(f"at = {p * BUCKETS} + {digit(str(p * DIGIT))}")
        counting.append("store_scalar(counts, at, load_scalar(counts, at) + 1)")
    moving = [
        "key = load_scalar(k_from, e)",
        f"bucket = {digit('shift')}",
        "at = load_scalar(ends, bucket)",
        "store_scalar(ends, bucket, at + 1)",
        "store_scalar(k_to, at, key)",
        "store_scalar(p_to, at, load_scalar(p_from, e))",
    ]
    one_pass = [
        "turn = 1 - turn",
        "k_to = offset(keys, turn * pitch)",
        "p_to = offset(places, turn * pitch)",
        "start = 0",
        f"for bucket in range({BUCKETS}):",
        "    size = load_scalar(ends, bucket)",
        "    store_scalar(ends, bucket, start)",
        "    start += size",
        "for e in range(found):",
        *indent(moving),
    ]
    by_digits = [
        f"for e in range({len(digits) * BUCKETS // lanes}):",
        f"    store(counts, e * {lanes}, const_int64(0, {lanes}))",
        "for e in range(found):",
        *indent(counting),
        f"for p in range({len(digits)}):",
        f"    shift = p * {DIGIT}",
        f"    ends = offset(counts, p * {BUCKETS})",
        "    k_from = offset(keys, turn * pitch)",
        "    p_from = offset(places, turn * pitch)",
        "    key = load_scalar(k_from, 0)",
        f"    if load_scalar(ends, {digit('shift')}) < found:",
        *indent(one_pass, 2),
    ]
    return ["turn = 0", f"if found <= {RANKED}:", *indent(_rank_lines(key)), "else:", *indent(by_digits)]


def _rank_lines(key: str) -> list[str]:
    """Return the lines of `sort_lines` for few keys: the place of each is the number of those before it."""
    lanes = host.lanes(key)
    earlier = f"logical_and(eq(v, key), lane_mask(e - c, {lanes}))"
    rank = [
        "key = load_scalar(keys, e)",
        f"before = const_int32(0, {lanes})",
        f"for c in range(0, found, {lanes}):",
        f"    v = load(keys, c, {lanes})",
        f"    before = add(before, cast_int32(logical_or(lt(v, key), {earlier})))",
        "at = cast_int64(reduce_add(before))",
        "store_scalar(keys, pitch + at, key)",
        "store_scalar(places, pitch + at, load_scalar(places, e))",
    ]
    last = const_text(key, (1 << _bits(key)) - 1, lanes)
    return [f"store(keys, found, {last})", "for e in range(found):", *indent(rank), "turn = 1"]


def _bits(key: str) -> int:
    return 64 if key == "uint64" else 32
