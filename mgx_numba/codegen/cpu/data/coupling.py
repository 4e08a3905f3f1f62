"""Class probabilities from probabilities of pairs of classes (`ops.PairwiseCoupling`)."""

from __future__ import annotations

from ....ops.maps import MOST_ITERATIONS, TOLERANCE
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...statements import cast_text, dtype_name, for_tasks, indent, kernel_text
from ..kernel import cpu_kernel
from ..loops import tasks_unless_empty

MOST_CLASSES = 64
"""Most classes whose matrix lies on the stack: 32 KiB of float64, as much as the L1 cache."""


def coupling_launch(classes: int, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that computes each row of ``out`` [n, classes] from ``x`` [n, pairs], in float64."""
    arguments = Arguments()
    for name, tensor in (("x", x), ("out", out)):
        arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
        arguments.integers(**{f"{name}_row": tensor.strides[0], f"{name}_step": tensor.strides[1]})
    arguments.integers(classes=classes, most=max(MOST_ITERATIONS, classes))
    pair = [
        f"a = {cast_text('load_scalar(r_x, pair * x_step)', dtype_name(x.type), 'float64')}",
        "b = 1.0 - a",
        "store_scalar(q, i * classes + j, 0.0 - a * b)",
        "store_scalar(q, j * classes + i, 0.0 - a * b)",
        "store_scalar(q, i * classes + i, load_scalar(q, i * classes + i) + b * b)",
        "store_scalar(q, j * classes + j, load_scalar(q, j * classes + j) + a * a)",
        "pair += 1",
    ]
    start = [
        "r_x = offset(p_x, task * x_row)",
        "r_out = offset(p_out, task * out_row)",
        "for i in range(classes):",
        "    store_scalar(q, i * classes + i, 0.0)",
        "    store_scalar(p, i, 1.0 / cast_float64(classes))",
        "pair = 0",
        "for i in range(classes):",
        "    for j in range(i + 1, classes):",
        *indent(pair, 2),
    ]
    residual = [
        "whole = 0.0",
        "for i in range(classes):",
        "    total = 0.0",
        "    for j in range(classes):",
        "        total += load_scalar(q, i * classes + j) * load_scalar(p, j)",
        "    store_scalar(qp, i, total)",
        "    whole += load_scalar(p, i) * total",
        "settled = True",
        "for i in range(classes):",
        "    apart = load_scalar(qp, i) - whole",
        f"    settled = settled and max(apart, 0.0 - apart) < {TOLERANCE} / cast_float64(classes)",
    ]
    update = [
        "own = load_scalar(q, i * classes + i)",
        "step = (whole - load_scalar(qp, i)) / own",
        "shrink = 1.0 / (1.0 + step)",
        "store_scalar(p, i, load_scalar(p, i) + step)",
        "whole = (whole + step * (step * own + 2.0 * load_scalar(qp, i))) * shrink * shrink",
        "for j in range(classes):",
        "    store_scalar(qp, j, (load_scalar(qp, j) + step * load_scalar(q, i * classes + j)) * shrink)",
        "    store_scalar(p, j, load_scalar(p, j) * shrink)",
    ]
    iteration = [*residual, "if settled:", "    break", "for i in range(classes):", *indent(update), "turn += 1"]
    value = cast_text("load_scalar(p, i)", "float64", dtype_name(out.type))
    task = [
        *start,
        "turn = 0",
        "while turn < most:",
        *indent(iteration),
        "for i in range(classes):",
        f"    store_scalar(r_out, i * out_step, {value})",
    ]
    memory = [f"q = local_float64({classes * classes})", *(f"{v} = local_float64({classes})" for v in ("p", "qp"))]
    text = kernel_text([*arguments.bind(), *memory, *for_tasks(task)])
    return Launch(
        kernel=cpu_kernel("pairwise_coupling_kernel", text, origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(x.lens[0], [])),
        bytes=x.footprint + out.footprint,
    )
