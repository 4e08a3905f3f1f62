"""Kernels that store numbers which are kernel arguments, or are computed from them."""

from __future__ import annotations

from itertools import product

from ....core.dim import Length
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import NumbersProblem, RangeProblem, Tensor
from ...statements import cast_text, dtype_name, for_tasks, kernel_text, store_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from .row_tasks import RowLoop


def numbers_launch(problem: NumbersProblem) -> Launch:
    """Return a launch that stores numbers; kernels differ only in the element type."""
    dtype = dtype_name(problem.out.type)
    arguments = Arguments()
    arguments.pointer("p_out", "out", dtype)
    arguments.integer("count", len(problem.values))
    arguments.table("numbers", ("place", "value"), zip(_places(problem.out), problem.values))
    place, number = (arguments.element("numbers", "k", column) for column in ("place", "value"))
    task = ["for k in range(count):", f"    store_scalar(p_out, {place}, {cast_text(number, 'int64', dtype)})"]
    return Launch(
        kernel=cpu_kernel(
            "numbers_kernel", kernel_text([*arguments.bind(("p_out", "count")), *for_tasks(task)]), problem.origin
        ),
        args=arguments.values,
        geometry=TaskRange(int(bool(problem.values))),
        bytes=problem.out.footprint,
    )


def _places(tensor: Tensor) -> list[Length]:
    """Return the offsets of a tensor's elements in row-major order; their number must be known."""
    return [sum(i * s for i, s in zip(index, tensor.strides)) for index in product(*map(range, tensor.lens))]


def range_launch(problem: RangeProblem) -> Launch:
    """Return a launch that computes evenly spaced numbers."""
    out = problem.out
    dtype, wide = dtype_name(out.type), "float64" if out.type.is_floating else "int64"
    lanes = host.lanes(wide) * 2
    arguments = Arguments()
    arguments.pointer("p_out", "out", dtype)
    prologue = []
    for name, given in (("start", problem.start), ("step", problem.step)):
        if given is None:
            arguments.pointer(f"p_{name}", name, dtype)
            value = cast_text(f"load_scalar(p_{name}, 0)", dtype, wide)
        else:
            value = cast_text(arguments.integer(f"own_{name}", given), "int64", wide)
        prologue.append(f"{name} = splat({value}, {lanes})")
    loop = RowLoop(arguments, (), ((),), out.lens[0], lanes)
    along = arguments.step("t0", out.strides[0])
    number = cast_text(f"add(iota_int64({lanes}), c)", "int64", wide)

    def body(left: str) -> list[str]:
        value = cast_text(f"add(start, mul({number}, step))", wide, dtype)
        return [store_text("p_out", "c", out.strides[0], along, value, left)]

    kernel = loop.kernel("range_kernel", vector_loop(lanes, body), problem.origin, prologue)
    return loop.launch(kernel, out.lens, out.footprint)
