"""Pointwise clusters: every result of a scalar module, for each element, in one pass. Functions of one byte, as
between quantised layers, become tables of 256 results."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import Length, ceil_div, known_in, known_less, maximum, minimum, typical
from ....graph.module import Module
from ....ops.scalar_functions import COSTLY
from ...arguments import Arguments
from ...body import cluster_name, evaluate_scalar_module, scalar_flops
from ...launch import Launch, TaskRange
from ...printer import CodeBuffer, VectorPrinter
from ...problems.cluster import Tensor
from ...space import collapse
from ...statements import (
    dtype_name,
    for_tasks,
    hoisted,
    indent,
    kernel_text,
    load_text,
    reads_past,
    store_text,
    vector_loop,
)
from .. import host
from ..kernel import cpu_kernel
from ..loops import (
    Odometer,
    claim,
    is_streamed,
    lanes_for,
    rows_of_task,
    streamable,
    task_elements,
    tasks_unless_empty,
)  # fmt: skip
from ..machine import machine
from .bf16_split_results import check_parts, parts_of_outputs, store_parts_text
from .walk import FEWEST_TINY

SHORT_COSTLY_ROW = 8
"""Longest rows across which the lanes of costly functions run.

Zen 4, 4,000 rows of 5 to 8 float32: powers in 58, 71, 83, 97 us, along rows in 306 us; products in 15, 19, 22, 26 us,
along rows in 9 us. Of rows of 2 and 4, whose elements are shuffled into vectors, 8,400 products take 6 and 13 us, along
rows 19 and 18. 21,504 rows of 2 that are transposed take 33 us, along rows 342."""


def pointwise_launch(
    module: Module,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    fast_math: bool = False,
    origin: str = "",
    again: Sequence[int] = (),
    order_by: int | None = None,
) -> Launch:
    """Return the launch that evaluates ``module`` (scalar parameters in order of declaration) over equal-length
    tensors.

    Operands are named ``x0``, ``x1``, ... and ``out0``, ``out1``, ...; any strides are allowed. The kernel depends on
    the module, the element types and, after merging dimensions, the rank and each operand's innermost access
    (contiguous, broadcast or strided). Sizes and strides are arguments.

    Args:
        again: as in `PointwiseProblem`.
        order_by: operand along whose innermost dimension the lanes are; by default the first output.

    Raises:
        UnsupportedError: a result in parts is not contiguous along the innermost dimension.
    """
    tensors = [*inputs, *outputs]
    lead = len(inputs) if order_by is None else order_by
    space = collapse(outputs[0].lens, [t.strides for t in tensors], order_by=lead)
    lens, strides = space.lens or (1,), [s or (1,) for s in space.strides]
    lanes, parts = lanes_for(len(module)), parts_of_outputs(module, outputs, again)
    byte = None if is_streamed(outputs) or parts or again else byte_operand(module, inputs, outputs, strides)
    short: Length = 1
    special = byte is not None or parts or order_by is not None
    axis = None if special else _lanes_axis(module, lens, strides, lanes)
    if axis is not None:
        lens, strides = _moved_last(lens, axis), [_moved_last(s, axis) for s in strides]
        short = lens[-2]  # rows of adjacent elements, which one task computes
    cols, outer = lens[-1], lens[:-1]
    rows = prod(outer)
    work = task_elements(rows * cols)
    chunk = minimum(cols, maximum(work // short // lanes * lanes, lanes))
    chunks = ceil_div(cols, maximum(chunk, 1))
    batch = short * rows_of_task(rows // short, chunks, short * cols, work)

    arguments = Arguments()
    names = [f"x{k}" for k in range(len(inputs))] + [f"out{k}" for k in range(len(outputs))]
    for name, tensor in zip(names, tensors):
        arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
    for name, value in (("cols", cols), ("chunk", chunk), ("chunks", chunks), ("rows", rows), ("batch", batch)):
        arguments.integer(name, value)
    odometer = Odometer(arguments, outer, [s[:-1] for s in strides])
    inner = [s[-1] for s in strides]
    step = [arguments.step(f"t{k}", s) for k, s in enumerate(inner)]

    splats: list[str] = []
    check_parts("pointwise", [known_in(inner[len(inputs) + k], 1) for k in parts])
    streamed = is_streamed(outputs)
    aligned = [
        f"r_out{k}"
        for k, t in enumerate(outputs)
        if streamed and k not in parts and known_in(inner[len(inputs) + k], 1) and streamable(t, lanes)
    ]

    def body(left: str) -> list[str]:
        buffer = CodeBuffer(prefix="w" if left else "v")
        printer = VectorPrinter(buffer, lanes, fast_math=fast_math)
        values = []
        for k, tensor in enumerate(inputs):
            text = load_text(f"r_x{k}", "c", inner[k], step[k], lanes, left, near=True)
            if known_in(inner[k], 0):
                if not left:
                    splats.append(f"h{k} = {text}")
                text = f"h{k}"
            values.append(printer.loaded(text, tensor.type))
        results = evaluate_scalar_module(module, printer, values)
        for k, value in enumerate([*results, *(results[k] for k in again)]):
            if k in parts:
                if k == parts[0]:
                    buffer.line(store_parts_text("r_out", parts, printer.stored(value), left))
                continue
            stored, position = printer.stored(value), len(inputs) + k
            text = store_text(f"r_out{k}", "c", inner[position], step[position], stored, left, streamed)
            buffer.line(text)
        lines = buffer.drain()
        if not left:
            head, lines = hoisted(lines, [f"h{k}" for k in range(len(inputs)) if known_in(inner[k], 0)])
            splats.extend(head)
        return lines

    made: list[str] = []
    past = any(reads_past(s) for s in inner[: len(inputs)])
    loop = vector_loop(lanes, body, aligned=aligned[0] if aligned else "", past=past)
    row_pointers = [f"r_{name} = offset(p_{name}, {odometer.offset(k)})" for k, name in enumerate(names)]
    if byte is not None:
        scalars = [f"r_x{k} = offset(p_x{k}, 0)" for k in range(len(inputs)) if k != byte]
        made = [*scalars, *splats, *table_lines(inputs[byte], outputs[0], f"r_x{byte}", body(""), lanes)]
        row_pointers = [row_pointers[byte], row_pointers[-1]]
        splats, loop = [], lookup_lines(inputs[byte], outputs[0], f"r_x{byte}")
    task = for_tasks(odometer.each_row([*row_pointers, *splats, *loop]))
    text = kernel_text([*arguments.bind(), *made, *task, *(["stream_fence()"] if streamed else [])])
    kernel = cpu_kernel(cluster_name(module, "pointwise"), text, origin)
    tasks = tasks_unless_empty(ceil_div(rows, batch) * chunks, outputs[0].lens)
    traffic = sum(t.footprint for t in tensors)
    return Launch(
        kernel=kernel,
        args=arguments.values,
        geometry=TaskRange(tasks, claim(tasks, traffic)),
        flops=scalar_flops(module) * prod(outputs[0].lens),
        bytes=traffic,
    )


def _lanes_axis(module: Module, lens: Sequence[Length], strides: Sequence[Sequence[Length]], lanes: int) -> int | None:
    """Return the axis along which lanes had better run, as rows are so short that most lanes would be idle; None: rows
    are not short."""
    lengths = range(2, 1 + min(SHORT_COSTLY_ROW, lanes // 2))
    if len(lens) < 2 or not known_in(lens[-1], *lengths):
        return None

    def gain(axis: int) -> tuple[int, int, int]:
        return min(typical(lens[axis]), FEWEST_TINY), sum(known_in(s[axis], 1) for s in strides), axis

    longest, near = max(range(len(lens) - 1), key=gain), len(lens) - 2
    if not all(known_in(s[-1], 0, 1) for s in strides):  # elements are loaded or stored one by one in any case
        return longest if typical(lens[longest]) > lens[-1] else None
    costly = (ins for ins in module if ins.name in COSTLY)
    if any(ins.name != "div" or ins.shape.type.is_integral for ins in costly):
        return longest if typical(lens[longest]) >= FEWEST_TINY else None
    shuffled = all(known_in(s[near], 0, 1) or reads_past(s[near]) for s in strides)
    return near if shuffled and known_in(lens[-1], 2, 3, 4) and typical(lens[near]) >= FEWEST_TINY else None


def _moved_last(lens: Sequence[Length], axis: int) -> tuple[Length, ...]:
    """Return lengths or strides in another order of axes: ``axis`` comes last."""
    return (*lens[:axis], *lens[axis + 1 :], lens[axis])


BYTES = 256
"""Values of a byte."""
LEAST_ELEMENTS = 4 * BYTES
"""Fewest elements for which a table is made, which takes as long as `BYTES` elements without one."""
FURTHER = 9
"""Operations of a costly function beside the first, as in `stages`."""
AT_ONCE = 64
"""Bytes that are looked up together, where a register holds several."""
FLOAT_BITS = 32
"""Width of the lanes in which most operations of such clusters are computed."""


def byte_operand(
    module: Module, inputs: Sequence[Tensor], outputs: Sequence[Tensor], strides: Sequence[Sequence[Length]]
) -> int | None:
    """Return the number of the only input that is not a scalar, if a table of its values is faster; else None.

    A lookup takes about a cycle, with AVX2 half a cycle, and an operation half a cycle for each vector. GELU between
    quantised layers of bert, Zen 5 with AVX2, ns an element: 2.3 by operations, 0.25 by a table.

    Args:
        strides: of inputs, then outputs, after merging dimensions.
    """
    varying = [k for k in range(len(inputs)) if not all(known_in(s, 0) for s in strides[k])]
    if len(varying) != 1 or len(outputs) != 1:
        return None
    byte = varying[0]
    if dtype_name(inputs[byte].type) not in ("uint8", "int8"):
        return None
    if not all(known_in(strides[k][-1], 1) for k in (byte, len(inputs))):
        return None
    lanes = machine().vector_bits // FLOAT_BITS
    operations = scalar_flops(module) + FURTHER * sum(ins.name in COSTLY for ins in module)
    if 2 * operations < 3 * lanes or not known_less(LEAST_ELEMENTS, prod(outputs[0].lens)):
        return None
    return byte


def table_lines(source: Tensor, result: Tensor, name: str, element: Sequence[str], lanes: int) -> list[str]:
    """Return statements that fill ``table`` with the results for all bytes, by their codes without sign.

    Args:
        name: of the byte operand's pointer in ``element``.
        element: statements for the vector at ``c`` of that pointer, with the result at ``r_out0``.
    """
    dtype = dtype_name(source.type)
    return [
        f"table = local_{dtype_name(result.type)}({BYTES})",
        f"{name} = local_{dtype}({BYTES})",
        f"for c in range({BYTES}):",
        f"    store_scalar({name}, c, bits_{dtype}(cast_uint8(c)))",
        "r_out0 = offset(table, 0)",
        f"for c in range(0, {BYTES}, {lanes}):",
        *indent(list(element)),
    ]


def lookup_lines(source: Tensor, result: Tensor, name: str) -> list[str]:
    """Return statements that look up the elements ``first`` to ``last`` of a row."""
    one = f"store_scalar(r_out0, c, load_scalar(table, cast_int64(bits_uint8(load_scalar({name}, c)))))"
    rest = ["for c in range(c, last):", f"    {one}"]
    if not host.has("avx2") or dtype_name(result.type) not in ("uint8", "int8", "bool"):
        return ["c = first", *rest]
    many = f"store(r_out0, c, lookup(table, bits_uint8(load({name}, c, {AT_ONCE}))))"
    return ["c = first", f"while c + {AT_ONCE} <= last:", f"    {many}", f"    c += {AT_ONCE}", *rest]
