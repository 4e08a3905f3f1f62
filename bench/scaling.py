"""Growth of compile CPU time with model size: parsing, every pass and lowering, on graphs of many forms.

``python -m bench.scaling --nodes 1000,3000,10000`` prints a line for each form and stage: CPU seconds at each size, and
the factors between sizes. A line ends in ``!`` if a factor exceeds the nodes' factor by more than a sixth. No kernel is
compiled. ``--calls`` counts function calls (in millions) instead of seconds: other processes, memory costs and loops in
C do not affect the count.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import os
from collections.abc import Callable, Sequence

from onnx import helper

from bench.models.builder import FLOAT, GraphBuilder
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.mxr import load_buffer, save_buffer
from mgx_numba.graph.passes import Options, run_passes
from mgx_numba.targets.cpu.lower import lower
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.passes import PASSES

__all__ = ["FORMS", "CallCounter", "Costs", "measure", "model_of"]

LENS = (2, 8)
ALLOWED = 7 / 6
"""Growth beyond that of the nodes that is attributed to measuring and to a larger heap."""
LEAST = 0.1
"""Least cost, at the largest size, of a stage whose growth is reported."""


class Costs:
    """Cost of each stage by a clock, in the order of their first run; a pass that runs twice is one stage."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.stages: dict[str, float] = {}
        self._clock = clock
        self._since = clock()

    def add(self, stage: str) -> None:
        """Add the time since the last stage to a stage."""
        self.stages[stage] = self.stages.get(stage, 0.0) + self._clock() - self._since
        self._since = self._clock()


class CallCounter:
    """A clock that counts function calls, in millions."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile(subcalls=False)

    def __call__(self) -> float:
        self._profile.disable()
        count: int = sum(entry.callcount for entry in self._profile.getstats())
        self._profile.enable()
        return count / 1e6

    def stop(self) -> None:
        """Stop counting, which restores full speed."""
        self._profile.disable()


def user_seconds() -> float:
    """Return the user CPU seconds of this process; system time is left out, since it depends on the age of memory."""
    return os.times().user


def measure(data: bytes, clock: Callable[[], float] = user_seconds) -> Costs:
    """Return the costs of compiling a model to a plan, without Python's garbage collector, which scans all objects."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _measured(data, Costs(clock))
    finally:
        if collecting:
            gc.enable()


def _measured(data: bytes, costs: Costs) -> Costs:
    program = parse_onnx(data)
    costs.add("parse")
    saved = save_buffer(program)
    costs.add("save")
    load_buffer(saved)
    costs.add("load")
    str(program)
    costs.add("print")
    program = program.clone()
    costs.add("clone")
    run_passes(program, PASSES, Options(fast_math=True), trace=lambda name, _: costs.add(name))
    lower(program, TargetOptions(num_threads=2))
    costs.add("lower")
    return costs


def _summed(b: GraphBuilder, values: Sequence[str]) -> str:
    """Append a balanced tree of sums."""
    values = list(values)
    while len(values) > 1:
        pairs = [b.node("Add", *values[k : k + 2]) for k in range(0, len(values) - 1, 2)]
        values = pairs + values[len(values) - len(values) % 2 :]
    return values[0]


def chain(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append a chain of pointwise operations."""
    other = b.input("other", LENS)
    for k in range(nodes):
        x = b.node("Relu", x) if k % 3 == 0 else b.node("Add" if k % 3 == 1 else "Mul", x, other)
    return x


def kernels(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append operations that cannot be fused: softmax after softmax."""
    for k in range(nodes // 2):
        x = b.node("Softmax", b.node("Tanh", x), axis=k % 2)
    return x


def results(b: GraphBuilder, x: str, nodes: int) -> str:
    """Add a result per node, each with a separate constant."""
    for k in range(nodes - 1):
        b.output(f"r{k}", b.node("Add", x, b.weight(f"w{k}", b.normal(8, std=1))), LENS)
    return b.node("Neg", x)


def fan_out(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append one value with as many users, joined by a concatenation."""
    root = b.node("Exp", x)
    return b.node("Concat", *(b.node("Pow", root, b.const([1.1 + k])) for k in range(nodes - 1)), axis=1)


def fan_in(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append a tree of sums over products."""
    return _summed(b, [b.node("Mul", x, b.const([0.1 + k])) for k in range(nodes // 2)])


def literals(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append sums of constants, which are folded, and one operation that is not."""
    total = _summed(b, [b.weight(f"w{k}", b.normal(8, std=1)) for k in range(nodes)])
    return b.node("Add", x, total)


def duplicates(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append equal expressions, level after level."""
    for _ in range(nodes // 4):
        x = b.node("Add", b.node("Tanh", b.node("Neg", x)), b.node("Tanh", b.node("Neg", x)))
    return x


def slices(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append slices of a value, concatenated in a different order."""
    wide = b.node("Expand", x, b.ints(2, 8))
    columns = [b.node("Slice", wide, b.ints(k % 7), b.ints(k % 7 + 1), b.ints(1)) for k in range(nodes // 2)]
    pairs = [b.node("Concat", *columns[k : k + 2][::-1], axis=1) for k in range(0, len(columns), 2)]
    return b.node("Concat", *pairs, axis=1)


def nested(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append concatenations that grow by one slice at a time, cut back to the same length."""
    for _ in range(nodes // 2):
        x = b.node("Slice", b.node("Concat", x, x, axis=1), b.ints(3), b.ints(11), b.ints(1))
    return x


def transposes(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append transposes and reshapes between pointwise operations."""
    shape = b.ints(2, 8)
    for k in range(nodes // 4):
        x = b.node("Transpose", x, perm=[1, 0])
        x = b.node("Reshape", b.node("Sigmoid", x), shape)
        x = b.node("Add", x, b.const([0.1 * k]))
    return x


def branches(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append a sequence of conditional subgraphs that capture outer values."""
    condition = b.input("condition", [1], 9)
    for k in range(nodes // 5):
        bodies = {}
        for name, op in (("then_branch", "Sin"), ("else_branch", "Cos")):
            end = helper.make_tensor_value_info(f"{name}{k}", FLOAT, LENS)
            inner = [helper.make_node(op, [x], [f"{name}{k}_0"]), helper.make_node("Neg", [f"{name}{k}_0"], [end.name])]
            bodies[name] = helper.make_graph(inner, name, [], [end])
        x = b.node("If", condition, **bodies)
    return x


def residual(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append convolutions, activations and residual sums."""
    x = b.node("Reshape", x, b.ints(1, 4, 2, 2))
    weights = [b.weight(f"w{k}", b.normal(4, 4, 3, 3, std=0.1)) for k in range(8)]
    for k in range(nodes // 3):
        y = b.node("Relu", b.node("Conv", x, weights[k % 8], pads=[1, 1, 1, 1]))
        x = b.node("Add", x, y)
    return b.node("Reshape", x, b.ints(2, 8))


def transformer(b: GraphBuilder, x: str, nodes: int) -> str:
    """Append products, layer normalisations and attention, as exporters write them."""
    weights = [b.weight(f"w{k}", b.normal(8, 8, std=0.3)) for k in range(8)]
    scale = b.weight("scale", b.normal(8, std=0.1, mean=1))
    for k in range(nodes // 8):
        y = b.node("LayerNormalization", x, scale)
        q, key, v = (b.node("MatMul", y, weights[(k + i) % 8]) for i in range(3))
        scores = b.node("Softmax", b.node("MatMul", q, b.node("Transpose", key, perm=[1, 0])))
        x = b.node("Add", x, b.node("MatMul", scores, v))
    return x


FORMS: dict[str, Callable[[GraphBuilder, str, int], str]] = {
    f.__name__: f
    for f in (
        chain, kernels, results, fan_out, fan_in, literals, duplicates, slices, nested, transposes, branches, residual,
        transformer,
    )
}  # fmt: skip
"""Graph forms by name: each appends nodes to a model with the input ``x`` of `LENS`, and returns a value."""


def model_of(form: str, nodes: int) -> bytes:
    """Return an ONNX file of about ``nodes`` nodes."""
    b = GraphBuilder(form, 17)
    value = FORMS[form](b, b.input("x", LENS), nodes)
    b.output("y", value, [None, None])  # type: ignore[list-item]
    return b.model().SerializeToString()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="1000,3000,10000", help="sizes, each larger (default: %(default)s)")
    parser.add_argument("--forms", default=",".join(FORMS), help="graphs (default: all)")
    parser.add_argument("--calls", action="store_true", help="count calls instead of seconds")
    arguments = parser.parse_args()
    sizes = [int(n) for n in arguments.nodes.split(",")]
    clock = CallCounter() if arguments.calls else user_seconds
    measure(model_of("transformer", 100))  # imports
    unit = "millions of calls" if arguments.calls else "seconds of CPU"
    print(f"{unit:44}" + "".join(f"{n:>10}{'':6}" for n in sizes))
    for form in arguments.forms.split(","):
        found = [measure(model_of(form, n), clock).stages for n in sizes]
        for stage in [*found[-1], "all"]:
            costs = [sum(f.values()) if stage == "all" else f[stage] for f in found]
            if costs[-1] < LEAST:
                continue
            growth = [b / max(a, 1e-6) for a, b in itertools.pairwise(costs)]
            shown = "".join(f"{s:10.3f} {f'x{g:.1f}':>5}" for s, g in zip(costs[1:], growth))
            steep = costs[-2] >= LEAST / 10 and growth[-1] > ALLOWED * sizes[-1] / sizes[-2]
            print(f"{form:12} {stage:31}{costs[0]:10.3f}{'':6}{shown}{' !' * steep}", flush=True)


if __name__ == "__main__":
    main()
