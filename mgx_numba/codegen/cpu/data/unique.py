"""Distinct elements (ONNX ``Unique``) of sorted elements, and how many there are."""

from __future__ import annotations

from math import prod

from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...statements import cast_text, dtype_name, for_tasks, indent, kernel_text
from ..kernel import cpu_kernel


def unique_launch(x: Tensor, ascending: bool, equal_nan: bool, origin: str = "") -> Launch:
    """Return the launch that finds the distinct elements; one task.

    Operands, all contiguous, of ``n`` elements, and int64 if no type is given:

    - ``x`` (read if not ``ascending``), ``ordered``: the elements as given, and stably sorted, of the type of ``x``.
    - ``order``: position of each element of ``ordered`` in ``x``; overwritten.
    - ``values`` (type of ``x``), ``first``, ``inverse``, ``counts``, ``number`` [1]: the results of `ops.Unique`.
    - ``firsts``, ``sizes``: scratch memory, for the order of first appearance alone.

    Args:
        x: the elements, contiguous.
        ascending: whether the values are sorted, otherwise they are in order of first appearance.
        equal_nan: whether all NaN are one value.
    """
    dtype, compute = dtype_name(x.type), dtype_name(x.type.compute)
    arguments = Arguments()
    for name in ("ordered", "values", *(() if ascending else ("x",))):
        arguments.pointer(f"p_{name}", name, dtype)
    for name in ("order", "first", "inverse", "counts", "number", *(() if ascending else ("firsts", "sizes"))):
        arguments.pointer(f"p_{name}", name, "int64")
    arguments.integers(last=prod(x.lens))
    firsts, sizes = ("p_first", "p_counts") if ascending else ("p_firsts", "p_sizes")
    differs = "ne(v, before)"
    if x.type.is_floating and equal_nan:
        differs = f"logical_and({differs}, logical_or(eq(v, v), eq(before, before)))"
    each = [
        f"v = {cast_text('load_scalar(p_ordered, e)', dtype, compute)}",
        "place = load_scalar(p_order, e)",
        f"if e == 0 or {differs}:",
        "    if e > 0:",
        f"        store_scalar({sizes}, group, e - start)",
        "    group += 1",
        "    start = e",
        f"    store_scalar({firsts}, group, place)",
        *(["    store_scalar(p_values, group, load_scalar(p_ordered, e))"] if ascending else []),
        "store_scalar(p_inverse, place, group)",
        "before = v",
    ]
    groups = [
        f"before = {cast_text('load_scalar(p_ordered, 0)', dtype, compute)}",
        "for e in range(last):",
        *indent(each),
        f"store_scalar({sizes}, group, last - start)",
    ]
    task = ["group = -1", "start = 0", "if last > 0:", *indent(groups), "store_scalar(p_number, 0, group + 1)"]
    if not ascending:
        task += [
            "found = 0",
            "for e in range(last):",
            "    group = load_scalar(p_inverse, e)",
            "    if load_scalar(p_firsts, group) == e:",
            "        store_scalar(p_order, group, found)",
            "        store_scalar(p_values, found, load_scalar(p_x, e))",
            "        store_scalar(p_first, found, e)",
            "        store_scalar(p_counts, found, load_scalar(p_sizes, group))",
            "        found += 1",
            "    store_scalar(p_inverse, e, load_scalar(p_order, group))",
        ]
    text = kernel_text([*arguments.bind(), *for_tasks(task)])
    return Launch(
        kernel=cpu_kernel("unique_kernel", text, origin),
        args=arguments.values,
        geometry=TaskRange(1),
        bytes=x.footprint,
    )
